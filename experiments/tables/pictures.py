"""Draws the numbers of a table beside the paper's, and the curves of a figure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from experiments.line_styles import line_style
from experiments.tables.measures import Curve, by_round, deviation
from tff_algos import durable_files


class Points(NamedTuple):
  """A column of a table.

  Attributes:
    heading: With its unit.
    ours: Mean and standard deviation of each row; None for a mean that is not known.
    paper: The paper's number of each row, or None.
  """

  heading: str
  ours: Sequence[tuple[Optional[float], float]]
  paper: Sequence[Optional[float]]


def draw_table(
  title: str, rows: Sequence[str], columns: Sequence[Points], path: str
) -> None:
  """Draws a frame for each column that has a number, as a PNG."""
  columns = [
    c for c in columns if any(v is not None for v in (*c.paper, *(m for m, _ in c.ours)))
  ]
  picture = Figure(
    figsize=(3.2 + 3.4 * max(1, len(columns)), 1.4 + 0.28 * len(rows)),
    layout="constrained",
  )
  frames = picture.subplots(1, max(1, len(columns)), sharey=True, squeeze=False)[0]
  handles: dict[str, Any] = {}
  for column, axes in zip(columns, frames):
    paper = [(p, y) for y, p in enumerate(column.paper) if p is not None]
    if paper:
      style = dict(color="tab:gray", alpha=0.7)
      (handles["paper"],) = axes.plot(*zip(*paper), "D", **style)
    ours = [(m, y, s) for y, (m, s) in enumerate(column.ours) if m is not None]
    if ours:
      means, places, spreads = zip(*ours)
      handles["ours"] = axes.errorbar(
        means, places, xerr=spreads, fmt="o", color="tab:blue"
      )
    axes.set(xlabel=column.heading)
    axes.grid(alpha=0.3)
  frames[0].set_yticks(range(len(rows)), rows)
  frames[0].invert_yaxis()
  if "paper" in handles:  # Else there is nothing to tell ours from.
    picture.legend(
      list(handles.values()), list(handles), loc="outside lower center", ncols=2
    )
  picture.suptitle(title, fontsize="medium")
  durable_files.save_picture(picture, path)


def draw_figure(
  title: str,
  panels: Mapping[str, Sequence[tuple[str, list[Curve]]]],
  path: str,
  *,
  with_loss: bool,
) -> None:
  """Draws a panel for each title, of labelled runs, as a PNG.

  A curve is the mean of its runs, with a band of one standard deviation.
  """
  kinds = ("test accuracy (%)", "test loss (nats)")[: 1 + with_loss]
  # With losses each panel is a column; else up to three panels stand side by side.
  columns = len(panels) if with_loss else min(3, len(panels))
  rows = len(kinds) if with_loss else -(-len(panels) // columns)
  picture = Figure(
    figsize=(max(6.0, 4.6 * columns), 0.6 + 3.4 * rows), layout="constrained"
  )
  frames = picture.subplots(rows, columns, squeeze=False)
  for frame in frames.flat[len(panels) * len(kinds) :]:
    frame.set_visible(False)
  for k, (panel, curves) in enumerate(panels.items()):
    for kind, what in enumerate(kinds):
      axes = frames[kind][k] if with_loss else frames.flat[k]
      for place, (label, found) in enumerate(curves):
        _draw_curve(axes, label, found, kind, line_style(place))
      axes.set(title=panel, xlabel="round", ylabel=what)
      axes.xaxis.set_major_locator(MaxNLocator(integer=True))
      axes.grid(alpha=0.3)
      axes.legend(fontsize="small")
  picture.suptitle(title, fontsize="medium")
  durable_files.save_picture(picture, path)


def _draw_curve(
  axes: Any, label: str, curves: Sequence[Curve], kind: int, style: dict[str, Any]
) -> None:
  rounds, middle, spread = [], [], []
  for t, *values in by_round(curves):
    scale = 100 if kind == 0 else 1
    each = [scale * v for v in values[kind]]
    rounds.append(t)
    middle.append(statistics.mean(each))
    spread.append(deviation(each) or 0.0)
  (line,) = axes.plot(rounds, middle, label=label, linewidth=1.2, **style)
  if any(spread):
    low = [m - s for m, s in zip(middle, spread)]
    high = [m + s for m, s in zip(middle, spread)]
    axes.fill_between(rounds, low, high, color=line.get_color(), alpha=0.2)
