"""The gradient of a local step by DP-SGD, and what else is made private like it.

Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar, Zhang: "Deep Learning with Differential
Privacy", CCS 2016, Algorithm 1. What `accounting` says of a client's privacy holds for
what is made from these gradients; not for the training loss in the metrics.
"""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from tff_algos.client_data import Examples
from tff_algos.client_work import gradients, step_seeds, tree_math
from tff_algos.client_work.local_training import Batch
from tff_algos.hyper_parameters import HyperParameters, hparam
from tff_algos.models.functional import Model, Weights

# What a step's seed is folded with for its noise.
_NOISE = 5
# The most that a batch's loss counts for in the metrics.
_MOST = 1e9


@dataclasses.dataclass(frozen=True)
class DpSgd(HyperParameters):
  """What DP-SGD adds to an algorithm's hyper-parameters.

  They change nothing by themselves: builders pass `private_gradient`, which reads them.
  """

  clip_norm: float = hparam(
    1.0,
    "Largest norm of one example's gradient (C), over all weights together.",
    source="paper, FedReg Appendix B.4",
    low=0,
    open_low=True,
    tunable=True,
  )
  noise_multiplier: float = hparam(
    0.05,
    "Standard deviation of the noise on a sum of clipped gradients, in units of the "
    "clip norm (sigma).",
    source="paper, FedReg Appendix B.4 (0.01 EMNIST, 0.05 CIFAR-10, 0.001 CT)",
    low=0,
    tunable=True,
  )
  delta: float = hparam(
    1e-5,
    "The delta at which a run reports its epsilon.",
    source="convention",
    low=0,
    high=0.999,
    open_low=True,
  )


def private_gradient(
  model: Model, h: DpSgd, weights: Weights, batch: Batch
) -> tuple[Weights, tf.Tensor]:
  """The private gradient of a batch's mean loss, and the sum of its losses.

  (sum_e g_e min(1, C/|g_e|) + N(0, (sigma C)^2)) / B over the batch's B examples [paper].
  A gradient that is not finite counts as 0, and so does the sum of losses, which is at
  most 1e9: else one example could have the client's result dropped, which is seen
  without noise [derived].

  Args:
    model: The model.
    h: The hyper-parameters, of which clip norm and noise multiplier may be tensors.
    weights: Where the gradient is taken.
    batch: The examples, and the seed of the noise and of the model's random layers.
  """
  total, loss = gradients.sum_over_examples(
    model,
    weights,
    batch.x,
    batch.y,
    batch.seed,
    lambda g: _clipped(h, g),
    training=True,
  )
  deviation = h.noise_multiplier * h.clip_norm
  noisy = tree_math.add_scaled(total, deviation, normal_like(total, batch.seed))
  share = 1 / tf.cast(tf.shape(batch.y)[0], tf.float32)
  loss = tf.where(tf.math.is_finite(loss), loss, 0.0)
  return tuple(share * g for g in noisy), tf.clip_by_value(loss, -_MOST, _MOST)


def _clipped(h: DpSgd, gradient: Weights) -> Weights:
  """An example's gradient, of which nothing but C is known: 0 where it has no norm."""
  length = tree_math.norm(gradient)
  scale = tree_math.clip_scale(length, h.clip_norm)
  scale = tf.where(tf.math.is_finite(length), scale, 0.0)
  # 0 times NaN would be NaN.
  return tuple(tf.math.multiply_no_nan(g, scale) for g in gradient)


def private_fisher_information(
  model: Model, h: DpSgd, weights: Weights, examples: Examples, seed: tf.Tensor
) -> Weights:
  """The mean over the examples of their clipped gradients' squares, made private.

  Of clipped gradients g, |g^2| <= C^2, so that noise of sigma C^2 on the sum is one more
  Gaussian mechanism with the same sigma; below 0 it is cut off [derived].

  Args:
    model: The model; its random layers are not at work.
    h: The hyper-parameters, of which clip norm and noise multiplier may be tensors.
    weights: Where the gradients are taken.
    examples: All of a client's examples.
    seed: int32 (2,), of the noise.
  """

  def square(gradient: Weights) -> Weights:
    return tuple(map(tf.square, _clipped(h, gradient)))

  total, _ = gradients.sum_over_examples(
    model, weights, examples.x, examples.y, seed, square, training=False
  )
  deviation = h.noise_multiplier * h.clip_norm**2
  noisy = tree_math.add_scaled(total, deviation, normal_like(total, seed))
  share = 1 / tf.cast(tf.shape(examples.y)[0], tf.float32)
  return tuple(share * tf.maximum(t, 0.0) for t in noisy)


def normal_like(weights: Weights, seed: tf.Tensor) -> Weights:
  """Standard normal numbers of the shapes of `weights`, from an int32 (2,) seed."""
  seed = step_seeds.fold_in(seed, _NOISE)
  return tuple(
    tf.random.stateless_normal(w.shape, step_seeds.fold_in(seed, k))
    for k, w in enumerate(weights)
  )
