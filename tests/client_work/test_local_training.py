"""Local training against plain NumPy, written from the formulas of its docstring."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import OrderedDict

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tff_algos import hyper_parameters
from tff_algos.client_data import Examples
from tff_algos.client_work import gradients, local_training
from tff_algos.client_work.local_sgd import LocalSgd, PlainSgd
from tff_algos.errors import InputError
from tff_algos.hyper_parameters import hparam
from tff_algos.models import functional

_FEATURES = 3


def _squared_error(y, predictions):
  return tf.square(predictions[:, 0] - y)


def _linear_regression(preprocess=tf.identity) -> functional.Model:
  """Predicts x w + b; the loss of an example is the squared error."""
  rng = np.random.default_rng(0)
  return functional.Model(
    initial_weights=(
      rng.normal(size=(_FEATURES, 1)).astype(np.float32),
      np.array([0.3], np.float32),
    ),
    weight_names=("w", "b"),
    example_spec=functional.ExampleSpec(
      tf.TensorSpec([_FEATURES], tf.float32), tf.TensorSpec([], tf.float32)
    ),
    predict=lambda weights, x, training, seed: tf.matmul(x, weights[0]) + weights[1],
    example_losses=_squared_error,
    metrics=OrderedDict(),
    preprocess=preprocess,
  )


_MODEL = _linear_regression()
_START = tuple(map(tf.constant, _MODEL.initial_weights))


def _examples(n: int) -> tuple[np.ndarray, np.ndarray]:
  rng = np.random.default_rng(n)
  x = rng.normal(size=(n, _FEATURES)).astype(np.float32)
  return x, rng.normal(size=n).astype(np.float32)


def _as_tensors(x, y) -> Examples:
  return Examples(tf.constant(x), tf.constant(y))


def _loss_and_gradient(w, b, x, y):
  """The sum of the losses and the gradient of their mean, in float64."""
  error = x.astype(np.float64) @ w[:, 0] + b[0] - y
  slope = 2 * error / len(y)
  return np.sum(error**2), (x.T.astype(np.float64) @ slope[:, None], [slope.sum()])


class _Replay:
  """SGD with momentum, one local step after another, in float64."""

  def __init__(self, hparams: LocalSgd):
    self.w, self.b = (np.asarray(v, np.float64) for v in _MODEL.initial_weights)
    self.velocity = [np.zeros_like(self.w), np.zeros_like(self.b)]
    self.loss, self.batch_sizes = 0.0, []
    self._hparams = hparams

  def step(self, x, y, change=lambda gradient: gradient):
    loss, gradient = _loss_and_gradient(self.w, self.b, x, y)
    self.loss += loss
    self.batch_sizes.append(len(y))
    for k, g in enumerate(change([np.asarray(g) for g in gradient])):
      self.velocity[k] = self._hparams.momentum * self.velocity[k] + g
    self.w = self.w - self._hparams.learning_rate * self.velocity[0]
    self.b = self.b - self._hparams.learning_rate * self.velocity[1]

  def run(self, x, y, seed, **options):
    order = local_training.batch_order(
      tf.constant(seed), tf.constant(len(y)), self._hparams.epochs
    )
    size = self._hparams.batch_size or len(y)
    for epoch in order.numpy():
      for first in range(0, len(y), size):
        rows = epoch[first : first + size]
        self.step(x[rows], y[rows], **options)
    return self


# --- The order of the examples ------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
  st.integers(1, 200),
  st.integers(1, 5),
  st.tuples(*[st.integers(-(2**31), 2**31 - 1)] * 2),
)
def test_every_epoch_meets_every_example_once(n, epochs, seed):
  seed = tf.constant(seed, tf.int32)
  order = local_training.batch_order(seed, tf.constant(n), epochs).numpy()
  assert (order.shape, order.dtype) == ((epochs, n), np.int32)
  np.testing.assert_array_equal(np.sort(order, axis=1), [range(n)] * epochs)
  again = local_training.batch_order(seed, tf.constant(n), epochs)
  np.testing.assert_array_equal(order, again)


def test_neighbours_in_the_order_are_independent():
  """Of 4,000 shuffles of 3, each of the 6 orders comes 667 times, within 5 sigma."""
  order = local_training.batch_order(tf.constant([5, 6]), tf.constant(3), 4000).numpy()
  counts = np.unique(order, axis=0, return_counts=True)[1]
  assert len(counts) == 6
  assert np.all(np.abs(counts - 4000 / 6) < 5 * math.sqrt(4000 * 5 / 36)), counts


# --- Gradients ----------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 511, 512, 513, 1500])
def test_full_gradient_is_that_of_the_mean_loss(n):
  x, y = _examples(n)
  found, loss = gradients.full_gradient(
    _MODEL, _START, _as_tensors(x, y), tf.constant([1, 2])
  )
  expected_loss, expected = _loss_and_gradient(*_MODEL.initial_weights, x, y)
  np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
  for a, b in zip(found, expected):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_random_layers_draw_anew_for_each_part_of_a_full_gradient():
  """Of 512 examples: the same ones again, with the same draws, would give the same."""

  def predict(weights, x, training, seed):
    del training
    noise = tf.random.stateless_normal(tf.shape(x), seed)
    return _MODEL.predict(weights, x + noise, False, seed)

  model = dataclasses.replace(_MODEL, predict=predict)
  x, y = _examples(512)
  once, twice = (
    gradients.full_gradient(
      model, _START, _as_tensors(np.tile(x, (n, 1)), np.tile(y, n)), tf.constant([1, 2])
    )[0]
    for n in (1, 2)
  )
  assert np.max(np.abs(once[0] - twice[0])) > 1e-3


def test_batch_gradient_is_of_the_mean_and_its_loss_the_sum():
  x, y = _examples(8)
  found, loss = gradients.batch_gradient(
    _MODEL, _START, tf.constant(x), tf.constant(y), tf.constant([1, 2])
  )
  expected_loss, expected = _loss_and_gradient(*_MODEL.initial_weights, x, y)
  np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
  for a, b in zip(found, expected):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_weight_that_the_loss_does_not_use_has_the_gradient_0():
  unused = tf.constant([[1.0, 2.0]])
  found, _ = gradients.batch_gradient(
    _MODEL, (*_START, unused), *map(tf.constant, _examples(4)), tf.constant([1, 2])
  )
  np.testing.assert_array_equal(found[2], [[0, 0]])


def test_examples_are_preprocessed_once():
  model = _linear_regression(preprocess=lambda x: 2 * x)
  x, y = _examples(6)
  hparams = LocalSgd(epochs=2, batch_size=4, learning_rate=0.05)
  found = local_training.train_client(
    model, _START, _as_tensors(x, y), hparams, tf.constant([1, 2])
  )
  expected = local_training.train_client(
    _MODEL, _START, _as_tensors(2 * x, y), hparams, tf.constant([1, 2])
  )
  for a, b in zip(found.weights, expected.weights):
    np.testing.assert_allclose(a, b, rtol=1e-6)


# --- Training -----------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
  st.integers(1, 12),
  st.one_of(st.none(), st.integers(1, 14)),
  st.integers(1, 3),
  st.sampled_from([0.0, 0.5, 0.9]),
)
@example(n=7, batch_size=3, epochs=2, momentum=0.9)  # A short last batch.
@example(n=6, batch_size=3, epochs=2, momentum=0.0)  # None.
@example(n=2, batch_size=5, epochs=3, momentum=0.5)  # Fewer than a batch.
@example(n=5, batch_size=None, epochs=3, momentum=0.5)  # All at once.
def test_training_is_sgd_with_momentum_in_numpy(n, batch_size, epochs, momentum):
  x, y = _examples(n)
  hparams = LocalSgd(
    epochs=epochs, batch_size=batch_size, learning_rate=0.02, momentum=momentum
  )
  seed = [n, epochs]
  found = local_training.train_client(
    _MODEL, _START, _as_tensors(x, y), hparams, tf.constant(seed)
  )
  replay = _Replay(hparams).run(x, y, seed)
  # At most 36 steps, each a few roundings of 6e-8 of numbers of about 1.
  for a, b in zip(found.weights, (replay.w, replay.b)):
    np.testing.assert_allclose(a, b, rtol=3e-5, atol=1e-5)
  np.testing.assert_allclose(found.loss, replay.loss, rtol=1e-4, atol=1e-5)
  assert found.num_steps.numpy() == len(replay.batch_sizes)
  assert found.num_seen.numpy() == sum(replay.batch_sizes) == epochs * n
  expected_steps = epochs * (math.ceil(n / batch_size) if batch_size else 1)
  assert found.num_steps.numpy() == expected_steps
  for value in (found.num_steps, found.loss, found.num_seen):
    assert (value.shape, value.dtype) == ((), tf.float32)


@dataclasses.dataclass(frozen=True)
class _WithMomentum(PlainSgd):
  momentum: float = hparam(0.5, "That of one's own algorithm.", source="convention")


def test_momentum_may_be_of_any_hyper_parameters():
  x, y = _examples(7)
  given = dict(epochs=2, batch_size=3, learning_rate=0.05)
  train = functools.partial(
    local_training.train_client,
    _MODEL,
    _START,
    _as_tensors(x, y),
    seed=tf.constant([1, 2]),
  )
  expected = train(hparams=LocalSgd(**given, momentum=0.5))
  own = _WithMomentum(**given)

  @tf.function
  def train_by(momentum):  # A tensor, as tunable ones are.
    hparams = hyper_parameters.with_values(own, {"momentum": momentum})
    return train(hparams=hparams).weights

  for found in (train(hparams=own).weights, train_by(tf.constant(0.5))):
    for a, b in zip(found, expected.weights):
      np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


def test_last_short_batch_counts_with_its_own_mean():
  """Seven examples in batches of three: the seventh's gradient is not shrunk."""
  x, y = _examples(7)
  hparams = LocalSgd(epochs=1, batch_size=3, learning_rate=0.05)
  replay = _Replay(hparams).run(x, y, [3, 4])
  assert replay.batch_sizes == [3, 3, 1]
  found = local_training.train_client(
    _MODEL, _START, _as_tensors(x, y), hparams, tf.constant([3, 4])
  )
  np.testing.assert_allclose(found.weights[0], replay.w, rtol=1e-5, atol=1e-6)


