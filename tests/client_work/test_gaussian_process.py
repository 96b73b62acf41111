"""The Gaussian processes against scikit-learn's, and what is worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from replay_pfedgp import kernel as numpy_kernel
from replay_pfedgp import processes
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from tff_algos.client_work import gaussian_process

_SCALE, _LENGTH, _EPSILON = 8.0, 0.7, 0.01
_KERNEL = gaussian_process.Kernel(_SCALE, _LENGTH)
# Some classes have no example.
_CLASSES = 6


def _problem(n: int = 12, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
  rng = np.random.default_rng(seed)
  return rng.normal(size=(n, 4)), 2 * rng.integers(0, 3, n)


def _unit(features):
  return features / np.linalg.norm(features, axis=1, keepdims=True)


def _regressors(features, labels):
  """scikit-learn's, one for each class, and what is added to what it predicts."""
  found = processes(labels, _EPSILON)
  for c, share, r, noise in zip(*found):
    prior = ConstantKernel(_SCALE) * RBF(_LENGTH)
    regressor = GaussianProcessRegressor(prior, alpha=noise, optimizer=None)
    yield c, np.log(share), regressor.fit(_unit(features), r)


def _losses(features, labels, dtype=tf.float64):
  return gaussian_process.losses(
    tf.constant(features, dtype), tf.constant(labels), _KERNEL, _EPSILON
  )


def _logits(features, labels, others, dtype=tf.float64):
  posterior = gaussian_process.condition(
    tf.constant(features, dtype), tf.constant(labels), _KERNEL, _EPSILON
  )
  others = tf.constant(others, dtype)
  return gaussian_process.logits(posterior, others, _KERNEL, _CLASSES).numpy()


@pytest.mark.parametrize("n", [3, 12, 40])
def test_losses_are_scikit_learns_log_marginal_likelihood(n):
  features, labels = _problem(n)
  each = [r.log_marginal_likelihood_value_ for *_, r in _regressors(features, labels)]
  assert len(each) > 1
  np.testing.assert_allclose(np.sum(_losses(features, labels)), -sum(each), rtol=1e-10)
  found = _losses(features, labels, tf.float32)
  assert found.dtype == tf.float32
  np.testing.assert_allclose(np.sum(found), -sum(each), rtol=1e-5)


def test_losses_of_examples_are_those_given_the_examples_before():
  """log N of the first k of them is the sum of the first k."""
  features, labels = _problem()
  found = processes(labels, _EPSILON)
  covariance = numpy_kernel(features, features, _SCALE, _LENGTH)
  for k in range(1, len(labels) + 1):
    total = 0.0
    for r, noise in zip(found.residuals, found.noise):
      noisy = (covariance + np.diag(noise))[:k, :k]
      square = r[:k] @ np.linalg.solve(noisy, r[:k])
      total += (square + np.linalg.slogdet(noisy)[1] + k * np.log(2 * np.pi)) / 2
    np.testing.assert_allclose(np.sum(_losses(features, labels)[:k]), total, rtol=1e-10)


