"""The runs of results/ as tables: of one algorithm, and of one setting."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from repository_pages import ROOT

_NUMBERS = ("rounds", "best, %", "in round", "last, %", "MB")


class Measured(NamedTuple):
  """A run of a paper's tables.

  Attributes:
    algorithm: Its name.
    paper: The folder of results/ that it is in.
    name: The run's name there.
    data: What is to be said of it, and the network.
    split: As `--partition` takes it, without the sizes of clients.
    clients: A round's of all.
    rounds: How many were done.
    best: The best test accuracy, in percent, with its round.
    final: That after the last round, in percent.
    megabytes: Down and up, of all clients and rounds.
  """

  algorithm: str
  paper: str
  name: str
  data: str
  split: str
  clients: str
  rounds: int
  best: float
  best_round: int
  final: float
  megabytes: float

  @property
  def setting(self) -> tuple[str, str, str, str]:
    """What runs that are compared have in common."""
    return self.paper, self.data, self.split, self.clients


def _data(task: str, note: str) -> str:
  from tasks.registry import TASKS

  words = re.split(r", (?!\d)", TASKS[task].description) if task in TASKS else [task]
  network = re.sub(r" \([\d,]+ weights\)|\.$", "", words[1]) if words[1:] else ""
  data = f"{note} ({words[0]})" if note else words[0]
  return ", ".join(filter(None, (data, network)))


def _split(partition: str) -> str:
  """The split without the least and most examples of a client."""
  return re.sub(r"[:,]m(in|ax)_size=\d+", "", partition)


def read() -> list[Measured]:
  """The first seed of each cell of the papers' tables, in the order of their folders."""
  from experiments.run_folder import reading

  found = []
  for folder in sorted((ROOT / "results").glob("*/runs/*/seed0")):
    run = reading.read_run(str(folder))
    summary, flags = run.summarize(), run.flags
    if "best_accuracy" not in summary:
      continue
    cell = folder.parent.name
    found.append(
      Measured(
        flags["algorithm"],
        folder.parents[2].name,
        cell,
        _data(flags["task"], run.data.get("note", "")),
        _split(flags["partition"]),
        f"{flags['clients_per_round']} of {run.data.get('clients')}",
        summary["rounds"],
        100 * summary["best_accuracy"],
        summary["best_accuracy_round"],
        100 * summary["final_accuracy"],
        (summary["bytes_down"] + summary["bytes_up"]) / 1e6,
      )
    )
  return found


def _breakable(names: str) -> str:
  """Names that a narrow column can break after their words."""
  return names.replace("_", "_<wbr>")


def _numbers(run: Measured) -> tuple[str, ...]:
  return (
    str(run.rounds),
    f"{run.best:.1f}",
    str(run.best_round),
    f"{run.final:.1f}",
    f"{run.megabytes:,.0f}",
  )


def table_of(name: str, runs: Sequence[Measured]) -> str:
  """What an algorithm's page says of its runs."""
  from algorithm_pages import table

  own = [run for run in runs if run.algorithm == name]
  if not own:
    return (
      "No run of a paper's table with it is kept here. It passes the tests that every "
      "algorithm passes, which compare it with NumPy round by round."
    )
  papers = sorted({run.paper for run in own})
  links = ", ".join(f"[{paper}](../results/{paper}.md)" for paper in papers)
  return (
    "Test accuracy of the runs of the papers' tables, the first seed of each, and the "
    "bytes of all clients, both ways. Beside the other algorithms of the same settings: "
    f"[What was measured](../measured.md). What they say, and where a paper says "
    f"otherwise: {links}.\n\n"
    + table(
      ("run; data and network, split", *_NUMBERS),
      [(_breakable(f"{r.name}<br>{r.data}, {r.split}"), *_numbers(r)) for r in own],
      numbers=len(_NUMBERS),
    )
  )


def page(runs: Sequence[Measured]) -> str:
  """The page of all settings, in each of them the best run first."""
  from algorithm_pages import table

  groups: dict[tuple[str, ...], list[Measured]] = {}
  for run in runs:
    groups.setdefault(run.setting, []).append(run)
  parts = [
    "# What was measured",
    "The runs of the papers' tables, those of the same data, network, split and clients "
    "together, by their best test accuracy. One seed each, so that a difference of a "
    "point or two may be chance. Their settings, why an order is what it is, and "
    "the papers' numbers: the page of each paper's [results](results/index.md).",
  ]
  for (paper, data, split, clients), group in groups.items():
    ordered = sorted(group, key=lambda run: -run.best)
    rows = [
      (f"[{r.algorithm}](algorithms/{r.algorithm}.md)", _breakable(r.name), *_numbers(r))
      for r in ordered
    ]
    parts += [
      f"## {data}, {split}",
      f"{clients} clients in a round; [settings, and what they say](results/{paper}.md).",
      table(("algorithm", "run", *_NUMBERS), rows, numbers=len(_NUMBERS)),
    ]
  return "\n\n".join(parts) + "\n"
