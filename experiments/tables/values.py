"""What the runs of a row say of its columns."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple, Optional

from experiments.tables.cells import Settings, curves_by_seed, unfinished
from experiments.tables.measures import Curve, deviation, least_loss
from experiments.tables.model import Cell, Column, Row, Table


class Value(NamedTuple):
  """What the runs of a row say of a column, in its unit.

  Attributes:
    mean: Over the runs that have the number, of several cells over these' means; None
      if none has.
    std: The sample standard deviation of what the mean is over; None below two.
    reached: How many have it.
    runs: How many could: all, or those whose reference was run too.
  """

  mean: Optional[float]
  std: Optional[float]
  reached: int
  runs: int


def value_of(column: Column, curves: Sequence[tuple[Curve, Optional[Curve]]]) -> Value:
  """Takes a column's number over runs, each with the reference's run of its seed."""
  factor = 100 if column.unit == "%" else 1
  pairs = [pair for pair in curves if pair[1] is not None or not column.compares]
  each = [column.value(curve, reference) for curve, reference in pairs]
  found = [factor * v for v in each if v is not None]
  return Value(
    mean=statistics.mean(found) if found else None,
    std=deviation(found),
    reached=len(found),
    runs=len(pairs),
  )


def _over_cells(values: Sequence[Value]) -> Value:
  """Of several cells each counts once: seeds may be more of one than of another."""
  if len(values) == 1:
    return values[0]
  found = [value.mean for value in values if value.mean is not None]
  return Value(
    mean=statistics.mean(found) if found else None,
    std=deviation(found),
    reached=sum(value.reached for value in values),
    runs=sum(value.runs for value in values),
  )


class Result(NamedTuple):
  """What there is of a row.

  Attributes:
    row: The row.
    cells: The cells that its values are of.
    values: One for each column.
    runs: How many runs are done.
    unfinished: How far a run is that is not.
  """

  row: Row
  cells: tuple[Cell, ...]
  values: list[Value]
  runs: int
  unfinished: str


def result_of(table: Table, row: Row, settings: Settings) -> Result:
  """What there is of a row."""
  references: Sequence[Optional[Curve]] = [None] * len(settings.seeds)
  if row.reference is not None:
    references = curves_by_seed(row.reference, settings)

  def of(cells: tuple[Cell, ...]) -> Result:
    pairs = [
      [
        (curve, reference)
        # A measure knows the reference itself by its being the same object.
        for curve, reference in zip(
          references if cell == row.reference else curves_by_seed(cell, settings),
          references,
        )
        if curve is not None
      ]
      for cell in cells
    ]
    runs = sum(map(len, pairs))
    if not runs:  # The one that is under way, not the first.
      cells = tuple(c for c in row.cells if unfinished([c], settings)) or cells
    values = [
      _over_cells([value_of(column, each) for each in pairs]) for column in table.columns
    ]
    return Result(row, cells, values, runs, unfinished(row.cells, settings))

  if table.of_several == "mean" or len(row.cells) == 1:
    return of(row.cells)
  sign = 1 if table.of_several == "least" else -1
  each = [of((cell,)) for cell in row.cells]

  def rank(result: Result) -> tuple:
    first = result.values[0]
    # A mean of the seeds that got there says nothing of those that did not.
    share = first.reached / first.runs if first.runs else 0.0
    return (not result.runs, -share, sign * (first.mean or 0))

  return min(each, key=rank)


def shown(value: Value, column: Column) -> str:
  """A value as a table shows it; words where there is none."""
  if not value.runs:
    return "no reference" if column.compares else "not run"
  if value.mean is None:
    is_measured = column.unit == "%" or column.value is least_loss
    return "not measured" if is_measured else "not reached"
  text = f"{value.mean:.{column.digits}f}"
  if value.std is not None:
    text += f" ± {value.std:.{max(column.digits, 1)}f}"
  if value.reached < value.runs:
    text += f" ({value.reached} of {value.runs})"
  return text


def paper_and_difference(value: Value, column: Column, row: Row) -> tuple[str, str]:
  """The paper's number and ours less it, as a table shows them."""
  printed = row.paper.get(column.name, "")
  if isinstance(printed, str):
    return printed, ""
  paper = f"{printed:.{column.digits}f}"
  return paper, "" if value.mean is None else f"{value.mean - printed:+.{column.digits}f}"
