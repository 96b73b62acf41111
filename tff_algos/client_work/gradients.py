"""Gradients of a client's loss: of a batch, of all examples, of each by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tff_algos import graphs
from tff_algos.client_data import Examples
from tff_algos.client_work import tree_math
from tff_algos.models import batch_sizes
from tff_algos.models.functional import Model, Weights
from tff_algos.models.losses import one_each

# What a seed is folded with, so that no two kinds of draws share a key.
_FULL_GRADIENT, _EXAMPLE = 3, 4

# Examples at a time, at most, when a gradient over all of a client's examples is summed;
# bounds memory and changes nothing else.
_CHUNK = 512


def batch_gradient(
  model: Model,
  weights: Weights,
  x: tf.Tensor,
  y: tf.Tensor,
  seed: tf.Tensor,
  *,
  training: bool = True,
  scale: Any = None,
) -> tuple[Weights, tf.Tensor]:
  """The gradient of the batch's mean loss, and the sum of its losses.

  Args:
    model: The model.
    weights: Where the gradient is taken.
    x: A stored batch (B, ...), not preprocessed yet.
    y: Labels (B, ...).
    seed: int32 (2,) for the model's random layers.
    training: Whether these are at work.
    scale: By what the gradient is multiplied, a scalar; None: by nothing.
  """

  def losses_at(weights: Weights) -> tf.Tensor:
    inputs = model.inputs(x, training, seed)
    predictions = model.predict(weights, inputs, training, seed)
    found = model.example_losses(y, predictions)
    return one_each("the loss", found, y, predictions)

  return mean_gradient(losses_at, weights, scale)


def mean_gradient(
  losses_at: Callable[[Weights], tf.Tensor], weights: Weights, scale: Any = None
) -> tuple[Weights, tf.Tensor]:
  """`scale` times the gradient of the mean of `losses_at(weights)`, (B,); their sum.

  The sum is float32, whatever the losses are.
  """
  with tf.GradientTape() as tape:
    tape.watch(weights)
    losses = tf.cast(losses_at(weights), tf.float32)
    mean = tf.reduce_mean(losses)
  at_loss = scale is not None and not tf.executing_eagerly()
  if at_loss:
    # There it costs no pass over all weights. But a gradient of somebody's own may clip
    # what comes in, and float16 makes 0 of what is small.
    graph = tf.compat.v1.get_default_graph().as_graph_def()
    at_loss = not (graphs.has_own_gradients(graph) or graphs.computes_in_float16(graph))
  gradient = tape.gradient(
    mean,
    weights,
    output_gradients=tf.cast(scale if at_loss else 1.0, tf.float32),
    unconnected_gradients=tf.UnconnectedGradients.ZERO,
  )
  # An embedding's gradient comes as slices.
  gradient = tuple(map(tf.convert_to_tensor, gradient))
  if scale is not None and not at_loss:
    gradient = tuple(scale * g for g in gradient)
  return gradient, tf.reduce_sum(losses)


def full_gradient(
  model: Model, weights: Weights, examples: Examples, seed: tf.Tensor
) -> tuple[Weights, tf.Tensor]:
  """The gradient of the mean loss over all examples, and the sum of the losses."""
  n, at_once = tf.shape(examples.y)[0], batch_sizes.to_differentiate(model, _CHUNK)
  seed = tf.random.experimental.stateless_fold_in(seed, _FULL_GRADIENT)

  def body(
    start: tf.Tensor, total: Weights, loss: tf.Tensor
  ) -> tuple[tf.Tensor, Weights, tf.Tensor]:
    x, y = (part[start : start + at_once] for part in examples)
    chunk_seed = tf.random.experimental.stateless_fold_in(seed, start)
    gradient, chunk_loss = batch_gradient(model, weights, x, y, chunk_seed)
    share = tf.cast(tf.shape(y)[0], tf.float32) / tf.cast(n, tf.float32)
    total = tree_math.add_scaled(total, share, gradient)
    return start + at_once, total, loss + chunk_loss

  _, total, loss = tf.while_loop(
    lambda start, total, loss: start < n,
    body,
    (tf.constant(0), tuple(tf.zeros_like(w) for w in weights), tf.constant(0.0)),
    parallel_iterations=1,
  )
  return total, loss


def sum_of_squares(model: Model, weights: Weights, examples: Examples) -> Weights:
  """The sum over the examples of each one's squared gradient; inference mode."""
  total, _ = sum_over_examples(
    model,
    weights,
    examples.x,
    examples.y,
    tf.zeros([2], tf.int32),
    lambda gradient: tuple(map(tf.square, gradient)),
    training=False,
  )
  return total


def sum_over_examples(
  model: Model,
  weights: Weights,
  x: tf.Tensor,
  y: tf.Tensor,
  seed: tf.Tensor,
  transform: Callable[[Weights], Weights],
  *,
  training: bool,
) -> tuple[Weights, tf.Tensor]:
  """The sum of `transform(gradient of one example's loss)`, and the sum of the losses.

  Args:
    model: The model.
    weights: Where the gradients are taken.
    x: A stored batch (B, ...), not preprocessed yet.
    y: Labels (B, ...).
    seed: int32 (2,) for the model's random layers.
    transform: What is summed of each example's gradient.
    training: Whether the model's random layers are at work.
  """

  def body(
    i: tf.Tensor, total: Weights, loss: tf.Tensor
  ) -> tuple[tf.Tensor, Weights, tf.Tensor]:
    key = tf.random.experimental.stateless_fold_in(seed, _EXAMPLE)
    key = tf.random.experimental.stateless_fold_in(key, i)
    gradient, example_loss = batch_gradient(
      model, weights, x[i : i + 1], y[i : i + 1], key, training=training
    )
    return i + 1, tree_math.add(total, transform(gradient)), loss + example_loss

  start: Any = (tf.constant(0), tree_math.zeros_like(weights), tf.constant(0.0))
  _, total, loss = tf.while_loop(
    lambda i, *_: i < tf.shape(y)[0], body, start, parallel_iterations=1
  )
  return total, loss
