"""What the programs read of runs' folders, and which they find."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pathlib
import re

import pytest

from experiments.run_folder import reading
from tff_algos.errors import InputError

_HEAD = "round,train_loss,test_accuracy,seconds,num_dropped,bytes_down,bytes_up"
_PRIVACY = {"epsilon": 2.5, "delta": 1e-5, "most_participations": 3}


def test_reads_rounds_with_an_accuracy_and_sums_the_bytes_of_all(write_run, tmp_path):
  run = reading.read_run(write_run(tmp_path / "a") + "/")
  assert run.name == "a"
  assert run.rounds == [1, 3, 4]
  assert run.values == [25, 75, 50]
  assert run.megabytes == [1.5, 6.0, 6.0]


def test_blank_cells_are_absent_and_counts_are_whole(write_run, tmp_path):
  run = reading.read_run(write_run(tmp_path / "a"))
  assert "test_accuracy" not in run.records[1]
  assert run.records[2] == {
    "round": 3,
    "train_loss": 1.5,
    "test_accuracy": 0.75,
    "seconds": 1.0,
    "num_dropped": 1,
    "bytes_down": 1_000_000,
    "bytes_up": 2_000_000,
  }
  assert isinstance(run.records[2]["bytes_up"], int)


def test_run_that_has_not_ended_is_read_without_its_summary(write_run, tmp_path):
  run = reading.read_run(write_run(tmp_path / "a"))
  assert run.peak_memory is None and run.privacy == "" and run.target is None


def test_summary_gives_memory_and_privacy(write_run, tmp_path):
  folder = write_run(tmp_path / "a")
  summary = {"rounds": 4, "peak_memory_bytes": 123, "privacy": _PRIVACY}
  (tmp_path / "a/summary.json").write_text(json.dumps(summary))
  run = reading.read_run(folder)
  assert run.peak_memory == 123
  assert "epsilon 2.5 at delta 1e-05" in run.privacy and "(3 rounds)" in run.privacy
  assert run.has_ended


def test_summary_of_fewer_rounds_is_not_that_of_the_run(write_run, tmp_path):
  """Its epsilon would be too small for the rounds that came after it."""
  folder = write_run(tmp_path / "a")
  summary = {"rounds": 3, "peak_memory_bytes": 123, "privacy": _PRIVACY}
  (tmp_path / "a/summary.json").write_text(json.dumps(summary))
  run = reading.read_run(folder)
  assert run.peak_memory is None and run.privacy == "" and not run.has_ended


@pytest.mark.parametrize("text", ["", _HEAD, f"{_HEAD}\n", f"{_HEAD}\n1,2.5,0.2"])
def test_run_that_has_only_begun_has_no_rounds(write_run, tmp_path, text):
  folder = write_run(tmp_path / "a")
  (tmp_path / "a/metrics.csv").write_text(text)
  assert reading.read_run(folder).records == []
  (tmp_path / "a/metrics.csv").unlink()
  assert reading.read_run(folder).records == []


def test_last_line_that_was_cut_short_is_left_out(write_run, tmp_path):
  """Also within the last number, which would be a smaller one."""
  folder = write_run(tmp_path / "a")
  path = tmp_path / "a/metrics.csv"
  whole = path.read_text()
  path.write_text(whole + "5,1.0,0.5,1.0,0,1000,24")
  assert len(reading.read_run(folder).records) == whole.count("\n") - 1 == 4


def test_a_row_that_was_cut_out_is_noticed(write_run, tmp_path):
  """Else the bytes to each later accuracy would be too few."""
  folder = write_run(tmp_path / "a")
  path = tmp_path / "a/metrics.csv"
  lines = path.read_text().splitlines(keepends=True)
  path.write_text("".join(lines[:2] + lines[3:]))
  with pytest.raises(InputError, match=r"line 3 of metrics\.csv is of round 3, not 2"):
    reading.read_run(folder)


def test_no_noise_is_no_privacy():
  assert "no differential" in reading.privacy_line({**_PRIVACY, "epsilon": None})


def test_numbers_that_are_not_finite_are_kept_but_no_accuracy_of_a_curve(
  write_run, tmp_path
):
  rows = ["1,nan,nan,1,0,5,5", "2,inf,0.5,1,0,5,5"]
  run = reading.read_run(write_run(tmp_path / "a", rounds=rows))
  assert math.isnan(run.records[0]["train_loss"])
  assert math.isinf(run.records[1]["train_loss"])
  assert run.rounds == [2] and run.values == [50]


@pytest.mark.parametrize("given, rounds", [(None, None), (0.5, 3), (0.8, None)])
def test_summary_has_the_target_that_is_asked_for(write_run, tmp_path, given, rounds):
  run = reading.read_run(write_run(tmp_path / "a", flags={"target_accuracy": 0.9}))
  summary = run.summarize(given)
  assert summary["target_accuracy"] == (given or 0.9)
  assert summary["rounds_to_target"] == rounds
  assert summary["best_accuracy_round"] == 3


def test_run_without_a_round_is_read(write_run, tmp_path):
  run = reading.read_run(write_run(tmp_path / "a", rounds=[]))
  assert run.records == [] and run.rounds == run.values == run.megabytes == []


# --- Several ------------------------------------------------------------------------


def test_linked_runs_are_found_and_a_link_that_goes_round_ends(write_run, tmp_path):
  write_run(tmp_path / "elsewhere/a")
  (tmp_path / "all").mkdir()
  (tmp_path / "all/a").symlink_to(tmp_path / "elsewhere/a")
  (tmp_path / "all/round").symlink_to(tmp_path / "all")
  assert len(reading.read_runs([str(tmp_path / "all")])) == 1


def test_folders_of_runs_are_searched_and_a_run_is_read_once(write_run, tmp_path):
  write_run(tmp_path / "all/b")
  write_run(tmp_path / "all/a/deep")
  (tmp_path / "all/a/notes").mkdir()
  write_run(tmp_path / "all/b/checkpoints/not_looked_at")
  for place in ("all/b", "all"):
    write_run(tmp_path / place / "mlruns/0/artifacts")
  write_run(tmp_path / "all/b/by_hand")
  given = [str(tmp_path / "all"), str(tmp_path / "all/b")]
  write_run(tmp_path / "all/checkpoints/of_another_program")
  names = [run.name for run in reading.read_runs(given)]
  assert names == ["a/deep", "b", "b/by_hand", "checkpoints/of_another_program"]


def test_the_order_is_that_of_the_command_line(write_run, tmp_path):
  given = [write_run(tmp_path / name) for name in ("b", "a")]
  assert [run.name for run in reading.read_runs(given)] == ["b", "a"]


def test_runs_of_one_name_are_told_apart_by_their_folders(write_run, tmp_path):
  given = [write_run(tmp_path / part / "run") for part in ("a", "b")]
  assert [run.name for run in reading.read_runs(given)] == given


def test_labels_are_algorithms_where_these_tell_runs_apart(write_run, tmp_path):
  for name, algorithm in [("x/a", "fedavg"), ("x/b", "fedavg"), ("c", "fedgg")]:
    write_run(tmp_path / name, algorithm)
  found = reading.read_runs([str(tmp_path)])
  assert [run.name for run in found] == ["c", "x/a", "x/b"]
  assert reading.labels(found) == ["fedgg", "a", "b"]
  assert reading.labels(found[:2]) == ["fedgg", "fedavg"]


def test_labels_say_the_task_where_runs_have_several(write_run, tmp_path):
  for name, algorithm in [("a", "fedavg"), ("b", "fedgg")]:
    write_run(tmp_path / name, algorithm)
  one, other = reading.read_runs([str(tmp_path)])
  other = dataclasses.replace(other, flags={**other.flags, "task": "mine"})
  task = one.flags["task"]
  assert reading.labels([one, other]) == [f"fedavg, {task}", "fedgg, mine"]


# --- What cannot be read -------------------------------------------------------------


def _spoil(name: str, text: str):
  def write(folder: pathlib.Path):
    (folder / name).write_text(text)

  return write


_BAD = {
  "no config": lambda folder: (folder / "config.json").unlink(),
  "config is no JSON": _spoil("config.json", "{"),
  "config is a list": _spoil("config.json", "[1]"),
  "flags are a list": _spoil("config.json", '{"flags": [1]}'),
  "no algorithm": _spoil("config.json", '{"flags": {}}'),
  "target is a word": _spoil(
    "config.json", '{"flags": {"algorithm": "a", "target_accuracy": "high"}}'
  ),
  "no bytes": _spoil("metrics.csv", "round,test_accuracy\n1,0.5\n"),
  "a row cut off": _spoil("metrics.csv", f"{_HEAD}\n1,2.5,0.2\n"),
  "a word for a number": _spoil("metrics.csv", f"{_HEAD}\none,2,0.2,1,0,1,1\n"),
  "bytes of another encoding": lambda folder: (folder / "metrics.csv").write_bytes(
    b"\xff\xfe"
  ),
  "summary is cut off": _spoil("summary.json", "{"),
  "privacy is a word": _spoil("summary.json", '{"rounds": 4, "privacy": "good"}'),
}


@pytest.mark.parametrize("spoil", _BAD.values(), ids=_BAD.keys())
def test_folder_that_holds_no_run_is_named_in_one_sentence(write_run, tmp_path, spoil):
  folder = write_run(tmp_path / "a")
  spoil(tmp_path / "a")
  for read in (lambda: reading.read_run(folder), lambda: reading.read_runs([folder])):
    with pytest.raises(InputError) as caught:
      read()
    said = str(caught.value)
    what = r"holds no run|is no folder of a run|holds a config\.json that is not of this"
    assert re.fullmatch(rf"{folder} ({what})[^\n]*\.", said)


def test_folder_without_runs_below_it_is_named(tmp_path):
  os.makedirs(tmp_path / "a/b")
  with pytest.raises(InputError, match=f"{tmp_path} holds no run"):
    reading.read_runs([str(tmp_path)])
