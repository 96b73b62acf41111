"""Large examples meet the model a few at a time, with the same results."""

from __future__ import annotations

import math
from collections import OrderedDict

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from tff_algos.client_data import Examples
from tff_algos.client_work import gradients, pseudo_data
from tff_algos.models import batch_sizes, functional
from tff_algos.simulation import client_evaluation, evaluation

_FEATURES, _SEED = 4, tf.constant([1, 2])
_WEIGHTS = (np.random.default_rng(3).normal(size=(_FEATURES, 3)).astype(np.float32),)
_START = tuple(map(tf.constant, _WEIGHTS))


def _model(most: int, shape: tuple[int, ...] = (_FEATURES,)) -> functional.Model:
  """Logits x w, of at most so many examples at once."""

  def predict(weights, x, training, seed):
    del training, seed
    tf.debugging.assert_less_equal(tf.shape(x)[0], most)
    return tf.matmul(x, weights[0])

  return functional.Model(
    initial_weights=_WEIGHTS,
    weight_names=("w",),
    example_spec=functional.ExampleSpec(
      tf.TensorSpec(shape, tf.float32), tf.TensorSpec([], tf.int32)
    ),
    predict=predict,
    example_losses=functional.sparse_cross_entropy,
    metrics=OrderedDict(accuracy=functional.accuracy),
    soft_targets=functional.SoftTargets(tf.nn.softmax, functional.soft_cross_entropy),
  )


def _examples(n: int) -> Examples:
  rng = np.random.default_rng(n)
  x = rng.normal(size=(n, _FEATURES)).astype(np.float32)
  return Examples(x, rng.integers(0, 3, n, np.int32))


@pytest.mark.parametrize(
  ("of", "numbers"),
  [(batch_sizes.to_predict, 2**21), (batch_sizes.to_differentiate, 2**19)],
)
@given(
  shape=st.lists(st.integers(1, 3000), max_size=3),
  most=st.integers(1, 1000),
)
def test_as_many_as_have_so_many_numbers(of, numbers, shape, most):
  found, of_one = of(_model(1, tuple(shape)), most), math.prod(shape)
  assert 1 <= found <= most
  assert found == 1 or found * of_one <= numbers
  assert found == most or (found + 1) * of_one > numbers


def _full_gradient(model, examples):
  gradient, loss = gradients.full_gradient(model, _START, examples, _SEED)
  return (*gradient, loss)


def _pseudo_data(model, examples):
  steps = dict(pseudo_step=tf.constant(0.3), perturbed_step=tf.constant(0.1))
  return pseudo_data.make_pseudo_data(
    model,
    _START,
    model.preprocess(examples.x),
    examples.y,
    _SEED,
    num_steps=2,
    limits=None,
    **steps,
  )


def _evaluation(model, examples):
  means = evaluation.build_evaluation(model, examples.x, examples.y)(_WEIGHTS)
  return means["loss"], means["accuracy"]


def _client_totals(model, examples):
  totals = client_evaluation._totals(model, _START, examples)
  return totals["loss"], totals["accuracy"]


@pytest.mark.parametrize(
  "of", [_full_gradient, _pseudo_data, _evaluation, _client_totals]
)
def test_few_at_once_give_what_all_give(monkeypatch, of):
  examples = _examples(11)
  whole = of(_model(1000), examples)
  for numbers in ("_PREDICTED", "_DIFFERENTIATED"):
    monkeypatch.setattr(batch_sizes, numbers, 5 * _FEATURES)
  for ours, expected in zip(of(_model(5), examples), whole):
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)


def test_model_that_refuses_does_so():
  """Else the tests above could not fail."""
  with pytest.raises(tf.errors.InvalidArgumentError):
    _full_gradient(_model(5), _examples(11))
