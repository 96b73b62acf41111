"""`binaries/compare.py`: its picture, and bad input."""

from __future__ import annotations

import struct
import subprocess
import sys

import pytest
from training import assert_refused


def _compare(*args):
  command = [sys.executable, "binaries/compare.py", *args]
  return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_program_writes_a_picture_and_prints_the_table(write_run, tmp_path):
  # A name that would be a formula, and one that a legend leaves out.
  runs = [write_run(tmp_path / "$2^$_x"), write_run(tmp_path / "_b", "fedgg")]
  out = tmp_path / "both.png"
  done = _compare(
    f"--runs={','.join(runs)}",
    f"--out={out}",
    "--target_accuracy=0.7",
    "--last=2",
    "--differences=all",
    r"--title=$\frac$",
  )
  assert done.returncode == 0, done.stderr
  assert done.stdout.count("\n") == 10 and "| $2^$_x |" in done.stdout
  assert "Less $2^$_x with the same seed: test accuracy, in points" in done.stdout
  assert "mean of the last 2 rounds" in done.stdout and "62.50 %" in done.stdout
  header = out.read_bytes()[:24]
  assert header[:8] == b"\x89PNG\r\n\x1a\n"
  assert struct.unpack(">II", header[16:]) == (2160, 528)


def test_run_without_an_accuracy_is_left_out_and_said(write_run, fork_program, tmp_path):
  write_run(tmp_path / "all/a")
  write_run(tmp_path / "all/personal", rounds=["1,2.0,,1.0,0,5,5"])
  args = f"--runs={tmp_path / 'all'}", f"--out={tmp_path / 'a.png'}"
  done = fork_program("compare.py", *args, cwd=tmp_path)
  assert done.status == 0 and (tmp_path / "a.png").exists()
  assert done.out.count("\n") == 3 and "| a   |" in done.out
  assert done.err.startswith("Warning: ") and done.err.count("\n") == 1
  assert "personal holds a run whose test accuracy was never measured" in done.err


def test_runs_without_any_accuracy_are_compared_by_their_loss(
  write_run, fork_program, tmp_path
):
  head = "round,train_loss,test_loss,seconds,num_dropped,bytes_down,bytes_up"
  write_run(tmp_path / "a", head=head, rounds=["1,2,0.5,1,0,5,5", "2,1,0.75,1,0,5,5"])
  args = f"--runs={tmp_path / 'a'}", f"--out={tmp_path / 'a.png'}"
  done = fork_program("compare.py", *args, cwd=tmp_path)
  assert (done.status, done.err) == (0, "")
  assert "| 0.5 (round 1) | 0.75 " in done.out and "test_loss" in done.out


def test_runs_are_compared_by_the_columns_that_are_named(
  write_run, read_table, fork_program, tmp_path
):
  """Each by the first that it has a number in."""
  head = "round,seconds,num_dropped,bytes_down,bytes_up,test_off,client_accuracy_p50,"
  head += "client_personalized_accuracy_p50"
  rounds = {"fedavg": ["1,1,0,5,5,3,0.5,0.75", "2,1,0,5,5,2,0.25,1"]}
  rounds["pfedgp"] = ["1,1,0,5,5,,0.625,", "2,1,0,5,5,,0.5,"]
  for name, lines in rounds.items():
    write_run(tmp_path / "runs" / name, name, head=head, rounds=lines)
  flags = [f"--runs={tmp_path / 'runs'}", f"--out={tmp_path / 'a.png'}"]
  personal = "--metric=client_personalized_accuracy_p50,client_accuracy_p50"
  done = fork_program("compare.py", *flags, personal, "--last=2", cwd=tmp_path)
  assert (done.status, done.err) == (0, "")
  ours, theirs = read_table(done.out)
  assert ours[1:3] == ["100.00 % (round 2)", "100.00 %"]
  assert ours[5:] == ["87.50 %", "client_personalized_accuracy_p50"]
  assert theirs[1:3] == ["62.50 % (round 1)", "50.00 %"]
  assert theirs[5:] == ["56.25 %", "client_accuracy_p50"]

  done = fork_program("compare.py", *flags, "--metric=-test_off", cwd=tmp_path)
  assert done.status == 0 and "pfedgp holds a run whose test_off was never" in done.err
  [row] = read_table(done.out)
  assert row[1:3] == ["2 (round 2)", "2"]  # The least is the best, and no share.

  for wrong, said in (
    (["--metric=test_loss,test_accuracy"], "several that are all accuracies"),
    (["--metric="], "give one column of metrics.csv"),
    (["--differences=3-2"], "give all, or rounds such as 21-30"),
    (["--metric=-"], "give one column of metrics.csv"),
    (["--metric=-client_accuracy_p50", "--target_accuracy=0.5"], "target_accuracy is"),
    (["--metric=-test_off", "--target_accuracy=0.5"], "accuracy, not test_off"),
  ):
    assert_refused(fork_program("compare.py", *flags, *wrong, cwd=tmp_path), said)


@pytest.mark.parametrize(
  "wrong, said",
  [
    (["--runs={tmp}/nothing"], "nothing holds no run"),
    (["--runs={tmp}/unmeasured"], "never measured"),
    (["--runs={tmp}/diverged"], "never a finite number"),
    (["--runs="], "runs is empty"),
    (["--target_accuracy=2"], "(0, 1]"),
    (["--last=5"], "of 4 rounds whose test accuracy was not measured in 5 last ones"),
    (["--out={tmp}/a"], "it is a folder"),
    (["--out={tmp}/a/config.json"], "would be lost"),
    (["--out={tmp}/a.txt"], "let it end in .png"),
    (["--out="], "--out is empty"),
  ],
)
def test_bad_input_gets_one_sentence_and_nothing_is_written(
  write_run, fork_program, tmp_path, wrong, said
):
  run = write_run(tmp_path / "a")
  write_run(tmp_path / "unmeasured", rounds=["1,2.0,,1.0,0,5,5"])
  write_run(tmp_path / "diverged", rounds=["1,nan,,1.0,0,5,5", "2,nan,nan,1.0,0,5,5"])
  args = [f"--runs={run}", f"--out={tmp_path}/a.png"]
  args += [w.format(tmp=tmp_path) for w in wrong]
  done = fork_program("compare.py", *args, cwd=tmp_path)
  assert_refused(done, said)
  assert not list(tmp_path.glob("*.png"))