def test_training_is_the_same_inside_a_graph():
  x, y = _examples(10)
  hparams = LocalSgd(epochs=2, batch_size=4, learning_rate=0.05, momentum=0.5)

  def train(examples, seed):
    return local_training.train_client(_MODEL, _START, examples, hparams, seed).weights

  arguments = _as_tensors(x, y), tf.constant([1, 2])
  for a, b in zip(tf.function(train)(*arguments), train(*arguments)):
    np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


def test_another_seed_takes_other_batches():
  examples = _as_tensors(*_examples(10))
  hparams = LocalSgd(epochs=1, batch_size=2, learning_rate=0.05)
  found = {
    local_training.train_client(_MODEL, _START, examples, hparams, tf.constant(seed))
    .weights[0]
    .numpy()
    .tobytes()
    for seed in ([1, 2], [1, 3], [2, 2], [2, 1])
  }
  assert len(found) == 4


def test_loss_of_an_example_is_taken_before_the_step_that_uses_it():
  """With one step the loss is that of the start, not of where the step leads."""
  x, y = _examples(5)
  hparams = LocalSgd(epochs=1, batch_size=None, learning_rate=10.0)
  found = local_training.train_client(
    _MODEL, _START, _as_tensors(x, y), hparams, tf.constant([1, 2])
  )
  expected, _ = _loss_and_gradient(*_MODEL.initial_weights, x, y)
  np.testing.assert_allclose(found.loss, expected, rtol=1e-5)


