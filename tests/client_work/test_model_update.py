"""What a client uploads, and the vector arithmetic behind it."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tff_algos.client_data import Examples
from tff_algos.client_work import local_training, model_update, tree_math
from tff_algos.errors import InputError

_SHAPES = ((2, 3), (4,), (), (1, 2, 2))
_EXAMPLES = Examples(tf.zeros((5, 2)), tf.zeros(5))


def _weights(seed: int) -> tuple:
  rng = np.random.default_rng(seed)
  return tuple(tf.constant(rng.normal(size=s), tf.float32) for s in _SHAPES)


def _flat(weights) -> np.ndarray:
  """All numbers as one long vector, in float64."""
  return np.concatenate([np.reshape(w, -1).astype(np.float64) for w in weights])


@pytest.mark.parametrize("seed", range(3))
def test_tuples_of_weights_are_one_long_vector(seed):
  a, b = _weights(seed), _weights(seed + 10)
  x, y = _flat(a), _flat(b)
  vectors = [
    (tree_math.add(a, b), x + y),
    (tree_math.subtract(a, b), x - y),
    (tree_math.add_scaled(a, -0.5, b), x - 0.5 * y),
    (tree_math.add_scaled(a, tf.constant(2.0), b), x + 2 * y),
    (tree_math.zeros_like(a), 0 * x),
  ]
  for found, expected in vectors:
    assert isinstance(found, tuple)
    assert [v.shape for v in found] == [v.shape for v in a]
    np.testing.assert_allclose(_flat(found), expected, rtol=1e-6, atol=1e-6)
  np.testing.assert_allclose(tree_math.dot(a, b), x @ y, rtol=1e-5, atol=1e-5)
  np.testing.assert_allclose(tree_math.norm(a), np.linalg.norm(x), rtol=1e-6)
  assert tree_math.dot(a, b).shape == tree_math.norm(a).shape == ()


def test_norm_of_zeros_is_zero():
  zeros = tree_math.zeros_like(_weights(0))
  assert tree_math.norm(zeros).numpy() == 0


@pytest.mark.parametrize("weighting, expected", [("examples", 5), ("uniform", 1)])
def test_update_is_the_way_from_the_received_model(weighting, expected):
  start, end = _weights(1), _weights(2)
  result = local_training.LocalResult(
    weights=end,
    num_steps=tf.constant(4.0),
    loss=tf.constant(7.5),
    num_seen=tf.constant(15.0),
    carry=(),
  )
  found = model_update.model_update(weighting, start, result, _EXAMPLES, ("kept",))
  assert list(found.message) == list(found.weight) == ["model"]
  np.testing.assert_allclose(
    _flat(found.message["model"]), _flat(end) - _flat(start), rtol=1e-6, atol=1e-6
  )
  assert found.weight["model"].dtype == tf.float32
  assert found.weight["model"].numpy() == expected
  assert found.client_state == ("kept",)
  assert [float(v) for v in found.metrics["loss"]] == [7.5, 15.0]


def test_unknown_weighting_is_refused():
  with pytest.raises(InputError, match="examples or uniform; found 'unifrom'"):
    model_update.client_weight("unifrom", _EXAMPLES)
