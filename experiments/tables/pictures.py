"""Draws the numbers of a table beside the paper's, and the curves of a figure."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from experiments.curves import (
  add_legend_below,
  look_closer,
  mark_rounds,
  running_mean,
)
from experiments.line_styles import band_style, line_style
from experiments.tables.measures import Curve, by_round, deviation
from tff_algos import durable_files


class Points(NamedTuple):
  """A column of a table.

  Attributes:
    heading: With its unit.
    ours: Mean and standard deviation of each row; None for a mean that is not known.
    paper: The paper's number of each row, or None.
    least_span: What its axis shows at least, so that next to nothing does not look much.
    is_whole: Whether it counts something.
  """

  heading: str
  ours: Sequence[tuple[Optional[float], float]]
  paper: Sequence[Optional[float]]
  least_span: float = 0.0
  is_whole: bool = False


class Line(NamedTuple):
  """A line of a panel.

  Attributes:
    label: What it is.
    runs: The runs whose mean it is.
    paper: The paper's accuracy of it, in percent, or None.
  """

  label: str
  runs: Sequence[Curve]
  paper: Optional[float] = None


#: Rounds and heights of the points of what was drawn.
_Drawn = tuple[list[float], list[float]]
_ABREAST = 4  # As many frames as a page is wide.
_MOST_INSIDE = 6  # Lines whose legend leaves a frame room for them.


def draw_table(
  title: str, rows: Sequence[str], columns: Sequence[Points], path: str
) -> None:
  """Draws a frame for each column that has a number, as a PNG."""
  columns = [
    c for c in columns if any(v is not None for v in (*c.paper, *(m for m, _ in c.ours)))
  ]
  abreast = min(_ABREAST, max(1, len(columns)))
  down = -(-max(1, len(columns)) // abreast)
  names = max(3.2, 0.08 * max(map(len, rows)))  # In inches, as they are drawn.
  picture = Figure(
    figsize=(names + 3.4 * abreast, 0.8 + down * (0.7 + 0.3 * len(rows))),
    layout="constrained",
  )
  frames = picture.subplots(down, abreast, sharey=True, squeeze=False)
  for axes in frames.flat[max(1, len(columns)) :]:
    axes.set_visible(False)
  handles: dict[str, Any] = {}
  for column, axes in zip(columns, frames.flat):
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
    low, high = axes.get_xlim()
    # Of one whole number alone the frame would be a tenth wide, with tenths below it.
    least = max(column.least_span, 2.0 * column.is_whole)
    if high - low < least:
      middle = (low + high) / 2
      axes.set_xlim(middle - least / 2, middle + least / 2)
    if column.is_whole:
      axes.xaxis.set_major_locator(
        MaxNLocator("auto", steps=[1, 2, 2.5, 5, 10], integer=True)
      )
    axes.set(xlabel=column.heading)
    axes.grid(alpha=0.3)
  frames[0, 0].set_yticks(range(len(rows)), rows)
  frames[0, 0].set_ylim(len(rows) - 0.4, -0.6)
  if "paper" in handles:  # Else there is nothing to tell ours from.
    picture.legend(
      list(handles.values()), list(handles), loc="outside lower center", ncols=2
    )
  picture.suptitle(title, fontsize="medium")
  durable_files.save_picture(picture, path)


def draw_figure(
  title: str,
  panels: Mapping[str, Sequence[Line]],
  path: str,
  *,
  kinds: Sequence[str],
  smooth: int = 1,
) -> None:
  """Draws for each title a frame of each kind, as a PNG.

  A line is the mean of its runs, with a band of one standard deviation; with `smooth` its
  running mean over so many rounds, before itself.

  Args:
    title: The picture's.
    panels: Each with its lines.
    path: The PNG.
    kinds: Of "accuracy", "closer", a closer look at it, and "loss".
    smooth: 1 for none.
  """
  mean = f", mean of {smooth} rounds" if smooth > 1 else ""
  heights = {
    "accuracy": f"test accuracy (%){mean}",
    "closer": f"the same, closer{mean}",
    "loss": "test loss (nats)" if "accuracy" in kinds else "test loss",
  }
  abreast = min(_ABREAST if "loss" in kinds else 3, len(panels))
  down = -(-len(panels) // abreast) * len(kinds)
  if len(panels) == 1:  # Its frames stand side by side.
    abreast, down = len(kinds), 1
  picture = Figure(
    figsize=(max(6.0, 4.6 * abreast), 0.6 + 3.4 * down), layout="constrained"
  )
  frames = picture.subplots(down, abreast, squeeze=False)
  unused = set(frames.flat)
  named = [[line.label for line in lines] for lines in panels.values()]
  # One look for each, also where a panel lacks some.
  places = {name: k for k, name in enumerate(dict.fromkeys(itertools.chain(*named)))}
  is_below = len(named[0]) > _MOST_INSIDE and all(names == named[0] for names in named)
  handles: dict[str, Any] = {}
  for k, (panel, lines) in enumerate(panels.items()):
    for place, kind in enumerate(kinds):
      row, column = divmod(k, abreast)
      axes = (
        frames[row * len(kinds) + place, column] if len(panels) > 1 else frames[0, place]
      )
      unused.remove(axes)
      drawn = [
        _draw_line(axes, line, kind == "loss", places[line.label], len(lines), smooth)
        for line in lines
      ]
      if kind == "closer":
        look_closer(axes, [*drawn, *_draw_papers(axes, lines, places)])
      axes.set(title=panel, xlabel="round", ylabel=heights[kind])
      mark_rounds(axes, max((t for rounds, _ in drawn for t in rounds), default=0))
      axes.grid(alpha=0.3)
      if place == 0:
        if any(line.paper is not None for line in lines):
          axes.plot([], [], "D", color="tab:gray", label="paper (closer view)")
        handles.update(zip(*reversed(axes.get_legend_handles_labels())))
        if not is_below:
          axes.legend(fontsize="small")
  if is_below:
    add_legend_below(picture, list(handles.values()), list(handles))
  for axes in unused:
    axes.set_visible(False)
  picture.suptitle(title, fontsize="medium")
  durable_files.save_picture(picture, path)


def _draw_line(
  axes: Any, line: Line, of_loss: bool, place: int, lines: int, smooth: int
) -> _Drawn:
  """Draws line `place` of so many; gives its rounds and what is drawn at them."""
  rounds, middle, spread = [], [], []
  for t, accuracy, loss in by_round(line.runs):
    each = loss if of_loss else [100 * a for a in accuracy]
    rounds.append(float(t))
    middle.append(statistics.mean(each))
    spread.append(deviation(each) or 0.0)
  if any(spread):
    low = [m - s for m, s in zip(middle, spread)]
    high = [m + s for m, s in zip(middle, spread)]
    axes.fill_between(rounds, low, high, **band_style(place, lines))
  style = line_style(place)
  if smooth > 1:
    axes.plot(rounds, middle, **{**style, "linewidth": 0.6, "alpha": 0.35})
    middle = running_mean(middle, smooth)
  axes.plot(rounds, middle, label=line.label, **style)
  return rounds, middle


def _draw_papers(
  axes: Any, lines: Sequence[Line], places: Mapping[str, int]
) -> list[_Drawn]:
  """Draws the paper's numbers after the last round; gives them as lines of one point."""
  rounds = [t for line in lines for run in line.runs for t in run.rounds]
  first, last = min(rounds), max(rounds)
  drawn: list[_Drawn] = []
  for k, line in enumerate(lines):
    if line.paper is not None:
      # Beside one another, as some are equal.
      point = [last + (last - first) * (0.02 + 0.02 * k)], [line.paper]
      axes.plot(*point, "D", color=line_style(places[line.label])["color"])
      drawn.append(point)
  return drawn
