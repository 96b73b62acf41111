"""What a run leaves on disk."""

from __future__ import annotations

import csv
import glob
import json
import math
import os
import struct

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from tff_algos.simulation import records

_COLUMNS = ["round", "train_loss", "test_accuracy", "bytes_down"]


def _record(round_num: int, accuracy=None, **changes) -> dict:
  record = dict(
    round=round_num,
    train_loss=1 / round_num,
    seconds=0.5 + round_num,
    bytes_down=1000 * round_num,
    bytes_up=10 * round_num,
    num_dropped=round_num % 2,
    **changes,
  )
  if accuracy is not None:
    record["test_accuracy"] = accuracy
  return record


# --- metrics.csv and TensorBoard ----------------------------------------------------


def _rows(folder) -> list[dict]:
  with open(folder / records.METRICS, newline="") as f:
    return list(csv.DictReader(f))


def _events(folder) -> dict[tuple[str, int], list[float]]:
  """(name, step) to the values that TensorBoard would show."""
  found: dict[tuple[str, int], list[float]] = {}
  for path in glob.glob(os.path.join(folder, "tensorboard", "events.out.tfevents.*")):
    for raw in tf.data.TFRecordDataset(path):
      event = tf.compat.v1.Event.FromString(raw.numpy())
      for value in event.summary.value:
        number = float(tf.make_ndarray(value.tensor))
        found.setdefault((value.tag, event.step), []).append(number)
  return found


def _write(folder, before: list[dict], new: list[dict]):
  writer = records.RecordWriter(str(folder), _COLUMNS)
  writer.start(before)
  for record in new:
    writer.write(record)
  return writer


def test_each_round_is_a_row(tmp_path):
  given_records = [_record(1, 0.1 + 0.2), _record(2), _record(3, 0.75)]
  _write(tmp_path, [], given_records).close()
  rows = _rows(tmp_path)
  assert [list(row) for row in rows] == [_COLUMNS] * 3
  for row, record in zip(rows, given_records):
    assert int(row["round"]) == record["round"]
    assert float(row["train_loss"]) == record["train_loss"]
    assert int(row["bytes_down"]) == record["bytes_down"]
    accuracy = record.get("test_accuracy")
    assert row["test_accuracy"] == ("" if accuracy is None else repr(accuracy))


def test_none_is_an_empty_cell_and_nothing_in_tensorboard(tmp_path):
  _write(tmp_path, [], [dict(_record(1), test_accuracy=None)]).close()
  assert _rows(tmp_path)[0]["test_accuracy"] == ""
  assert ("test_accuracy", 1) not in _events(tmp_path)


def test_row_is_on_disk_as_soon_as_it_is_written(tmp_path):
  """A run that is killed leaves the rounds it did."""
  writer = _write(tmp_path, [], [_record(1), _record(2)])
  assert [row["round"] for row in _rows(tmp_path)] == ["1", "2"]
  assert _events(tmp_path)["train_loss", 2] == [0.5]
  writer.close()


def test_the_head_is_on_disk_before_the_first_round(tmp_path):
  """Which may take long, and others read the file."""
  writer = _write(tmp_path, [], [])
  assert (tmp_path / "metrics.csv").read_text().split() == [",".join(_COLUMNS)]
  writer.close()


def test_events_are_what_tensorboard_reads(tmp_path):
  given_records = [_record(1, 0.5), _record(2)]
  _write(tmp_path, [], given_records).close()
  found = _events(tmp_path)
  expected = {
    (name, record["round"]): value
    for record in given_records
    for name, value in record.items()
    if name != "round"
  }
  assert set(found) == set(expected)
  for key, values in found.items():
    assert values == [pytest.approx(expected[key], rel=1e-6)]


def test_closed_files_are_on_the_disk(tmp_path, monkeypatch):
  """Which else takes the system half a minute."""
  synced, fsync = set(), os.fsync

  def sync(handle):
    synced.add(os.path.basename(os.readlink(f"/proc/self/fd/{handle}")))
    fsync(handle)

  monkeypatch.setattr(os, "fsync", sync)
  _write(tmp_path, [], [_record(1)]).close()
  [events] = os.listdir(tmp_path / "tensorboard")
  assert {"metrics.csv", events, "tensorboard"} <= synced