@tf.custom_gradient
def _clipped_behind(x):
  return tf.identity(x), lambda upstream: tf.clip_by_value(upstream, -0.05, 0.05)


@pytest.mark.parametrize(
  "clip", [_clipped_behind, tf.function(_clipped_behind, autograph=False)]
)
def test_step_is_the_rate_times_a_gradient_that_clips_what_comes_in(clip):
  """The gradient of `clip(x w + b)`; the rate must not go into the clipping."""
  model = dataclasses.replace(
    _MODEL, predict=lambda weights, x, *_: clip(tf.matmul(x, weights[0]) + weights[1])
  )
  x, y = _examples(4)
  hparams = PlainSgd(learning_rate=0.1)

  @tf.function(autograph=False)
  def train():
    seed = tf.constant([1, 2])
    return local_training.train_client(model, _START, _as_tensors(x, y), hparams, seed)

  w, b = _MODEL.initial_weights
  behind = np.clip(2 * (x @ w + b - y[:, None]) / len(y), -0.05, 0.05)
  assert np.any(np.abs(behind) > 0.0499) and np.any(np.abs(behind) < 0.0499)
  trained = train().weights
  np.testing.assert_allclose(trained[0], w - 0.1 * x.T @ behind, rtol=1e-5, atol=1e-7)
  np.testing.assert_allclose(trained[1], b - 0.1 * behind.sum(0), rtol=1e-5)


