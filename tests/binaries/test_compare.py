"""`binaries/compare.py`: what it reads, its table, its picture, and bad input."""

from __future__ import annotations

import json
import struct
import subprocess
import sys

import pytest

from binaries import compare
from binaries.command_line import UsageError

# Round, test accuracy or nothing, bytes down, bytes up.
_FIRST = [(1, "0.25", 1_000_000, 500_000), (2, "", 1_000_000, 500_000)]
_ROUNDS = [*_FIRST, (3, "0.75", 1_000_000, 2_000_000), (4, "0.5", 0, 0)]


def _write_run(folder, algorithm="fedavg", rounds=tuple(_ROUNDS)) -> str:
  folder.mkdir()
  config = {"flags": {"algorithm": algorithm}}
  (folder / "config.json").write_text(json.dumps(config))
  lines = ["round,test_accuracy,bytes_down,bytes_up"]
  lines += [",".join(map(str, row)) for row in rounds]
  (folder / "metrics.csv").write_text("\n".join(lines) + "\n")
  return str(folder)


def test_reads_rounds_with_an_accuracy_and_sums_the_bytes_of_all(tmp_path):
  run = compare.read_run(_write_run(tmp_path / "a") + "/")
  assert run.name == "a" and run.label == "fedavg"
  assert run.rounds == [1, 3, 4]
  assert run.accuracy == [25, 75, 50]
  assert run.megabytes == [1.5, 6.0, 6.0]


def test_table_gives_best_final_and_the_way_to_the_target(tmp_path):
  run = compare.read_run(_write_run(tmp_path / "a"))
  line = compare.table([run], 0.75).split("\n")[2]
  assert line == "| a | 75.00 % (round 3) | 50.00 % | 4 | 6 | 3 | 6 |"
  line = compare.table([run], 0.8).split("\n")[2]
  assert line == "| a | 75.00 % (round 3) | 50.00 % | 4 | 6 | not reached |  |"
  assert compare.table([run], None).split("\n")[2].endswith("| 4 | 6 |")


def test_every_line_has_as_many_cells_as_the_head(tmp_path):
  run = compare.read_run(_write_run(tmp_path / "a"))
  for target in (None, 0.5, 0.9):
    lines = compare.table([run, run], target).split("\n")
    assert len({line.count("|") for line in lines}) == 1


def _without_config(folder):
  (folder / "config.json").unlink()


def _without_bytes(folder):
  (folder / "metrics.csv").write_text("round,test_accuracy\n1,0.5\n")


def _never_measured(folder):
  text = (folder / "metrics.csv").read_text()
  (folder / "metrics.csv").write_text("\n".join([*text.split("\n")[:1], "1,,5,5\n"]))


@pytest.mark.parametrize("spoil", [_without_config, _without_bytes, _never_measured])
def test_folder_that_holds_no_run_is_named(tmp_path, spoil):
  folder = _write_run(tmp_path / "a")
  spoil(tmp_path / "a")
  with pytest.raises(UsageError, match=folder):
    compare.read_run(folder)


def _compare(*args):
  command = [sys.executable, "binaries/compare.py", *args]
  return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_program_writes_a_picture_and_prints_the_table(tmp_path):
  runs = [_write_run(tmp_path / "a"), _write_run(tmp_path / "b", "fedgg")]
  out = tmp_path / "both.png"
  done = _compare(f"--runs={','.join(runs)}", f"--out={out}", "--target_accuracy=0.7")
  assert done.returncode == 0, done.stderr
  assert done.stdout.count("\n") == 4 and "| a |" in done.stdout
  header = out.read_bytes()[:24]
  assert header[:8] == b"\x89PNG\r\n\x1a\n"
  assert struct.unpack(">II", header[16:]) == (1680, 528)


@pytest.mark.parametrize(
  "wrong, said",
  [
    (["--runs={tmp}/nothing"], "nothing holds no run"),
    (["--target_accuracy=2"], "(0, 1]"),
    (["--out={tmp}/no/a.png"], "no folder"),
  ],
)
def test_bad_input_gets_one_sentence_and_nothing_is_written(tmp_path, wrong, said):
  run = _write_run(tmp_path / "a")
  args = [f"--runs={run}", f"--out={tmp_path}/a.png"]
  done = _compare(*args, *(w.format(tmp=tmp_path) for w in wrong))
  assert done.returncode == 2
  assert said in done.stderr and len(done.stderr.strip().split("\n")) == 1
  assert not list(tmp_path.glob("*.png")) and not done.stdout
