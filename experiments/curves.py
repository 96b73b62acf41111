"""What makes curves readable: running means, a closer look, round ticks, legends."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from matplotlib.ticker import MaxNLocator, NullFormatter

#: What of accuracy a closer look shows, in points below the highest: one point in fifteen
#: is seen, which in 0 to 100 % it is not. Down to twice as many, where a line ends there.
CLOSE = 15.0
# A quarter of a wide picture has room for so many numbers of five digits; of six, for so
# many at a logarithmic axis, where they are not evenly spaced.
_MOST_TICKS, _MOST_LOGARITHMIC = 7, 5


def running_mean(values: Sequence[float], width: int) -> list[float]:
  """The mean of the `width` values around each, of fewer at the ends.

  Of an even width there is one more before it than after.
  """
  before, after = width // 2, (width + 1) // 2
  return [
    statistics.mean(values[max(0, k - before) : k + after]) for k in range(len(values))
  ]


def look_closer(
  axes: Any,
  lines: Sequence[tuple[Sequence[float], Sequence[float]]],
  *,
  is_accuracy: bool = True,
) -> None:
  """Has a frame show the second half of its lines.

  Args:
    axes: The frame, of matplotlib.
    lines: Places and heights of each line's points.
    is_accuracy: Whether heights are in percent, of which those near the highest are
      shown, as `CLOSE` says; else all are.
  """
  points = [p for line in lines for p in zip(*line) if math.isfinite(p[1])]
  if not points:
    return
  end = max(x for x, _ in points)
  start = (end + min(x for x, _ in points)) / 2
  heights = [y for x, y in points if x >= start]
  top = max(heights)
  last = [max(zip(*line))[1] for line in lines if line[0]]
  bottom = min(heights)
  if is_accuracy:
    lowest = min([top - CLOSE, *(y for y in last if y >= top - 2 * CLOSE)])
    bottom = min(max(bottom, lowest), top - 1)
  if top > bottom:
    room = 0.05 * (top - bottom)
    axes.set_ylim(bottom - room, top + room)
  if end > start:
    axes.set_xlim(start, end + 0.03 * (end - start))


def mark_rounds(axes: Any, last: float) -> None:
  """Ticks a frame at round numbers, and at none behind the last round."""
  low, high = axes.get_xlim()
  # Where fewer than its least number of ticks are whole, it would give others.
  locator = MaxNLocator(_MOST_TICKS, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1)
  ticks = locator.tick_values(low, high)
  axes.set_xticks([t for t in ticks if low <= t <= min(last, high)])


def mark_logarithms(axes: Any) -> None:
  """Ticks a frame whose x axis is logarithmic at few numbers, which are round."""
  low, high = axes.get_xlim()
  if high < 5 * low:  # Of 1, 2, 5, 10, ... there may be but one.
    found = list(MaxNLocator(3, steps=[1, 2, 5, 10]).tick_values(low, high))
  else:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    powers = [10.0**k for k in range(first, last + 1)]
    found = [m * power for power in powers for m in (1, 2, 5)]
    if sum(low <= t <= high for t in found) > _MOST_LOGARITHMIC:
      found = powers[:: math.ceil(len(powers) / _MOST_TICKS)]
  ticks = [t for t in found if low <= t <= high]
  axes.set_xticks(ticks, [f"{t:g}" for t in ticks])
  axes.xaxis.set_minor_formatter(NullFormatter())


def add_legend_below(picture: Any, handles: Sequence[Any], names: Sequence[str]) -> None:
  """Adds a legend below a picture's frames, and makes the picture higher by it."""

  def legend_of(columns: int) -> Any:
    # Named afterwards, as a label that begins with "_" would be left out.
    unnamed = ["-"] * len(names)
    place = "outside lower center"
    legend = picture.legend(handles, unnamed, loc=place, ncols=columns)
    for text, name in zip(legend.get_texts(), names):
      text.set_parse_math(False)  # A "$" is a "$".
      text.set_text(name)
    return legend

  one = legend_of(1)
  gap = one.columnspacing * one.get_texts()[0].get_fontsize() / 72 * picture.dpi
  fitting = (picture.bbox.width + gap) // (one.get_window_extent().width + gap)
  one.remove()
  rows = math.ceil(len(names) / max(1, fitting))
  legend_of(math.ceil(len(names) / rows))  # So that no column is much shorter.
  picture.set_figheight(picture.get_figheight() + 0.23 * rows)
