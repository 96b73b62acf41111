"""What forgetting.py leaves behind: rows of its CSV files, a table and pictures."""

from __future__ import annotations

import collections
import csv
import math
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, get_type_hints

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from experiments import markdown
from tff_algos import durable_files
from tff_algos.errors import InputError
from tff_algos.simulation import records

FORGETTING, FISHER, TABLE = "forgetting.csv", "fisher.csv", "table.md"
# The rounds whose clients' data the pseudo data are compared with [paper, B.3].
ROUNDS_BACK = 10

_QUARTILES = (25, 50, 75)


class Row(NamedTuple):
  """A line of forgetting.csv: of one algorithm and one client of the round before.

  Attributes:
    round: The round t, from 1, whose local training is measured.
    algorithm: Its name.
    client: A client of round t - 1.
    loss_before: loss^(t-1), nats.
    loss_after: loss^(t), nats.
  """

  round: int
  algorithm: str
  client: str
  loss_before: float
  loss_after: float


class FisherRow(NamedTuple):
  """A line of fisher.csv: of one client of the round.

  Attributes:
    round: The round, from 1.
    client: The client whose pseudo data these are.
    correlation: Over all weights, -1..1; NaN where all of a vector is alike.
  """

  round: int
  client: str
  correlation: float


class RowFile:
  """A CSV that is written line by line and cut back where a run is resumed."""

  def __init__(self, path: str, kind: Any):
    self._path, self._kind = path, kind

  def count(self) -> collections.Counter[tuple[int, str]]:
    """How many rows a round has of an algorithm, of "" where they name none.

    Raises:
      InputError: As of `read_rows`.
    """
    rows = read_rows(self._path, self._kind)
    return collections.Counter((r.round, getattr(r, "algorithm", "")) for r in rows)

  def cut(self, keeps: Callable[[int], bool]) -> None:
    """Keeps the rows of some rounds alone."""
    rows = [row for row in read_rows(self._path, self._kind) if keeps(row.round)]
    with durable_files.new_file(self._path, "w", newline="") as f:
      csv.writer(f).writerows([self._kind._fields, *rows])

  def add(self, rows: Sequence[Any]) -> None:
    """Writes rows at the end; they are there before the round's checkpoint is."""
    with (
      durable_files.writing(self._path),
      open(self._path, "a", newline="", encoding="utf-8") as f,
    ):
      csv.writer(f).writerows(rows)
      durable_files.sync_file(f)


def read_rows(path: str, kind: Any) -> list[Any]:
  """The rows of a CSV as `Row`s or `FisherRow`s; none if there is no file.

  Raises:
    InputError: It holds something else.
  """
  if not os.path.exists(path):
    return []
  types = list(get_type_hints(kind).values())
  lines = records.read_lines(path)[1:]
  try:
    return [kind(*(to(cell) for to, cell in zip(types, line))) for line in lines]
  except (ValueError, TypeError) as error:
    raise InputError(
      f"{path} holds a line that forgetting.py did not write: measure anew, in another "
      "--run_dir."
    ) from error


def table(rows: Sequence[Row], correlations: Sequence[FisherRow]) -> str:
  """The measurements as a Markdown table, over all rounds and clients."""
  head = [
    "algorithm",
    "loss^(t-1), mean",
    "loss^(t), mean",
    "increase, mean",
    "increase, median",
    "clients with an increase",
  ]
  lines = []
  for name in dict.fromkeys(row.algorithm for row in rows):
    before, after = _losses(rows, name)
    more = after - before
    numbers = (before.mean(), after.mean(), more.mean(), np.median(more))
    # A loss that is NaN is no smaller than before.
    share = "nan %" if np.isnan(more).any() else f"{100 * np.mean(more > 0):.0f} %"
    lines.append([name, *(f"{number:.3f}" for number in numbers), share])
  text = markdown.table(head, lines, right=range(1, len(head)))
  rounds = {row.round for row in rows}
  text += f"\n\nRounds measured: {len(rounds)}, {min(rounds)} to {max(rounds)}."
  if correlations:
    low, middle, high = np.nanpercentile(
      [c.correlation for c in correlations], _QUARTILES
    )
    text += (
      f"\n\nFisher information of pseudo data and of the clients of the last "
      f"{ROUNDS_BACK} rounds: correlation {middle:.2f} (median), {low:.2f} to "
      f"{high:.2f} (quartiles)."
    )
  return text


