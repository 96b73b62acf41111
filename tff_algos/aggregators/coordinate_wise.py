"""Statistics of each coordinate over the clients, which some liars cannot move far.

Yin, Chen, Kannan, Bartlett: "Byzantine-Robust Distributed Learning: Towards Optimal
Statistical Rates", ICML 2018, Definitions 1 and 2. All clients with a weight above 0
count alike [paper]; one without, such as one that was dropped, does not. The server sees
every client's update and holds a whole cohort's at once: neither goes with secure sums.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.aggregators import stateless
from tff_algos.errors import InputError, check_number


def median_factory() -> tff.aggregators.WeightedAggregationFactory:
  """The median of each coordinate: of an even number, the mean of the middle two."""
  return _CoordinateWiseFactory(median_of_ordered)


def median_of_ordered(values: tf.Tensor) -> tf.Tensor:
  """The median along axis 0 of values (n, ...), n > 0, that are in order along it."""
  count = tf.shape(values)[0]
  return (values[(count - 1) // 2] + values[count // 2]) / 2


def trimmed_mean_factory(
  share: float = 0.1,
) -> tff.aggregators.WeightedAggregationFactory:
  """The mean of each coordinate without the floor(share * clients) least and largest.

  Args:
    share: Of the clients, 0 <= share < 0.5: at least that of the liars.

  Raises:
    InputError: `share` is no number or out of range.
  """
  share = check_number("share", share)
  if not 0 <= share < 0.5:
    raise InputError(f"share must be at least 0 and less than 0.5; found {share}.")
  return _CoordinateWiseFactory(functools.partial(_trimmed_mean, share=share))


def _trimmed_mean(ordered: tf.Tensor, *, share: float) -> tf.Tensor:
  count = tf.shape(ordered)[0]
  # 0.29 * 100 is less than 29.
  cut = tf.cast(tf.floor(share * tf.cast(count, tf.float64) + 1e-9), tf.int32)
  cut = tf.minimum(cut, (count - 1) // 2)
  return tf.reduce_mean(ordered[cut : count - cut], axis=0)


class _CoordinateWiseFactory(tff.aggregators.WeightedAggregationFactory):
  """Collects all clients' values; `statistic` is of them in order, along axis 0."""

  def __init__(self, statistic: Callable[[tf.Tensor], tf.Tensor]):
    # By its name and numbers a run that goes on is told from another.
    self.statistic = statistic

  def create(
    self, value_type: tff.Type, weight_type: tff.Type
  ) -> tff.templates.AggregationProcess:
    """The process; where no client counts, its result is 0.

    Raises:
      InputError: A value is not of floating-point numbers.
    """
    whole = tff.types.contains(
      value_type,
      lambda t: isinstance(t, tff.TensorType) and not tf.as_dtype(t.dtype).is_floating,
    )
    if whole:
      raise InputError(
        "A median or a trimmed mean is of floating-point numbers: cast whole ones in the "
        "message, such as by tf.cast(n, tf.float32); found "
        f"{value_type.compact_representation()}."
      )
    collected_type = tff.to_type(
      tff.types.structure_from_tensor_type_tree(
        lambda t: tff.TensorType(t.dtype, (None, *t.shape)), value_type
      )
    )

    @tff.tensorflow.computation
    def nobody() -> Any:
      return tff.types.structure_from_tensor_type_tree(
        lambda t: tf.zeros([0, *t.shape], t.dtype), value_type
      )

    @tff.tensorflow.computation(collected_type, (value_type, weight_type))
    def accumulate(collected: Any, client: tuple[Any, tf.Tensor]) -> Any:
      value, weight = client
      counts = tf.cast(weight > 0, tf.int32)
      return tf.nest.map_structure(
        lambda c, v: tf.concat([c, tf.repeat(v[tf.newaxis], counts, axis=0)], axis=0),
        collected,
        value,
      )

    @tff.tensorflow.computation(collected_type, collected_type)
    def merge(a: Any, b: Any) -> Any:
      return tf.nest.map_structure(lambda x, y: tf.concat([x, y], axis=0), a, b)

    @tff.tensorflow.computation(collected_type)
    def report(collected: Any) -> Any:
      return tf.nest.map_structure(self._of_clients, collected)

    return stateless.process(value_type, weight_type, nobody, accumulate, merge, report)

  def _of_clients(self, collected: tf.Tensor) -> tf.Tensor:
    nothing = tf.zeros(collected.shape[1:], collected.dtype)
    return tf.cond(
      tf.shape(collected)[0] > 0,
      lambda: tf.ensure_shape(self.statistic(tf.sort(collected, axis=0)), nothing.shape),
      lambda: nothing,
    )
