"""The median of a number over the clients, and those of the rounds before."""

from __future__ import annotations

import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.aggregators import coordinate_wise

ROUNDS = 10


class PastMediansFactory(tff.aggregators.WeightedAggregationFactory):
  """Aggregates a float32 scalar of clients with a weight above 0.

  The result is its median; the state, float32 (`ROUNDS`,), has those of the last rounds,
  NaN where there was none. A median of 0, such as that of nobody, is not kept.
  """

  def create(
    self, value_type: tff.Type, weight_type: tff.Type
  ) -> tff.templates.AggregationProcess:
    """The process; what it measures is the median."""
    inner = coordinate_wise.median_factory().create(value_type, weight_type)

    @tff.tensorflow.computation
    def nothing_yet() -> tf.Tensor:
      return tf.fill([ROUNDS], float("nan"))

    @tff.tensorflow.computation(nothing_yet.type_signature.result, value_type)
    def keep(medians: tf.Tensor, median: tf.Tensor) -> tf.Tensor:
      return tf.where(median > 0, tf.concat([medians[1:], [median]], axis=0), medians)

    @tff.federated_computation
    def initialize() -> tff.Value:
      return tff.federated_eval(nothing_yet, tff.SERVER)

    @tff.federated_computation(
      initialize.type_signature.result,
      tff.FederatedType(value_type, tff.CLIENTS),
      tff.FederatedType(weight_type, tff.CLIENTS),
    )
    def next_fn(
      state: tff.Value, values: tff.Value, weights: tff.Value
    ) -> tff.templates.MeasuredProcessOutput:
      median = inner.next(inner.initialize(), values, weights).result
      return tff.templates.MeasuredProcessOutput(
        tff.federated_map(keep, (state, median)), median, median
      )

    return tff.templates.AggregationProcess(initialize, next_fn)


def median_of(medians: tf.Tensor) -> tf.Tensor:
  """The median of the rounds that there were, float32; NaN for none."""
  known = tf.sort(tf.boolean_mask(medians, ~tf.math.is_nan(medians)))
  return tf.cond(
    tf.size(known) > 0,
    lambda: coordinate_wise.median_of_ordered(known),
    lambda: tf.constant(float("nan")),
  )
