"""The attack's formulas against NumPy, and on softmax regression: x = dW_c / db_c."""

from __future__ import annotations

import itertools
import math
import types

import numpy as np
import pytest
import tensorflow as tf

from tff_algos.privacy import gradient_inversion
from tff_algos.privacy.gradient_inversion import InversionHparams, Inverted

_SHAPE, _CLASSES = (6, 5, 1), 3
_SEED = tf.constant([3, 4])
_RNG = np.random.default_rng(0)
_W = _RNG.normal(size=(30, _CLASSES)).astype(np.float32)
_PICTURE = _RNG.uniform(size=_SHAPE).astype(np.float32)


def _step(examples, seed):
  """What one step of size 1 of softmax regression from weights (_W, 0) moves."""
  del seed
  x = tf.reshape(examples.x, [1, -1])
  error = tf.nn.softmax(tf.matmul(x, _W)) - tf.one_hot(examples.y, _CLASSES)
  return -tf.matmul(x, error, transpose_a=True), -error[0]


def _send_picture(examples, seed):
  del seed
  return (tf.reshape(examples.x, [-1]),)


def _sent(picture, label=1):
  examples = gradient_inversion.Examples(tf.constant(picture[None]), tf.constant([label]))
  return _step(examples, _SEED)


def _attack(simulate=_step, shape=_SHAPE, **settings):
  hparams = InversionHparams(**{"iterations": 3, **settings})
  return gradient_inversion.build_inversion(simulate, shape, hparams)


# --- Its parts --------------------------------------------------------------------------


def test_psnr_is_that_of_the_mean_squared_error():
  original = np.full((4, 4, 1), 0.5, np.float32)
  assert gradient_inversion.psnr(original + 0.1, original) == pytest.approx(20, abs=1e-4)
  assert gradient_inversion.psnr(original, original) == math.inf


@pytest.mark.parametrize("side", [8, 11])
def test_ssim_of_a_picture_that_is_one_window(side):
  a, b = (_RNG.uniform(size=(side, side)) for _ in range(2))
  b = 0.7 * a + 0.3 * b
  place = np.arange(side) - (side - 1) / 2
  window = np.exp(-(place[:, None] ** 2 + place**2) / (2 * 1.5**2))
  window /= window.sum()

  def mean(values):
    return np.sum(window * values)

  variances = mean(a * a) - mean(a) ** 2, mean(b * b) - mean(b) ** 2
  covariance = mean(a * b) - mean(a) * mean(b)
  c1, c2 = 0.01**2, 0.03**2
  light = (2 * mean(a) * mean(b) + c1) / (mean(a) ** 2 + mean(b) ** 2 + c1)
  expected = light * (2 * covariance + c2) / (sum(variances) + c2)
  for dtypes in itertools.product([np.float32, np.float64], repeat=2):
    pictures = (v[..., None].astype(dtype) for v, dtype in zip((a, b), dtypes))
    assert gradient_inversion.ssim(*pictures) == pytest.approx(expected, abs=1e-4)


def test_total_variation_is_the_mean_over_neighbours_of_both_directions():
  x = _RNG.normal(size=(1, 4, 6, 3)).astype(np.float32)
  down, across = np.abs(np.diff(x, axis=1)), np.abs(np.diff(x, axis=2))
  found = gradient_inversion.total_variation(tf.constant(x))
  assert float(found) == pytest.approx(down.mean() + across.mean(), rel=1e-5)


def test_distances_are_over_all_weights_together():
  a, b = ([_RNG.normal(size=s).astype(np.float32) for s in ((2, 3), (4,))] for _ in "ab")
  flat_a, flat_b = (np.concatenate([v.ravel() for v in w]) for w in (a, b))
  cosine = flat_a @ flat_b / np.sqrt(flat_a @ flat_a * (flat_b @ flat_b))
  expected = {"l2": np.sum((flat_a - flat_b) ** 2), "cosine": 1 - cosine}
  for kind, value in expected.items():
    a, b = (tuple(map(tf.constant, w)) for w in (a, b))
    found = gradient_inversion.distance(kind, a, b)
    assert float(found) == pytest.approx(value, rel=1e-5)


@pytest.mark.parametrize("size", [1e-17, 1e17])
def test_cosine_is_of_directions_alone(size):
  """Also of updates whose squares' product float32 does not hold."""
  a, b = np.float32([1.0, 2.0, -1.0]), np.float32([2.0, 0.5, 3.0])
  scaled = ((tf.constant(np.float32(size) * v),) for v in (a, b))
  expected = 1 - a @ b / np.linalg.norm(a) / np.linalg.norm(b)
  found = gradient_inversion.distance("cosine", *scaled)
  assert float(found) == pytest.approx(expected, rel=1e-5)


def test_cosine_to_a_zero_update_is_zero_and_has_a_gradient():
  zero, b = tf.zeros(3), (tf.constant([1.0, 2.0, 3.0]),)
  with tf.GradientTape() as tape:
    tape.watch(zero)
    found = gradient_inversion.distance("cosine", (zero,), b)
  assert float(found) == 1
  assert np.isfinite(tape.gradient(found, zero)).all()


@pytest.mark.parametrize(
  "iterations, places", [(32_000, (12_000, 20_000, 28_000)), (20, (7, 12, 17))]
)
def test_learning_rate_falls_at_3_5_and_7_eighths(iterations, places):
  hparams = InversionHparams(iterations=iterations, learning_rate=2.0)
  rate = [
    [float(gradient_inversion.rate_at(tf.constant(p + d), hparams)) for d in (-1, 0)]
    for p in places
  ]
  np.testing.assert_allclose(rate, [[2, 0.2], [0.2, 0.02], [0.02, 0.002]], rtol=1e-5)


