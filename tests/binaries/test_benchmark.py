"""`binaries/benchmark.py`: its files and table, failures, bad input, the bare loop."""

from __future__ import annotations

import glob
import json
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
import tensorflow as tf

from binaries import frameworks, measurements, workloads
from tff_algos.client_work import local_training
from tff_algos.simulation import seeds

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_PROGRAM = str(_ROOT / "binaries/benchmark.py")


def _json_lines(path):
  return [json.loads(line) for line in path.read_text().splitlines()]


# --- The program ------------------------------------------------------------------------


def _processes_of(session: int) -> dict[int, str]:
  """Id and command of the session's processes that run."""
  found = {}
  for folder in glob.glob("/proc/[0-9]*"):
    try:
      stat = pathlib.Path(folder, "stat").read_text()
      command = pathlib.Path(folder, "cmdline").read_text()
    except OSError:
      continue  # It has just ended.
    state, _, _, its = stat.rsplit(")", 1)[1].split()[:4]
    if int(its) == session and state != "Z":
      found[int(os.path.basename(folder))] = command
  return found


def _wait_for(found, seconds=120):
  deadline = time.monotonic() + seconds
  while not found():
    assert time.monotonic() < deadline
    time.sleep(0.02)


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
    commands = _processes_of(process.pid)
    found = [p for p, c in commands.items() if "\0local_worker\0" in c]
    for victim in found:
      os.kill(victim, signal.SIGKILL)
    return found

  try:
    _wait_for(kill_one)
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
    assert str(finished[0]) not in text and str(_ROOT) not in text


def test_program_leaves_nothing_behind(finished):
  folder, process, *_ = finished
  _wait_for(lambda: not _processes_of(process.pid))
  assert not list((folder / "temporary").iterdir())