@pytest.mark.parametrize("dtype", [tf.float16, tf.float64])
def test_loss_may_be_of_another_precision(dtype):
  def loss(y, predictions):
    return tf.cast(_squared_error(y, predictions), dtype)

  x, y = _examples(4)
  found, plain = (
    local_training.train_client(
      model, _START, _as_tensors(x, y), PlainSgd(epochs=2), tf.constant([1, 2])
    )
    for model in (dataclasses.replace(_MODEL, example_losses=loss), _MODEL)
  )
  assert found.loss.dtype == tf.float32
  for a, b in zip((*found.weights, found.loss), (*plain.weights, plain.loss)):
    np.testing.assert_allclose(a, b, rtol=1e-2)


def test_adjusted_gradient_is_what_momentum_and_rate_act_on():
  """The carry sees the steps in their order, with the weights before each."""
  x, y = _examples(7)
  hparams = LocalSgd(epochs=2, batch_size=3, learning_rate=0.02, momentum=0.9)

  def adjust(gradient, weights, carry):
    count, first_weights = carry
    record = tf.one_hot(count, 6) * weights[1][0]
    doubled = tuple(2.0 * g for g in gradient)
    return doubled, (count + 1, first_weights + record)

  found = local_training.train_client(
    _MODEL,
    _START,
    _as_tensors(x, y),
    hparams,
    tf.constant([5, 6]),
    adjust_gradient=adjust,
    carry=(tf.constant(0), tf.zeros(6)),
  )
  biases = []

  def change(gradient):
    biases.append(replay.b[0])
    return [2 * g for g in gradient]

  replay = _Replay(hparams)
  replay.run(x, y, [5, 6], change=change)
  for a, b in zip(found.weights, (replay.w, replay.b)):
    np.testing.assert_allclose(a, b, rtol=3e-5, atol=1e-5)
  assert found.carry[0].numpy() == found.num_steps.numpy() == 6
  np.testing.assert_allclose(found.carry[1], biases, rtol=3e-5, atol=1e-5)


# --- What an algorithm changes ------------------------------------------------------


def _train(examples, hparams, seed=(5, 6), start=_START, model=_MODEL, **options):
  x, y = examples
  return local_training.train_client(
    model, start, _as_tensors(x, y), hparams, tf.constant(seed), **options
  )


