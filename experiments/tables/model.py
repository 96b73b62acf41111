"""What a table or figure of a paper is: rows, columns, panels, and their cells.

A cell is one setting of `train.py`; its runs, one a seed, are folders under `runs/`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Optional, Union

from experiments.tables.measures import Measure


class Cell(NamedTuple):
  """One setting of `train.py`, to be run once for each repeat.

  Attributes:
    name: The folder of its runs.
    algorithm: A name of `algorithms.registry`.
    task: A name of `tasks.registry`.
    rounds: The rounds of the full experiment.
    flags: Further flags of `train.py`.
  """

  name: str
  algorithm: str
  task: str
  rounds: int
  flags: Mapping[str, Any] = {}


#: As printed; or the paper's word where it has none.
PaperNumber = Union[float, str]


class Row(NamedTuple):
  """One row of a table.

  Attributes:
    labels: What it is, a text for each of the table's labels.
    cells: Its cells; of several the table says which counts.
    paper: Column to the paper's number, in the column's unit, or its word for none.
    reference: The cell whose curve a column may compare with.
  """

  labels: tuple[str, ...]
  cells: tuple[Cell, ...]
  paper: Mapping[str, PaperNumber] = {}
  reference: Optional[Cell] = None


class Column(NamedTuple):
  """A number of a table.

  Attributes:
    name: Its key in `Row.paper`.
    value: What it is of a curve and the row's reference.
    unit: "%" for a share of 1 shown in percent, "" for a number shown as it is.
    digits: After the decimal point.
    compares: Whether it needs the row's reference.
  """

  name: str
  value: Measure
  unit: str = ""
  digits: int = 0
  compares: bool = False

  @property
  def heading(self) -> str:
    """What stands above it."""
    return f"{self.name} ({self.unit})" if self.unit else self.name


class Table(NamedTuple):
  """A table of a paper.

  Attributes:
    title: What it shows.
    labels: Headings of the rows' labels.
    columns: Its numbers.
    rows: Its rows.
    of_several: Of a row with several cells, "mean" takes the mean of their means, "least"
      and "most" the cell that is best in the first column.
    note: What a reader must know.
  """

  title: str
  labels: tuple[str, ...]
  columns: tuple[Column, ...]
  rows: tuple[Row, ...]
  of_several: str = "mean"
  note: str = ""


class Panel(NamedTuple):
  """Curves in one frame of a figure.

  Attributes:
    title: What they have in common.
    curves: Label to cell.
    paper: Label to the accuracy that a table of the paper has for it, in percent.
  """

  title: str
  curves: Mapping[str, Cell]
  paper: Mapping[str, PaperNumber] = {}


class Figure(NamedTuple):
  """A figure of a paper: test accuracy by rounds.

  Attributes:
    title: What it shows.
    panels: Its frames.
    with_loss: Whether it has test loss too.
    note: What a reader must know.
    smooth: The rounds over which a line is a running mean; 1 for none.
  """

  title: str
  panels: tuple[Panel, ...]
  with_loss: bool = False
  note: str = ""
  smooth: int = 1


class Program(NamedTuple):
  """A figure that another program makes.

  Attributes:
    title: What it shows.
    program: A file of binaries/.
    calls: The folder of each call's results to its flags but for that of the folder.
    done: The file that it writes last.
    folder_flag: The flag that names the folder.
    scaled_flag: The flag of its rounds, which `--rounds_scale` multiplies; the folder is
      then that of a run, too. "" for none.
  """

  title: str
  program: str
  calls: Mapping[str, Mapping[str, Any]]
  done: str = "table.md"
  folder_flag: str = "out"
  scaled_flag: str = ""


Item = Union[Table, Figure, Program]
#: Gives a paper's tables and its figures by their numbers.
Build = Callable[[], tuple[Mapping[str, Item], Mapping[str, Item]]]


def items_of(build: Build) -> dict[str, Item]:
  """A paper's tables and figures by the names of their files, such as table3."""
  tables, figures = build()
  return {
    **{f"table{number}": item for number, item in tables.items()},
    **{f"figure{number}": item for number, item in figures.items()},
  }


def cells_of(item: Item) -> list[Cell]:
  """The cells of a table or figure, each once, in their order."""
  if isinstance(item, Table):
    every = [
      cell
      for row in item.rows
      for cell in (*([row.reference] if row.reference else []), *row.cells)
    ]
  elif isinstance(item, Figure):
    every = [cell for panel in item.panels for cell in panel.curves.values()]
  else:
    every = []
  return list({cell.name: cell for cell in every}.values())


def names_of(item: Item) -> list[str]:
  """The names of its cells or, of a program's, its calls."""
  if isinstance(item, Program):
    return list(item.calls)
  return [cell.name for cell in cells_of(item)]
