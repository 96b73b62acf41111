"""Writes tables and figures as Markdown, CSV and picture."""

from __future__ import annotations

import csv
import io
import itertools
import os
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from experiments import markdown
from experiments.curves import CLOSE
from experiments.tables import pictures
from experiments.tables.cells import (
  Settings,
  curves_of,
  is_wanted,
  seeds_of,
  unfinished,
)
from experiments.tables.measures import (
  best,
  by_round,
  deviation,
  final,
  has_accuracy,
  least_loss,
)
from experiments.tables.model import Cell, Column, Figure, Item, Row, Table, cells_of
from experiments.tables.values import (
  Result,
  paper_and_difference,
  result_of,
  shown,
  value_of,
)
from tff_algos import durable_files
from tff_algos.errors import InputError


def write_table(table: Table, key: str, settings: Settings) -> list[str]:
  """Writes a table as Markdown, CSV and picture; gives the first two files.

  Rows of which nothing was run are in the CSV only, and accuracies nowhere where no run
  has any.
  """
  results = [result_of(table, row, settings) for row in table.rows]
  table, results = _without_unmeasured(table, results)
  with_runs = [r for r in results if r.runs or r.unfinished]
  text = f"# {table.title}\n"
  if with_runs:
    text += f"\n{_rows_as_markdown(table, with_runs)}\n"
  missing = len(results) - len(with_runs)
  if missing:
    text += f"\n{missing} of {len(results)} rows were not run; {key}.csv has them too.\n"
  drawn = [r for r in results if any(value.mean is not None for value in r.values)]
  if drawn:
    text += f"\n![{table.title}]({key}.png)\n"
    common, names = _names(table, [result.row for result in drawn])
    pictures.draw_table(
      f"{table.title}\n{common}" if common else table.title,
      names,
      [_points(column, k, drawn) for k, column in enumerate(table.columns)],
      os.path.join(settings.out, f"{key}.png"),
    )
  text += _remarks(table.note, cells_of(table), settings)
  return [
    _write(settings, f"{key}.md", text),
    _write(settings, f"{key}.csv", _csv(_rows_as_records(table, results))),
  ]


def _without_unmeasured(
  table: Table, results: Sequence[Result]
) -> tuple[Table, list[Result]]:
  """Without the columns of accuracy that no run has, where runs have others."""
  kept = [
    k
    for k, column in enumerate(table.columns)
    if column.unit != "%"
    or any(r.values[k].mean is not None or column.name in r.row.paper for r in results)
  ]
  if not any(r.values[k].mean is not None for k in kept for r in results):
    return table, [*results]  # Nothing is done.
  return table._replace(columns=tuple(table.columns[k] for k in kept)), [
    r._replace(values=[r.values[k] for k in kept]) for r in results
  ]


def _names(table: Table, rows: Sequence[Row]) -> tuple[str, list[str]]:
  """What rows have in common, and what tells each from the others."""
  labels = list(zip(table.labels, zip(*(row.labels for row in rows))))
  common = [(h, of[0]) for h, of in labels if len(set(of)) == 1 < len(rows)]
  own = [(h, of) for h, of in labels if (h, of[0]) not in common]
  return ", ".join(f"{h} = {label}" for h, label in common if label), [
    ", ".join(_named(h, of[k]) for h, of in own if of[k]) for k in range(len(rows))
  ]


def _named(heading: str, label: str) -> str:
  # A number says nothing without its name, nor does the inf of a B.
  is_number = label.replace(".", "").isdigit()
  return f"{heading} = {label}" if is_number or len(heading) == 1 else label


def _points(column: Column, place: int, results: Sequence[Result]) -> pictures.Points:
  printed = [result.row.paper.get(column.name) for result in results]
  ours = [(r.values[place].mean, r.values[place].std or 0.0) for r in results]
  paper = [number if isinstance(number, float) else None for number in printed]
  known = [n for n in (*paper, *(mean for mean, _ in ours)) if n is not None]
  span = 5.0 if column.unit == "%" else 0.2 * max(known, default=0.0)
  is_whole = not column.unit and not column.digits
  return pictures.Points(column.heading, ours, paper, span, is_whole)


def _rows_as_markdown(table: Table, results: Sequence[Result]) -> str:
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
      line.append(shown(value, column) if result.runs else is_first * result.unfinished)
      printed = paper_and_difference(value, column, result.row)
      line += printed if has_paper else []
    line += [", ".join(cell.name for cell in result.cells)] if has_choice else []
    lines.append(line)
  return markdown.table([*head, "runs"] if has_choice else head, lines)


def _rows_as_records(table: Table, results: Sequence[Result]) -> list[dict[str, Any]]:
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
      "difference": paper_and_difference(value, column, result.row)[1],
      "cells": " ".join(cell.name for cell in result.cells),
    }
    for result in results
    for column, value in zip(table.columns, result.values)
  ]