def test_resumed_run_writes_each_round_once(tmp_path):
  """Rounds 3 and 4 were done before the run died, and are done again."""
  done = [_record(i, i / 10) for i in range(1, 5)]
  _write(tmp_path, [], done)  # Not closed: the process died.
  again = [_record(i, i / 10) for i in (3, 4, 5)]
  _write(tmp_path, done[:2], again).close()
  assert [row["round"] for row in _rows(tmp_path)] == ["1", "2", "3", "4", "5"]
  found = _events(tmp_path)
  assert {step for _, step in found} == {1, 2, 3, 4, 5}
  assert all(len(values) == 1 for values in found.values())


def test_events_of_before_go_whatever_the_folders_name(tmp_path):
  """Brackets are a pattern's; TensorBoard would show the rounds done twice as two."""
  folder = tmp_path / "betas=[0.1]"
  folder.mkdir()
  for _ in range(2):
    _write(folder, [], [_record(1)]).close()
  assert len(os.listdir(folder / "tensorboard")) == 1


def test_events_of_before_stay_where_none_are_written(tmp_path):
  """A run that is resumed with another tracker, or none."""
  _write(tmp_path, [], [_record(1)]).close()
  found = _events(tmp_path)
  assert found
  writer = records.RecordWriter(str(tmp_path), _COLUMNS, with_events=False)
  writer.start([_record(1)])
  writer.close()
  assert _events(tmp_path) == found


def test_title_with_dollars_is_drawn(tmp_path):
  """As of a data set's note, which Matplotlib would read as a formula."""
  path = tmp_path / "traffic.png"
  title = "a $5_{ $x^^ note"
  records.draw_traffic(
    [_sent(1, 0.5, down_model=4)], str(path), metric="test_accuracy", title=title
  )
  assert path.exists()


def test_json_of_numpys_numbers_is_pythons(tmp_path):
  path = str(tmp_path / "a.json")
  records.write_json(path, {"a": np.int64(3), "b": [np.float32(0.5), np.bool_(True)]})
  with open(path) as f:
    assert json.load(f) == {"a": 3, "b": [0.5, True]}
  with pytest.raises(TypeError):
    records.write_json(path, {"a": object()})


def test_nothing_is_written_outside_the_folder_and_closing_twice_is_fine(tmp_path):
  folder = tmp_path / "run"
  folder.mkdir()
  records.RecordWriter(str(folder), _COLUMNS).close()
  assert os.listdir(folder) == []
  writer = _write(folder, [], [_record(1)])
  writer.close()
  writer.close()
  assert os.listdir(tmp_path) == ["run"]


# --- The summary --------------------------------------------------------------------


def _summarize(values, target=None) -> dict:
  """Of a run with these test accuracies, a round each."""
  rounds = [_record(i + 1, value) for i, value in enumerate(values)]
  return records.summarize(rounds, metric="test_accuracy", target=target)


def test_best_and_final_with_their_rounds():
  found = _summarize([0.1, 0.7, None, 0.7, 0.5, None])
  assert (found["best_accuracy"], found["best_accuracy_round"]) == (0.7, 2)
  assert (found["final_accuracy"], found["final_accuracy_round"]) == (0.5, 5)
  assert found["rounds"] == 6


def test_sums_and_median_of_the_rounds():
  """Of all of them, measured or not."""
  found = _summarize([0.1, 0.2, None, 0.4, 0.5])
  assert found["bytes_down"] == 15_000
  assert found["bytes_up"] == 150
  assert found["bytes_by_part"] == {"down": {}, "up": {}}
  assert found["clients_dropped"] == 3
  assert found["first_round_seconds"] == 1.5
  assert found["median_seconds_per_round"] == 4.0  # Of 2.5, 3.5, 4.5 and 5.5.


def test_single_round_is_the_first_and_the_median():
  found = _summarize([0.1])
  assert found["first_round_seconds"] == found["median_seconds_per_round"] == 1.5


def test_accuracy_of_zero_is_an_accuracy():
  found = _summarize([0.0])
  assert (found["best_accuracy"], found["best_accuracy_round"]) == (0.0, 1)
  assert (found["final_accuracy"], found["final_accuracy_round"]) == (0.0, 1)


