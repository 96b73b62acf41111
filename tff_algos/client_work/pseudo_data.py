"""Pseudo and perturbed data: examples moved up the loss of the received model.

Xu, Hong, Huang, Jiang (FedReg), ICLR 2022, Eqs. (2) and (3).
"""

from __future__ import annotations

from typing import NamedTuple, Optional

import tensorflow as tf

from tff_algos.errors import InputError
from tff_algos.models import batch_sizes
from tff_algos.models.functional import Model, Weights

# Examples whose data are made at once, if they are small: many more than a mini-batch,
# because each one's are made by itself and large batches cost less.
_CHUNK = 256


class PseudoData(NamedTuple):
  """Of all of a client's examples, in their order; inputs are preprocessed.

  Attributes:
    x: Pseudo inputs, float32 (n, ...).
    targets: The received model's predictions for them, as targets (n, C).
    perturbed_x: Perturbed inputs, float32 (n, ...); their labels are the examples' own.
  """

  x: tf.Tensor
  targets: tf.Tensor
  perturbed_x: tf.Tensor

  def rows(self, rows: tf.Tensor) -> PseudoData:
    """Those of some examples, int32 (B,)."""
    return PseudoData(*(tf.gather(v, rows) for v in self))


class InputRange(NamedTuple):
  """Smallest and largest input allowed for each example, both (n, 1, ...)."""

  low: tf.Tensor
  high: tf.Tensor


def range_of_batches(
  x: tf.Tensor, order: tf.Tensor, batch_size: Optional[int]
) -> InputRange:
  """The range of the inputs in each example's mini-batch.

  Args:
    x: Preprocessed inputs (n, ...).
    order: int32 (n,), the order in which an epoch meets the examples.
    batch_size: Examples in a mini-batch; None: all.
  """
  place = tf.argsort(order)
  batch = tf.zeros_like(place) if batch_size is None else place // batch_size
  axes, count = list(range(1, x.shape.rank)), tf.reduce_max(batch) + 1
  low = tf.math.unsorted_segment_min(tf.reduce_min(x, axes, keepdims=True), batch, count)
  high = tf.math.unsorted_segment_max(tf.reduce_max(x, axes, keepdims=True), batch, count)
  return InputRange(tf.gather(low, batch), tf.gather(high, batch))


def make_pseudo_data(
  model: Model,
  start: Weights,
  x: tf.Tensor,
  y: tf.Tensor,
  seed: tf.Tensor,
  *,
  pseudo_step: tf.Tensor,
  perturbed_step: tf.Tensor,
  num_steps: int,
  limits: Optional[InputRange],
) -> PseudoData:
  """Moves each example by signed steps up the loss of the received model [paper].

  x_j = x_(j-1) + eta sign(grad_x L(x_(j-1), y)), j = 1..`num_steps`, with the model in
  inference mode and `pseudo_step` or `perturbed_step` for eta.

  Args:
    model: The model, which has `soft_targets`.
    start: The received weights.
    x: The client's examples, preprocessed, (n, ...).
    y: Their labels (n,).
    seed: int32 (2,), for the model.
    pseudo_step: Length of a step of the pseudo data, in units of the model's input.
    perturbed_step: That of the perturbed data.
    num_steps: How many steps, > 0.
    limits: What inputs are cut to after each step; None: nothing.

  Raises:
    InputError: The loss has no gradient at the examples.
  """
  assert model.soft_targets is not None
  soft_targets, n = model.soft_targets, tf.shape(y)[0]
  # Of each of both kinds.
  at_once = max(1, batch_sizes.to_differentiate(model, 2 * _CHUNK) // 2)
  lengths = tf.stack([pseudo_step, perturbed_step])
  ones = [1] * (x.shape.rank - 1)

  def predict(inputs: tf.Tensor) -> tf.Tensor:
    return model.predict(start, inputs, False, seed)

  def body(
    first: tf.Tensor,
    pseudo: tf.TensorArray,
    targets: tf.TensorArray,
    perturbed: tf.TensorArray,
  ) -> tuple[tf.Tensor, tf.TensorArray, tf.TensorArray, tf.TensorArray]:
    here = slice(first, first + at_once)
    size = tf.shape(y[here])[0]

    # Both kinds in one batch: first the pseudo, then the perturbed data.
    def twice(v: tf.Tensor) -> tf.Tensor:
      return tf.concat([v, v], axis=0)

    labels, v = twice(y[here]), twice(x[here])
    length = tf.reshape(tf.repeat(lengths, size), [-1, *ones])
    within = limits and InputRange(*(twice(bound[here]) for bound in limits))

    def step(j: tf.Tensor, v: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
      with tf.GradientTape() as tape:
        tape.watch(v)
        loss = tf.reduce_sum(model.example_losses(labels, predict(v)))
      gradient = tape.gradient(loss, v)
      if gradient is None:
        raise InputError(
          "FedReg moves examples along the loss's gradient at them, and this model's has "
          "none, as behind an embedding: give a model of numbers, or pseudo_steps=0."
        )
      # Who differentiates all this, such as a gradient inversion, need not go through
      # the model: the sign's derivative is 0.
      v = v + length * tf.stop_gradient(tf.sign(gradient))
      if within is not None:
        v = tf.clip_by_value(v, *within)
      return j + 1, v

    # A loop, as many steps that are traced one by one take TensorFlow long.
    _, v = tf.while_loop(
      lambda j, _: j < num_steps, step, (tf.constant(0), v), parallel_iterations=1
    )
    chunk = first // at_once
    return (
      first + at_once,
      pseudo.write(chunk, v[:size]),
      targets.write(chunk, soft_targets.of(predict(v[:size]))),
      perturbed.write(chunk, v[size:]),
    )

  def empty() -> tf.TensorArray:
    return tf.TensorArray(
      tf.float32, size=(n + at_once - 1) // at_once, infer_shape=False
    )

  _, *made = tf.while_loop(
    lambda first, *_: first < n,
    body,
    (tf.constant(0), empty(), empty(), empty()),
    parallel_iterations=1,
  )
  pseudo, targets, perturbed = (array.concat() for array in made)
  # An array of chunks does not know its elements' shape.
  pseudo, perturbed = (tf.ensure_shape(v, x.shape) for v in (pseudo, perturbed))
  return PseudoData(pseudo, targets, perturbed)
