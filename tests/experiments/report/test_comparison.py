"""The table of several runs, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.report import comparison
from experiments.run_folder.reading import read_run


@pytest.fixture
def pictured(monkeypatch):
  """The pictures, in place of their files."""
  found = []
  monkeypatch.setattr(
    comparison.durable_files, "save_picture", lambda figure, path: found.append(figure)
  )
  return found


def test_table_gives_best_final_and_the_way_to_the_target(
  write_run, read_table, tmp_path
):
  run = read_run(write_run(tmp_path / "a"))
  known = ["a", "75.00 % (round 3)", "50.00 %", "4", "6.00"]
  assert read_table(comparison.table([run], 0.75)) == [[*known, "3", "6.00"]]
  assert read_table(comparison.table([run], 0.8)) == [[*known, "not reached", ""]]
  assert read_table(comparison.table([run], None)) == [known]


def test_mean_of_the_last_rounds_is_of_those_that_were_measured(
  write_run, read_table, tmp_path
):
  """25, -, 75 and 50 %."""
  run = read_run(write_run(tmp_path / "a"))
  for last, mean in ((1, "50.00 %"), (2, "62.50 %"), (3, "62.50 %"), (4, "50.00 %")):
    assert [row[-1] for row in read_table(comparison.table([run], None, last))] == [mean]
  assert len(read_table(comparison.table([run], 0.8, 2))[0]) == 8
  assert comparison.last_values(run, 5) == []
  more = ["1,2,0.1,1,0,5,5", "2,2,0.3,1,0,5,5"], ["1,2,0.1,1,0,5,5", "2,2,0.5,1,0,5,5"]
  runs = [
    read_run(write_run(tmp_path / f"s{k}", rounds=rounds, flags={"seed": k}))
    for k, rounds in enumerate(more)
  ]
  [row] = read_table(comparison.table(runs, None, 2))
  assert row[-1] == "25.00 ± 7.07 %"  # Of 20 and 30.


def test_rounds_and_megabytes_are_of_all_rounds(write_run, read_table, tmp_path):
  rounds = ["1,1,0.4,1,0,1000000,0", "2,1,0.5,1,0,1000000,0", "3,1,,1,0,1000000,0"]
  run = read_run(write_run(tmp_path / "a", rounds=rounds))
  [row] = read_table(comparison.table([run], None))
  assert row[2:] == ["50.00 %", "3", "3.00"]


def test_megabytes_of_small_runs_are_not_zero_and_those_of_large_ones_whole(
  write_run, read_table, tmp_path
):
  for size, shown in ((31_176, "0.0312"), (42_935_200_000, "42,935")):
    run = read_run(write_run(tmp_path / shown, rounds=[f"1,1,0.5,1,0,{size},0"]))
    [row] = read_table(comparison.table([run], 0.5))
    assert [row[4], row[6]] == [shown, shown]


def test_every_line_has_as_many_cells_as_the_head(write_run, read_table, tmp_path):
  run = read_run(write_run(tmp_path / "a"))
  for target in (None, 0.5, 0.9):
    assert len(read_table(comparison.table([run, run], target))) == 2


@pytest.mark.parametrize(
  "last, every, total, growth",
  [
    (1, 1, 1e5, 1),
    (1, 1, 1e5, 1.0001),
    (1, 1, 2.1e11, 4),
    (1, 1, 2.1e11, 60),
    (2, 1, 1e5, 1),
    (8, 2, 1e7, 2),
    (8, 2, 1e7, 1e12),
    (1900, 50, 1e10, 1),
  ],
)
def test_numbers_at_axes_are_whole_rounds_and_apart(
  pictured, write_run, tmp_path, last, every, total, growth
):
  """Of two runs, of which one sends so many bytes, the other so many times as many."""
  runs = []
  for name, size in (("a", total / last), ("b", growth * total / last)):
    rounds = [
      f"{t},1,{'' if t % every else t / last},1,0,{size:.0f},0"
      for t in range(1, last + 1)
    ]
    runs.append(read_run(write_run(tmp_path / name, rounds=rounds)))
  comparison.draw(runs, str(tmp_path / "x.png"), "x")
  [picture] = pictured
  picture.draw_without_rendering()
  *of_rounds, by_bytes = picture.axes
  for axes in of_rounds:
    assert all(text.get_text().isdecimal() for text in _numbers(axes))
  for axes in picture.axes:
    boxes = [text.get_window_extent() for text in _numbers(axes)]
    assert all(one.x1 < other.x0 for one, other in zip(boxes, boxes[1:]))
  assert 2 <= len({text.get_text() for text in _numbers(by_bytes)}) <= 7


def _numbers(axes):
  """What stands at a frame's x axis, from left to right."""
  low, high = axes.get_xlim()
  found = [
    (tick.get_loc(), tick.label1)
    for tick in (*axes.xaxis.get_major_ticks(), *axes.xaxis.get_minor_ticks())
    if low <= tick.get_loc() <= high and tick.label1.get_text()
  ]
  return [text for _, text in sorted(found, key=lambda pair: pair[0])]


def test_bands_are_a_deviation_around_the_means_that_were_measured(
  write_run, pictured, tmp_path
):
  """Of 20 and 40, 60 and 80 %, whatever the lines are smoothed over."""
  runs = [
    read_run(
      write_run(
        tmp_path / f"seed{seed}",
        rounds=[f"{t},1,{a},1,0,1000000,0" for t, a in enumerate(accuracies, 1)],
        flags={"seed": seed},
      )
    )
    for seed, accuracies in enumerate(((0.2, 0.6), (0.4, 0.8)))
  ]
  comparison.draw(runs, str(tmp_path / "x.png"), "x", smooth=3)
  by_round, closer, _, by_bytes = pictured[0].axes
  for axes in (by_round, closer, by_bytes):
    [band] = axes.collections
    points = band.get_paths()[0].vertices
    for place, mean in ((1, 30), (2, 70)):  # Rounds, and megabytes too.
      heights = points[points[:, 0] == place][:, 1]
      found = heights.min(), heights.max()
      np.testing.assert_allclose(found, [mean - 200**0.5, mean + 200**0.5])


def test_panels_are_of_rounds_values_and_megabytes(write_run, pictured, tmp_path):
  run = read_run(write_run(tmp_path / "a"))
  comparison.draw([run], str(tmp_path / "x.png"), "x")
  by_round, _, bytes_by_round, by_bytes = pictured[0].axes
  for axes, x, y in (
    (by_round, run.rounds, run.values),
    (bytes_by_round, run.rounds, run.megabytes),
    (by_bytes, run.megabytes, run.values),
  ):
    [line] = axes.lines
    assert (list(line.get_xdata()), list(line.get_ydata())) == (x, y)
