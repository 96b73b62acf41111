"""What stands in for the generators of Keras's random layers draws as these do."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tff_algos.models import keras_exchange

_layers = tf.keras.layers
_SEED = tf.constant([3, 4])
_SHAPE = (20_000,)


@pytest.fixture(name="generator")
def _generator():
  [(_, _, made)] = keras_exchange.stateless_generators([_layers.Dropout(0.5)], _SEED)
  return made


def _assert_moments(numbers, mean, deviation):
  """Each within 5 standard errors, of the deviation those of a normal distribution."""
  n = len(numbers)
  assert abs(np.mean(numbers) - mean) < 5 * deviation / np.sqrt(n)
  assert abs(np.std(numbers) / deviation - 1) < 5 / np.sqrt(2 * n)


def test_uniform_numbers_are_between_their_bounds(generator):
  for bounds, (low, high) in (({}, (0, 1)), (dict(minval=-2.0, maxval=3.0), (-2, 3))):
    found = generator.random_uniform(_SHAPE, **bounds).numpy()
    assert low <= found.min() and found.max() < high
    _assert_moments(found, (low + high) / 2, (high - low) / np.sqrt(12))


def test_normal_numbers_have_mean_and_deviation(generator):
  _assert_moments(generator.random_normal(_SHAPE).numpy(), 0, 1)
  _assert_moments(generator.random_normal(_SHAPE, mean=2.0, stddev=3.0).numpy(), 2, 3)


def test_dropout_drops_what_its_noise_shape_holds_together(generator):
  """As SpatialDropout does with a whole channel."""
  found = generator.dropout(tf.ones([4, 50, 8]), rate=0.5, noise_shape=(4, 1, 8)).numpy()
  assert set(np.unique(found)) == {0, 2}
  np.testing.assert_array_equal(found, np.broadcast_to(found[:, :1], found.shape))


def test_each_draw_is_another_one(generator):
  draws = [generator.random_normal([100]).numpy() for _ in range(4)]
  assert len(np.unique(draws)) == 400
  first, second = (generator.make_seed_for_stateless_op().numpy() for _ in range(2))
  assert not np.array_equal(first, second)
