"""Draws several runs of `train.py` together and prints their table.

  python binaries/compare.py --runs=results/a,results/b --out=comparison.png

Accuracy and megabytes against rounds, and accuracy against megabytes; the table is
Markdown. Exit status: 2 if a run cannot be read, and then nothing is written.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":  # Before what a broken environment fails to import.
  sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
  from tff_algos import preflight

  preflight.check_and_quiet(sys.argv)

import csv
import itertools
import json
from collections.abc import Sequence
from typing import NamedTuple, Optional

from absl import flags
from matplotlib.figure import Figure

from binaries import command_line
from tff_algos.simulation import records

_RUNS = flags.DEFINE_list("runs", None, "Folders of the runs, with commas between them.")
_OUT = flags.DEFINE_string("out", None, "The picture to write, a PNG.")
_TITLE = flags.DEFINE_string("title", "", "The picture's title.")
_TARGET = flags.DEFINE_float(
  "target_accuracy", None, "An accuracy whose round and megabytes the table gives, 0..1."
)


class Run(NamedTuple):
  """What a folder says of its run.

  Attributes:
    name: The folder's name.
    label: The algorithm, and the folder where another run has the same.
    rounds: The rounds whose test accuracy was measured.
    accuracy: In percent, one for each of them.
    megabytes: Down and up, all clients, from the start to each of them.
  """

  name: str
  label: str
  rounds: list[int]
  accuracy: list[float]
  megabytes: list[float]


def read_run(folder: str) -> Run:
  """Reads a run's folder.

  Raises:
    UsageError: It is none, or its accuracy was never measured.
  """
  try:
    with open(os.path.join(folder, "config.json")) as f:
      algorithm = json.load(f)["flags"]["algorithm"]
    with open(os.path.join(folder, records.METRICS), newline="") as f:
      rows = list(csv.DictReader(f))
    sent = itertools.accumulate(
      int(row["bytes_down"]) + int(row["bytes_up"]) for row in rows
    )
    measured = [
      (int(row["round"]), 100 * float(row["test_accuracy"]), total / 1e6)
      for row, total in zip(rows, sent)
      if row["test_accuracy"]
    ]
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise command_line.UsageError(
      f"{folder} holds no run that can be read ({error}): give folders that train.py "
      "has written."
    ) from error
  if not measured:
    raise command_line.UsageError(
      f"{folder} holds a run whose test accuracy was never measured: leave it out."
    )
  rounds, accuracy, megabytes = (list(column) for column in zip(*measured))
  name = os.path.basename(os.path.normpath(folder))
  return Run(name, algorithm, rounds, accuracy, megabytes)


def table(runs: Sequence[Run], target: Optional[float]) -> str:
  """The runs as a Markdown table; `target` is in 0..1, or None."""
  head = ["run", "best accuracy", "final", "rounds", "megabytes"]
  if target is not None:
    head += [f"rounds to {100 * target:g} %", "megabytes to it"]
  lines = [head, ["---"] * len(head)]
  for run in runs:
    best = max(range(len(run.rounds)), key=run.accuracy.__getitem__)
    line = [
      run.name,
      f"{run.accuracy[best]:.2f} % (round {run.rounds[best]})",
      f"{run.accuracy[-1]:.2f} %",
      str(run.rounds[-1]),
      f"{run.megabytes[-1]:,.0f}",
    ]
    if target is not None:
      reached = [a >= 100 * target for a in run.accuracy]
      if any(reached):
        first = reached.index(True)
        line += [str(run.rounds[first]), f"{run.megabytes[first]:,.0f}"]
      else:
        line += ["not reached", ""]
    lines.append(line)
  return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def draw(runs: Sequence[Run], path: str, title: str) -> None:
  """Draws the three panels as a PNG."""
  figure = Figure(figsize=(14, 4.4), layout="constrained")
  grid = figure.add_gridspec(1, 3)
  by_round, bytes_by_round, by_bytes = (figure.add_subplot(grid[k]) for k in range(3))
  for run in runs:
    by_round.plot(run.rounds, run.accuracy, label=run.label, linewidth=1.2)
    bytes_by_round.plot(run.rounds, run.megabytes, linewidth=1.2)
    by_bytes.plot(run.megabytes, run.accuracy, linewidth=1.2)
  by_round.set(xlabel="round", ylabel="test accuracy (%)")
  bytes_by_round.set(xlabel="round", ylabel="megabytes down and up, all clients")
  by_bytes.set(
    xlabel="megabytes down and up, all clients", ylabel="test accuracy (%)", xscale="log"
  )
  for axes in (by_round, bytes_by_round, by_bytes):
    axes.grid(alpha=0.3)
  by_round.legend()
  figure.suptitle(title)
  figure.savefig(path, dpi=120)


def main(argv: Sequence[str]) -> None:
  """Compares what the flags say."""
  del argv
  try:
    folder = os.path.dirname(os.path.abspath(_OUT.value))
    if not os.path.isdir(folder):
      raise command_line.UsageError(
        f"{_OUT.value} cannot be written: there is no folder {folder}."
      )
    if _TARGET.value is not None and not 0 < _TARGET.value <= 1:
      raise command_line.UsageError(
        f"target_accuracy must be in (0, 1]; found {_TARGET.value:g}."
      )
    runs = [read_run(run) for run in _RUNS.value]
  except command_line.UsageError as error:
    command_line.fail(error)
  labels = [run.label for run in runs]
  runs = [
    run._replace(label=run.name) if labels.count(run.label) > 1 else run for run in runs
  ]
  draw(runs, _OUT.value, _TITLE.value)
  print(table(runs, _TARGET.value))


if __name__ == "__main__":
  flags.mark_flags_as_required(["runs", "out"])
  command_line.start(main)
