"""How many lines in one frame are told apart, in every picture alike."""

from __future__ import annotations

from typing import Any

import matplotlib

_DASHES = ("-", "--", "-.", ":")


def line_style(place: int) -> dict[str, Any]:
  """Colour and dashes of a frame's line number `place`, 0, 1, ..., as `plot` takes them.

  Twenty colours, ten full and solid, then ten light and dashed; the next twenty have the
  colours again with other dashes, and from 40 on all is repeated.
  """
  kind, color = divmod(place % 40, 10)
  colors = matplotlib.color_sequences["tab20"]
  return {"color": colors[2 * color + kind % 2], "linestyle": _DASHES[kind]}
