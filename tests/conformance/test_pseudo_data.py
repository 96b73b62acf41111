"""FedReg's pseudo data: of many examples, and which of a model's two modes does what."""

from __future__ import annotations

import dataclasses

import driver
import numpy as np
import problems
import pytest
import tensorflow as tf
from replays import REPLAYS, SEED

from tff_algos.client_work import pseudo_data


def _made(model, x, y, limits=None):
  return pseudo_data.make_pseudo_data(
    model,
    tuple(map(tf.constant, model.initial_weights)),
    tf.constant(x),
    tf.constant(y),
    tf.constant([1, 2]),
    pseudo_step=tf.constant(0.01),
    perturbed_step=tf.constant(0.001),
    num_steps=2,
    limits=limits,
  )


def test_pseudo_data_of_many_examples_are_those_of_each(problem_of):
  problem, rng = problem_of("mlp"), np.random.default_rng(0)
  x, y = rng.normal(size=(600, 4)).astype(np.float32), rng.integers(0, 3, 600)
  # Each example's own, of which steps of 0.01 meet many.
  low = np.min(x - 0.005, axis=1, keepdims=True)
  high = np.max(x - 0.005, axis=1, keepdims=True)

  def limits(rows):
    return pseudo_data.InputRange(tf.constant(low[rows]), tf.constant(high[rows]))

  for of in (lambda rows: None, limits):
    whole = _made(problem.model, x, y, of(slice(None)))
    for rows in (slice(0, 200), slice(200, 400), slice(400, 600)):
      parts = _made(problem.model, x[rows], y[rows], of(rows))
      for ours, part in zip(whole, parts):
        np.testing.assert_allclose(ours[rows], part, rtol=1e-6, atol=1e-6)


def test_pseudo_data_are_made_in_inference_mode(problem_of):
  quiet, noisy = problem_of("mlp"), problem_of("noisy_mlp")
  ours = _made(quiet.model, *quiet.clients[1])
  theirs = _made(noisy.model, *noisy.clients[1])
  np.testing.assert_allclose(ours.targets, theirs.targets, atol=1e-4)


class _SilentAtRest:
  """The formula of a model that says nothing in inference mode: all classes alike."""

  def __init__(self, model):
    self._model = model

  def __getattr__(self, name):
    return getattr(self._model, name)

  def targets(self, x, inputs):
    found = self._model.targets(x, inputs)
    return np.full_like(found, 1 / found.shape[1])

  def input_gradient(self, x, inputs, labels):
    return np.zeros_like(self._model.input_gradient(x, inputs, labels))


@pytest.mark.parametrize("name", ["fedreg", "fedreg_mg"])
def test_all_local_gradients_are_of_training_mode(problem_of, name):
  ordinary = problem_of("mlp")

  def predict(weights, x, training, seed):
    return ordinary.model.predict(weights, x, training, seed) * float(training)

  model = dataclasses.replace(ordinary.model, predict=predict)
  silent = _SilentAtRest(ordinary.numpy_model)
  problem = ordinary._replace(model=model, numpy_model=silent)
  hparams = driver.hparams_of(name, gamma=0.5)
  process = driver.build(name, problem, hparams)
  federation = driver.Federation(process, problem, hparams, SEED)
  algorithm = REPLAYS[name].make(
    silent, model.initial_weights, hparams, problems.NUM_CLIENTS
  )
  for clients in problems.ROUNDS[:2]:
    algorithm.round(federation.cohort(clients))
    federation.round(clients)
    driver.assert_close(federation.weights, algorithm.weights)
