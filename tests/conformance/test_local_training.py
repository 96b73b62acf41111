"""What the replays take from the local training loop or check only in part."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict

import numpy as np
import pytest
import tensorflow as tf

from tff_algos.client_data import Examples
from tff_algos.client_work import local_training
from tff_algos.client_work.local_sgd import LocalSgd
from tff_algos.models import functional


def order(seed, num_examples, epochs):
  return local_training.batch_order(
    tf.constant(seed, tf.int32), tf.constant(num_examples), epochs
  ).numpy()


def test_every_place_of_the_order_is_equally_likely():
  """The first example of 3,000 shuffles of 4: each 750 times, give or take 5 sigma."""
  firsts = [order([seed, 1], 4, 30)[:, 0] for seed in range(100)]
  counts = np.bincount(np.concatenate(firsts), minlength=4)
  assert np.all(np.abs(counts - 750) < 5 * np.sqrt(3000 * 0.25 * 0.75)), counts


def way_of_a_constant_gradient(num_steps: int, momentum: float) -> float:
  """How far SGD at rate 1 goes where the gradient is 1 everywhere."""
  way = velocity = 0.0
  for _ in range(num_steps):
    velocity = momentum * velocity + 1.0
    way += velocity
  return way


@pytest.mark.parametrize("momentum", [0.0, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("num_steps", [1, 2, 3, 10, 200])
def test_effective_steps_are_how_far_a_constant_gradient_goes(momentum, num_steps):
  found = local_training.effective_steps(tf.constant(float(num_steps)), momentum)
  way = way_of_a_constant_gradient(num_steps, momentum)
  np.testing.assert_allclose(found, way, rtol=5e-6)


@pytest.mark.parametrize(
  "num_steps, momentum", [(1, 0.99), (10, 0.99), (1, 0.999), (10, 0.999), (100, 0.999)]
)
def test_effective_steps_with_momentum_near_one(num_steps, momentum):
  found = local_training.effective_steps(tf.constant(float(num_steps)), momentum)
  way = way_of_a_constant_gradient(num_steps, momentum)
  np.testing.assert_allclose(found, way, rtol=5e-6)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_training_with_a_constant_gradient_goes_that_far(momentum):
  """The loss is w itself, so its gradient is 1 everywhere."""
  spec = functional.ExampleSpec(
    tf.TensorSpec([], tf.float32), tf.TensorSpec([], tf.float32)
  )
  model = functional.Model(
    initial_weights=(np.zeros([], np.float32),),
    weight_names=("w",),
    example_spec=spec,
    predict=lambda weights, x, training, seed: x * weights[0],
    example_losses=lambda y, predictions: predictions,
    metrics=OrderedDict(),
  )
  ones = tf.ones([5])
  hparams = LocalSgd(epochs=3, batch_size=2, learning_rate=0.25, momentum=momentum)
  result = local_training.train_client(
    model, (tf.constant(0.0),), Examples(ones, ones), hparams, tf.constant([1, 2])
  )
  assert result.num_steps.numpy() == 9  # of 2, 2 and 1 examples in each epoch
  way = way_of_a_constant_gradient(9, momentum)
  np.testing.assert_allclose(result.weights[0], -0.25 * way, rtol=1e-6)


def noting_seeds(model, seeds):
  """The model, which notes the seeds it is called with; only where nothing is traced."""

  def predict(weights, x, training, seed):
    assert training is True
    seeds.append(tuple(seed.numpy()))
    return model.predict(weights, x, training, seed)

  return dataclasses.replace(model, predict=predict)


def test_every_local_step_has_a_seed_of_its_own(problem_of):
  problem = problem_of("linear")
  examples = Examples(*map(tf.constant, problem.clients[1]))
  weights = tuple(map(tf.constant, problem.model.initial_weights))
  steps = []
  for seed in ([1, 2], [1, 3]):
    seen = []
    model = noting_seeds(problem.model, seen)
    hparams = LocalSgd(epochs=2, batch_size=4)
    result = local_training.train_client(
      model, weights, examples, hparams, tf.constant(seed)
    )
    assert len(seen) == result.num_steps.numpy() == 6
    steps += seen
  assert len(set(steps)) == 12
