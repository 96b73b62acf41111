"""Measures what is asked for and writes its folder."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Optional

from experiments.benchmarks import measurements, workloads
from experiments.benchmarks.jobs import (
  BARE,
  BASELINE,
  DATASETS,
  FEDAVG_ONLY,
  MIXED_PRECISION,
  TFF,
  jobs_of,
)
from experiments.run_folder import provenance
from tff_algos import durable_files, runtimes
from tff_algos.algorithms import registry
from tff_algos.errors import InputError

_PORTS_ARE_OPEN = (
  "local_worker and tff: TFF's worker listens on a port of every network interface, "
  "without a password, until the benchmark ends"
)

_LEGEND = """\
Seconds of a round: median and range (rounds measured: {rounds}); the median's ratio to
that of the bare loop and to that of FedAvg on the same runtime; the first round, which
compiles. Seconds from the start of the process to its first round (set-up). The most
megabytes that the processes of the measurement held, added up.
"""


class Request(NamedTuple):
  """What the flags ask for.

  Attributes:
    workloads: Names of `workloads.WORKLOADS`.
    frameworks: Names of `framework_names()`.
    algorithms: Names of `algorithms.registry`, for our runtimes.
    rounds: Rounds besides those that compile.
    out: The folder for the results; None: a new one under runs/.
  """

  workloads: Sequence[str]
  frameworks: Sequence[str]
  algorithms: Sequence[str]
  rounds: int
  out: Optional[str]


def framework_names() -> list[str]:
  """The names of all that can be measured."""
  return [BARE, *runtimes.DESCRIPTIONS, DATASETS, MIXED_PRECISION, TFF]


def run(request: Request) -> int:
  """Measures, prints the tables and writes the folder.

  Returns:
    The exit status: 1 if a measurement failed.

  Raises:
    InputError: The request cannot be fulfilled; nothing was written.
  """
  names = _choose("workload", request.workloads, workloads.get)
  algorithms = _choose("algorithm", request.algorithms, registry.get)
  chosen = _choose("framework", request.frameworks, _check_framework)
  _check_runs_any(chosen, algorithms)
  stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S-%f")[:-3]
  out = f"runs/benchmark-{stamp}" if request.out is None else request.out
  _make_out(out)
  # Else the client files would stay behind.
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
  if {"local_worker", TFF}.intersection(chosen):
    print(_PORTS_ARE_OPEN, flush=True)
  print(f"results in {out}", flush=True)
  with durable_files.new_file(os.path.join(out, "machine.json"), "w") as f:
    f.write(json.dumps(_machine(request), indent=2) + "\n")
  tables = [_LEGEND.format(rounds=request.rounds)]
  failed = False
  with contextlib.ExitStack() as stack:

    def open_lines(name: str) -> Callable[[dict[str, Any]], object]:
      # Line by line: what was measured stays, should this program be ended.
      file = stack.enter_context(
        open(os.path.join(out, name), "w", encoding="utf-8", buffering=1)
      )
      return lambda row: file.write(json.dumps(row) + "\n")

    write_round, write_row = open_lines("rounds.jsonl"), open_lines("summary.jsonl")
    for name in names:
      jobs = jobs_of(name, chosen, algorithms)
      rows = measurements.summarize(
        measurements.measure(jobs, request.rounds, out, write_round)
      )
      for row in rows:
        write_row(row)
        failed |= row["failure"] is not None
      tables.append(measurements.table(rows) + "\n")
  text = "\n".join(tables)
  with durable_files.new_file(os.path.join(out, "table.md"), "w") as f:
    f.write(text)
  print(f"\n{text}", end="")
  return 1 if failed else 0


def _machine(request: Request) -> dict[str, Any]:
  return {
    **provenance.machine(),
    "versions": provenance.versions(),
    "git_commit": provenance.git_commit(),
    "command": [
      "binaries/benchmark.py",
      f"--workload={','.join(request.workloads)}",
      f"--framework={','.join(request.frameworks)}",
      f"--algorithm={','.join(request.algorithms)}",
      f"--rounds={request.rounds}",
    ],
  }


def _choose(flag: str, names: Sequence[str], check: Callable[[str], object]) -> list[str]:
  """The names that a flag gives, each once.

  Raises:
    InputError: There are none, or one is unknown.
  """
  if not names:
    raise InputError(f"--{flag} is empty: name at least one.")
  for name in names:
    check(name)
  return list(dict.fromkeys(names))


def _check_framework(name: str) -> None:
  known = framework_names()
  if name not in known:
    raise InputError(f"There is no framework {name!r}: choose from {', '.join(known)}.")


def _check_runs_any(names: Sequence[str], algorithms: Sequence[str]) -> None:
  only_fedavg = not set(names).difference(FEDAVG_ONLY)
  if only_fedavg and algorithms != [BASELINE]:
    raise InputError(
      f"--algorithm={','.join(algorithms)} is for our runtimes, of which --framework="
      f"{','.join(names)} has none: bare and tff run {BASELINE} only."
    )


def _make_out(folder: str) -> None:
  if "://" in folder:
    raise InputError(f"--out={folder} cannot be used: it must be a local folder.")
  try:
    os.makedirs(folder, exist_ok=True)
    is_empty = not os.listdir(folder)
  except OSError as error:
    raise InputError(f"--out={folder} cannot be used: {error.strerror}.") from error
  if not is_empty:
    raise InputError(
      f"{folder} is not empty: choose another --out, so that no results are lost."
    )
