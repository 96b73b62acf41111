"""Which of the papers' tables and figures were run, and how they compare with them.

What is there is read as the kept pages of tables and figures have it: with the scale of
rounds that a page names, all rounds without a page, and every seed that was begun.
"""

from __future__ import annotations

import itertools
import math
import os
import statistics
from collections.abc import Sequence
from typing import NamedTuple, Optional

from experiments.run_folder import reading
from experiments.tables import measures
from experiments.tables.cells import (
  Settings,
  call_folder,
  is_enough,
  read_run_of,
  seeds_of,
)
from experiments.tables.model import Cell, Column, Item, Program, Row, Table, cells_of
from experiments.tables.values import Result, result_of
from experiments.tables.writing import scale_of


class State(NamedTuple):
  """What there is of a table or figure.

  Attributes:
    key: Its name in files: "table2_cnn".
    title: What it shows, with the paper's name.
    link: Its page or folder from the paper's; "" if there is none.
    unit: What it is made of, "cells" or "calls".
    run: How many of them were begun.
    of: How many there are.
    seeds: How many runs each of them has that was begun.
    shares: What of the experiment's rounds each of them did, 0..1.
    alike: How many pairs of rows are ordered as the paper has them.
    pairs: How many can be compared.
    difference: The median of ours less the paper's, with the column; "" for none.
  """

  key: str
  title: str
  link: str
  unit: str
  run: int
  of: int
  seeds: Sequence[int] = ()
  shares: Sequence[float] = ()
  alike: int = 0
  pairs: int = 0
  difference: str = ""

  @property
  def name(self) -> str:
    """As it is called: "Table 2_cnn"."""
    kind = "table" if self.key.startswith("table") else "figure"
    return f"{kind.capitalize()} {self.key[len(kind) :]}"


def state_of(item: Item, key: str, settings: Settings) -> State:
  """What there is of a table or figure.

  Raises:
    InputError: A run's folder cannot be read, or holds a run of another setting.
  """
  link = ""
  for name in (f"{key}.md", key):
    if not link and os.path.exists(os.path.join(settings.out, name)):
      link = name
  if isinstance(item, Program):
    return _state_of_calls(item, key, link, settings)
  cells = cells_of(item)
  if isinstance(item, Table) and item.of_several != "mean":
    # Learning rates: a row takes the best of those that were tried.
    groups: Sequence[Sequence[Cell]] = [row.cells for row in item.rows]
  else:
    groups = [(cell,) for cell in cells]
  every = {cell.name: _shares_of(cell, settings) for cell in cells}
  begun = [
    (
      max(sum(map(bool, every[cell.name])) for cell in group),
      max(share for cell in group for share in every[cell.name] or [0]),
    )
    for group in groups
    if any(any(every[cell.name]) for cell in group)
  ]
  seeds = sorted({seed for cell in cells for seed in seeds_of(cell, settings)})
  settings = settings._replace(
    seeds=seeds or (0,), rounds_scale=scale_of(key, settings) or 1.0
  )
  alike, pairs, difference = 0, 0, ""
  if isinstance(item, Table):
    alike, pairs, difference = _compare(item, settings)
  return State(
    key,
    item.title,
    link,
    "cells",
    run=len(begun),
    of=len(groups),
    seeds=[runs for runs, _ in begun],
    shares=[share for _, share in begun],
    alike=alike,
    pairs=pairs,
    difference=difference,
  )


def _shares_of(cell: Cell, settings: Settings) -> list[float]:
  """The share of a cell's rounds that each of its runs has, 1 where it has ended."""
  runs = [read_run_of(cell, seed, settings) for seed in seeds_of(cell, settings)]
  return [
    1.0 if is_enough(run, cell, cell.rounds) else len(run.records) / cell.rounds
    for run in runs
    if run is not None
  ]


def _state_of_calls(item: Program, key: str, link: str, settings: Settings) -> State:
  folders = {name: call_folder(key, name, settings) for name in item.calls}
  done = {
    name: folder
    for name, folder in folders.items()
    if os.path.exists(os.path.join(folder, item.done))
  }
  shares = [
    min(1.0, len(reading.read_run(folder).records) / item.calls[name][item.scaled_flag])
    for name, folder in done.items()
    if item.scaled_flag
  ]
  return State(key, item.title, link, "calls", len(done), len(item.calls), (), shares)


def _compare(table: Table, settings: Settings) -> tuple[int, int, str]:
  """Pairs ordered alike, pairs, and the median difference of a table."""
  compared = [
    (k, column)
    for k, column in enumerate(table.columns)
    if any(isinstance(row.paper.get(column.name), float) for row in table.rows)
    # Runs are made beside other work, so that their seconds rank nothing.
    and column.value is not measures.relative_seconds
  ]
  if not compared:
    return 0, 0, ""
  place, column = compared[0]
  groups: dict[tuple[str, ...], list[tuple[float, float]]] = {}
  for row in table.rows:
    found = _ours_and_papers(result_of(table, row, settings), place, column)
    if found is not None:
      groups.setdefault(_without_algorithm(table, row), []).append(found)
  by_label = {_without_algorithm(table, row) for row in table.rows}
  every = list(groups.values())
  if len(by_label) == len(table.rows):  # Its rows differ by something else.
    every = [list(itertools.chain(*every))]
  pairs = [
    (ours - other > 0, ours == other, paper > other_paper)
    for group in every
    for (ours, paper), (other, other_paper) in itertools.combinations(group, 2)
    if paper != other_paper
  ]
  alike = sum(above == papers and not tied for above, tied, papers in pairs)
  each = [ours - paper for group in every for ours, paper in group]
  differences = [difference for difference in each if math.isfinite(difference)]
  if not differences:
    return alike, len(pairs), ""
  median = f"{statistics.median(differences):+.{max(1, column.digits)}f}"
  unit = f", {column.unit}" if column.unit else ""
  return alike, len(pairs), f"{median} ({column.name}{unit})"


def _without_algorithm(table: Table, row: Row) -> tuple[str, ...]:
  return tuple(n for h, n in zip(table.labels, row.labels) if h != "algorithm")


def _ours_and_papers(
  result: Result, place: int, column: Column
) -> Optional[tuple[float, float]]:
  """A row's two numbers; what did not reach its mark is worse than all that did."""
  value, paper = result.values[place], result.row.paper.get(column.name)
  if not value.runs or paper is None:
    return None
  worst = -math.inf if column.unit == "%" else math.inf  # Else it is of rounds or time.
  return (
    worst if value.mean is None else value.mean,
    paper if isinstance(paper, float) else worst,
  )
