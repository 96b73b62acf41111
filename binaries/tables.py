"""The tables and figures of a paper: runs their cells, sets them beside its numbers.

Shared by the programs of the papers, each of which is a list of tables and figures.
Those that need the same cell share its runs.
"""

from __future__ import annotations

import csv
import io
import math
import os
import re
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Optional, Union

from absl import flags

from binaries import command_line, markdown, report, runs, table_pictures
from binaries.cells import (
  Cell,
  Settings,
  curves_by_seed,
  curves_of,
  is_wanted,
  program_command,
  run_cells,
  run_program,
  scaled,
  unfinished,
)
from binaries.curves import Curve, Measure, best, by_round, deviation, final
from tasks import registry as tasks_registry

_PLACE = dict(module_name=sys.argv[0])  # Where absl looks for what --help shows.
_TABLE = flags.DEFINE_list("table", [], "Tables of the paper, such as 1,2.", **_PLACE)
_FIGURE = flags.DEFINE_list("figure", [], "Figures of the paper, such as 2.", **_PLACE)
_LIST = flags.DEFINE_boolean(
  "list", False, "List the tables and figures, and end.", **_PLACE
)
_REPEATS = flags.DEFINE_integer(
  "repeats", 1, "Runs of each cell, with seeds 0, 1, ..., on the same split.", 1, **_PLACE
)
_SCALE = flags.DEFINE_float(
  "rounds_scale",
  1.0,
  "What every cell's rounds are multiplied by, for a cheaper version; a later start with "
  "more goes on with the same runs.",
  0.0,
  **_PLACE,
)
_ONLY = flags.DEFINE_list(
  "only",
  [],
  "Run only cells whose names hold one of these texts, such as iid_20.",
  **_PLACE,
)
_RUN = flags.DEFINE_boolean(
  "run", True, "Run what is not done; --norun writes what is there.", **_PLACE
)
_REPORT = flags.DEFINE_boolean(
  "report", False, "Write report.html too, a page of all runs there.", **_PLACE
)
_OUT = flags.DEFINE_string(
  "out", None, "Folder of tables, figures and runs; default: results/<paper>.", **_PLACE
)
_DATA_DIRS = flags.DEFINE_list(
  "data_dirs",
  [],
  "Folders of data sets, by the first word of a task's name: "
  "cifar10=DIR,har=DIR; others are where their loaders look.",
  **_PLACE,
)
_CACHE_DIR = flags.DEFINE_string(
  "cache_dir",
  None,
  "Folder for prepared client data; default: that of train.py.",
  **_PLACE,
)

_HERE = os.path.dirname(os.path.abspath(__file__))
_NUMBERS = os.path.join(_HERE, "paper_numbers")


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
    of_several: Of a row with several cells, "mean" takes all their runs together, "least"
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
  """Curves in one frame of a figure: label to cell."""

  title: str
  curves: Mapping[str, Cell]


class Figure(NamedTuple):
  """A figure of a paper: test accuracy by rounds, and test loss where it has that."""

  title: str
  panels: tuple[Panel, ...]
  with_loss: bool = False
  note: str = ""


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


def run_calls(item: Program, key: str, settings: Settings) -> list[str]:
  """Runs the other program; the names of the calls that failed."""
  failed = []
  for name, options in item.calls.items():
    folder = os.path.join(settings.out, key, name)
    is_done = os.path.exists(os.path.join(folder, item.done))
    options = {**options, item.folder_flag: folder}
    if item.scaled_flag:
      rounds = scaled(options[item.scaled_flag], settings.rounds_scale)
      options[item.scaled_flag] = rounds
      is_done = is_done and len(runs.read_run(folder).records) >= rounds
    if is_done or not is_wanted(name, settings):
      continue
    print(f"{item.program}: {key}, {name}", flush=True)
    if run_program(program_command(item.program, options, settings)):
      failed.append(f"{key}, {name}")
  return failed


