"""The picture of a table."""

from __future__ import annotations

import pytest

from experiments.tables import pictures
from experiments.tables.measures import Curve


def test_column_without_a_number_gets_no_frame(tmp_path):
  known = pictures.Points("known", [(1.0, 0.5), (None, 0.0)], [2.0, None])
  empty = pictures.Points("empty", [(None, 0.0)] * 2, [None] * 2)
  for name, columns in (("one", [known]), ("both", [empty, known]), ("none", [empty])):
    pictures.draw_table("x", ["a", "b"], columns, str(tmp_path / f"{name}.png"))
  one, both, none = (
    (tmp_path / f"{n}.png").read_bytes() for n in ("one", "both", "none")
  )
  assert both == one != none


@pytest.fixture
def pictured(monkeypatch):
  """The pictures, which are files too."""
  found = []
  save = pictures.durable_files.save_picture
  monkeypatch.setattr(
    pictures.durable_files,
    "save_picture",
    lambda picture, path: (found.append(picture), save(picture, path)),
  )
  return found


def test_a_narrow_column_is_shown_no_narrower_than_it_says(pictured, tmp_path):
  """0.2 points are not to look like much."""
  column = pictures.Points("x (%)", [(90.0, 0.0), (90.2, 0.0)], [None, None], 5.0)
  pictures.draw_table("x", ["a", "b"], [column], str(tmp_path / "x.png"))
  low, high = pictured[0].axes[0].get_xlim()
  assert high - low >= 5.0 - 1e-9 and low < 90 < high


def test_counts_are_told_in_whole_numbers(pictured, tmp_path):
  for is_whole in (True, False):
    column = pictures.Points("R", [(3.0, 0.0), (5.0, 0.0)], [None] * 2, 0.0, is_whole)
    pictures.draw_table("x", ["a", "b"], [column], str(tmp_path / "x.png"))
  whole, other = ([*p.axes[0].get_xticks()] for p in pictured)
  assert all(tick == round(tick) for tick in whole) and 4 in whole
  assert any(tick != round(tick) for tick in other)


def test_a_count_that_all_have_is_told_in_whole_numbers_too(pictured, tmp_path):
  column = pictures.Points("R", [(1.0, 0.0)] * 2, [None] * 2, 0.0, True)
  pictures.draw_table("x", ["a", "b"], [column], str(tmp_path / "x.png"))
  ticks = pictured[0].axes[0].get_xticks()
  assert 1 in ticks and all(tick == round(tick) for tick in ticks)


_KINDS = ("accuracy", "closer", "loss")


def _lines(count, paper=None):
  """Each the mean of two runs, over all heights of a frame."""
  rises = [[0.1, 0.01 * k, 0.1 * k] for k in range(count)]
  return [
    pictures.Line(
      f"fedavg, learning_rate = 0.{k}",
      [Curve([1, 2, 3], [a + b for a in rise], rise, 0, 0, 0, "", ()) for b in (0, 0.1)],
      paper,
    )
    for k, rise in enumerate(rises)
  ]


@pytest.mark.parametrize("panels", ["a", "ab"])
def test_legend_of_many_lines_covers_none(pictured, tmp_path, panels):
  drawn = {panel: _lines(9, 90.0 if panel == "b" else None) for panel in panels}
  pictures.draw_figure("x", drawn, str(tmp_path / "x.png"), kinds=_KINDS)
  [picture] = pictured
  [legend] = picture.legends
  names = [text.get_text() for text in legend.get_texts()]
  papers = ["paper (closer view)"] * (panels == "ab")
  assert names == [line.label for line in drawn["a"]] + papers
  for axes in picture.axes:
    assert axes.get_legend() is None
    assert axes.bbox.y0 > legend.get_window_extent().y1


def test_panels_of_other_lines_and_of_few_have_legends_of_their_own(pictured, tmp_path):
  few, many = _lines(3), _lines(9)
  for panels in ({"a": few}, {"a": few, "b": few}, {"a": few, "b": many}):
    pictures.draw_figure("x", panels, str(tmp_path / "x.png"), kinds=_KINDS[:2])
    assert not pictured[-1].legends
    legends = [axes.get_legend() for axes in pictured[-1].axes]
    counts = [len(legend.get_texts()) for legend in legends if legend]
    assert counts == [len(lines) for lines in panels.values()]


def test_a_line_looks_alike_in_a_panel_that_lacks_others(pictured, tmp_path):
  first, second, third = _lines(3, paper=90.0)
  panels = {"a": [first, second, third], "b": [third]}
  pictures.draw_figure("x", panels, str(tmp_path / "x.png"), kinds=_KINDS)
  [picture] = pictured
  looks = {"a": set(), "b": set()}
  for axes in picture.axes:
    # Of the closer look the paper's mark too.
    of_third = axes.get_lines()[-1] if "closer" in axes.get_ylabel() else None
    named = [line for line in axes.get_lines() if line.get_label() == third.label]
    for line in filter(None, [*named, of_third]):
      looks[axes.get_title()].add(line.get_color())
  assert len(looks["a"]) == 1 and looks["a"] == looks["b"]
