"""Measurements with another program in their processes: numbers, failures, table."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
from programs import ROOT, processes_of, wait_for

from experiments.benchmarks import frameworks, measurements
from experiments.benchmarks.jobs import Job

_STAND_IN = """
  import json, os, shutil, signal, socket, subprocess, sys, time

  channel = socket.socket(fileno=int(sys.argv[1]))
  here, workload, framework, algorithm, clients = sys.argv[2:]
  assert os.path.isdir(here)

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
    seconds = dict(seconds=100.0 if first else 1.0 + number + len(algorithm))
    if workload == "pfl_cifar10" and number % 10 == 0:
      seconds["evaluation_seconds"] = 4.0 + number
    answer(is_first=first, **seconds)
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
  program = tmp_path / "program.py"
  program.write_text(textwrap.dedent(_STAND_IN))
  monkeypatch.setattr(frameworks, "__file__", str(program))
  logs = tmp_path / "logs"
  logs.mkdir()

  def run(*jobs, rounds, workload="smoke"):
    lines = []
    jobs = [Job(workload, *job) for job in jobs]
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
    "A worker ended, most likely for want of memory.",
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


def test_time_of_a_whole_run_is_told_with_its_evaluations(stand_in):
  jobs = [("bare", "fedavg"), ("raised", "fedavg")]
  rows, lines, _ = stand_in(*jobs, rounds=10, workload="pfl_cifar10")
  evaluated = [r["round"] for r in lines if "evaluation_seconds" in r]
  assert evaluated == [1, 11]
  # Rounds take 8 to 17 s, evaluations 4 and 14 s.
  assert (rows[0]["median_seconds"], rows[0]["evaluation_seconds"]) == (12.5, 9)
  table = measurements.table(rows)
  assert "\nBy these medians 1,500 rounds, evaluated every 10 on 10,000 examples" in table
  # 1,500 x 12.5 s and 150 x 9 s are 20,100 s.
  assert "\n- bare fedavg: 335.0 minutes, 7% of it evaluation, 9.00 s each\n" in table
  assert table.count("minutes") == 1
  assert max(map(len, table.split("\n"))) <= 100


def test_processes_end_with_the_program(tmp_path, stand_in):
  program = """
    import sys
    from experiments.benchmarks import frameworks, measurements
    from experiments.benchmarks.jobs import Job

    frameworks.__file__ = sys.argv[1]
    job = Job("smoke", "stuck", "fedavg")
    measurements.measure([job], 3, sys.argv[2])
  """
  process = subprocess.Popen(
    [sys.executable, "-c", textwrap.dedent(program), frameworks.__file__, str(tmp_path)],
    cwd=ROOT,
    stdout=subprocess.DEVNULL,
    start_new_session=True,
  )
  others = lambda: set(processes_of(process.pid)) - {process.pid}  # noqa: E731
  wait_for(others)
  process.kill()
  process.wait()
  wait_for(lambda: not others())
