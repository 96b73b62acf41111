"""Measurements of the benchmark: their processes, their numbers, their table.

Every measurement is a process of its own, which runs `frameworks.py`. The rounds of all
are interleaved, so that whatever else the machine does meets all of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Optional

from experiments import markdown
from experiments.benchmarks import frameworks, workloads
from experiments.benchmarks.jobs import BARE, BASELINE, FEDAVG_ONLY, Job
from tff_algos.runtimes import child_process

# A round of the slowest algorithm takes minutes; TFF may wait for its worker for ever.
_ANSWER_SECONDS = 1800


# --- The process of one measurement -----------------------------------------------------


class FailedError(Exception):
  """A measurement came to nothing; the message is one sentence."""


def process_status(process_id: int) -> dict[str, str]:
  """What /proc says of a process; empty if it has ended."""
  try:
    with open(f"/proc/{process_id}/status", encoding="utf-8") as f:
      parts = [line.partition(":") for line in f]
  except OSError:
    return {}
  fields = {name: rest.strip() for name, _, rest in parts}
  return {} if fields["State"].startswith("Z") else fields


def process_bytes(process_id: int, field: str) -> int:
  """What a field of /proc's status has of a process, such as VmRSS; 0 if it has ended."""
  return 1024 * int(process_status(process_id).get(field, "0 kB").split()[0])


def workers_of(process_id: int) -> set[int]:
  """The workers, TFF's or Dask's, that the process has started and that run."""
  found = set()
  for name in os.listdir("/proc"):
    status = process_status(int(name)) if name.isdigit() else {}
    if status.get("PPid") == str(process_id):
      with (
        contextlib.suppress(OSError),
        open(f"/proc/{name}/cmdline", encoding="utf-8") as f,
      ):
        command = f.read()
        if "worker_binary" in command or "spawn_main" in command:
          found.add(int(name))
  return found