@pytest.mark.parametrize("batch_size", [3, 20, None])
def test_a_batch_is_its_rows_of_the_examples_in_the_order_of_the_epochs(batch_size):
  x, y = _examples(7)
  hparams = LocalSgd(epochs=2, batch_size=batch_size, learning_rate=0.05)
  seen, after = [], []

  def gradient_of(weights, batch):
    seen.append(batch)
    return weights, tf.constant(0.0)

  def after_step(weights, batch):
    after.append(batch)
    return weights

  _train((x, y), hparams, gradient_of=gradient_of, after_step=after_step)
  order = local_training.batch_order(tf.constant([5, 6]), tf.constant(7), 2).numpy()
  size = min(batch_size or 7, 7)
  rows = [epoch[k : k + size] for epoch in order for k in range(0, 7, size)]
  assert len(seen) == len(after) == len(rows)
  for batch, expected in zip(seen, rows):
    np.testing.assert_array_equal(batch.rows, expected)
    np.testing.assert_array_equal(batch.x, x[expected])
    np.testing.assert_array_equal(batch.y, y[expected])
  # Each step has a seed of its own, and what comes after the step has the same batch.
  assert len({tuple(batch.seed.numpy()) for batch in seen}) == len(seen)
  for one, other in zip(seen, after):
    for a, b in zip(one, other):
      np.testing.assert_array_equal(a, b)


def test_own_gradient_takes_the_place_of_the_batchs():
  """A pull to the batch's first example; the loss that comes with it is summed."""
  x, y = _examples(7)
  hparams = LocalSgd(epochs=2, batch_size=3, learning_rate=0.1, momentum=0.5)

  def gradient_of(weights, batch):
    w, b = weights
    return (w - batch.x[0][:, None], b - batch.y[:1]), 2.0 + batch.y[0]

  found = _train((x, y), hparams, gradient_of=gradient_of)
  order = local_training.batch_order(tf.constant([5, 6]), tf.constant(7), 2).numpy()
  first = [row for epoch in order for row in epoch[::3]]
  w, b = (np.asarray(v, np.float64) for v in _MODEL.initial_weights)
  v_w, v_b = np.zeros_like(w), np.zeros_like(b)
  for row in first:
    v_w, v_b = 0.5 * v_w + w - x[row][:, None], 0.5 * v_b + b - y[row]
    w, b = w - 0.1 * v_w, b - 0.1 * v_b
  np.testing.assert_allclose(found.weights[0], w, rtol=1e-5, atol=1e-6)
  np.testing.assert_allclose(found.weights[1], b, rtol=1e-5, atol=1e-6)
  np.testing.assert_allclose(found.loss, sum(2 + y[row] for row in first), rtol=1e-5)
  assert found.num_steps.numpy() == len(first) == 6


def test_own_gradient_is_adjusted_like_any_other():
  examples = _examples(7)
  hparams = LocalSgd(epochs=1, batch_size=3, learning_rate=0.1)

  def gradient_of(weights, batch):
    return tuple(map(tf.ones_like, weights)), tf.constant(0.0)

  def adjust(gradient, weights, carry):
    return tuple(3.0 * g for g in gradient), carry

  found = _train(examples, hparams, gradient_of=gradient_of, adjust_gradient=adjust)
  # Three steps of 0.1 along 3.
  for a, b in zip(found.weights, _MODEL.initial_weights):
    np.testing.assert_allclose(a, b - 0.9, rtol=1e-6, atol=1e-6)


def test_after_step_acts_on_the_moved_weights_and_its_result_is_the_next_steps_start():
  """Here it halves w and adds the first label to b, which does not enter the velocity."""
  x, y = _examples(7)
  hparams = LocalSgd(epochs=2, batch_size=3, learning_rate=0.05, momentum=0.9)

  def after_step(weights, batch):
    return 0.5 * weights[0], weights[1] + batch.y[:1]

  class Halving(_Replay):
    def step(self, x, y, **options):
      super().step(x, y, **options)
      self.w, self.b = 0.5 * self.w, self.b + y[:1]

  found = _train((x, y), hparams, after_step=after_step)
  replay = Halving(hparams).run(x, y, [5, 6])
  for a, b in zip(found.weights, (replay.w, replay.b)):
    np.testing.assert_allclose(a, b, rtol=3e-5, atol=1e-5)
  np.testing.assert_allclose(found.loss, replay.loss, rtol=1e-4)