@pytest.mark.parametrize(
  "values, best, round_num",
  [
    ([math.nan, 0.3, 0.2], 0.3, 2),
    ([0.2, math.nan, 0.3, math.nan], 0.3, 3),
    ([0.2, math.inf], 0.2, 1),
    ([math.nan, math.nan], None, None),
  ],
)
def test_diverged_rounds_are_never_the_best(values, best, round_num):
  found = _summarize(values, target=0.25)
  assert (found["best_accuracy"], found["best_accuracy_round"]) == (best, round_num)


def test_of_the_loss_the_least_is_best():
  losses = [0.5, math.nan, 0.25, None, 0.25, 0.75]
  rounds = [_record(t, test_loss=loss) for t, loss in enumerate(losses, 1)]
  found = records.summarize(rounds, metric="test_loss", target=None)
  assert (found["best_loss"], found["best_loss_round"]) == (0.25, 3)
  assert (found["final_loss"], found["final_loss_round"]) == (0.75, 6)
  assert not any("accuracy" in name for name in found)


def test_what_json_does_not_have_is_null():
  content = {"a": [1.5, math.nan, np.float32(np.inf)], "b": {"c": -math.inf, "d": None}}
  found = records.finite({**content, "e": 3, "f": "nan", "g": True})
  assert found == {
    **{"a": [1.5, None, None], "b": {"c": None, "d": None}},
    **{"e": 3, "f": "nan", "g": True},
  }
  json.dumps(found, allow_nan=False)


def test_run_without_rounds():
  found = records.summarize([], metric="test_accuracy", target=0.9)
  assert found["rounds"] == found["bytes_down"] == found["bytes_up"] == 0
  assert found["bytes_by_part"] == {"down": {}, "up": {}}
  names = ("best", "final")
  for name in (
    *(f"{n}_accuracy" for n in names),
    *(f"{n}_accuracy_round" for n in names),
  ):
    assert found[name] is None
  assert found["rounds_to_target"] is None
  assert found["first_round_seconds"] is None


@pytest.mark.parametrize(
  "values, target, expected",
  [
    ([0.1, 0.5, 0.4, 0.6], 0.5, 2),
    ([0.1, 0.5, 0.4, 0.6], 0.51, 4),
    ([0.1, 0.5], 0.6, None),
    ([0.6], 0.6, 1),
    ([None, 0.1, None, 0.9], 0.5, 4),
    ([math.nan, 0.9], 0.5, 2),
    ([], 0.5, None),
  ],
)
def test_rounds_to_target_is_the_first_measured_round_that_reaches_it(
  values, target, expected
):
  rounds = [_record(i + 1, value) for i, value in enumerate(values)]
  assert records.rounds_to_target(rounds, "test_accuracy", target) == expected
  found = _summarize(values, target=target)
  assert (found["target_accuracy"], found["rounds_to_target"]) == (target, expected)


def test_without_a_target_the_summary_has_none():
  assert not [name for name in _summarize([0.5]) if "target" in name]


@given(st.lists(st.one_of(st.none(), st.floats(0, 1)), min_size=1))
def test_best_is_the_maximum_of_what_was_measured(values):
  found = _summarize(values)
  measured = [value for value in values if value is not None]
  assert found["best_accuracy"] == max(measured, default=None)
  assert found["final_accuracy"] == (measured[-1] if measured else None)
  json.dumps(found)


# --- Bytes by part ------------------------------------------------------------------


def _sent(round_num: int, accuracy=None, **parts) -> dict:
  """A record whose totals are the sums of its parts, such as `down_model=7`."""
  record = _record(round_num, accuracy)
  for direction in ("down", "up"):
    mine = [n for name, n in parts.items() if name.startswith(direction + "_")]
    record[f"bytes_{direction}"] = sum(mine)
  return {**record, **{f"bytes_{name}": n for name, n in parts.items()}}


def test_parts_are_summed_over_rounds_the_most_first():
  rounds = [
    _sent(1, down_hparams=4, down_model=10, up_model=10, up_metrics=24),
    _sent(2, down_hparams=4, down_model=10, up_model=10, up_metrics=24),
  ]
  found = records.bytes_by_part(rounds)
  assert found == {
    "down": {"model": 20, "hparams": 8},
    "up": {"metrics": 48, "model": 20},
  }
  assert list(found) == ["down", "up"]
  assert list(found["down"]) == ["model", "hparams"]
  assert list(found["up"]) == ["metrics", "model"]
  summary = records.summarize(rounds, metric="test_accuracy", target=None)
  assert summary["bytes_by_part"] == found
  assert (summary["bytes_down"], summary["bytes_up"]) == (28, 68)
  assert list(json.loads(json.dumps(summary))["bytes_by_part"]["up"]) == [
    "metrics",
    "model",
  ]