class Measurement:
  """A job, the process that does it and what came out.

  Attributes:
    job: What is measured.
    setup_seconds: From the start of the process until it was ready for the first round.
    first_seconds: Of the rounds in which something was compiled.
    seconds: Of the others.
    evaluation_seconds: Of evaluations, where the workload has any.
    resident: Bytes held by all its processes after each round.
    failure: One sentence; None while all is well.
  """

  def __init__(self, job: Job, out: str, temporary: str):
    """Starts the process.

    Args:
      job: What to measure.
      out: The folder for its logs.
      temporary: A folder for the client files, which it shares with others, and for
        what TensorFlow leaves behind.
    """
    self.job = job
    self.setup_seconds: Optional[float] = None
    self.first_seconds: list[float] = []
    self.seconds: list[float] = []
    self.evaluation_seconds: list[float] = []
    self.resident: list[int] = []
    self.failure: Optional[str] = None
    self._temporary = temporary
    self._peaks: dict[int, int] = {}
    self._workers: set[int] = set()
    self._start = time.perf_counter()
    self._channel, theirs = socket.socketpair()
    self._answers = self._channel.makefile()
    program = os.path.abspath(frameworks.__file__)
    clients = os.path.join(temporary, "clients")
    with theirs:
      self._process = child_process.start(
        [sys.executable, program, str(theirs.fileno()), os.getcwd(), *job, clients],
        os.path.join(out, f"{job}.log"),
        cwd=out,
        env={
          **os.environ,
          "TMPDIR": temporary,
          # Else the first of several processes would take all the memory of a GPU.
          "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        },
        pass_fds=[theirs.fileno()],
      )

  @property
  def peak_memory(self) -> int:
    """The most bytes that each of its processes held, added up."""
    return sum(self._peaks.values())

  def set_up(self) -> None:
    """Waits until it is ready."""
    if self._ask() is not None:
      self.setup_seconds = time.perf_counter() - self._start

  def do_round(self) -> Optional[dict[str, Any]]:
    """Has it do a round; `seconds` and `is_first`, or None if it failed."""
    answer = self._ask("round\n")
    if answer is not None:
      seconds = self.first_seconds if answer["is_first"] else self.seconds
      seconds.append(answer["seconds"])
      if "evaluation_seconds" in answer:
        self.evaluation_seconds.append(answer["evaluation_seconds"])
      self.resident.append(
        sum(process_bytes(process, "VmRSS") for process in self._peaks)
      )
    return answer

  def end(self) -> None:
    """Ends the process, and with it its workers."""
    self._process.kill()
    self._process.wait()
    self._answers.close()
    self._channel.close()

  def _ask(self, question: str = "") -> Optional[dict[str, Any]]:
    try:
      answer = self._answer_to(question)
    except FailedError as error:
      self.failure = str(error).replace(f"{self._temporary}/", "")
      self._process.kill()
      return None
    self._workers |= workers_of(self._process.pid)
    for process in [self._process.pid, *self._workers]:
      self._peaks[process] = process_bytes(process, "VmHWM")
    return answer

  def _answer_to(self, question: str) -> dict[str, Any]:
    with contextlib.suppress(BrokenPipeError):  # It has ended, which is found below.
      self._channel.sendall(question.encode())
    deadline = time.monotonic() + _ANSWER_SECONDS
    has_answered = False
    while not has_answered:
      has_answered = bool(select.select([self._channel], [], [], 1)[0])
      # TFF would wait for it without end, or go on with another, as Dask would.
      if not all(map(process_status, self._workers)):
        raise FailedError("A worker ended, most likely for want of memory.")
      if time.monotonic() > deadline:
        raise FailedError(f"It gave no answer for {_ANSWER_SECONDS // 60} minutes.")
    line = self._answers.readline()
    answer = json.loads(line) if line.endswith("\n") else self._last_words()
    if "failure" in answer:
      raise FailedError(answer["failure"])
    return answer

  def _last_words(self) -> dict[str, str]:
    status = self._process.wait()
    if status == -signal.SIGKILL:
      return dict(failure="It was killed, most likely for want of memory.")
    how = f"by signal {-status}" if status < 0 else f"with status {status}"
    return dict(failure=f"It ended {how}; see {self.job}.log.")


def measure(
  jobs: Sequence[Job],
  rounds: int,
  out: str,
  on_round: Callable[[dict[str, Any]], object] = lambda record: None,
) -> list[Measurement]:
  """Measures jobs whose rounds are interleaved.

  Args:
    jobs: All of one workload, whose client files they share.
    rounds: How many rounds that compile nothing to do of each.
    out: The folder for logs.
    on_round: Called with what is said of each round.
  """
  done: list[Measurement] = []
  with contextlib.ExitStack() as stack:
    temporary = stack.enter_context(
      tempfile.TemporaryDirectory(prefix="tff_algos_benchmark_")
    )
    for job in jobs:
      process = Measurement(job, out, temporary)
      stack.callback(process.end)
      done.append(process)
      process.set_up()
      _say(job, process.failure or f"ready after {process.setup_seconds:.1f} s")
    number = 0
    while running := [p for p in done if not p.failure and len(p.seconds) < rounds]:
      number += 1
      for process in running:
        answer = process.do_round()
        if answer is None:
          _say(process.job, process.failure)
        else:
          _say(process.job, f"round {number} took {answer['seconds']:.3f} s")
          on_round(dict(process.job._asdict(), round=number, **answer))
  return done


def _say(job: Job, what: Optional[str]) -> None:
  print(f"{job.workload} {job.framework} {job.algorithm}: {what}", flush=True)


# --- What is written --------------------------------------------------------------------


def summarize(measurements: Sequence[Measurement]) -> list[dict[str, Any]]:
  """A row for each measurement of one workload; None where there is no number."""
  medians = {m.job: statistics.median(m.seconds) for m in measurements if not m.failure}

  def ratio(job: Job, **to: str) -> Optional[float]:
    base = medians.get(job._replace(**to))
    return medians[job] / base if job in medians and base else None

  rows = []
  for m in measurements:
    ok = not m.failure
    rows.append(
      dict(
        m.job._asdict(),
        median_seconds=medians.get(m.job),
        min_seconds=min(m.seconds) if ok else None,
        max_seconds=max(m.seconds) if ok else None,
        ratio_to_bare=ratio(m.job, framework=BARE, algorithm=BASELINE),
        ratio_to_fedavg=(
          None if m.job.framework in FEDAVG_ONLY else ratio(m.job, algorithm=BASELINE)
        ),
        first_round_seconds=m.first_seconds[0] if m.first_seconds else None,
        evaluation_seconds=(
          statistics.median(m.evaluation_seconds) if ok and m.evaluation_seconds else None
        ),
        setup_seconds=m.setup_seconds,
        peak_memory_mb=round(m.peak_memory / 1e6) if ok else None,
        resident_memory_mb=round(statistics.median(m.resident) / 1e6) if ok else None,
        failure=m.failure,
      )
    )
  return rows


def table(rows: Sequence[dict[str, Any]]) -> str:
  """The rows of one workload as Markdown."""
  workload = workloads.get(rows[0]["workload"])
  with_fedavg = any(row["algorithm"] != BASELINE for row in rows)
  columns = {
    "framework": lambda row: row["framework"],
    "algorithm": lambda row: row["algorithm"],
    "median": lambda row: _number(row["median_seconds"]) or "failed",
    "min-max": lambda row: "-".join(
      filter(None, (_number(row["min_seconds"]), _number(row["max_seconds"])))
    ),
    "/bare": lambda row: _number(row["ratio_to_bare"], ".2f"),
    "/fedavg": lambda row: _number(row["ratio_to_fedavg"], ".2f"),
    "first": lambda row: _number(row["first_round_seconds"]),
    "set-up": lambda row: _number(row["setup_seconds"]),
    "MB": lambda row: _number(row["peak_memory_mb"], "d"),
  }
  if not with_fedavg:
    del columns["/fedavg"]
  cells = [[cell(row) for cell in columns.values()] for row in rows]
  text = markdown.table(list(columns), cells, right=range(2, len(columns)))
  lines = [f"{workload.name}: {workload.description}", "", text]
  evaluated = [row for row in rows if row["evaluation_seconds"]]
  if workload.run and evaluated:
    lines += ["", *_run_lines(workload.run, evaluated)]
  failed = [row for row in rows if row["failure"]]
  lines += ["", *(f"- {r['framework']} {r['algorithm']}: {r['failure']}" for r in failed)]
  return "\n".join(lines).rstrip()


def _run_lines(run: workloads.Run, rows: Sequence[dict[str, Any]]) -> Iterator[str]:
  """What the whole run would take of each measurement."""
  yield (
    f"By these medians {run.rounds:,} rounds, evaluated every {run.eval_every} on "
    f"{run.num_test_examples:,} examples, take:"
  )
  yield ""
  for row in rows:
    evaluations = run.num_evaluations * row["evaluation_seconds"]
    total = run.rounds * row["median_seconds"] + evaluations
    yield (
      f"- {row['framework']} {row['algorithm']}: {total / 60:,.1f} minutes, "
      f"{evaluations / total:.0%} of it evaluation, "
      f"{_number(row['evaluation_seconds'])} s each"
    )


def _number(value: Optional[float], form: str = "") -> str:
  if value is None:
    return ""
  return format(value, form or ("#.3g" if value >= 0.1 else "#.2g")).rstrip(".")