def _noisy() -> functional.Model:
  """Disturbs its inputs by the step's seed in training."""

  def predict(weights, x, training, seed):
    assert training
    x = x + tf.random.stateless_normal(tf.shape(x), seed)
    return tf.matmul(x, weights[0]) + weights[1]

  return dataclasses.replace(_MODEL, predict=predict)


# Of a loop that TensorFlow runs, a tensor.
@pytest.mark.parametrize("number", [int, tf.constant], ids=["int", "tensor"])
@pytest.mark.parametrize("n, batch_size", [(7, 3), (6, 3), (2, 5), (5, None)])
def test_epochs_one_by_one_are_all_at_once_bit_for_bit(n, batch_size, number):
  examples = _examples(n)
  hparams = LocalSgd(epochs=3, batch_size=batch_size, learning_rate=0.02)
  model = _noisy()
  whole = _train(examples, hparams, model=model)
  weights, losses, num_steps, num_seen = _START, [], 0, 0
  for epoch in range(hparams.epochs):
    one = number(epoch)
    part = _train(examples, hparams, start=weights, model=model, only_epoch=one)
    weights = part.weights
    losses.append(part.loss.numpy())
    num_steps, num_seen = num_steps + part.num_steps, num_seen + part.num_seen
    assert part.num_steps.numpy() == whole.num_steps.numpy() / 3
    assert part.num_seen.numpy() == n
  for a, b in zip(weights, whole.weights):
    np.testing.assert_array_equal(a, b)
  np.testing.assert_allclose(sum(losses), whole.loss, rtol=1e-6)
  assert num_steps.numpy() == whole.num_steps.numpy()
  assert num_seen.numpy() == whole.num_seen.numpy() == 3 * n


def test_an_epoch_alone_takes_its_own_batches_and_keeps_the_carry():
  x, y = _examples(7)
  hparams = LocalSgd(epochs=3, batch_size=3, learning_rate=0.02)
  order = local_training.batch_order(tf.constant([5, 6]), tf.constant(7), 3).numpy()

  def count(gradient, weights, carry):
    return gradient, carry + 1

  for epoch in range(3):
    rows = []

    def after_step(weights, batch, rows=rows):
      rows.extend(batch.rows.numpy())
      return weights

    found = _train(
      (x, y),
      hparams,
      only_epoch=epoch,
      after_step=after_step,
      adjust_gradient=count,
      carry=tf.constant(10),
    )
    np.testing.assert_array_equal(rows, order[epoch])
    assert found.carry.numpy() == 13


def test_velocity_starts_at_zero_in_an_epoch_alone():
  """So with momentum the epochs one by one are another training."""
  examples = _examples(7)
  hparams = LocalSgd(epochs=2, batch_size=3, learning_rate=0.02, momentum=0.9)
  first = _train(examples, hparams, only_epoch=0)
  second = _train(examples, hparams, start=first.weights, only_epoch=1)
  whole = _train(examples, hparams)
  assert np.max(np.abs(second.weights[0] - whole.weights[0])) > 1e-4


def test_hooks_are_the_same_inside_a_graph():
  x, y = _examples(10)
  hparams = LocalSgd(epochs=2, batch_size=4, learning_rate=0.05)

  def gradient_of(weights, batch):
    gradient, loss = gradients.batch_gradient(_MODEL, weights, *batch[1:])
    return tuple(2.0 * g for g in gradient), loss

  def after_step(weights, batch):
    return weights[0] + 0.1 * tf.reduce_mean(batch.x), weights[1]

  def train(examples, seed):
    return local_training.train_client(
      _MODEL,
      _START,
      examples,
      hparams,
      seed,
      gradient_of=gradient_of,
      after_step=after_step,
      only_epoch=1,
    ).weights

  arguments = _as_tensors(x, y), tf.constant([1, 2])
  for a, b in zip(tf.function(train)(*arguments), train(*arguments)):
    np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("momentum", [0.0, 0.7])
