"""What becomes of a client's result before it is sent."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow as tf

from tff_algos.client_work.model_update import ClientResult
from tff_algos.errors import InputError

if TYPE_CHECKING:
  from tff_algos.aggregators.client_memory import ClientMemoryFactory


#: The metrics of every round, which are no averages.
COUNTS = ("num_examples", "num_accepted", "num_dropped")


class RememberingClient(NamedTuple):
  """The state of a client whose aggregators remember its uploads."""

  own: Any
  memory: Any


def contribute(
  factories: Mapping[str, ClientMemoryFactory],
  result: ClientResult,
  received: Mapping[str, Any],
  memory: Mapping[str, Any],
) -> ClientResult:
  """Replaces the parts of a message that clients remember by their contributions."""
  message, new_memory = OrderedDict(result.message), OrderedDict(memory)
  for part in message:
    if part in factories:
      before = received["parts"].get(part)
      if _types(before) != _types(message[part]):
        raise InputError(
          f"A {type(factories[part]).__name__} aggregates what the part {part!r} is "
          "after a client's work, so the server must send a part of this name, of the "
          f"arrays that clients send. Sent to them: {_types(before) or 'none'}; by them: "
          f"{_types(message[part])}."
        )
      value = tf.nest.map_structure(tf.add, before, message[part])
      message[part], new_memory[part] = factories[part].contribute(
        value, result.weight[part], memory[part], received["round_num"]
      )
  return result._replace(
    message=message, client_state=RememberingClient(result.client_state, new_memory)
  )


def _types(part: Any) -> list[str]:
  leaves = [] if part is None else tf.nest.flatten(part)
  return [f"{leaf.dtype.name}{leaf.shape.as_list()}" for leaf in leaves]


class ClientWorkOutput(NamedTuple):
  """What a client's computation gives.

  Attributes:
    message: Part name to what is sent.
    weight: Part name to what it counts for; 0 for a client that is dropped.
    client_state: The client's new state.
    totals: What is summed for the metrics: `averages`, name to (total, count), and
      `counts` of examples, of accepted and of dropped clients.
  """

  message: Any
  weight: Any
  client_state: Any
  totals: Any


def count_of(result: ClientResult, weighted: Collection[str]) -> tf.Tensor:
  """1.0 for a client that counts, 0.0 for one without weight in any part, float32.

  Args:
    result: The client's.
    weighted: The parts whose aggregators look at weights; in all others a client counts.
  """
  weights = [tf.cast(result.weight[part], tf.float32) for part in weighted]
  if len(weights) < len(result.message):
    return tf.constant(1.0)
  return tf.cast(tf.reduce_max(weights) > 0, tf.float32)


def drop_non_finite(
  result: ClientResult,
  old_client_state: Any,
  num_examples: tf.Tensor,
  counted: float | tf.Tensor = 1.0,
) -> ClientWorkOutput:
  """Gives a client whose result is not finite no weight and leaves its state alone.

  So it does where a weight is negative, by which others' updates would be turned round.
  One that does not count (`counted` is 0, see `count_of`) is neither dropped nor
  accepted: of such alone there is no mean.

  A result with a norm of more than about 2e19, whose square float32 cannot hold, is taken
  for one that is not finite.

  The result's state and metrics count too: a message may be finite without them, such as
  that of the layers which travel, or of steps along what the clients have estimated.
  """
  made = (result.message, result.weight, result.metrics, result.client_state)
  numbers = [v for leaf in tf.nest.flatten(made) for v in floating(leaf)]
  # A norm takes a quarter of the time of looking at each number.
  lengths = [tf.cast(tf.nn.l2_loss(v), tf.float32) for v in numbers]
  least = tf.reduce_min([tf.cast(w, tf.float32) for w in result.weight.values()])
  all_finite = tf.reduce_all(tf.math.is_finite(tf.stack(lengths)))
  accepted = all_finite & (least >= 0)
  sent = tuple(map(OrderedDict, (result.message, result.weight, result.metrics)))
  (message, weight, averages), client_state = _if_accepted(
    accepted, sent, result.client_state, old_client_state
  )
  one = tf.cast(accepted, tf.int32)
  counts = OrderedDict(
    num_examples=tf.cast(num_examples * one, tf.int64),
    num_accepted=one * tf.cast(counted, tf.int32),
    num_dropped=1 - one,
  )
  return ClientWorkOutput(
    message=message,
    weight=weight,
    client_state=client_state,
    totals=OrderedDict(averages=averages, counts=counts),
  )


def floating(leaf: tf.Tensor) -> list[tf.Tensor]:
  """The floating-point numbers of a tensor, of types that hold the square of a norm."""
  if leaf.dtype.is_complex:
    return [tf.math.real(leaf), tf.math.imag(leaf)]
  if leaf.dtype == tf.float16:
    return [tf.cast(leaf, tf.float32)]
  return [leaf] if leaf.dtype.is_floating else []


def drop_unless(
  condition: tf.Tensor, output: ClientWorkOutput, old_client_state: Any
) -> ClientWorkOutput:
  """Where it is false: gives a client no weight and leaves its state alone."""
  (message, weight, totals), client_state = _if_accepted(
    condition,
    (output.message, output.weight, output.totals),
    output.client_state,
    old_client_state,
  )
  counts = totals["counts"]
  counts = OrderedDict(counts, num_dropped=tf.where(condition, counts["num_dropped"], 1))
  return ClientWorkOutput(
    message=message,
    weight=weight,
    client_state=client_state,
    totals=OrderedDict(totals, counts=counts),
  )


def _if_accepted(
  accepted: tf.Tensor, sent: Any, client_state: Any, old_client_state: Any
) -> tuple[Any, Any]:
  # `tf.where` would pass over all weights once more.
  chosen: tuple[Any, Any] = tf.cond(
    accepted,
    lambda: (sent, client_state),
    lambda: (tf.nest.map_structure(tf.zeros_like, sent), old_client_state),
  )
  return chosen


def finish_metrics(totals: Mapping[str, Any]) -> OrderedDict[str, tf.Tensor]:
  """The round's metrics, from the sums of its clients' `totals`; NaN of no example."""
  pairs = totals["averages"].items()
  averages = ((name, total / count) for name, (total, count) in pairs)
  return OrderedDict(averages, **totals["counts"])
