"""How many lines in one frame are told apart, in every picture alike."""

from __future__ import annotations

from typing import Any

import matplotlib

_MOST_BANDS = 4  # So many upon one another leave the lines in sight.
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


def band_style(place: int, lines: int) -> dict[str, Any]:
  """Of the band around line `place` of so many, as `fill_between` takes it.

  The more there are, the fainter each, as bands lie upon one another.
  """
  return {
    "color": line_style(place)["color"],
    "alpha": 0.2 * min(1.0, _MOST_BANDS / lines),
    "linewidth": 0,
  }
