"""The weighted mean of messages, also of those in half precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.aggregators import stateless


class MeanFactory(tff.aggregators.MeanFactory):
  """TFF's weighted mean, 0 where every weight is 0; float32 of float16 and bfloat16.

  TFF's own multiplies and adds in the dtype of the message: of 700 examples a number of
  100 is infinite in float16. Here what clients send stays as it is, half the bytes, and
  its products and sums are float32.
  """

  def __init__(self) -> None:
    super().__init__(no_nan_division=True)

  def create(
    self, value_type: tff.Type, weight_type: tff.Type
  ) -> tff.templates.AggregationProcess:
    """The process of TFF's, or one of values of which some are in half precision."""
    if not tff.types.contains(value_type, _is_half):
      return super().create(value_type, weight_type)
    sums_type = tff.types.structure_from_tensor_type_tree(
      lambda t: tff.TensorType(_sum_dtype(t), t.shape), value_type
    )
    total_type = tff.to_type((sums_type, weight_type))

    @tff.tensorflow.computation
    def nobody() -> Any:
      return tff.types.structure_from_tensor_type_tree(
        lambda t: tf.zeros(t.shape, t.dtype), total_type
      )

    @tff.tensorflow.computation(total_type, (value_type, weight_type))
    def accumulate(total: Any, client: Any) -> Any:
      (sums, weights), (value, weight) = total, client
      more = tf.nest.map_structure(
        lambda s, v: s + tf.cast(v, s.dtype) * tf.cast(weight, s.dtype), sums, value
      )
      return more, weights + weight

    @tff.tensorflow.computation(total_type, total_type)
    def merge(a: Any, b: Any) -> Any:
      return tf.nest.map_structure(tf.add, a, b)

    @tff.tensorflow.computation(total_type)
    def report(total: Any) -> Any:
      sums, weights = total
      return tf.nest.map_structure(
        lambda s: tf.math.divide_no_nan(s, tf.cast(weights, s.dtype)), sums
      )

    return stateless.process(value_type, weight_type, nobody, accumulate, merge, report)


def _is_half(t: tff.Type) -> bool:
  halves = (tf.float16, tf.bfloat16)
  return isinstance(t, tff.TensorType) and tf.as_dtype(t.dtype) in halves


def _sum_dtype(t: tff.TensorType) -> Any:
  return np.float32 if _is_half(t) else t.dtype
