"""A model of ours as `tff.learning` takes models."""

from __future__ import annotations

import functools
from collections import OrderedDict
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_algos import graphs
from tff_algos.errors import InputError
from tff_algos.models import batch_totals
from tff_algos.models.functional import Model, check_model

# Name to total and count, float64 (2,).
_Totals = OrderedDict[str, tf.Tensor]


def as_functional_model(model: Model) -> tff.learning.models.FunctionalModel:
  """A model for the builders of `tff.learning`, such as `build_weighted_mime_lite`.

  It has no variables, so that what they build runs on every runtime of ours, and makes no
  Keras model.

  Args:
    model: The model.

  Returns:
    A model of batches (x, y) of examples as clients' files hold them, which it
    preprocesses. Its loss is the mean over a batch; its metrics are the loss, in nats,
    and the model's own, float64, means as `build_evaluation` has them, NaN where there
    was no example.

  Raises:
    InputError: It is no `Model`; the loss or a metric does not take the labels or makes
      no (B,); or the model draws while it trains, as by a dropout, for which TFF has no
      seed. `build_evaluation_process` evaluates such a model.
  """
  check_model(model)

  @tf.function(autograph=False)
  def train(weights: Any, x: tf.Tensor) -> Any:
    seed = tf.constant([0, 0])
    return model.predict(weights, model.inputs(x, True, seed), True, seed)

  traced = train.get_concrete_function(model.weight_specs, _batch_spec(model)[0])
  if graphs.draws_by_seeds(traced.graph.as_graph_def()):
    raise InputError(
      "The model draws while it trains, as by a dropout, for which tff.learning has no "
      "seed: take a builder of tff_algos, or leave out the layers that draw."
    )
  return functional_model(model)


def functional_model(model: Model) -> tff.learning.models.FunctionalModel:
  """`as_functional_model` of any model, which draws the same in every step."""
  input_spec, names = _batch_spec(model), ("loss", *model.metrics)

  def predict(weights: Any, x: tf.Tensor, training: bool = False) -> Any:
    seed = tf.constant([0, 0])
    inputs = model.inputs(x, training, seed)
    return model.predict(tuple(weights[0]), inputs, training, seed)

  def mean_loss(predictions: Any, y: tf.Tensor, sample_weight: Any = None) -> tf.Tensor:
    del sample_weight  # TFF gives none.
    return tf.reduce_mean(model.example_losses(y, predictions))

  def nothing() -> _Totals:
    return OrderedDict((name, tf.zeros([2], tf.float64)) for name in names)

  def add(sums: _Totals, y: tf.Tensor, batch: Any, sample_weight: Any = None) -> _Totals:
    del sample_weight
    found = batch_totals.of_predictions(model, y, batch.predictions)
    return OrderedDict((name, sums[name] + found[name]) for name in names)

  def means(sums: _Totals) -> _Totals:
    return OrderedDict((name, sums[name][0] / sums[name][1]) for name in names)

  # What is wrong with a metric is a sentence here; in a builder, TensorFlow's traceback.
  of_examples = functools.partial(batch_totals.of_examples, model)
  tf.function(of_examples, autograph=False).get_concrete_function(
    model.weight_specs, *input_spec
  )
  return tff.learning.models.FunctionalModel(
    initial_weights=(tuple(model.initial_weights), ()),
    predict_on_batch_fn=tf.function(predict, autograph=False),
    loss_fn=tf.function(mean_loss, autograph=False),
    metrics_fns=tuple(tf.function(f, autograph=False) for f in (nothing, add, means)),
    input_spec=input_spec,
  )


def _batch_spec(model: Model) -> tuple[tf.TensorSpec, ...]:
  return tuple(tf.TensorSpec([None, *s.shape], s.dtype) for s in model.example_spec)
