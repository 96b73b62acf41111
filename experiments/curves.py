"""What makes curves readable: running means, a closer look at their ends, round ticks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from matplotlib.ticker import MaxNLocator

#: What of accuracy a closer look shows, in points below the highest: one point in fifteen
#: is seen, which in 0 to 100 % it is not. Down to twice as many, where a line ends there.
CLOSE = 15.0


def running_mean(values: Sequence[float], width: int) -> list[float]:
  """The mean of the `width` values around each, of fewer at the ends.

  Of an even width there is one more before it than after.
  """
  before, after = width // 2, (width + 1) // 2
  return [
    statistics.mean(values[max(0, k - before) : k + after]) for k in range(len(values))
  ]


def look_closer(
  axes: Any, lines: Sequence[tuple[Sequence[float], Sequence[float]]]
) -> None:
  """Has a frame show the second half of its lines, near the highest, as `CLOSE` says.

  Args:
    axes: The frame, of matplotlib.
    lines: Places and heights of each line's points, in percent.
  """
  points = [p for line in lines for p in zip(*line) if math.isfinite(p[1])]
  if not points:
    return
  end = max(x for x, _ in points)
  start = (end + min(x for x, _ in points)) / 2
  heights = [y for x, y in points if x >= start]
  top = max(heights)
  last = [max(zip(*line))[1] for line in lines if line[0]]
  lowest = min([top - CLOSE, *(y for y in last if y >= top - 2 * CLOSE)])
  bottom = min(max(min(heights), lowest), top - 1)
  room = 0.05 * (top - bottom)
  axes.set_ylim(bottom - room, top + room)
  if end > start:
    axes.set_xlim(start, end + 0.03 * (end - start))


def mark_rounds(axes: Any, last: float) -> None:
  """Ticks a frame at round numbers, and at none behind the last round."""
  low, high = axes.get_xlim()
  ticks = MaxNLocator(integer=True, steps=[1, 2, 5, 10]).tick_values(low, high)
  axes.set_xticks([t for t in ticks if low <= t <= min(last, high)])