def _losses(rows: Sequence[Row], name: str) -> np.ndarray:
  """float64 (2, clients): before and after."""
  mine = [row for row in rows if row.algorithm == name]
  return np.array([(row.loss_before, row.loss_after) for row in mine]).T


def _band(axes: Any, rounds: Sequence[int], values: Sequence[float], **style: Any):
  """Draws each round's median over its clients, and its quartiles as a band."""
  at = np.unique(rounds)
  grouped = [np.array(values)[np.array(rounds) == t] for t in at]
  low, middle, high = np.array([np.percentile(v, _QUARTILES) for v in grouped]).T
  (line,) = axes.plot(at, middle, marker="o", markersize=3, linewidth=1.2, **style)
  if len(at) > 1:
    axes.fill_between(at, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
  else:
    axes.vlines(at, low, high, color=line.get_color(), alpha=0.4, linewidth=6)


def draw_losses(rows: Sequence[Row], path: str, title: str) -> None:
  """Draws loss^(t-1) and loss^(t) over the rounds, a panel for each algorithm (PNG)."""
  names = list(dict.fromkeys(row.algorithm for row in rows))
  figure = Figure(figsize=(1.5 + 4.5 * len(names), 4.2), layout="constrained")
  panels = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
  for axes, name in zip(panels, names):
    rounds = [row.round for row in rows if row.algorithm == name]
    before, after = _losses(rows, name)
    _band(axes, rounds, before, label="$loss^{(t-1)}$: global model")
    _band(axes, rounds, after, label="$loss^{(t)}$: local models")
    axes.set(title=name, xlabel="round t")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
  panels[0].set_ylabel("loss of the clients of round t - 1 (nats)")
  panels[0].legend()
  figure.suptitle(f"{title}\nmedian and quartiles over the clients", fontsize="medium")
  durable_files.save_picture(figure, path)


def draw_increase(
  rows: Sequence[Row], correlations: Sequence[FisherRow], path: str, title: str
) -> None:
  """Draws the increase of the loss and, if any, the correlations' distribution (PNG)."""
  panels = 2 if correlations else 1
  figure = Figure(figsize=(7.5, 1 + 3.4 * panels), layout="constrained")
  top, *others = figure.subplots(panels, 1, squeeze=False)[:, 0]
  for name in dict.fromkeys(row.algorithm for row in rows):
    before, after = _losses(rows, name)
    rounds = [row.round for row in rows if row.algorithm == name]
    _band(top, rounds, after - before, label=name)
  top.axhline(0, color="black", linewidth=0.8)
  top.set(xlabel="round t", ylabel="$loss^{(t)} - loss^{(t-1)}$ (nats)")
  top.xaxis.set_major_locator(MaxNLocator(integer=True))
  top.legend()
  for axes in others:
    found = [c.correlation for c in correlations if not math.isnan(c.correlation)]
    axes.hist(found, bins=np.linspace(min([0.0, *found]), 1, 26), color="tab:gray")
    axes.axvline(
      np.median(found),
      color="black",
      linestyle="--",
      label=f"median {np.median(found):.2f}",
    )
    axes.set(
      xlabel="correlation of Fisher information: pseudo data, previous data",
      ylabel="clients of all rounds",
    )
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend()
  for axes in (top, *others):
    axes.grid(alpha=0.3)
  figure.suptitle(f"{title}\nmedian and quartiles over the clients", fontsize="medium")
  durable_files.save_picture(figure, path)


def report(folder: str, title: str) -> str:
  """Draws what a folder's CSV files hold, writes the table there and returns it.

  Returns "" and writes nothing for a run that was stopped before its first measurement.
  """
  rows = read_rows(os.path.join(folder, FORGETTING), Row)
  correlations = read_rows(os.path.join(folder, FISHER), FisherRow)
  if not rows:
    return ""
  draw_losses(rows, os.path.join(folder, "forgetting.png"), title)
  draw_increase(rows, correlations, os.path.join(folder, "increase.png"), title)
  text = table(rows, correlations)
  with durable_files.new_file(os.path.join(folder, TABLE), "w") as f:
    f.write(text + "\n")
  return text
