"""Sums over examples against NumPy's gradient of each example by itself."""

from __future__ import annotations

import numpy as np
import problems
import pytest
import replay
import tensorflow as tf

from tff_algos.client_data import Examples
from tff_algos.client_work import gradients

_SEED = tf.constant([1, 2])


@pytest.fixture(scope="module")
def problem_of(tmp_path_factory):
  made = {}

  def get(name: str) -> problems.Problem:
    if name not in made:
      made[name] = problems.make(name, str(tmp_path_factory.mktemp(name)))
    return made[name]

  return get


def _identity(gradient):
  return gradient


def _square(gradient):
  return tuple(map(tf.square, gradient))


def _sum(problem, transform, client=1, seed=_SEED, training=False, rows=slice(None)):
  x, y = (tf.constant(v[rows]) for v in problem.clients[client])
  weights = tuple(map(tf.constant, problem.model.initial_weights))
  return gradients.sum_over_examples(
    problem.model, weights, x, y, seed, transform, training=training
  )


def _numpy_gradients(problem, client=1) -> list:
  weights = replay.as_weights(problem.model.initial_weights)
  return replay.example_gradients(
    problem.numpy_model, weights, *problem.numpy_examples(client)
  )


def _assert_close(found, expected):
  assert len(found) == len(expected)
  for a, b in zip(found, expected):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("client", range(problems.NUM_CLIENTS))
@pytest.mark.parametrize("name", problems.REPLAYED)
def test_sum_of_the_gradients_is_b_times_the_batch_gradient(problem_of, name, client):
  problem = problem_of(name)
  found, loss = _sum(problem, _identity, client)
  x, y = map(tf.constant, problem.clients[client])
  weights = tuple(map(tf.constant, problem.model.initial_weights))
  batch, batch_loss = gradients.batch_gradient(
    problem.model, weights, x, y, _SEED, training=False
  )
  size = problems.SIZES[client]
  _assert_close(found, [size * g.numpy() for g in batch])
  np.testing.assert_allclose(loss, batch_loss, rtol=1e-5)
  # And of NumPy.
  weights = replay.as_weights(problem.model.initial_weights)
  mean_loss, mean = problem.numpy_model.loss_and_gradient(
    weights, *problem.numpy_examples(client)
  )
  _assert_close(found, [size * g for g in mean])
  np.testing.assert_allclose(loss, size * mean_loss, rtol=1e-5)


@pytest.mark.parametrize("name", problems.REPLAYED)
def test_scale_multiplies_the_gradient_and_not_the_loss(problem_of, name):
  problem = problem_of(name)
  x, y = map(tf.constant, problem.clients[1])
  arguments = tuple(map(tf.constant, problem.model.initial_weights)), x, y, _SEED

  def take(**scale):
    return gradients.batch_gradient(problem.model, *arguments, **scale)

  for run in (take, tf.function(take, autograph=False)):
    (plain, loss), (scaled, same) = run(), run(scale=-0.3)
    _assert_close(scaled, [-0.3 * g.numpy() for g in plain])
    np.testing.assert_array_equal(loss, same)


@pytest.mark.parametrize("name", problems.REPLAYED)
def test_sum_of_squares_squares_each_example_by_itself(problem_of, name):
  problem = problem_of(name)
  each = _numpy_gradients(problem)
  expected = [sum(g**2 for g in arrays) for arrays in zip(*each)]
  found, _ = _sum(problem, _square)
  _assert_close(found, expected)
  # Not the square of the sum.
  assert not np.allclose(expected[0], sum(g[0] for g in each) ** 2, rtol=0.1)


def test_transform_may_mix_the_arrays_of_a_gradient(problem_of):
  """A global norm is over all arrays of one example together."""
  problem = problem_of("mlp")

  def unit(gradient):
    norm = tf.linalg.global_norm(gradient)
    return tuple(g / norm for g in gradient)

  each = [replay.scaled(g, 1 / replay.norm(g)) for g in _numpy_gradients(problem)]
  found, _ = _sum(problem, unit)
  _assert_close(found, [sum(arrays) for arrays in zip(*each)])


@pytest.mark.parametrize("training", [False, True])
def test_random_layers_are_at_work_in_training_only(problem_of, training):
  """`noisy` is `linear` with inputs that training disturbs, by 0.3 times normal."""
  quiet, noisy = problem_of("linear"), problem_of("noisy")
  expected, expected_loss = _sum(quiet, _identity)
  found, loss = _sum(noisy, _identity, training=training)
  distance = max(np.max(np.abs(a - b)) for a, b in zip(found, expected))
  if training:
    assert distance > 0.01
    assert abs(loss - expected_loss) > 0.01
  else:
    _assert_close(found, expected)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-6)


