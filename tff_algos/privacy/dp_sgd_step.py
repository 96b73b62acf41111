"""The gradient of a local step, plain or by DP-SGD.

Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar, Zhang: "Deep Learning with Differential
Privacy", CCS 2016, Algorithm 1. What `accounting` says of a client's privacy holds for
what is made from these gradients; not for the training loss in the metrics.
"""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from tff_algos.client_work import gradients, tree_math
from tff_algos.hyper_parameters import HyperParameters, PlainSgd, hparam
from tff_algos.models.functional import Model, Weights

# What a step's seed is folded with for its noise.
_NOISE = 5


@dataclasses.dataclass(frozen=True)
class DpSgd(HyperParameters):
  """Mixed into an algorithm's hyper-parameters, it makes every local gradient private."""

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

  @property
  def releases_per_round(self) -> int:
    """How many noisy sums an example takes part in, in a round of its client.

    One for each epoch, of which it is in one mini-batch; one without epochs.
    """
    return self.epochs if isinstance(self, PlainSgd) else 1


def local_gradient(
  model: Model,
  hparams: HyperParameters,
  weights: Weights,
  x: tf.Tensor,
  y: tf.Tensor,
  seed: tf.Tensor,
) -> tuple[Weights, tf.Tensor]:
  """The gradient of a batch's mean loss and the sum of its losses.

  Private where `hparams` are `DpSgd`: (sum_e g_e min(1, C/|g_e|) + N(0, (sigma C)^2)) / B
  over the batch's B examples [paper]. Arguments as of `gradients.batch_gradient`.
  """
  if not isinstance(hparams, DpSgd):
    return gradients.batch_gradient(model, weights, x, y, seed)
  total, loss = gradients.sum_over_examples(
    model, weights, x, y, seed, lambda g: clip(g, hparams.clip_norm), training=True
  )
  deviation = hparams.noise_multiplier * hparams.clip_norm
  noisy = tree_math.add_scaled(total, deviation, normal_like(total, seed))
  share = 1 / tf.cast(tf.shape(y)[0], tf.float32)
  return tuple(share * g for g in noisy), loss


def clip(gradient: Weights, clip_norm) -> Weights:
  """The gradient, scaled down to the norm `clip_norm` where it is longer."""
  length = tree_math.norm(gradient)
  scale = tf.minimum(1.0, tf.math.divide_no_nan(clip_norm, length))
  scale = tf.where(length > 0, scale, 1.0)
  return tuple(scale * g for g in gradient)


def normal_like(weights: Weights, seed: tf.Tensor) -> Weights:
  """Standard normal numbers of the shapes of `weights`, from an int32 (2,) seed."""
  seed = tf.random.experimental.stateless_fold_in(seed, _NOISE)
  return tuple(
    tf.random.stateless_normal(w.shape, tf.random.experimental.stateless_fold_in(seed, k))
    for k, w in enumerate(weights)
  )
