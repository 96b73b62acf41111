"""Law: the model and the tunables can be read and set, and the metrics are right."""

from __future__ import annotations

import driver
import numpy as np
import problems
import pytest
import replay
import tensorflow_federated as tff
from replays import REPLAYS

from tff_algos.algorithms import registry

every_algorithm = pytest.mark.parametrize("name", registry.ALGORITHMS)

ROUNDS = ((0, 1, 2), (3, 1, 0))


@every_algorithm
def test_round_keeps_the_hparams_and_counts_itself(federate, name):
  federation = federate(name)
  before = federation.process.get_hparams(federation.state)
  federation.run(ROUNDS)
  driver.assert_same(federation.process.get_hparams(federation.state), before)
  assert federation.state.round_num == len(ROUNDS)


def loss_met(name, federation, clients, weights):
  """The mean of the losses that the next round meets, all of them at these weights."""
  loss_model = REPLAYS[name].loss_model
  if loss_model is None:
    return problems.pooled(federation.problem, clients, weights)[0]
  model = loss_model(federation.problem.numpy_model, federation.hparams)
  met = [(x[b], y[b]) for _, (x, y), bs in federation.cohort(clients) for b in bs]
  losses = [len(x) * model.loss_and_gradient(weights, x, y)[0] for x, y in met]
  return sum(losses) / sum(len(x) for x, _ in met)


def without_model(state):
  return state._replace(variables=state.variables._replace(model=()))


@every_algorithm
def test_model_weights_come_back_as_they_were_set(federate, name):
  federation = federate(name).round((0, 1))
  process, before = federation.process, federation.state
  values = tuple(2.0 * w + 1.0 for w in federation.weights)
  weights = tff.learning.models.ModelWeights(values, ())
  after = process.set_model_weights(before, weights)
  driver.assert_same(process.get_model_weights(after).trainable, values)
  assert process.get_model_weights(after).non_trainable == ()
  driver.assert_same(without_model(after), without_model(before))
  driver.assert_same(process.get_model_weights(before).trainable, federation.weights)


@every_algorithm
def test_round_starts_at_the_weights_that_were_set(federate, name):
  """The loss at a vanishing rate is that of the set weights, in the formula.

  Layers that do not travel in a round are the clients' own, from x^0 on.
  """
  federation = federate(name, learning_rate=1e-20)
  process, start = federation.process, federation.weights
  values = [2.0 * w + 1.0 for w in start]
  for t, clients in enumerate(((0, 2), (1, 2))):
    federation.state = process.set_model_weights(
      federation.state, tff.learning.models.ModelWeights(tuple(values), ())
    )
    expected = replay.as_weights(values)
    if process.next_of(t) is process.next_fns.get("shallow"):
      shallow = len(start) // 2
      expected[shallow:] = replay.as_weights(start)[shallow:]
    loss = loss_met(name, federation, clients, expected)
    federation.round(clients)
    np.testing.assert_allclose(federation.training["loss"], loss, rtol=1e-5)


@every_algorithm
def test_setting_hparams_changes_nothing_else(federate, name):
  federation = federate(name).round((0, 1))
  values = federation.process.get_hparams(federation.state)
  values = {k: 0.5 * v for k, v in values.items()}
  after = federation.process.set_hparams(federation.state, values)
  driver.assert_same(after._replace(hparams=()), federation.state._replace(hparams=()))


@every_algorithm
def test_loss_is_the_mean_over_all_examples_met(federate, name):
  """At a vanishing rate all are met at x^0, each as often as there are epochs.

  Not the mean of the clients' means, however the server weighs them: where there is such
  a replay, its process is taken, whose clients all count the same.
  """
  replays = REPLAYS[name].settings.values()
  uniform = (
    s
    for s in replays
    # As TEFL's paper prints it, the model does not stay where it is.
    if s.get("client_weighting") == "uniform" and "normalization" not in s
  )
  settings = dict(next(uniform, {}), learning_rate=1e-20)
  federation = federate(name, **settings)
  start = replay.as_weights(federation.problem.model.initial_weights)
  for clients in ((0, 1), (3, 2, 0)):
    loss = loss_met(name, federation, clients, start)
    federation.round(clients)
    np.testing.assert_allclose(federation.training["loss"], loss, rtol=1e-5)
    examples = sum(problems.SIZES[c] for c in clients)
    assert federation.training["num_examples"] == examples
    assert federation.training["num_accepted"] == len(clients)
    assert federation.training["num_dropped"] == 0