def test_part_that_not_every_round_has():
  """As 0, or, in a record of before there were parts, not at all."""
  rounds = [
    _record(1),
    _sent(2, down_deep=0, down_shallow=10, down_round_num=4),
    _sent(3, down_deep=20, down_shallow=10, down_round_num=4),
    _sent(4, up_own=3),
  ]
  assert records.bytes_by_part(rounds) == {
    "down": {"deep": 20, "shallow": 20, "round_num": 8},
    "up": {"own": 3},
  }
  assert records.bytes_by_part([]) == {"down": {}, "up": {}}


@pytest.mark.parametrize(
  "least, expected",
  [
    (
      10,
      [
        ("down", "model", 1000),
        ("down", "other", 5),
        ("up", "model", 990),
        ("up", "metrics", 10),
      ],
    ),
    (
      10.5,
      [
        ("down", "model", 1000),
        ("down", "other", 5),
        ("up", "model", 990),
        ("up", "other", 10),
      ],
    ),
    (
      1,
      [
        ("down", "model", 1000),
        ("down", "hparams", 3),
        ("down", "round_num", 2),
        ("up", "model", 990),
        ("up", "metrics", 10),
      ],
    ),
    (995, [("down", "model", 1000), ("down", "other", 5), ("up", "other", 1000)]),
  ],
)
def test_small_parts_of_a_direction_are_one(least, expected):
  """Also a part that never travelled, of which there is no bar."""
  by_part = {
    "down": {"model": 1000, "hparams": 3, "round_num": 2, "deep": 0},
    "up": {"model": 990, "metrics": 10},
  }
  assert records.large_parts(by_part, least) == expected


_parts = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 99))


@given(_parts, _parts, st.integers(1, 99))
def test_no_byte_is_lost_when_small_parts_are_one(down, up, least):
  by_part = {"down": down, "up": up}
  found = records.large_parts(by_part, least)
  for direction, parts in by_part.items():
    mine = {part: n for d, part, n in found if d == direction}
    assert sum(mine.values()) == sum(parts.values())
    assert all(n >= least for part, n in mine.items() if part != "other")


# --- Files --------------------------------------------------------------------------


def test_json_is_written_whole_or_not_at_all(tmp_path):
  path = tmp_path / "summary.json"
  records.write_json(str(path), {"a": [1, None], "b": 0.1})
  assert json.loads(path.read_text()) == {"a": [1, None], "b": 0.1}
  with pytest.raises(TypeError):
    records.write_json(str(path), {"a": 1, "b": object()})
  assert json.loads(path.read_text()) == {"a": [1, None], "b": 0.1}


def _png_size(path) -> tuple[int, int]:
  head = path.read_bytes()[:24]
  assert head[:8] == b"\x89PNG\r\n\x1a\n"
  return struct.unpack(">II", head[16:])


@pytest.mark.parametrize("target", [None, 0.4])
@pytest.mark.parametrize("rounds", [1, 2, 100])
def test_picture_of_the_accuracy(tmp_path, rounds, target):
  path = tmp_path / "accuracy.png"
  run = [_record(i + 1, 0.5 * i / rounds if i % 3 else None) for i in range(rounds)]
  run[0]["test_accuracy"] = 0.1
  records.draw_metric(
    run, str(path), metric="test_accuracy", title="a title", target=target
  )
  assert _png_size(path) == (840, 504)
  pixels = tf.io.decode_png(path.read_bytes(), channels=3).numpy()
  assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 10  # Not an empty canvas.


@pytest.mark.parametrize(
  "accuracies, said",
  [
    ([math.nan, 0.4, 0.6, 0.6], ["best 60.00 % in round 3"]),
    ([math.nan, math.nan], []),
  ],
)
def test_picture_of_a_run_that_diverged_says_its_best(monkeypatch, accuracies, said):
  drawn = []
  monkeypatch.setattr(
    records.durable_files, "save_picture", lambda figure, path: drawn.append(figure)
  )
  run = [_record(t, a) for t, a in enumerate(accuracies, 1)]
  # A data set's note is no formula, and this would be none.
  records.draw_metric(
    run, "accuracy.png", metric="test_accuracy", title=r"split $\mycut$"
  )
  [axes] = drawn[0].axes
  assert axes.get_legend_handles_labels()[1] == said
  drawn[0].canvas.draw()