def test_squares_are_of_random_layers_at_rest(problem_of):
  """As Fisher information is the model's that predicts."""
  found = []
  for problem in (problem_of("linear"), problem_of("noisy")):
    weights = tuple(map(tf.constant, problem.model.initial_weights))
    known = Examples(*map(tf.constant, problem.clients[1]))
    found.append(gradients.sum_of_squares(problem.model, weights, known))
  _assert_close(*found)


@pytest.mark.parametrize("training", [False, True])
def test_batch_gradient_has_the_same_switch(problem_of, training):
  quiet, noisy = problem_of("linear"), problem_of("noisy")
  weights = tuple(map(tf.constant, quiet.model.initial_weights))
  x, y = map(tf.constant, quiet.clients[1])
  expected, _ = gradients.batch_gradient(quiet.model, weights, x, y, _SEED)
  x, y = map(tf.constant, noisy.clients[1])
  found, _ = gradients.batch_gradient(
    noisy.model, weights, x, y, _SEED, training=training
  )
  distance = max(np.max(np.abs(a - b)) for a, b in zip(found, expected))
  assert (distance > 0.01) if training else (distance < 1e-6)


def test_random_layers_draw_anew_for_each_example_and_by_the_seed(problem_of):
  """Two equal examples are disturbed in two ways; equal seeds do it equally."""
  noisy = problem_of("noisy")
  one, _ = _sum(noisy, _identity, training=True, rows=[4])
  two, _ = _sum(noisy, _identity, training=True, rows=[4, 4])
  assert np.max(np.abs(two[0] - 2 * one[0])) > 0.01
  again, _ = _sum(noisy, _identity, training=True, rows=[4, 4])
  for a, b in zip(two, again):
    np.testing.assert_array_equal(a, b)
  other = tf.constant([1, 3])
  other, _ = _sum(noisy, _identity, seed=other, training=True, rows=[4, 4])
  assert np.max(np.abs(two[0] - other[0])) > 0.01


def test_sum_is_the_same_inside_a_graph(problem_of):
  """There the number of examples is not known while tracing."""
  problem = problem_of("softmax")
  x, y = problem.clients[1]
  weights = tuple(map(tf.constant, problem.model.initial_weights))

  @tf.function(
    input_signature=[
      tf.TensorSpec([None, *x.shape[1:]], x.dtype),
      tf.TensorSpec([None], y.dtype),
    ]
  )
  def sum_in_graph(x, y):
    return gradients.sum_over_examples(
      problem.model, weights, x, y, _SEED, _square, training=False
    )

  found, loss = sum_in_graph(x, y)
  expected, expected_loss = _sum(problem, _square)
  _assert_close(found, expected)
  np.testing.assert_allclose(loss, expected_loss, rtol=1e-6)


# --- Half precision -----------------------------------------------------------------

_RNG = np.random.default_rng(3)


def _half_losses(x):
  """A hidden layer of float16, as a model by hand may have it."""

  def losses_at(weights):
    kernel, last = (tf.cast(w, tf.float16) for w in weights)
    hidden = tf.tanh(tf.cast(x, tf.float16) @ kernel)
    return tf.cast(tf.square(hidden @ last)[:, 0], tf.float32)

  return losses_at


def test_learning_rate_is_not_in_float16():
  """Where gradients of 1e-4 and less, times a rate of 1e-4, would be 0."""
  x = tf.constant(_RNG.normal(size=(200, 8)), tf.float32)
  shapes = (8, 6), (6, 1)
  weights = tuple(tf.constant(_RNG.normal(size=s) * 0.1, tf.float32) for s in shapes)
  plain, _ = gradients.mean_gradient(_half_losses(x), weights)

  @tf.function(autograph=False)
  def scaled(*weights):
    return gradients.mean_gradient(_half_losses(x), weights, tf.constant(1e-4))[0]

  for found, expected in zip(scaled(*weights), plain):
    norm = np.linalg.norm(expected)
    assert norm > 0
    assert np.linalg.norm(1e4 * found - expected) < 1e-3 * norm


def test_sum_of_losses_in_float16_is_in_float32():
  hundreds = tf.fill([1000], tf.constant(100.0, tf.float16))
  found, loss = gradients.mean_gradient(
    lambda weights: tf.cast(weights[0], tf.float16) * hundreds, (tf.constant(1.0),)
  )
  assert loss.dtype == tf.float32 and float(loss) == 1e5
  assert float(found[0]) == pytest.approx(100, rel=1e-2)
