"""The tables and figures of FedAvg: McMahan et al., AISTATS 2017.

A row's learning rate is the best of `--learning_rates`, as in the paper, which tunes it
for each row on a grid of ratio 10^(1/3).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Optional

from experiments.papers.printed import number, paper_numbers
from experiments.tables import measures
from experiments.tables.model import (
  Cell,
  Column,
  Figure,
  Item,
  Panel,
  PaperNumber,
  Row,
  Table,
)
from tasks.datasets import shakespeare
from tff_algos.errors import InputError

# Clients of the data sets' IID versions; the others' are given by the data.
_CLIENTS = 100
_SPLITS = {"iid": "iid", "noniid": "shards"}
_GRID = {"mnist_2nn": ("0.1", "0.215"), "mnist_cnn": ("0.1", "0.215", "0.464")}
# A row is run for so many times the paper's rounds before it counts as not reached.
_PATIENCE = 1.5
_NOTE = (
  "Rounds are read off the best accuracy so far, linear between rounds [paper, Section "
  f"3]. A row is run until it has that accuracy, for at most {_PATIENCE:g} times the "
  "paper's rounds, 1,000 where it has none [convention]. FedSGD is FedAvg with E = 1 and "
  "B = inf, C = 0.0 one client a round [paper]. The paper tunes the learning rate for "
  "each row; --learning_rates says which are tried. Of Shakespeare's roles the paper "
  f"counts 1,146, tasks.datasets.shakespeare {shakespeare.ROLES:,} [convention]."
)


def _check_rates(rates: Sequence[str]) -> None:
  for rate in rates:
    try:
      is_rate = 0 < float(rate) < math.inf
    except ValueError:
      is_rate = False
    if not is_rate:
      raise InputError(f"--learning_rates must be positive numbers; found {rate!r}.")
  if len(set(map(float, rates))) < len(rates):
    raise InputError(
      f"--learning_rates gives one twice: give each once; found {', '.join(rates)}."
    )


def _default_rates(task: str) -> Sequence[str]:
  return _GRID.get(task, ("1.47",))


def _cells(
  task: str,
  split: str,
  fraction: float,
  epochs: int,
  batch: str,
  rounds: int,
  rates: Sequence[str],
  target: Optional[float] = None,
) -> tuple[Cell, ...]:
  """One for each rate; their runs end where they have the target, if there is one."""
  if task == "shakespeare_lstm":
    clients = shakespeare.ROLES
    options: dict[str, Any] = {"partition": "natural"}
    if split == "iid":
      options = {"partition": "iid", "num_clients": clients}
  else:
    clients, options = _CLIENTS, {"partition": _SPLITS[split]}
  options["clients_per_round"] = max(1, round(fraction * clients))
  options["epochs"] = epochs
  options["batch_size"] = "inf" if batch == "inf" else int(batch)
  # A figure's run goes on where a table's of the same name has ended.
  options["stop_at"] = "" if target is None else f"accuracy:{target:g}"
  return tuple(
    Cell(
      f"{task}_{split}_C{fraction:g}_E{epochs}_B{batch}_lr{rate}",
      "fedavg",
      task,
      rounds,
      {**options, "learning_rate": float(rate)},
    )
    for rate in rates or _default_rates(task)
  )


def _rounds(paper: PaperNumber) -> int:
  return math.ceil(_PATIENCE * paper) if isinstance(paper, float) else 1000


def _column(target: float) -> Column:
  name = f"rounds to {100 * target:g} %"
  return Column(name, measures.interpolated_rounds_to(target), digits=1)


def _fractions(task: str, rates: Sequence[str]) -> Table:
  rows, target = [], 0.0
  for printed in paper_numbers("fedavg_client_fraction.csv", "1"):
    if printed["model"] != task:
      continue
    target = float(printed["target_accuracy"]) / 100
    fraction, epochs = float(printed["client_fraction"]), int(printed["epochs"])
    for split in _SPLITS:
      for batch in ("inf", "10"):
        paper = number(printed[f"{split}_b_{batch}"])
        labels = (f"{fraction:.1f}", split, batch)
        cells = _cells(
          task, split, fraction, epochs, batch, _rounds(paper), rates, target
        )
        rows.append(Row(labels, cells, {_column(target).name: paper}))
  return Table(
    f"FedAvg, Table 1: client fraction C, {task}",
    ("C", "split", "B"),
    (_column(target),),
    tuple(rows),
    of_several="least",
    note=_NOTE,
  )


def _computation(task: str, rates: Sequence[str]) -> Table:
  rows, target = [], 0.0
  for printed in paper_numbers("fedavg_local_computation.csv", "2"):
    if printed["model"] != task:
      continue
    target = float(printed["target_accuracy"]) / 100
    epochs, batch = int(printed["epochs"]), printed["batch"]
    for split in _SPLITS:
      paper = number(printed[f"rounds_{split}"])
      labels = (printed["algorithm"], str(epochs), batch, split)
      cells = _cells(task, split, 0.1, epochs, batch, _rounds(paper), rates, target)
      rows.append(Row(labels, cells, {_column(target).name: paper}))
  return Table(
    f"FedAvg, Table 2: local computation, {task}, C = 0.1",
    ("algorithm", "E", "B", "split"),
    (_column(target),),
    tuple(rows),
    of_several="least",
    note=_NOTE,
  )


def _curves(task: str, rounds: int, rates: Sequence[str]) -> Figure:
  settings = [
    (int(row["epochs"]), row["batch"])
    for row in paper_numbers("fedavg_local_computation.csv", "2")
    if row["model"] == task
  ]
  panels = [
    Panel(
      f"{split}, learning rate {rate}",
      {
        f"E = {epochs}, B = {batch}": _cells(
          task, split, 0.1, epochs, batch, rounds, (rate,)
        )[0]
        for epochs, batch in settings
      },
    )
    for split in _SPLITS
    for rate in rates or _default_rates(task)
  ]
  title = f"FedAvg, Figure 5: test accuracy by rounds, {task}, C = 0.1"
  note = "Of the curves of a split the paper shows those of the best learning rates."
  return Figure(title, tuple(panels), note=note)


def _many_epochs() -> Figure:
  panels = [
    Panel(
      f"{task}, {split}",
      {
        f"E = {epochs}": _cells(task, split, 0.1, epochs, "10", rounds, (rate,))[0]
        for epochs in (1, 5, 10, 25, 50, 100, 200)
      },
    )
    for task, split, rounds, rate in (
      ("shakespeare_lstm", "noniid", 100, "1.47"),
      ("mnist_cnn", "iid", 100, "0.1"),
    )
  ]
  return Figure(
    "FedAvg, Figure 6: many local epochs, B = 10, C = 0.1",
    tuple(panels),
    note="Shakespeare's rate is the paper's; the numbers of epochs, the split, the "
    "rounds and the panel of MNIST are not in its text [convention].",
  )


def build(rates: Sequence[str] = ()) -> tuple[dict[str, Item], dict[str, Item]]:
  """The tables and figures, by their numbers.

  Args:
    rates: The learning rates of every row, of which the best counts; none: the defaults,
      0.1 and 0.215 for MNIST, for its CNN 0.464 too, and 1.47 for Shakespeare, on the
      paper's grid.

  Raises:
    InputError: A rate is not a positive number.
  """
  _check_rates(rates)
  rates = [f"{float(rate):g}" for rate in rates]  # However it is written, one folder.
  tables: dict[str, Item] = {
    "1_2nn": _fractions("mnist_2nn", rates),
    "1_cnn": _fractions("mnist_cnn", rates),
    "2_cnn": _computation("mnist_cnn", rates),
    "2_lstm": _computation("shakespeare_lstm", rates),
  }
  figures: dict[str, Item] = {
    "5_cnn": _curves("mnist_cnn", 1000, rates),
    "5_lstm": _curves("shakespeare_lstm", 4000, rates),
    "6": _many_epochs(),
  }
  return tables, figures
