"""Gaussian-process classification of features, in closed form.

Milios, Camoriano, Michiardi, Rosasco, Filippone: "Dirichlet-based Gaussian Processes for
Large-scale Calibrated Classification", NeurIPS 2018. Of the P classes that are among the
labels each has a latent function of its own, and of example i

    alpha_ic = alpha_epsilon + 1[y_i = c]
    noise_ic = log(1 / alpha_ic + 1)
    target_ic = log(alpha_ic) - noise_ic / 2                      [paper]
    mean_c = log(p_c) + mean over i, c of (target_ic - log(p_c))  [code]

with p_c the share of the labels that are c: the moments of the logarithm of Gamma
variables, whose shares are a Dirichlet variable. So each class is a regression with noise
that is known. A class that is not among the labels has p_c = 0 and no function, as in the
authors' code.

As noise_ic is at least log(1 / (1 + alpha_epsilon) + 1), no covariance matrix is
near-singular, and Cholesky needs no jitter.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import tensorflow as tf


class Kernel(NamedTuple):
  """k(a, b) = output_scale exp(-|u - v|^2 / (2 length_scale^2)), u and v of length 1.

  u and v are the features a and b over their norms, as pFedGP has it [code].

  Attributes:
    output_scale: The variance of a latent function.
    length_scale: In units of the features' length, so 2 is the largest distance.
  """

  output_scale: float
  length_scale: float

  def between(self, a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """Features (n, d) and (m, d) -> (n, m).

    In float32 two features look alike, or up to 5e-4 apart where they are alike, which
    counts where `length_scale` is below about 0.01.
    """
    return self._of(self._half_squares(a, b))

  def among(self, a: tf.Tensor) -> tf.Tensor:
    """Features (n, d) -> (n, n), each with itself exactly `output_scale`."""
    squares = self._half_squares(a, a)
    nothing = tf.zeros_like(tf.linalg.diag_part(squares))
    return self._of(tf.linalg.set_diag(squares, nothing))

  def _half_squares(self, a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """|u - v|^2 / 2 of vectors of length 1, which rounding may take below 0."""
    u, v = (tf.math.l2_normalize(x, axis=-1) for x in (a, b))
    return tf.maximum(1.0 - tf.matmul(u, v, transpose_b=True), 0.0)

  def _of(self, half_squares: tf.Tensor) -> tf.Tensor:
    return self.output_scale * tf.exp(-half_squares / self.length_scale**2)


class _Regressions(NamedTuple):
  """One for each class that is among the labels, as they first appear.

  Attributes:
    classes: (P,), their labels.
    log_shares: (P,), log(p_c).
    residuals: (P, n), target_ic - mean_c.
    factors: (P, n, n), lower Cholesky factors of the residuals' covariances.
  """

  classes: tf.Tensor
  log_shares: tf.Tensor
  residuals: tf.Tensor
  factors: tf.Tensor


class Posterior(NamedTuple):
  """What is known of the latent functions after some examples; of `condition`.

  Attributes:
    features: (n, d), of these examples.
    classes: (P,), the labels among them.
    log_shares: (P,), the logarithms of their shares.
    coefficients: (P, n), by which the kernels count.
  """

  features: tf.Tensor
  classes: tf.Tensor
  log_shares: tf.Tensor
  coefficients: tf.Tensor


def losses(
  features: tf.Tensor, labels: tf.Tensor, kernel: Kernel, alpha_epsilon: float
) -> tf.Tensor:
  """What each example adds to minus the log marginal likelihood of all, over the classes.

  By the chain rule: that of its label given the examples before it [derived]. Of labels
  of one class there is nothing to tell apart, and all are 0 [code: a leaf of pFedGP's
  tree has no Gaussian process].

  Args:
    features: float32 (n, d).
    labels: int (n,).
    kernel: The prior covariance.
    alpha_epsilon: What every class has of each example, > 0.

  Returns:
    float32 (n,), in nats.
  """
  found = _regressions(features, labels, kernel, alpha_epsilon)
  whitened = tf.linalg.triangular_solve(found.factors, found.residuals[..., tf.newaxis])
  scales = math.sqrt(2 * math.pi) * tf.linalg.diag_part(found.factors)
  terms = tf.math.log(scales) + 0.5 * tf.square(whitened[..., 0])
  is_several = tf.cast(tf.size(found.classes) > 1, terms.dtype)
  return is_several * tf.reduce_sum(terms, axis=0)


def condition(
  features: tf.Tensor, labels: tf.Tensor, kernel: Kernel, alpha_epsilon: float
) -> Posterior:
  """The posterior after some examples; the arguments are those of `losses`."""
  found = _regressions(features, labels, kernel, alpha_epsilon)
  solved = tf.linalg.cholesky_solve(found.factors, found.residuals[..., tf.newaxis])
  return Posterior(features, found.classes, found.log_shares, solved[..., 0])


def logits(
  posterior: Posterior, features: tf.Tensor, kernel: Kernel, num_classes: int
) -> tf.Tensor:
  """The latent functions' posterior means at other features, (m, d) -> (m, num_classes).

  Up to a constant that all classes share. Their softmax takes the means for the functions
  and leaves the variances out [convention]. A class that the posterior has not met has
  -inf.
  """
  near = kernel.between(features, posterior.features)
  means = tf.matmul(near, posterior.coefficients, transpose_b=True)
  means = means + posterior.log_shares
  impossible = tf.constant(-math.inf, means.dtype)
  nothing = tf.fill([num_classes, tf.shape(features)[0]], impossible)
  places = posterior.classes[:, tf.newaxis]
  return tf.transpose(tf.tensor_scatter_nd_update(nothing, places, tf.transpose(means)))


def _regressions(
  features: tf.Tensor, labels: tf.Tensor, kernel: Kernel, alpha_epsilon: float
) -> _Regressions:
  classes, places = tf.unique(labels)
  is_class = tf.one_hot(places, tf.size(classes), dtype=features.dtype)
  alpha = alpha_epsilon + is_class
  noise = tf.math.log1p(1.0 / alpha)
  log_shares = tf.math.log(tf.reduce_mean(is_class, axis=0))
  # target_ic - log(p_c), whose mean over i and c is taken away too.
  centred = tf.math.log(alpha) - (0.5 * noise + log_shares)
  residuals = tf.transpose(centred - tf.reduce_mean(centred))
  covariance = kernel.among(features)
  noisy = covariance + tf.linalg.diag(tf.transpose(noise))
  return _Regressions(classes, log_shares, residuals, tf.linalg.cholesky(noisy))
