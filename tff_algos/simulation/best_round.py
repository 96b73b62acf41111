"""The model of a run's best round, which is kept beside the last."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np

from tff_algos.errors import InputError
from tff_algos.models.functional import Weights
from tff_algos.simulation import stopping
from tff_algos.templates.stateful_process import StatefulProcess


class Best(NamedTuple):
  """The model of the round with the best value of a test metric.

  Attributes:
    round_num: The round, from 1.
    value: The metric's value.
    weights: The model's; None where only the value is known.
  """

  round_num: int
  value: float
  weights: Optional[Weights]


def better(
  best: Optional[Best],
  record: Mapping[str, Any],
  metric: Optional[str],
  process: StatefulProcess,
  state: Any,
) -> Optional[Best]:
  """The best before, or the round of this state, if that is better.

  Args:
    best: The best before; None for none.
    record: Of the round.
    metric: As `StopRule` has it; None: no round is better.
    process: What has the weights.
    state: The server state after the round.

  Raises:
    InputError: Evaluation does not give the metric.
  """
  wanted = None if metric is None else stopping.name_of(metric)
  measured = [name[5:] for name in record if name.startswith("test_")]
  if wanted is not None and measured and wanted not in measured:
    raise InputError(
      f"The run is to keep the best model by {wanted}, but evaluation gives "
      f"{', '.join(measured)}: choose one of them."
    )
  value = _value(record, metric)
  if value is None or (
    best is not None
    and stopping.goodness(metric, value) <= stopping.goodness(metric, best.value)
  ):
    return best
  weights = process.get_model_weights(state).trainable
  return Best(record["round"], value, tuple(map(np.asarray, weights)))


def of_checkpoint(
  kept: Optional[Best],
  records: Sequence[Mapping[str, Any]],
  metric: Optional[str],
) -> Optional[Best]:
  """The best of the rounds that a run goes on from.

  Args:
    kept: What the checkpoint has; None for nothing.
    records: One for each round, but for one that was measured out of turn, because the
      run was stopped there.
    metric: As of `better`.

  Returns:
    `kept`, if it is the best by the records, or else that without weights; None where
    nothing was measured.
  """
  measured = [
    Best(record["round"], value, None)
    for record in records
    if (value := _value(record, metric)) is not None
  ]
  best = max(
    measured,
    key=lambda b: (stopping.goodness(metric, b.value), -b.round_num),
    default=None,
  )
  return kept if best is not None and kept is not None and kept[:2] == best[:2] else best


def _value(record: Mapping[str, Any], metric: Optional[str]) -> Optional[float]:
  """The test metric of a round; None where it was not measured or is not finite."""
  value = None if metric is None else record.get(f"test_{stopping.name_of(metric)}")
  return value if value is not None and math.isfinite(value) else None