def test_logits_are_scikit_learns_means():
  features, labels = _problem(20)
  others = np.random.default_rng(1).normal(size=(7, 4))
  found = _logits(features, labels, others)
  in_float32 = _logits(features, labels, others, tf.float32)
  for c, log_share, regressor in _regressors(features, labels):
    means = regressor.predict(_unit(others)) + log_share
    np.testing.assert_allclose(found[:, c], means, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(in_float32[:, c], means, rtol=1e-4, atol=1e-4)
  absent = sorted(set(range(_CLASSES)) - set(labels.tolist()))
  assert absent and np.all(found[:, absent] == -np.inf)


def test_gradient_is_that_of_central_differences():
  features, labels = _problem(7)
  features = tf.constant(features)
  with tf.GradientTape() as tape:
    tape.watch(features)
    loss = tf.reduce_sum(_losses(features, labels))
  found = tape.gradient(loss, features).numpy()
  h = 1e-5
  for place in np.ndindex(*features.shape):
    step = np.zeros(features.shape)
    step[place] = h
    up, down = (np.sum(_losses(features + sign * step, labels)) for sign in (1, -1))
    assert found[place] == pytest.approx((up - down) / (2 * h), rel=1e-6, abs=1e-6)


def test_length_of_features_does_not_matter():
  features, labels = _problem()
  lengths = np.geomspace(1e-3, 1e3, len(labels))[:, None]
  np.testing.assert_allclose(
    _losses(lengths * features, labels), _losses(features, labels), rtol=1e-9
  )


def test_two_far_clusters_by_hand():
  """So far that k is s within a cluster of one example, and 0 between them.

  Of an example of its own class the residual r is half the difference of the targets, as
  both classes have a share of one half; of one of the other class it is -r.
  """
  far = gaussian_process.Kernel(8.0, 0.1)
  features, labels = tf.constant([[3.0, 0.0], [0.0, 5.0]]), tf.constant([4, 1])
  alpha = np.array([0.01, 1.01])
  noise = np.log(1 / alpha + 1)
  other, own = np.log(alpha) - noise / 2
  r = (own - other) / 2
  posterior = gaussian_process.condition(features, labels, far, 0.01)
  at = tf.constant([[2.0, 0.0], [0.0, 0.1], [-1.0, 0.0]])
  found = gaussian_process.logits(posterior, at, far, _CLASSES).numpy()
  half, near = np.log(0.5), 8 * r / (8 + noise)
  expected = np.full([3, _CLASSES], -np.inf)
  expected[:, [4, 1]] = half
  expected[0, [4, 1]] += near[1], -near[0]
  expected[1, [4, 1]] += -near[0], near[1]
  np.testing.assert_allclose(found, expected, rtol=1e-5)
  powers = np.exp(found)
  shares = powers / powers.sum(axis=1, keepdims=True)
  assert shares[0, 4] > 0.98 and shares[1, 1] > 0.98
  assert shares[2, 4] == pytest.approx(0.5)  # Where nothing is near, the shares.


@pytest.mark.parametrize("n", [1, 5])
def test_of_one_class_there_is_nothing_to_learn(n):
  features = tf.constant(_problem(n)[0], tf.float32)
  with tf.GradientTape() as tape:
    tape.watch(features)
    losses = _losses(features, [2] * n, tf.float32)
  np.testing.assert_array_equal(losses, np.zeros(n))
  np.testing.assert_array_equal(tape.gradient(losses, features), np.zeros([n, 4]))
  found = _logits(_problem(n)[0], [2] * n, _problem(9)[0])
  assert np.all(found.argmax(axis=1) == 2) and np.all(np.isfinite(found[:, 2]))


def test_of_no_example_no_class_is_possible():
  no_features, no_labels = np.zeros([0, 4]), np.zeros([0], np.int32)
  assert _losses(no_features, no_labels).shape == [0]
  assert np.all(_logits(no_features, no_labels, _problem(3)[0]) == -np.inf)


def test_features_that_are_all_alike_are_no_trouble_in_float32():
  """The worst condition: 500 rows of K that are equal, but for the noise."""
  labels = np.arange(500) % 3
  features = np.ones([500, 4])
  exact = _losses(features, labels)
  found = _losses(features, labels, tf.float32)
  np.testing.assert_allclose(np.sum(found), np.sum(exact), rtol=1e-3)
  exact = _logits(features, labels, features[:1])[0, :3]
  found = _logits(features, labels, features[:1], tf.float32)[0, :3]
  np.testing.assert_allclose(found, exact, atol=2e-3)
  assert np.ptp(exact) < 0.02  # As near each other as the shares.


@pytest.mark.parametrize("length", [1e-2, 1e-3, 1e-5])
def test_a_feature_is_itself_at_any_length_scale_in_float32(length):
  features, labels = _problem(9)
  kernel = gaussian_process.Kernel(_SCALE, length)
  single, double = (
    gaussian_process.losses(tf.constant(features, t), tf.constant(labels), kernel, 0.01)
    for t in (tf.float32, tf.float64)
  )
  np.testing.assert_allclose(single, double, rtol=1e-5)


def test_features_of_length_0_have_a_gradient():
  features = tf.zeros([4, 3])
  with tf.GradientTape() as tape:
    tape.watch(features)
    loss = tf.reduce_sum(_losses(features, [0, 1, 0, 1], tf.float32))
  assert np.isfinite(loss) and np.all(np.isfinite(tape.gradient(loss, features)))
