"""Dropping clients whose update is far longer than those of past rounds were.

The norm is that of all that a client sends; the limit a multiple of the median, over the
last rounds of the same kind, of the rounds' medians over their clients [convention]. It
is checked where the update is made, so that nothing of what is dropped counts, and its
client's state stays as it was: in simulation this finds what explodes and what lies; in
a deployment a malicious client could skip the check.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tff_algos.aggregators import past_medians
from tff_algos.client_work.model_update import ClientResult
from tff_algos.templates import client_results

if TYPE_CHECKING:
  from tff_algos.templates.client_results import ClientWorkOutput

#: The part of a message that says its norm, before the name of the kind of round.
PART = "update_norm"


def with_norm(result: ClientResult, part: str, weight: tf.Tensor) -> ClientResult:
  """The result with its message's norm as a part of its own, of that weight."""
  norm = _norm(result.message)
  return result._replace(
    message=OrderedDict(result.message, **{part: norm}),
    weight=OrderedDict(result.weight, **{part: weight}),
  )


def is_too_long(
  norm: tf.Tensor, times: float, medians: tf.Tensor, sent: Mapping[str, Any]
) -> tf.Tensor:
  """Whether an update is over the limit, a bool scalar.

  Args:
    norm: The update's.
    times: Of the median; above 1.
    medians: Those of past rounds, as `PastMediansFactory` keeps them.
    sent: What the client received of the parts that it sends: before there is a median,
      its norm is used; if that is 0 there is no limit.
  """
  median = past_medians.median_of(medians)
  usual = tf.where(tf.math.is_nan(median), _norm(sent), median)
  return (usual > 0) & (norm > times * usual)


def drop_too_long(
  output: ClientWorkOutput, old_client_state: Any, too_long: tf.Tensor, part: str
) -> ClientWorkOutput:
  """Gives a client over the limit no weight but that of its norm; counts it."""
  kept = client_results.drop_unless(~too_long, output, old_client_state)
  num_too_long = tf.cast(too_long, tf.int32)
  counts = OrderedDict(kept.totals["counts"], num_too_long=num_too_long)
  # Else a time in which all updates grow would never be taken note of.
  return kept._replace(
    message=OrderedDict(kept.message, **{part: output.message[part]}),
    weight=OrderedDict(kept.weight, **{part: output.weight[part]}),
    totals=OrderedDict(kept.totals, counts=counts),
  )


def _norm(parts: Mapping[str, Any]) -> tf.Tensor:
  floats = (v for leaf in tf.nest.flatten(parts) for v in client_results.floating(leaf))
  numbers = [tf.cast(v, tf.float32) for v in floats]
  # There may be none, of parts that clients send and do not receive.
  return tf.sqrt(2 * sum((tf.nn.l2_loss(v) for v in numbers), tf.constant(0.0)))
