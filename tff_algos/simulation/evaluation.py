"""Evaluation of a global model on held-out examples at the server."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable
from concurrent import futures
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike, NDArray

from tff_algos import client_arrays
from tff_algos.models import batch_sizes, batch_totals
from tff_algos.models.functional import Model, Weights, check_model, check_weights
from tff_algos.runtimes import private_apis

_BATCH = 200


def batch_of(model: Model) -> int:
  """Examples at once, here and where clients are evaluated."""
  return batch_sizes.to_predict(model, _BATCH)


def build_evaluation(
  model: Model, x: ArrayLike, y: ArrayLike
) -> Callable[[Weights], OrderedDict[str, float]]:
  """Makes a function from weights to the means of loss and metrics.

  The loss is a mean over the examples; so are metrics, except those that give totals and
  counts: sum over sum.

  Args:
    model: The model.
    x: Stored inputs (n, ...), n > 0.
    y: Labels (n, ...).

  Returns:
    `weights -> {"loss": nats, "accuracy": 0..1, ...}`, the model in inference mode.

  Warns:
    InputWarning: A label is NaN or infinite.

  Raises:
    InputError: There are no examples, they do not fit the model's `example_spec`, an
      input is NaN or infinite, the model has no output for a label, or a metric does
      not take the labels or makes no (B,).
  """
  check_model(model)
  x, y = client_arrays.as_stored("the evaluation", x, y, model.example_spec)
  client_arrays.check_finite("the evaluation", x)
  client_arrays.warn_of_labels({"the evaluation": client_arrays.not_finite(y)})
  taken = model.labels()
  if taken is not None:
    for label in (y.min(), y.max()):
      client_arrays.check_label("The evaluation", int(label), taken)
  means = build_means(model)
  return lambda weights: means(weights, x, y)


def build_means(model: Model) -> Callable[..., OrderedDict[str, float]]:
  """`build_evaluation` of any examples: makes a function of `(weights, x, y)`."""
  x_spec, y_spec = model.example_spec
  batch = batch_of(model)

  @tf.function(
    input_signature=[
      model.weight_specs,
      tf.TensorSpec([None, *x_spec.shape], x_spec.dtype),
      tf.TensorSpec([None, *y_spec.shape], y_spec.dtype),
    ],
    autograph=False,
  )
  def totals(
    weights: Weights, batch_x: tf.Tensor, batch_y: tf.Tensor
  ) -> dict[str, tf.Tensor]:
    return batch_totals.of_examples(model, weights, batch_x, batch_y)

  totals.get_concrete_function()  # Traced before several threads ask for it.

  def means(
    weights: Weights, x: NDArray[Any], y: NDArray[Any]
  ) -> OrderedDict[str, float]:
    tensors = tuple(map(tf.constant, check_weights(model, weights)))

    def totals_from(start: int) -> dict[str, NDArray[Any]]:
      stop = start + batch
      with private_apis.safe_for_threads():
        parts = totals(tensors, x[start:stop], y[start:stop])
      return {name: value.numpy() for name, value in parts.items()}

    sums = {name: np.zeros(2) for name in ("loss", *model.metrics)}
    # Operations may have one core each: batches use the others.
    with futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
      for part in pool.map(totals_from, range(0, len(y), batch)):
        for name, value in part.items():
          sums[name] += value
    return OrderedDict((name, float(t / n)) for name, (t, n) in sums.items())

  return means
