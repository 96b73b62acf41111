"""Measures seconds of a round and memory against a bare TensorFlow loop.

  python binaries/benchmark.py --workload=A,C --framework=bare,in_process,tff
  python binaries/benchmark.py --framework=in_process --algorithm=fedavg,fedgg,scaffold

Every measurement is a process of its own. The rounds of those of a workload are
interleaved, so that whatever else the machine does meets all of them; all are in memory
at once, with about 1 GB each. The first round, which compiles, is reported apart.
Exit status: 1 if a measurement failed, 2 if the flags are wrong.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":  # Before what a broken environment fails to import.
  sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
  from tff_algos import preflight

  preflight.check_and_quiet(sys.argv)

import contextlib
import datetime
import json
import signal
from collections.abc import Callable, Sequence
from typing import Any

from absl import flags

from binaries import command_line, frameworks, measurements, workloads
from tff_algos.algorithms import registry

_PORTS_ARE_OPEN = (
  "local_worker and tff: TFF's worker listens on a port of every network interface, "
  "without a password, until the benchmark ends"
)

_WORKLOAD = flags.DEFINE_list(
  "workload", ["A"], f"Some of {', '.join(workloads.WORKLOADS)}, with commas between."
)
_FRAMEWORK = flags.DEFINE_list(
  "framework",
  ["bare", "in_process", "local_worker", "tff"],
  "bare (TensorFlow alone), tff (tff.learning's FedAvg on TFF's own runtime) or "
  "runtimes of ours, with commas between.",
)
_ALGORITHM = flags.DEFINE_list(
  "algorithm",
  [measurements.BASELINE],
  "What our runtimes run, as train.py --list shows them, with commas between.",
)
_ROUNDS = flags.DEFINE_integer("rounds", 5, "Rounds besides the first, which compiles.")
_OUT = flags.DEFINE_string(
  "out", None, "Folder for the results, new or empty; default: a new one under runs/."
)

_LEGEND = """\
Seconds of a round: median and range (rounds measured: {rounds}); the median's ratio to
that of the bare loop and to that of FedAvg on the same runtime; the first round, which
compiles. Seconds from the start of the process to its first round (set-up). The most
megabytes that the processes of the measurement held, added up.
"""


def _machine() -> dict[str, Any]:
  from binaries import experiment

  given = (_WORKLOAD, _FRAMEWORK, _ALGORITHM)
  return {
    **experiment.machine(),
    "versions": experiment.versions(),
    "git_commit": experiment.git_commit(),
    "command": [
      "binaries/benchmark.py",
      *(f"--{flag.name}={','.join(flag.value)}" for flag in given),
      f"--rounds={_ROUNDS.value}",
    ],
  }


def _choose(flag: flags.FlagHolder, check: Callable[[str], object]) -> list[str]:
  """The names that a flag gives, each once.

  Raises:
    UsageError: There are none, or one is unknown.
  """
  try:
    for name in flag.value:
      check(name)
  except ValueError as error:
    raise command_line.UsageError(str(error)) from error
  if not flag.value:
    raise command_line.UsageError(f"--{flag.name} is empty: name at least one.")
  return list(dict.fromkeys(flag.value))


def _check_framework(name: str) -> None:
  known = frameworks.names()
  if name not in known:
    raise ValueError(f"There is no framework {name!r}: choose from {', '.join(known)}.")


def _check_runs_any(algorithms: Sequence[str]) -> None:
  names = _FRAMEWORK.value
  only_fedavg = names and not set(names).difference(measurements.FEDAVG_ONLY)
  if only_fedavg and algorithms != [measurements.BASELINE]:
    raise command_line.UsageError(
      f"--algorithm={','.join(algorithms)} is for our runtimes, of which --framework="
      f"{','.join(names)} has none: bare and tff run {measurements.BASELINE} only."
    )


def _check_out(folder: str) -> None:
  try:
    if os.listdir(folder):
      raise command_line.UsageError(
        f"{folder} is not empty: choose another --out, so that no results are lost."
      )
  except FileNotFoundError:
    pass
  except OSError as error:
    raise _useless(folder, error) from error


def _make_out(folder: str) -> None:
  try:
    os.makedirs(folder, exist_ok=True)
  except OSError as error:
    raise _useless(folder, error) from error


def _useless(folder: str, error: OSError) -> command_line.UsageError:
  return command_line.UsageError(f"--out={folder} cannot be used: {error.strerror}.")


def main(argv: Sequence[str]) -> None:
  """Measures what the flags say."""
  del argv
  try:
    names = _choose(_WORKLOAD, workloads.get)
    algorithms = _choose(_ALGORITHM, registry.get)
    if _ROUNDS.value < 1:
      raise command_line.UsageError(
        f"--rounds must be at least 1; found {_ROUNDS.value}."
      )
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    out = f"runs/benchmark-{stamp}" if _OUT.value is None else _OUT.value
    _check_out(out)
    _check_runs_any(algorithms)
    chosen = _choose(_FRAMEWORK, _check_framework)  # Last: it imports TFF.
    _make_out(out)
  except command_line.UsageError as error:
    command_line.fail(error)
  # Else the client files would stay behind.
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
  if {"local_worker", frameworks.TFF}.intersection(chosen):
    print(_PORTS_ARE_OPEN, flush=True)
  print(f"results in {out}", flush=True)
  with open(os.path.join(out, "machine.json"), "w") as f:
    f.write(json.dumps(_machine(), indent=2) + "\n")
  tables = [_LEGEND.format(rounds=_ROUNDS.value)]
  failed = False
  with contextlib.ExitStack() as stack:

    def open_lines(name: str) -> Callable[[dict[str, Any]], object]:
      # Line by line: what was measured stays, should this program be ended.
      file = stack.enter_context(open(os.path.join(out, name), "w", buffering=1))
      return lambda row: file.write(json.dumps(row) + "\n")

    write_round, write_row = open_lines("rounds.jsonl"), open_lines("summary.jsonl")
    for name in names:
      jobs = measurements.jobs_of(name, chosen, algorithms)
      rows = measurements.summarize(
        measurements.measure(jobs, _ROUNDS.value, out, write_round)
      )
      for row in rows:
        write_row(row)
        failed |= row["failure"] is not None
      tables.append(measurements.table(rows) + "\n")
  text = "\n".join(tables)
  with open(os.path.join(out, "table.md"), "w") as f:
    f.write(text)
  print(f"\n{text}", end="")
  if failed:
    sys.exit(1)


if __name__ == "__main__":
  command_line.start(main)