# --- The paper's numbers ------------------------------------------------------------


def paper_numbers(file_name: str, table: str) -> list[dict[str, str]]:
  """The rows of a paper's table, as printed there; a line with # is a remark."""
  with open(os.path.join(_NUMBERS, file_name), newline="") as f:
    lines = [line for line in f if not line.startswith("#")]
  return [row for row in csv.DictReader(lines) if row["table"] == table]


def number(text: str) -> PaperNumber:
  """A printed number, or the paper's word where it has none."""
  try:
    return float(text)
  except ValueError:
    return text or "—"


# --- Writing ------------------------------------------------------------------------


class Value(NamedTuple):
  """What the runs of a row say of a column, in its unit.

  Attributes:
    mean: Over the runs that have the number; None if none has.
    std: Their sample standard deviation; None below two.
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


class _Result(NamedTuple):
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


def _result(table: Table, row: Row, settings: Settings) -> _Result:
  references: Sequence[Optional[Curve]] = [None] * settings.repeats
  if row.reference is not None:
    references = curves_by_seed(row.reference, settings)

  def of(cells: tuple[Cell, ...]) -> _Result:
    pairs = [
      (curve, reference)
      for cell in cells
      # A measure knows the reference itself by its being the same object.
      for curve, reference in zip(
        references if cell == row.reference else curves_by_seed(cell, settings),
        references,
      )
      if curve is not None
    ]
    if not pairs:  # The one that is under way, not the first.
      cells = tuple(c for c in row.cells if unfinished([c], settings)) or cells
    values = [value_of(column, pairs) for column in table.columns]
    return _Result(row, cells, values, len(pairs), unfinished(row.cells, settings))

  if table.of_several == "mean" or len(row.cells) == 1:
    return of(row.cells)
  sign = 1 if table.of_several == "least" else -1
  each = [of((cell,)) for cell in row.cells]

  def rank(result: _Result) -> tuple:
    mean = result.values[0].mean
    return (not result.runs, mean is None, sign * (mean or 0))

  return min(each, key=rank)


def _shown(value: Value, column: Column) -> str:
  if not value.runs:
    return "no reference" if column.compares else "not run"
  if value.mean is None:
    return "not reached"
  text = f"{value.mean:.{column.digits}f}"
  if value.std is not None:
    text += f" ± {value.std:.{max(column.digits, 1)}f}"
  if value.reached < value.runs:
    text += f" ({value.reached} of {value.runs})"
  return text


def _paper_and_difference(value: Value, column: Column, row: Row) -> tuple[str, str]:
  printed = row.paper.get(column.name, "")
  if isinstance(printed, str):
    return printed, ""
  paper = f"{printed:.{column.digits}f}"
  return paper, "" if value.mean is None else f"{value.mean - printed:+.{column.digits}f}"


def write_table(table: Table, key: str, settings: Settings) -> list[str]:
  """Writes a table as Markdown, CSV and picture; gives the first two files.

  Rows of which nothing was run are in the CSV only.
  """
  results = [_result(table, row, settings) for row in table.rows]
  shown = [r for r in results if r.runs or r.unfinished]
  text = f"# {table.title}\n"
  if shown:
    text += f"\n{_rows_as_markdown(table, shown)}\n"
  missing = len(results) - len(shown)
  if missing:
    text += f"\n{missing} of {len(results)} rows were not run; {key}.csv has them too.\n"
  if any(result.runs for result in shown):
    text += f"\n![{table.title}]({key}.png)\n"
    table_pictures.draw_table(
      table.title,
      [_name(table, result.row) for result in shown],
      [_points(column, k, shown) for k, column in enumerate(table.columns)],
      os.path.join(settings.out, f"{key}.png"),
    )
  text += _remarks(table.note, cells_of(table), settings)
  return [
    _write(settings, f"{key}.md", text),
    _write(settings, f"{key}.csv", _csv(_rows_as_records(table, results))),
  ]


def _name(table: Table, row: Row) -> str:
  # A number says nothing without its letter.
  pairs = zip(table.labels, row.labels)
  return ", ".join(f"{h} = {label}" if len(h) == 1 else label for h, label in pairs)


def _points(
  column: Column, place: int, results: Sequence[_Result]
) -> table_pictures.Points:
  printed = [result.row.paper.get(column.name) for result in results]
  return table_pictures.Points(
    column.heading,
    [(r.values[place].mean, r.values[place].std or 0.0) for r in results],
    [number if isinstance(number, float) else None for number in printed],
  )


def _rows_as_markdown(table: Table, results: Sequence[_Result]) -> str:
  compared = [any(c.name in r.row.paper for r in results) for c in table.columns]
  has_choice = any(len(row.cells) > 1 for row in table.rows)
  head = list(table.labels)
  for column, has_paper in zip(table.columns, compared):
    head += [column.heading] + ["paper", "difference"] * has_paper
  lines = []
  for result in results:
    line = list(result.row.labels)
    for column, value, has_paper in zip(table.columns, result.values, compared):
      is_first = column is table.columns[0]
      line.append(_shown(value, column) if result.runs else is_first * result.unfinished)
      printed = _paper_and_difference(value, column, result.row)
      line += printed if has_paper else []
    line += [", ".join(cell.name for cell in result.cells)] if has_choice else []
    lines.append(line)
  return markdown.table([*head, "runs"] if has_choice else head, lines)


def _rows_as_records(table: Table, results: Sequence[_Result]) -> list[dict[str, Any]]:
  """One for each row and column."""
  return [
    {
      **dict(zip(table.labels, result.row.labels)),
      "column": column.name,
      "unit": column.unit,
      "mean": "" if value.mean is None else value.mean,
      "std": "" if value.std is None else value.std,
      "reached": value.reached,
      "runs": value.runs,
      "paper": result.row.paper.get(column.name, ""),
      "difference": _paper_and_difference(value, column, result.row)[1],
      "cells": " ".join(cell.name for cell in result.cells),
    }
    for result in results
    for column, value in zip(table.columns, result.values)
  ]


def write_figure(item: Figure, key: str, settings: Settings) -> list[str]:
  """Writes a figure as picture, CSV and Markdown; gives the files."""
  drawn: dict[str, list[tuple[str, list[Curve]]]] = {}
  records_, lines = [], []
  for panel in item.panels:
    for label, cell in panel.curves.items():
      found = curves_of(cell, settings)
      if found:
        drawn.setdefault(panel.title, []).append((label, found))
      numbers = [
        _shown(value_of(c, [(curve, None) for curve in found]), c)
        for c in (_BEST, _FINAL)
      ]
      if not found:
        numbers[0] = unfinished([cell], settings) or numbers[0]
      lines.append([panel.title, label, *numbers])
      for t, accuracy, loss in by_round(found):
        records_.append(
          {
            "panel": panel.title,
            "curve": label,
            "round": t,
            "accuracy": statistics.mean(accuracy),
            "accuracy_std": "" if len(accuracy) < 2 else deviation(accuracy),
            "loss": statistics.mean(loss),
            "runs": len(accuracy),
          }
        )
  text = f"# {item.title}\n"
  if records_:
    path = os.path.join(settings.out, f"{key}.png")
    table_pictures.draw_figure(item.title, drawn, path, with_loss=item.with_loss)
    text += f"\n![{item.title}]({key}.png)\n"
  head = ["panel", "curve", "best accuracy (%)", "final accuracy (%)"]
  text += f"\n{markdown.table(head, lines)}\n" + _remarks(
    item.note, cells_of(item), settings
  )
  return [
    _write(settings, f"{key}.md", text),
    _write(settings, f"{key}.csv", _csv(records_)),
  ]


_BEST = Column("best accuracy", best, "%", 2)
_FINAL = Column("final accuracy", final, "%", 2)


def _write(settings: Settings, name: str, text: str) -> str:
  path = os.path.join(settings.out, name)
  os.makedirs(settings.out, exist_ok=True)
  with open(path, "w", newline="") as f:
    f.write(text)
  return path


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
  if not rows:
    return ""
  buffer = io.StringIO()
  writer = csv.DictWriter(buffer, list(rows[0]), lineterminator="\n")
  writer.writeheader()
  writer.writerows(rows)
  return buffer.getvalue()


_SCALED = "Every cell ran {} of the paper's rounds."


def _check_scale(key: str, settings: Settings, *, run: bool) -> None:
  """Raises `UsageError` if writing a table anew would only take numbers out of it."""
  path = os.path.join(settings.out, f"{key}.md")
  if not os.path.exists(path):
    return
  with open(path) as f:
    found = re.search(_SCALED.format("([0-9.e+-]+)"), f.read())
  before, now = float(found[1]) if found else 1.0, settings.rounds_scale
  if now < before or (now > before and not run):
    raise command_line.UsageError(
      f"{path} was written with --rounds_scale={before:g}, of which {now:g} shows less: "
      "give that one, or another --out."
    )


def _remarks(note: str, cells: Sequence[Cell], settings: Settings) -> str:
  """What a reader must know of the runs behind a table or figure."""
  parts = [note] if note else []
  if settings.rounds_scale != 1:
    parts.append(_SCALED.format(settings.rounds_scale))
  by_name = {cell.name: cell for cell in cells}
  curves = [curve for cell in by_name.values() for curve in curves_of(cell, settings)]
  notes = sorted({curve.note for curve in curves if curve.note})
  if notes:
    parts.append(f"Data: {', '.join(notes)}.")
  if curves:
    hours = sum(curve.seconds for curve in curves) / 3600
    machines = sorted({curve.machine for curve in curves if curve.machine})
    place = f" on {'; '.join(machines)}" if machines else ""
    parts.append(
      f"{len(curves)} of {len(by_name) * settings.repeats} runs are done: {hours:.1f} "
      f"hours of rounds and evaluations{place}."
    )
  return "".join(f"\n{part}\n" for part in parts)


# --- The program --------------------------------------------------------------------


def start(
  paper: str, build: Callable[[], tuple[Mapping[str, Item], Mapping[str, Item]]]
) -> None:
  """Runs the program of a paper.

  Args:
    paper: Its short name, the default folder under results/.
    build: Gives its tables and its figures by their numbers, once flags are parsed.
  """

  def main(argv: Sequence[str]) -> None:
    del argv
    try:
      tables, figures = build()
      items = {f"table{name}": item for name, item in tables.items()}
      items.update((f"figure{name}", item) for name, item in figures.items())
      settings = _settings(paper)
      if _LIST.value:
        print_list(items, settings)
        return
      chosen = _choose(items, settings)
    except command_line.UsageError as error:
      command_line.fail(error)
    try:
      failed = make(chosen, settings, run=_RUN.value)
      if _REPORT.value:
        print(write_report(paper, settings))
    except (command_line.UsageError, OSError) as error:
      command_line.fail(error)
    if failed:
      message = f"{len(failed)} runs failed: {'; '.join(failed)}."
      command_line.fail(RuntimeError(message), status=1)

  command_line.start(main)


def make(items: Mapping[str, Item], settings: Settings, *, run: bool) -> list[str]:
  """Runs what is missing of tables and figures, and writes them; the runs that failed.

  Raises:
    UsageError: A table that is there was written with another scale of rounds, so that
      writing it now would lose numbers.
  """
  for key in items:
    _check_scale(key, settings, run=run)
  failed = []
  for key, item in items.items():
    if isinstance(item, Program):
      failed += run_calls(item, key, settings) if run else []
      continue
    try:
      failed += run_cells(cells_of(item), settings) if run else []
    finally:  # What is there is written also when the rest is stopped.
      write = write_table if isinstance(item, Table) else write_figure
      for path in write(item, key, settings):  # type: ignore[operator]
        print(path)
  return failed


def write_report(paper: str, settings: Settings) -> str:
  """Writes the HTML report of all runs of a paper; gives the file.

  Raises:
    UsageError: There are none.
  """
  path = os.path.join(settings.out, "report.html")
  report.write(runs.read_runs([os.path.join(settings.out, "runs")]), path, title=paper)
  return path


def print_list(items: Mapping[str, Item], settings: Settings) -> None:
  """Prints what there is, and how many cells of it are done."""
  for key, item in items.items():
    cells = cells_of(item)
    done = sum(len(curves_of(c, settings)) == settings.repeats for c in cells)
    state = f"{done} of {len(cells)} cells done" if cells else item_program(item)
    print(f"{key:<9} {item.title} ({state})")


def item_program(item: Item) -> str:
  """What makes an item that has no cells of its own."""
  return f"by {item.program}" if isinstance(item, Program) else ""


def _choose(items: Mapping[str, Item], settings: Settings) -> dict[str, Item]:
  """What the flags name; of it, what has a cell or call that --only lets pass."""
  chosen: dict[str, Item] = {}
  for kind, names in (("table", _TABLE.value), ("figure", _FIGURE.value)):
    for name in names:
      key = f"{kind}{name}"
      # A table of several parts: 7 are 7_mnist and 7_har.
      parts = [k for k in items if k == key or k.startswith(f"{key}_")]
      if not parts:
        known = ", ".join(k[len(kind) :] for k in items if k.startswith(kind))
        raise command_line.UsageError(
          f"There is no {kind} {name} here: the {kind}s are {known or 'none'}."
        )
      chosen.update((k, items[k]) for k in parts)
  if not chosen and not _REPORT.value:
    raise command_line.UsageError(
      "Say which by --table or --figure; --list shows what there is."
    )
  wanted = {
    key: item
    for key, item in chosen.items()
    if any(is_wanted(name, settings) for name in _names(item))
  }
  if chosen and not wanted:
    names = [name for item in chosen.values() for name in _names(item)]
    raise command_line.UsageError(
      f"--only={','.join(settings.only)} is in none of the names of "
      f"{', '.join(chosen)}, such as {names[0]} and {names[-1]}."
    )
  return wanted


def _names(item: Item) -> list[str]:
  return (
    list(item.calls)
    if isinstance(item, Program)
    else [cell.name for cell in cells_of(item)]
  )


def _settings(paper: str) -> Settings:
  data_dirs = {}
  for word in _DATA_DIRS.value:
    name, equals, folder = word.partition("=")
    if not (name and equals and folder):
      raise command_line.UsageError(
        f"--data_dirs must be like cifar10=DIR,har=DIR; found {word!r}."
      )
    if name not in (known := {task.split("_")[0] for task in tasks_registry.TASKS}):
      raise command_line.UsageError(
        f"--data_dirs: there is no data set {name}, but {', '.join(sorted(known))}."
      )
    if not os.path.isdir(os.path.expanduser(folder)):
      raise command_line.UsageError(f"--data_dirs: there is no folder {folder}.")
    data_dirs[name] = folder
  if not 0 < _SCALE.value < math.inf:
    raise command_line.UsageError(
      f"--rounds_scale must be more than 0 and finite; found {_SCALE.value:g}."
    )
  out = os.path.join("results", paper)
  if _OUT.value is not None:
    out = os.path.expanduser(_OUT.value)
  command_line.check_folder("out", out)
  return Settings(
    out=out,
    repeats=_REPEATS.value,
    rounds_scale=_SCALE.value,
    only=_ONLY.value,
    data_dirs=data_dirs,
    cache_dir=_CACHE_DIR.value,
  )
