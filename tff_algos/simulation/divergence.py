"""Noticing that a run has come to nothing."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from tff_algos.errors import InputWarning

# A model that learns nothing stays below: its loss is some times that of guessing.
_TIMES = 100.0
_LOSSES = {"train_loss": "training loss", "test_loss": "test loss"}


class Watch:
  """Warns once in a run of a loss that has exploded, or of a round without any result."""

  def __init__(
    self,
    records: Sequence[Mapping[str, Any]],
    num_classes: Optional[int] = None,
  ):
    """Begins after rounds that were done before, of which nothing is said again.

    Args:
      records: Of these rounds.
      num_classes: Those that the model tells apart, so that its loss is their logarithm
        where it guesses; None: the loss is another one.
    """
    self._first: dict[str, float] = {}
    self._guessing = math.log(num_classes) if num_classes else 0.0
    self._is_said = False
    for record in records:
      self._is_said |= self._look(record) is not None

  def see(self, record: Mapping[str, Any]) -> None:
    """Warns by `InputWarning` if it is this round."""
    found = self._look(record)
    if found is not None and not self._is_said:
      self._is_said = True
      warnings.warn(
        f"Round {record['round']}: {found}: the run diverges. A lower learning rate or a "
        "norm_limit may help.",
        InputWarning,
        stacklevel=3,
      )

  def _look(self, record: Mapping[str, Any]) -> Optional[str]:
    if record.get("num_dropped") and record.get("num_accepted") == 0:
      return "no client's result could be used"
    for name, what in _LOSSES.items():
      value = record.get(name)
      if value is None or record.get("num_accepted") == 0:
        continue
      first = self._first.setdefault(name, value)
      if not math.isfinite(value):
        return f"the {what} is {value}"
      for usual, of_what in ((first, "the first"), (self._guessing, "that of guessing")):
        if value > _TIMES * usual > 0:
          return f"the {what} is {value:.3g}, {value / usual:.2g} times {of_what}"
    return None
