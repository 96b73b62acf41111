"""Loss and metrics of a batch, as sums that add up over batches and clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tff_algos.errors import InputError, first_line
from tff_algos.models import losses
from tff_algos.models.functional import MetricValue, Model, Weights


def of_examples(
  model: Model, weights: Weights, x: tf.Tensor, y: tf.Tensor
) -> dict[str, tf.Tensor]:
  """Loss and metrics of a stored batch: name to (total, count), float64 (2,)."""
  no_seed = tf.constant([0, 0])
  predictions = model.predict(weights, model.preprocess(x), False, no_seed)
  return of_predictions(model, y, predictions)


def of_predictions(model: Model, y: tf.Tensor, predictions: Any) -> dict[str, tf.Tensor]:
  """`of_examples` of what the model has predicted.

  Raises:
    InputError: A metric does not take the labels, or it or the loss makes no (B,).
  """
  found = model.example_losses(y, predictions)
  values = {"loss": losses.one_each("the loss", found, y, predictions)}
  for name, metric in model.metrics.items():
    values[name] = _of_metric(name, metric, y, predictions)

  def total_and_count(value: MetricValue) -> tf.Tensor:
    pair = value if isinstance(value, tuple) else (value, tf.ones_like(value))
    # A float32 sum of thousands of terms would lose the last digits of an accuracy.
    return tf.stack([tf.reduce_sum(tf.cast(part, tf.float64)) for part in pair])

  return {name: total_and_count(value) for name, value in values.items()}


def _of_metric(
  name: str, metric: Callable[..., MetricValue], y: tf.Tensor, predictions: Any
) -> MetricValue:
  try:
    value = metric(y, predictions)
  except (TypeError, ValueError) as error:
    raise InputError(
      f"Metric {name!r} does not take these labels and predictions: pass metrics= that "
      f"do, or metrics={{}} for the loss alone ({first_line(error)})."
    ) from error
  return losses.one_each(f"metric {name!r}", value, y, predictions)
