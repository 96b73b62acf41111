"""`binaries/benchmark.py`: its files and table, a failure, bad input."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from programs import ROOT, processes_of, wait_for

_PROGRAM = str(ROOT / "binaries/benchmark.py")


def _json_lines(path):
  return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
  """A run of three frameworks, of which one was killed: (folder, process, output)."""
  folder = tmp_path_factory.mktemp("benchmark")
  temporary = folder / "temporary"
  temporary.mkdir()
  env = {**os.environ, "TMPDIR": str(temporary)}
  # Importing TensorFlow sets it in this process; the program is to be silent by itself.
  env.pop("TF_CPP_MIN_LOG_LEVEL", None)
  process = subprocess.Popen(
    [
      sys.executable,
      _PROGRAM,
      "--workload=smoke",
      "--framework=bare,local_worker,in_process",
      "--rounds=2",
      "--out=results/of/this",
    ],
    cwd=folder,
    env=env,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    start_new_session=True,
  )

  def kill_one():
    commands = processes_of(process.pid)
    found = [p for p, c in commands.items() if "\0local_worker\0" in c]
    for victim in found:
      os.kill(victim, signal.SIGKILL)
    return found

  try:
    wait_for(kill_one)
    out, err = process.communicate(timeout=300)
  finally:
    process.kill()
  return folder, process, out, err


def test_program_writes_what_it_measured(finished):
  folder, process, out, err = finished
  assert process.returncode == 1 and not err
  results = folder / "results/of/this"
  assert {path.name for path in results.iterdir()} == {
    "machine.json",
    "rounds.jsonl",
    "smoke-bare-fedavg.log",
    "smoke-in_process-fedavg.log",
    "smoke-local_worker-fedavg.log",
    "summary.jsonl",
    "table.md",
  }
  rounds = _json_lines(results / "rounds.jsonl")
  assert [(r["framework"], r["round"], r["is_first"]) for r in rounds] == [
    (framework, number, number == 1)
    for number in (1, 2, 3)
    for framework in ("bare", "in_process")
  ]
  bare, killed, ours = _json_lines(results / "summary.jsonl")
  assert killed["framework"] == "local_worker" and "killed" in killed["failure"]
  for row in (bare, ours):
    seconds = [r["seconds"] for r in rounds if r["framework"] == row["framework"]]
    assert row["first_round_seconds"] == seconds[0]
    assert row["median_seconds"] == pytest.approx(np.median(seconds[1:]))
    assert 0 < row["min_seconds"] <= row["max_seconds"] < row["setup_seconds"]
    # TensorFlow alone takes more than 100 MB; nothing here comes near 5 GB.
    assert 100 < row["resident_memory_mb"] <= row["peak_memory_mb"] < 5000
    assert row["failure"] is None
  ratio = ours["median_seconds"] / bare["median_seconds"]
  assert ours["ratio_to_bare"] == pytest.approx(ratio)
  table = (results / "table.md").read_text()
  assert table.strip() in out
  assert "- local_worker fedavg: It was killed" in table
  machine = json.loads((results / "machine.json").read_text())
  assert machine["versions"]["tensorflow"] == tf.__version__
  assert machine["command"][-1] == "--rounds=2"


def test_results_name_no_folder_of_the_machine(finished):
  results = finished[0] / "results/of/this"
  for name in ("machine.json", "rounds.jsonl", "summary.jsonl", "table.md"):
    text = (results / name).read_text()
    assert str(finished[0]) not in text and str(ROOT) not in text


def test_program_leaves_nothing_behind(finished):
  folder, process, *_ = finished
  wait_for(lambda: not processes_of(process.pid))
  assert not list((folder / "temporary").iterdir())


@pytest.mark.thorough
def test_an_algorithm_of_ones_own_is_found_in_the_folder_one_is_in(tmp_path):
  (tmp_path / "mine.py").write_text((ROOT / "tests/own_algorithms.py").read_text())
  command = [sys.executable, _PROGRAM, "--out=new", "--workload=smoke", "--rounds=1"]
  done = subprocess.run(
    [*command, "--framework=in_process", "--algorithm=mine:good"],
    cwd=tmp_path,
    capture_output=True,
    text=True,
    timeout=300,
  )
  assert done.returncode == 0, done.stderr
  [row] = _json_lines(tmp_path / "new/summary.jsonl")
  assert row["failure"] is None and row["algorithm"] == "mine:good"


@pytest.mark.parametrize(
  "wrong, said",
  [
    ("--workload=A,Z", "no workload 'Z'"),
    ("--workload=", "--workload is empty"),
    ("--algorithm=fedag", "did you mean 'fedavg'"),
    ("--rounds=0", "--rounds=0"),
    ("--framework=bare --algorithm=fedgg", "bare and tff run fedavg only"),
    ("--out=full", "full is not empty"),
    ("--out=full/file", "full/file cannot be used"),
    ("--out=ram://a", "must be a local folder"),
  ],
)
def test_bad_input_gets_one_sentence_and_nothing_is_written(tmp_path, wrong, said):
  (tmp_path / "full").mkdir()
  (tmp_path / "full/file").touch()
  command = [sys.executable, _PROGRAM, "--out=new", *wrong.split()]
  done = subprocess.run(
    command, cwd=tmp_path, capture_output=True, text=True, timeout=300
  )
  assert done.returncode == 2, done.stderr
  assert said in done.stderr and len(done.stderr.strip().split("\n")) == 1
  assert not done.stdout
  assert [path.name for path in tmp_path.rglob("*")] == ["full", "file"]
