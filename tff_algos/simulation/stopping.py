"""When a run is at its end before its last round, by what evaluations gave."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from tff_algos.errors import InputError, set_number, set_whole_number


def name_of(metric: str) -> str:
  """What `evaluate` calls it, without the sign that less of it is better."""
  return metric.removeprefix("-")


def goodness(metric: Optional[str], value: float) -> float:
  """A test metric's value, or less it where less is better: more is better."""
  is_error = metric is not None and (metric == "loss" or metric.startswith("-"))
  return -value if is_error else value


@dataclasses.dataclass(frozen=True)
class StopRule:
  """Ends a run where a test metric reaches a target, or gets no better any more.

  Attributes:
    metric: What `evaluate` calls it, such as "accuracy"; with "-" before it, as in "-off"
      for an error, less of it is better, as it is of "loss".
    target: The run ends after the first evaluation that is as good, of "accuracy" in
      (0, 1]; None: there is none.
    patience: The run ends after so many evaluations in a row of which none was better
      than all before them, >= 1; None: there is none. NaN is never better.

  Raises:
    InputError: A value is of another kind or out of range.
  """

  metric: str = "accuracy"
  target: Optional[float] = None
  patience: Optional[int] = None

  def __post_init__(self) -> None:
    if not isinstance(self.metric, str):
      raise InputError(
        f"The metric must be a name, such as 'accuracy'; found {self.metric!r}."
      )
    if self.target is not None:
      set_number(self, "target", f"The target of {self.metric}")
    of_accuracy = self.target if self.metric == "accuracy" else None
    if of_accuracy is not None and not 0 < of_accuracy <= 1:
      raise InputError(
        f"The target of accuracy must be in (0, 1]; found {of_accuracy:g}."
      )
    if self.target is not None and not math.isfinite(self.target):
      raise InputError(
        f"The target of {self.metric} must be finite; found {self.target}."
      )
    if self.patience is not None:
      set_whole_number(self, "patience", 1)

  def reason(self, records: Sequence[Mapping[str, Any]]) -> Optional[str]:
    """Why a run of these rounds is at its end.

    Args:
      records: One for each round; rounds without an evaluation count for nothing.

    Returns:
      "target", "patience", or None where it goes on.
    """
    values = [record.get(f"test_{name_of(self.metric)}") for record in records]
    best, waited = -math.inf, 0
    for value in (goodness(self.metric, v) for v in values if v is not None):
      best, waited = (value, 0) if value > best else (best, waited + 1)
      if self.target is not None and best >= goodness(self.metric, self.target):
        return "target"
      if waited == self.patience:
        return "patience"
    return None


def parse(spec: str) -> tuple[str, float]:
  """A metric and its target, as in "accuracy:0.95".

  Raises:
    InputError: It is not of this form.
  """
  metric, _, target = spec.partition(":")
  try:
    return metric.strip(), float(target)
  except ValueError:
    raise InputError(
      f"stop_at must be a test metric and its target, as in accuracy:0.95; found "
      f"{spec!r}."
    ) from None
