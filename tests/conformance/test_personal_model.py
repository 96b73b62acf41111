"""Law: a process has a `personal_model` where its row says that clients need one.

And pFedGP's is what its formulas give.
"""

from __future__ import annotations

import dataclasses

import driver
import numpy as np
import pytest
import replay
import tensorflow as tf
from replay_pfedgp import kernel, processes

import tff_algos
from tff_algos.algorithms import registry
from tff_algos.client_data import Examples
from tff_algos.models import functional


@pytest.mark.parametrize("name", registry.ALGORITHMS)
def test_row_says_whether_clients_have_models_of_their_own(federate, name):
  process = federate(name).process
  assert registry.get(name).is_personal == (process.personal_model is not None)


@pytest.mark.parametrize("name", ["fedavg", "pfedgp"])
def test_other_forms_of_a_process_have_the_same_personal_model(federate, name):
  process = federate(name).process
  over = tff_algos.over_datasets(process, seed=5)
  again = process.recomposed(norm_limit=10.0)
  for other in (over, again):
    assert other.personal_model is process.personal_model


def test_keras_model_of_the_features_alone_is_not_given_for_a_personal_one(federate):
  federation = federate("pfedgp")
  problem = federation.problem
  known = Examples(*map(tf.constant, problem.clients[1]))
  # As `from_keras` says of a model what Keras model it is.
  model = dataclasses.replace(problem.model, keras_source=object())
  process = tff_algos.build_pfedgp(model, federation.hparams)
  assert process.personal_model(federation.weights, known).keras_source is None


def _predict(process, weights, known, x):
  model = process.personal_model(weights, Examples(*map(tf.constant, known)))
  inputs = model.preprocess(tf.constant(x))
  return model.predict(weights, inputs, False, tf.constant([0, 0])).numpy()


@pytest.mark.parametrize("client", [1, 3, 4])
def test_pfedgp_is_the_posterior_after_the_examples(federate, client):
  federation = federate("pfedgp", length_scale=0.5).round((0, 1, 2))
  problem, weights = federation.problem, federation.weights
  process = driver.build("pfedgp", problem, federation.hparams)
  (x, y), (others, _) = problem.clients[client], problem.clients[0]
  found = _predict(process, weights, (x, y), others)
  exact = replay.as_weights(weights)
  g, h = (problem.numpy_model.predict(exact, inputs) for inputs in (x, others))
  near, covariance = kernel(h, g, 8.0, 0.5), kernel(g, g, 8.0, 0.5)
  expected = np.full(found.shape, -np.inf)
  for c, share, r, noise in zip(*processes(y, 0.01)):
    mean = near @ np.linalg.solve(covariance + np.diag(noise), r)
    expected[:, c] = np.log(share) + mean
  np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_random_layers_are_at_rest_where_pfedgp_predicts(federate, problem_of):
  """Of what it knows and of what is new; noisy inputs are disturbed in training only."""
  quiet = federate("pfedgp")
  noisy = problem_of("noisy_mlp")
  process = driver.build("pfedgp", noisy, quiet.hparams)
  (x, y), (noisy_x, _) = quiet.problem.clients[1], noisy.clients[1]
  found = _predict(process, quiet.weights, (noisy_x, y), noisy_x)
  expected = _predict(quiet.process, quiet.weights, (x, y), x)
  np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)


def test_pfedgp_knows_the_first_examples_only(federate):
  federation = federate("pfedgp")
  problem, weights = federation.problem, federation.weights
  x, y = problem.clients[1]
  few = driver.build(
    "pfedgp", problem, dataclasses.replace(federation.hparams, max_support=4)
  )
  found = _predict(few, weights, (x, y), x)
  driver.assert_same(found, _predict(few, weights, (x[:4], y[:4]), x))
  driver.assert_same(found, _predict(federation.process, weights, (x[:4], y[:4]), x))
  assert driver.differ(found, _predict(federation.process, weights, (x, y), x))


@pytest.mark.parametrize(
  "losses",
  [None, functional.sequence_cross_entropy, functional.FadingCrossEntropy(1e-12)],
)
def test_pfedgp_of_another_loss_is_refused_in_one_sentence(problem_of, losses):
  model = problem_of("linear" if losses is None else "mlp").model
  if losses is not None:
    model = dataclasses.replace(model, example_losses=losses)
  with pytest.raises(tff_algos.InputError, match=r"^pFedGP classifies: [^\n]*\.$"):
    tff_algos.build_pfedgp(model)
