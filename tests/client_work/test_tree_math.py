"""Clipping to a norm, from its definition; what the arithmetic refuses."""

from __future__ import annotations

import numpy as np
import pytest
import replay
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hypothesis_numpy

from tff_algos.client_work import tree_math
from tff_algos.errors import InputError

_NUMBERS = st.floats(-1e4, 1e4, width=32, allow_subnormal=False)
_GRADIENTS = st.tuples(
  hypothesis_numpy.arrays(np.float32, (2, 3), elements=_NUMBERS),
  hypothesis_numpy.arrays(np.float32, (4,), elements=_NUMBERS),
  hypothesis_numpy.arrays(np.float32, (), elements=_NUMBERS),
)


def _clip(gradient, clip_norm) -> list[np.ndarray]:
  clipped = tree_math.clip(tuple(map(tf.constant, gradient)), clip_norm)
  return [g.numpy() for g in clipped]


def _norm(arrays) -> float:
  return replay.norm(replay.as_weights(arrays))


@settings(deadline=None)
@given(_GRADIENTS, st.floats(1e-3, 1e4))
# Each array by itself is shorter than C.
@example(
  gradient=(
    np.full((2, 3), 0.4, np.float32),
    np.full(4, 0.45, np.float32),
    np.float32(0),
  ),
  clip_norm=1.0,
)
def test_clipped_gradient_is_not_longer_and_keeps_its_direction(gradient, clip_norm):
  length, found = _norm(gradient), _clip(gradient, clip_norm)
  assert _norm(found) <= clip_norm * (1 + 1e-6)
  scale = min(1.0, clip_norm / length) if length else 1.0
  for a, b in zip(found, gradient):
    np.testing.assert_allclose(a, scale * b.astype(np.float64), rtol=2e-6, atol=1e-30)


@settings(deadline=None)
@given(_GRADIENTS, st.floats(1.01, 1e3))
def test_short_gradient_is_left_bit_for_bit(gradient, more):
  found = _clip(gradient, max(more * _norm(gradient), 1e-6))
  for a, b in zip(found, gradient):
    np.testing.assert_array_equal(a, b)


def test_gradient_so_short_that_its_squares_are_zero_is_left():
  gradient = (np.full((2, 3), 1e-30, np.float32), np.zeros(1, np.float32))
  for found, expected in zip(_clip(gradient, 1.0), gradient):
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("clip_norm", [1e-6, 1.0])
def test_zero_gradient_stays_zero(clip_norm):
  found = _clip((np.zeros((2, 3), np.float32), np.zeros(1, np.float32)), clip_norm)
  for a in found:
    np.testing.assert_array_equal(a, np.zeros_like(a))


_FUNCTIONS = [
  tree_math.add,
  tree_math.subtract,
  tree_math.dot,
  lambda a, b: tree_math.add_scaled(a, 2.0, b),
]


@pytest.mark.parametrize("function", _FUNCTIONS)
@pytest.mark.parametrize("shapes", [[(2, 3)], [(2, 3), ()], [(3, 2), (4,)]], ids=str)
def test_weights_of_other_shapes_are_refused(function, shapes):
  """TensorFlow would repeat scalars, and `zip` drop what one of them lacks."""
  a, b = ([tf.ones(s) for s in of] for of in ([(2, 3), (4,)], shapes))
  for one, other in ((a, b), (b, a)):
    with pytest.raises(InputError, match="arrays of the same shapes, one for one; fo"):
      function(tuple(one), tuple(other))


def test_slices_of_an_embeddings_gradient_are_made_whole():
  """Of row 1, twice, and of row 0, as `tf.GradientTape` gives them."""
  slices = tf.IndexedSlices(
    tf.constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]),
    tf.constant([1, 0, 1]),
    tf.constant([3, 2]),
  )
  whole = np.float32([[3, 4], [6, 8], [0, 0]])
  ones = np.ones([3, 2], np.float32)
  for found, expected in (
    (tree_math.add((ones,), (slices,)), ones + whole),
    (tree_math.subtract((slices,), (ones,)), whole - ones),
    (tree_math.add_scaled((ones,), -0.5, (slices,)), ones - 0.5 * whole),
    (tree_math.zeros_like((slices,)), 0 * whole),
    (tree_math.clip((slices,), 5.0), whole * 5 / np.linalg.norm(whole)),
  ):
    np.testing.assert_allclose(found[0], expected, rtol=1e-6)
  np.testing.assert_allclose(tree_math.dot((slices,), (slices,)), np.sum(whole**2))
  np.testing.assert_allclose(tree_math.norm((slices,)), np.linalg.norm(whole), rtol=1e-6)


def test_iterators_and_numbers_are_taken():
  np.testing.assert_allclose(tree_math.dot((1.0, 2.0), (x for x in (3.0, 4.0))), 11.0)


def test_a_length_that_is_known_later_is_taken():
  """As of a batch, whose first dimension a graph does not know."""
  spec = tf.TensorSpec([None], tf.float32)
  total = tf.function(lambda x: tree_math.add((x,), (tf.ones([2]),)))
  [found] = total.get_concrete_function(spec)(tf.constant([1.0, 2.0]))
  np.testing.assert_array_equal(found, [2.0, 3.0])
