"""Laws of `Model.augment`: training meets examples so changed, and nothing else does."""

from __future__ import annotations

import dataclasses

import driver
import numpy as np
import pytest
import tensorflow as tf
from replays import SEED

from tff_algos.algorithms import fed_reg, registry
from tff_algos.client_data import Examples
from tff_algos.client_work import gradients
from tff_algos.models import functional

_STEP_SEED = tf.constant([3, 4])

# Their Fisher information is of inference mode, and so of the examples as they are.
_LOOK_AT_REST = {"fedcurv", "fedcurv_dpsgd"}


def _negate(x, seed):
  return -x


def _disturb(x, seed):
  return x + tf.random.stateless_normal(tf.shape(x), seed)


def _after(problem_of, name, **changed):
  problem = problem_of("mlp")
  problem = problem._replace(model=dataclasses.replace(problem.model, **changed))
  hparams = driver.hparams_of(name)
  return _weights_after(
    driver.Federation(driver.build(name, problem, hparams), problem, hparams, SEED)
  )


def _weights_after(federation):
  for clients in ((0, 1), (1, 2, 3)):
    federation.round(clients)
  return federation.weights


@pytest.mark.parametrize(
  "name",
  [
    name
    if name in ("fedreg_mg", "pfedgp")
    else pytest.param(name, marks=pytest.mark.thorough)
    for name in registry.ALGORITHMS
    if name not in _LOOK_AT_REST
  ],
)
def test_what_draws_nothing_is_as_of_data_so_changed(problem_of, federate, name):
  """FedReg's pseudo data too: made of such examples, and not changed once more."""
  ours = _after(problem_of, name, augment=_negate)
  expected = _after(problem_of, name, preprocess=lambda x: -x)
  driver.assert_within_rounding(ours, expected)
  plain = _weights_after(federate(name))
  assert any(np.abs(a - b).max() > 1e-3 for a, b in zip(ours, plain))


def _examples(problem_of):
  x, y = problem_of("mlp").clients[1]
  return tf.constant(x), tf.constant(y)


def test_gradients_in_training_alone_are_of_augmented_batches(problem_of):
  plain = problem_of("mlp").model
  model = dataclasses.replace(plain, augment=_disturb)
  weights = tuple(map(tf.constant, plain.initial_weights))
  x, y = _examples(problem_of)

  def gradient(model, x, training):
    return gradients.batch_gradient(model, weights, x, y, _STEP_SEED, training=training)

  disturbed = model.inputs(x, True, _STEP_SEED)
  driver.assert_same(gradient(model, x, True), gradient(plain, disturbed, True))
  driver.assert_same(gradient(model, x, False), gradient(plain, x, False))


def test_augmentation_draws_by_its_step_and_as_no_layer_does(problem_of):
  x, _ = _examples(problem_of)
  model = dataclasses.replace(problem_of("mlp").model, augment=_disturb)
  noise = [
    (model.inputs(x, True, seed) - x).numpy()
    for seed in (_STEP_SEED, _STEP_SEED, _STEP_SEED + tf.constant([0, 1]))
  ]
  np.testing.assert_array_equal(noise[0], noise[1])
  of_a_layer = tf.random.stateless_normal(tf.shape(x), _STEP_SEED).numpy()
  for other in (noise[2], of_a_layer):
    assert np.abs(np.corrcoef(noise[0].ravel(), other.ravel())[0, 1]) < 0.5


@pytest.mark.parametrize("clip_range", ["batch", "none"])
def test_pseudo_data_are_of_examples_augmented_once(problem_of, clip_range):
  """Without a step they are these, in whatever order and batches they are met."""
  model = dataclasses.replace(problem_of("mlp").model, augment=_disturb)
  examples = Examples(*_examples(problem_of))
  hparams = driver.hparams_of("fedreg", pseudo_step=0.0, clip_range=clip_range)
  weights = tuple(map(tf.constant, model.initial_weights))
  made = fed_reg.pseudo_data_of(model, weights, examples, _STEP_SEED, hparams)
  expected = model.inputs(examples.x, True, _STEP_SEED)
  driver.assert_same((made.x, made.perturbed_x), (expected, expected))


def test_pixels_are_preprocessed_before_they_are_augmented():
  spec = functional.ExampleSpec(tf.TensorSpec([2], tf.uint8), tf.TensorSpec([], tf.int32))
  model = functional.Model(
    (np.eye(2, dtype=np.float32),),
    ("w",),
    spec,
    lambda weights, x, training, seed: x @ weights[0],
    augment=lambda x, seed: 1 - x,
  )
  found = model.inputs(tf.constant([[255, 0]], tf.uint8), True, _STEP_SEED)
  np.testing.assert_allclose(found, [[0, 1]])