def write_figure(item: Figure, key: str, settings: Settings) -> list[str]:
  """Writes a figure as picture, CSV and Markdown; gives the files."""
  drawn: dict[str, list[pictures.Line]] = {}
  records_, lines = [], []
  curves = {cell.name: curves_of(cell, settings) for cell in cells_of(item)}
  every = [*itertools.chain(*curves.values())]
  of_loss = any(curve.rounds for curve in every) and not has_accuracy(every)
  columns = (_LEAST_LOSS,) if of_loss else (_BEST, _FINAL)
  for panel in item.panels:
    for label, cell in panel.curves.items():
      found = curves[cell.name]
      if found:
        paper = panel.paper.get(label)
        line = pictures.Line(label, found, paper if isinstance(paper, float) else None)
        drawn.setdefault(panel.title, []).append(line)
      numbers = [
        shown(value_of(c, [(curve, None) for curve in found]), c) for c in columns
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
            "accuracy": "" if of_loss else statistics.mean(accuracy),
            "accuracy_std": "" if of_loss or len(accuracy) < 2 else deviation(accuracy),
            "loss": statistics.mean(loss),
            "runs": len(accuracy),
          }
        )
  text = f"# {item.title}\n"
  if records_:
    path = os.path.join(settings.out, f"{key}.png")
    kinds = ("loss",) if of_loss else ("accuracy", "closer", "loss")[: 2 + item.with_loss]
    pictures.draw_figure(item.title, drawn, path, kinds=kinds, smooth=item.smooth)
    text += f"\n![{item.title}]({key}.png)\n"
    text += "" if of_loss else f"\n{_caption(item, drawn)}\n"
  head = ["panel", "curve", *(column.heading for column in columns)]
  text += f"\n{markdown.table(head, lines)}\n" + _remarks(
    item.note, cells_of(item), settings
  )
  return [
    _write(settings, f"{key}.md", text),
    _write(settings, f"{key}.csv", _csv(records_)),
  ]


def _caption(item: Figure, drawn: Mapping[str, Sequence[pictures.Line]]) -> str:
  """What a reader must know of the picture."""
  text = f"Closer: the second half of the rounds, {CLOSE:g} points of accuracy at most."
  if any(line.paper is not None for lines in drawn.values() for line in lines):
    text += " Diamonds behind the last round are the accuracies that the paper prints."
  if item.smooth > 1:
    text += (
      f" Lines are running means, of the {item.smooth} rounds around each; the rounds "
      "themselves stand faintly behind."
    )
  return text


_BEST = Column("best accuracy", best, "%", 2)
_FINAL = Column("final accuracy", final, "%", 2)
_LEAST_LOSS = Column("least test loss", least_loss, digits=4)


def _write(settings: Settings, name: str, text: str) -> str:
  path = os.path.join(settings.out, name)
  os.makedirs(settings.out, exist_ok=True)
  with durable_files.new_file(path, "w", newline="") as f:
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


def _page(key: str, settings: Settings) -> str:
  return os.path.join(settings.out, f"{key}.md")


def scale_of(key: str, settings: Settings) -> Optional[float]:
  """The scale of rounds that numbers of a table or figure are of; None without any."""
  if not os.path.exists(_page(key, settings)):
    return None
  numbers = os.path.join(settings.out, f"{key}.csv")
  if os.path.exists(numbers):
    with open(numbers, encoding="utf-8", newline="") as f:
      if not any(int(row["runs"]) for row in csv.DictReader(f)):
        return None
  with open(_page(key, settings), encoding="utf-8") as f:
    found = re.search(_SCALED.format("([0-9.e+-]+)"), f.read())
  return float(found[1]) if found else 1.0


def check_scale(key: str, item: Item, settings: Settings, *, run: bool) -> None:
  """Raises `InputError` if writing a table anew would take numbers out of it.

  Those of runs that are to go on are not lost, but of those that stay as they are.
  """
  path, before, now = _page(key, settings), scale_of(key, settings), settings.rounds_scale
  if before is None:
    return
  if now < before or any(_loses(c, settings, before, run=run) for c in cells_of(item)):
    raise InputError(
      f"{path} was written with --rounds_scale={before:g}, of which {now:g} shows less: "
      "give that one, or another --out."
    )


def _loses(cell: Cell, settings: Settings, before: float, *, run: bool) -> bool:
  """Whether runs that stay have the rounds of the scale before, but not those of now."""
  go_on = settings.seeds if run and is_wanted(cell.name, settings) else ()
  stay = {*seeds_of(cell, settings)}.difference(go_on)
  those = settings._replace(seeds=sorted(stay))
  had = curves_of(cell, those._replace(rounds_scale=before))
  return len(curves_of(cell, those)) < len(had)


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
    machines = sorted({machine for curve in curves for machine in curve.machines})
    place = f" on {'; '.join(machines)}" if machines else ""
    parts.append(
      f"{len(curves)} of {len(by_name) * len(settings.seeds)} runs are done: {hours:.1f} "
      f"hours of rounds and evaluations{place}."
    )
  return "".join(f"\n{part}\n" for part in parts)