# --- The search -------------------------------------------------------------------------


def test_search_is_adam_cut_to_the_range():
  sent = (tf.constant(_PICTURE.ravel()),)
  start = _attack(_send_picture, learning_rate=1e-30)(sent, 0, _SEED).picture
  found = _attack(_send_picture, iterations=16, tv_weight=0.0, learning_rate=0.3)(
    sent, 0, _SEED
  )
  x, mean, square = start.astype(np.float64), 0, 0
  was_cut = False
  for t in range(1, 17):
    gradient = 2 * (x - _PICTURE)
    mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
    rate = 0.3 * 0.1 ** sum(t > p for p in (6, 10, 14))
    x = x - rate * (mean / (1 - 0.9**t)) / (np.sqrt(square / (1 - 0.999**t)) + 1e-8)
    was_cut |= bool(np.any((x < 0) | (x > 1)))
    x = np.clip(x, 0, 1)
  assert was_cut
  np.testing.assert_allclose(found.picture, x, atol=1e-4)
  assert found.objective == pytest.approx(np.sum((x - _PICTURE) ** 2), rel=1e-3)


@pytest.mark.parametrize("distance", ["l2", "cosine"])
def test_recovers_what_softmax_regression_gives_away(distance):
  sent = _sent(_PICTURE)
  weights, biases = (v.numpy() for v in sent)
  exact = (weights[:, 1] / biases[1]).reshape(_SHAPE)
  assert gradient_inversion.psnr(exact, _PICTURE) > 100
  found = _attack(iterations=400, distance=distance)(sent, 1, _SEED)
  assert gradient_inversion.psnr(found.picture, _PICTURE) > 30


def test_total_variation_of_great_weight_makes_the_picture_flat():
  found = _attack(iterations=400, tv_weight=1e3)(_sent(_PICTURE), 1, _SEED)
  assert np.ptp(found.picture) < 0.1 < np.ptp(_PICTURE)


def test_picture_stays_in_range():
  found = _attack(_send_picture, iterations=200)(
    (tf.constant(3 * _PICTURE.ravel() - 1),), 0, _SEED
  )
  expected = np.clip(3 * _PICTURE - 1, 0, 1)
  np.testing.assert_allclose(found.picture, expected, atol=0.05)
  assert found.picture.min() == 0 and found.picture.max() == 1


def test_same_seed_gives_the_same_bits_and_another_one_others():
  sent, attack = _sent(_PICTURE), _attack(iterations=20, restarts=2)
  first, again = (
    attack(sent, 1, _SEED),
    _attack(iterations=20, restarts=2)(sent, 1, _SEED),
  )
  np.testing.assert_array_equal(first.picture, again.picture)
  assert first.objective == again.objective
  assert not np.array_equal(first.picture, attack(sent, 1, _SEED + 1).picture)


def test_more_restarts_keep_the_least_objective():
  objectives = [
    _attack(restarts=restarts, learning_rate=1e-30)(_sent(_PICTURE), 1, _SEED).objective
    for restarts in (1, 2, 4, 8)
  ]
  assert objectives == sorted(objectives, reverse=True)
  assert objectives[-1] < objectives[0]


def test_a_start_that_comes_to_nothing_is_not_the_best(monkeypatch):
  """NaN is less than nothing, and nothing is less than it."""
  attack = _attack(restarts=4, learning_rate=1e-30)
  best = attack(_sent(_PICTURE), 1, _SEED)
  found = []

  def nan_first(picture, objective):
    found.append(objective)
    is_first = len(found) == 1 and objective != best.objective
    return Inverted(picture, float("nan") if is_first else objective)

  monkeypatch.setattr(gradient_inversion, "Inverted", nan_first)
  again = attack(_sent(_PICTURE), 1, _SEED)
  assert again.objective == best.objective and len(found) == 4


@pytest.mark.parametrize("shape", [(30,), (1, 30, 1)])
def test_examples_that_are_no_pictures_are_refused(shape):
  with pytest.raises(ValueError, match="at least 2 x 2 pixels"):
    _attack(shape=shape)


def test_process_without_client_work_is_refused():
  class Process:
    client_work = None

  with pytest.raises(ValueError, match="what one client sends"):
    gradient_inversion.upload_of(Process(), (), ())


def test_upload_without_the_attacked_part_is_refused():
  class Process:
    next_fns = dict.fromkeys([""])

    @staticmethod
    def client_work(*_):
      return types.SimpleNamespace(message=dict(shared=(tf.zeros([2]),)))

  upload = gradient_inversion.upload_of(Process(), (), ())
  with pytest.raises(ValueError, match="this algorithm's send 'shared': choose another"):
    upload(None, None)


def test_search_goes_on_where_the_objective_has_no_gradient():
  """As of a root at 0, to which a picture is cut."""
  attack = gradient_inversion.build_inversion(
    lambda examples, seed: (tf.sqrt(examples.x),),
    (2, 2, 1),
    InversionHparams(iterations=20, tv_weight=0.0),
  )
  sent = (tf.constant(np.float32([0.0, 0.0, 0.5, 1.0]).reshape(1, 2, 2, 1)),)
  found = attack(sent, 0, tf.constant([3, 4]))
  assert np.isfinite(found.picture).all() and np.isfinite(found.objective)