def test_pictures_of_the_loss(monkeypatch):
  drawn = []
  monkeypatch.setattr(
    records.durable_files, "save_picture", lambda figure, path: drawn.append(figure)
  )
  losses = {1: 0.5, 2: 0.25}
  run = [{**_sent(t, down_model=10**6), "test_loss": losses[t]} for t in losses]
  records.draw_metric(run, "loss.png", metric="test_loss", title="a title")
  records.draw_traffic(run, "traffic.png", metric="test_loss", title="a title")
  curve, against_bytes = (figure.axes[0] for figure in drawn)
  assert curve.get_legend_handles_labels()[1] == ["best 0.25 in round 2"]
  for axes in (curve, against_bytes):
    assert axes.get_ylabel() == "test loss"
    np.testing.assert_array_equal(axes.get_lines()[0].get_ydata(), [0.5, 0.25])
  np.testing.assert_array_equal(against_bytes.get_lines()[0].get_xdata(), [1, 2])


def test_run_that_was_never_measured_has_no_picture(tmp_path):
  path = tmp_path / "accuracy.png"
  records.draw_metric(
    [_record(1), _record(2)], str(path), metric="test_accuracy", title="a title"
  )
  assert not path.exists()


def test_picture_of_the_traffic(tmp_path):
  path = tmp_path / "traffic.png"
  rounds = [
    _sent(i, 0.1 * i if i % 2 else None, down_model=10**6, up_model=10**6, up_metrics=24)
    for i in range(1, 6)
  ]
  records.draw_traffic(rounds, str(path), metric="test_accuracy", title="a title")
  assert _png_size(path) == (1200, 504)
  pixels = tf.io.decode_png(path.read_bytes(), channels=3).numpy()
  assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 10  # Not an empty canvas.


def test_what_the_picture_of_the_traffic_shows(tmp_path, monkeypatch):
  """Accuracy against the bytes of all rounds so far, also of those not measured."""
  drawn = []
  monkeypatch.setattr(
    records.Figure, "savefig", lambda figure, *_, **__: drawn.append(figure)
  )
  rounds = [
    _sent(1, down_model=100_000, up_model=100_000, up_metrics=2_000, down_hparams=998),
    _sent(2, 0.25, down_model=100_000, up_model=99_001, down_hparams=1),
    _sent(3, down_model=100_000, up_model=100_000),
    _sent(4, 0.75, down_model=200_000, up_model=198_000),
  ]
  records.draw_traffic(
    rounds, str(tmp_path / "traffic.png"), metric="test_accuracy", title="a title"
  )
  [figure] = drawn
  curve, bars = figure.axes
  [line] = curve.lines
  np.testing.assert_allclose(line.get_xdata(), [0.402, 1.0], rtol=1e-12)
  np.testing.assert_allclose(line.get_ydata(), [25, 75], rtol=1e-12)
  # Of a million bytes 1,000 are a thousandth.
  shown = {
    label.get_text(): bar.get_width()
    for label, bar in zip(bars.get_yticklabels(), bars.patches)
  }
  assert shown == pytest.approx(
    {
      "down: model": 0.5,
      "down: other": 0.000999,
      "up: model": 0.497001,
      "up: metrics": 0.002,
    }
  )
  from_the_top = [label.get_text() for label in bars.get_yticklabels()][::-1]
  assert from_the_top == ["down: model", "down: other", "up: model", "up: metrics"]
  assert bars.get_xlim()[1] > 0.5
  assert figure.get_suptitle() == "a title"


def test_run_in_which_nothing_crossed_has_no_picture_of_its_traffic(tmp_path):
  path = tmp_path / "traffic.png"
  rounds = [dict(_sent(1, down_model=0, up_model=0), test_accuracy=0.5)]
  records.draw_traffic(rounds, str(path), metric="test_accuracy", title="a title")
  assert not path.exists()


def test_run_that_was_never_measured_has_no_picture_of_its_traffic(tmp_path):
  path = tmp_path / "traffic.png"
  for rounds in ([], [_sent(1, down_model=4), _sent(2, down_model=4)]):
    records.draw_traffic(rounds, str(path), metric="test_accuracy", title="a title")
    assert not path.exists()