@pytest.mark.parametrize("strength", [None, 0.4, tf.constant(2.0)], ids=str)
def test_pull_adds_the_gradient_of_a_quadratic_penalty(strength, momentum):
  """NumPy: g + strength * w - target in each step."""
  x, y = _examples(9)
  hparams = LocalSgd(epochs=2, batch_size=4, learning_rate=0.03, momentum=momentum)
  target = (np.full((_FEATURES, 1), 0.2), np.array([-0.5]))
  pull = local_training.Pull(
    tuple(tf.constant(t, tf.float32) for t in target), strength=strength
  )
  found = _train((x, y), hparams, pull=pull)
  weights = [np.asarray(w, np.float64) for w in _MODEL.initial_weights]
  velocity = [np.zeros_like(w) for w in weights]
  order = local_training.batch_order(tf.constant([5, 6]), tf.constant(9), 2).numpy()
  for rows in (rows for epoch in order for rows in (epoch[:4], epoch[4:8], epoch[8:])):
    _, gradient = _loss_and_gradient(*weights, x[rows], y[rows])
    for k in range(2):
      pulled = gradient[k] + float(strength or 0) * weights[k] - target[k]
      velocity[k] = momentum * velocity[k] + pulled
      weights[k] = weights[k] - 0.03 * velocity[k]
  for a, b in zip(found.weights, weights):
    np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)


# --- What does not fit --------------------------------------------------------------


def _own_gradient(change):
  def gradient_of(weights, batch):
    gradient, loss = gradients.batch_gradient(
      _MODEL, weights, batch.x, batch.y, batch.seed
    )
    return change(gradient, loss)

  return dict(gradient_of=gradient_of)


_WHAT_IS_WANTED = r"must be a tuple of arrays as the weights' are, \(\(3, 1\), \(1,\)\)"


@pytest.mark.parametrize(
  "options, said",
  [
    (_own_gradient(lambda g, loss: g), rf"gradient_of {_WHAT_IS_WANTED}; found \(3, 1\)"),
    (_own_gradient(lambda g, loss: (*g, loss)), r"gradient_of must return a pair \(grad"),
    (
      _own_gradient(lambda g, loss: (tuple(map(tf.reduce_mean, g)), loss)),
      rf"gradient_of {_WHAT_IS_WANTED}; found \(\(\), \(\)\)\.$",
    ),
    (
      _own_gradient(lambda g, loss: ((g[0], None), loss)),
      rf"gradient_of {_WHAT_IS_WANTED}; found \(\(3, 1\), None\)\.$",
    ),
    (
      dict(adjust_gradient=lambda g, w, carry: g),
      rf"adjust_gradient {_WHAT_IS_WANTED}; found \(3, 1\)",
    ),
    (
      dict(adjust_gradient=lambda g, w, carry: (g, carry, 1)),
      r"adjust_gradient must return a pair \(gradient, carry\); found \(\(\(3, 1\), ",
    ),
    (dict(after_step=lambda w, batch: w[:1]), rf"after_step returns {_WHAT_IS_WANTED}"),
    (dict(pull=0.1), r"pull must be a tff_algos\.Pull; found 0\.1\.$"),
    (
      dict(pull=local_training.Pull((tf.constant(0.0), tf.constant(0.0)))),
      r"arrays of the same shapes, .* found \(3, 1\), \(1,\) and \(\), \(\)\.$",
    ),
  ],
)
def test_what_does_not_fit_the_weights_is_refused(options, said):
  """TensorFlow would repeat what is smaller, or say something of tuples."""
  with pytest.raises(InputError, match=said):
    _train(_examples(5), PlainSgd(epochs=1, batch_size=2), **options)
