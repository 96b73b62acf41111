"""How many lines in one frame are told apart, in every picture alike."""

from __future__ import annotations

from typing import Any

import matplotlib

_DASHES = ("-", "--", "-.", ":")


def line_style(place: int) -> dict[str, Any]:
  """Colour, dashes and width of a frame's line `place`, 0, 1, ..., as `plot` takes them.

  The first is often the baseline, and thick, as another may lie upon it. Twenty colours,
  ten full and solid, then ten light and dashed; the next twenty have the colours again
  with other dashes, and from 40 on all is repeated.
  """
  kind, color = divmod(place % 40, 10)
  colors = matplotlib.color_sequences["tab20"]
  return {
    "color": colors[2 * color + kind % 2],
    "linestyle": _DASHES[kind],
    "linewidth": 1.2 if place else 2.2,
  }