@pytest.mark.parametrize(
  "wrong, said",
  [
    ("--workload=A,Z", "no workload 'Z'"),
    ("--workload=", "--workload is empty"),
    ("--algorithm=fedag", "did you mean 'fedavg'"),
    ("--rounds=0", "at least 1; found 0"),
    ("--framework=bare --algorithm=fedgg", "bare and tff run fedavg only"),
    ("--out=full", "full is not empty"),
    ("--out=full/file", "full/file cannot be used"),
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


# --- Its processes, with another program in them ----------------------------------------

_STAND_IN = """
  import json, os, shutil, signal, socket, subprocess, sys, time

  channel = socket.socket(fileno=int(sys.argv[1]))
  workload, framework, algorithm, clients = sys.argv[2:]

  def answer(**content):
    channel.sendall(json.dumps(content).encode() + b"\\n")

  if framework == "lost":
    worker = shutil.copy("/bin/sleep", os.path.join(os.getcwd(), "worker_binary"))
    worker = subprocess.Popen([worker, "100"])
  if framework == "stuck":
    time.sleep(100)
  print("noise")
  print("noise", file=sys.stderr)
  answer()
  for number, _ in enumerate(channel.makefile()):
    if framework == "killed" and number == 2:
      os.kill(os.getpid(), signal.SIGKILL)
    if framework == "lost" and number == 1:
      worker.kill()
      time.sleep(100)
    if framework == "ended" and number == 1:
      sys.exit(3)
    if framework == "raised":
      answer(failure=f"ValueError: no {clients}/file")
      sys.exit(1)
    # Rounds of two kinds: the third is the first of its kind.
    first = number in (0, 2) if framework == "kinds" else number == 0
    answer(seconds=100.0 if first else 1.0 + number + len(algorithm), is_first=first)
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
  program = tmp_path / "program.py"
  program.write_text(textwrap.dedent(_STAND_IN))
  monkeypatch.setattr(frameworks, "__file__", str(program))
  logs = tmp_path / "logs"
  logs.mkdir()

  def run(*jobs, rounds):
    lines = []
    jobs = [measurements.Job("smoke", *job) for job in jobs]
    done = measurements.measure(jobs, rounds, str(logs), lines.append)
    return measurements.summarize(done), lines, logs

  return run


def test_rounds_are_interleaved_and_the_first_of_each_kind_set_apart(stand_in):
  jobs = [("bare", "fedavg"), ("kinds", "fedavg"), ("kinds", "sgd")]
  rows, lines, _ = stand_in(*jobs, rounds=3)
  of_each = [1, 2, 3, 4]
  assert [(r["round"], r["framework"], r["algorithm"]) for r in lines] == [
    *((number, *job) for number in of_each for job in jobs),
    *((5, *job) for job in jobs[1:]),
  ]
  assert [row["median_seconds"] for row in rows] == [9, 10, 7]
  assert [row["first_round_seconds"] for row in rows] == [100, 100, 100]
  assert (rows[2]["min_seconds"], rows[2]["max_seconds"]) == (5, 8)
  assert [row["ratio_to_bare"] for row in rows] == [1, 10 / 9, 7 / 9]
  assert [row["ratio_to_fedavg"] for row in rows] == [None, 1, 7 / 10]


def test_failures_are_rows_and_the_others_go_on(stand_in):
  failing = ["killed", "ended", "raised", "lost"]
  jobs = [(framework, "fedavg") for framework in [*failing, "well"]]
  rows, lines, logs = stand_in(*jobs, rounds=4)
  assert [row["failure"] for row in rows] == [
    "It was killed, most likely for want of memory.",
    "It ended with status 3; see smoke-ended-fedavg.log.",
    "ValueError: no clients/file",
    "TFF's worker ended, most likely for want of memory.",
    None,
  ]
  assert (logs / "smoke-ended-fedavg.log").read_text() == "noise\nnoise\n"
  assert [r["round"] for r in lines if r["framework"] == "well"] == [1, 2, 3, 4, 5]
  assert all(row["median_seconds"] is None for row in rows[:4])
  table = measurements.table(rows)
  lines = table.split("\n")
  assert max(map(len, lines)) <= 100
  assert len({line.count("|") for line in lines if line.startswith("|")}) == 1
  for name in failing:
    assert any(line.startswith(f"- {name} fedavg: ") for line in lines)


def test_processes_end_with_the_program(tmp_path, stand_in):
  program = """
    import sys
    from binaries import frameworks, measurements

    frameworks.__file__ = sys.argv[1]
    job = measurements.Job("smoke", "stuck", "fedavg")
    measurements.measure([job], 3, sys.argv[2])
  """
  process = subprocess.Popen(
    [sys.executable, "-c", textwrap.dedent(program), frameworks.__file__, str(tmp_path)],
    cwd=_ROOT,
    stdout=subprocess.DEVNULL,
    start_new_session=True,
  )
  others = lambda: set(_processes_of(process.pid)) - {process.pid}  # noqa: E731
  _wait_for(others)
  process.kill()
  process.wait()
  _wait_for(lambda: not others())


# --- What is measured -------------------------------------------------------------------


def test_bare_loop_learns_what_fedavg_learns(tmp_path):
  row = workloads.get("smoke")
  bare = frameworks.Bare(row)
  ours = frameworks.Ours(row, "in_process", "fedavg", str(tmp_path))
  try:
    before = ours.weights()
    ours.run(0)
    found = ours.weights()
  finally:
    ours.runtime.close()
  bare.run_in_order(
    local_training.batch_order(tf.constant(seeds.client_seed(0, 0, k)), 12, 1)[0]
    for k in range(row.num_clients)
  )
  for start, a, b in zip(before, bare.weights(), found):
    assert np.max(np.abs(b - start)) > 1e-3
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_unknown_names_are_refused():
  with pytest.raises(ValueError, match="choose from A, B"):
    workloads.get("a")
  assert frameworks.names() == ["bare", "in_process", "local_worker", "tff"]


@pytest.mark.parametrize("row", workloads.WORKLOADS.values(), ids=lambda row: row.name)
def test_examples_fit_the_model_and_are_the_same_everywhere(row):
  row = row._replace(num_clients=2, num_examples=3)
  spec = row.model().example_spec
  for client in row.clients():
    x, y = row.clients()[client]
    assert x.shape == (3, *spec.x.shape) and x.dtype == spec.x.dtype.as_numpy_dtype
    assert y.shape == (3,) and set(y) <= set(range(row.data.num_classes))
    np.testing.assert_array_equal(x, row.clients()[client][0])
