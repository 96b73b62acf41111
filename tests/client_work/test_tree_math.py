"""Clipping to a norm, from its definition."""

from __future__ import annotations

import numpy as np
import pytest
import replay
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hypothesis_numpy

from tff_algos.client_work import tree_math

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


@pytest.mark.parametrize("clip_norm", [1e-6, 1.0])
def test_zero_gradient_stays_zero(clip_norm):
  found = _clip((np.zeros((2, 3), np.float32), np.zeros(1, np.float32)), clip_norm)
  for a in found:
    np.testing.assert_array_equal(a, np.zeros_like(a))
