"""Law: an update that is not finite counts for nothing, and the metrics count it."""

from __future__ import annotations

import driver
import numpy as np
import problems
import pytest
import tensorflow as tf

from tff_algos.algorithms import fed_agg, registry
from tff_algos.privacy.dp_sgd_step import DpSgd

# In the private forms an example that decided whether there is a result would be seen.
_PRIVATE = [
  name
  for name in registry.ALGORITHMS
  if issubclass(registry.get(name).hparams_class, DpSgd)
]
_DROPPING = [name for name in registry.ALGORITHMS if name not in _PRIVATE]

every_algorithm = pytest.mark.parametrize("name", registry.ALGORITHMS)
every_dropping = pytest.mark.parametrize("name", _DROPPING)
every_poison = pytest.mark.parametrize("poison", problems.POISONS)

# FedAgg's other estimates are exchanges before the training: in these, too, it counts for
# nothing.
CASES = [(name, {}) for name in _DROPPING] + [
  ("fedagg", driver.ESTIMATES),
]


@every_poison
@pytest.mark.parametrize(
  "name, settings", CASES, ids=[f"{n}-{'-'.join(s) or 'plain'}" for n, s in CASES]
)
def test_round_is_the_one_without_the_client(federate, name, settings, poison):
  # A network of tanh has a finite loss at an infinite input; with it, along what others
  # have estimated, a client's update is finite.
  problem = "linear" if settings else "mlp"
  spoilt, without = (
    federate(name, problem, **settings).round((0, 1, 2, 3)) for _ in range(2)
  )
  before = spoilt.client_states[1]
  spoilt.round((0, 1, 2), {1: poison})
  without.round((0, 2))
  driver.assert_same(spoilt.client_states[1], before, "the client's state")
  for client in (0, 2):
    driver.assert_same(spoilt.client_states[client], without.client_states[client])
  driver.assert_same(spoilt.state, without.state, "the server state")
  assert spoilt.training["num_dropped"] == 1
  assert spoilt.training["num_accepted"] == 2
  assert without.training["num_dropped"] == 0
  for metric in ("num_examples", "loss", "num_accepted"):
    assert spoilt.training[metric] == without.training[metric], metric


@every_poison
@pytest.mark.parametrize(
  "problem", [pytest.param("linear", marks=pytest.mark.thorough), "mlp"]
)
@pytest.mark.parametrize("name", _PRIVATE)
def test_private_result_comes_whatever_an_example_is(federate, name, problem, poison):
  """So that the others' gradients count, with noise, as if it had none."""
  with_it, without = (
    federate(name, problem, noise_multiplier=0.0).round((0, 1, 2)) for _ in range(2)
  )
  with_it.round((0, 1, 2), {1: poison})
  without.round((0, 2))
  assert with_it.training["num_dropped"] == 0
  assert with_it.training["num_accepted"] == 3
  assert np.isfinite(with_it.training["loss"])
  assert all(np.isfinite(v).all() for v in driver.flat(with_it.state.variables))
  assert driver.differ(with_it.weights, without.weights)


@every_poison
@every_dropping
def test_newcomer_that_is_dropped_stays_new(federate, name, poison):
  federation = federate(name).round((0, 1), {1: poison})
  driver.assert_same(federation.client_states[1], federation.process.initialize_client())


@every_dropping
def test_round_of_dropped_clients_changes_no_variable(federate, name):
  federation = federate(name).round((0, 1, 2))
  before, states = federation.state, dict(federation.client_states)
  federation.round((0, 1, 2), {0: "nan", 1: "inf", 2: "nan"})
  driver.assert_same(federation.state.variables, before.variables)
  driver.assert_same(federation.state.hparams, before.hparams)
  for client in (0, 1, 2):
    driver.assert_same(federation.client_states[client], states[client])
  counts = dict(num_examples=0, num_accepted=0, num_dropped=3)
  assert {k: federation.training[k] for k in counts} == counts
  assert np.isnan(federation.training["loss"])  # 0 would look as if all were learned.
  after = federation.round((0, 1, 2))
  assert all(np.isfinite(v).all() for v in driver.flat(after.state.variables))
  assert driver.differ(after.weights, before.variables.model)


@every_algorithm
def test_round_without_clients_changes_no_variable(federate, name):
  federation = federate(name).round((0, 1, 2))
  before = federation.state
  federation.round(())
  driver.assert_same(federation.state.variables, before.variables)
  counts = dict(num_examples=0, num_accepted=0, num_dropped=0)
  assert {k: federation.training[k] for k in counts} == counts


@every_dropping
def test_dropped_client_may_come_back(federate, name):
  """What it has when it is back is what it had before it was dropped."""
  spoilt, absent = (federate(name).round((0, 1, 2)) for _ in range(2))
  spoilt.round((0, 1), {1: "nan"}).round((1, 2))
  absent.round((0,)).round((1, 2))
  driver.assert_same(spoilt.state, absent.state)
  driver.assert_same(spoilt.client_states, absent.client_states)


def test_rates_whose_products_overflow_are_those_without_an_estimate():
  huge = (tf.fill([3, 3], 1.5e19),)
  h = fed_agg.FedAggHparams(epochs=3, learning_rate=0.03)
  np.testing.assert_array_equal(
    fed_agg.learning_rates(huge, huge, h), np.full(3, np.float32(0.03))
  )


@pytest.mark.parametrize(
  "steps",
  [
    [[1.5e19] * 3, [0.01] * 3, [0.01] * 3],  # One row of the products is infinite.
    [[2e19, 2e19, 0.0], [2e19, -2e19, 0.0], [0.0, 0.0, 1.0]],  # One is no number.
  ],
)
def test_rates_of_which_one_product_overflows_are_those_without_an_estimate(steps):
  h = fed_agg.FedAggHparams(epochs=3, learning_rate=0.03)
  small = (tf.fill([3, 3], 1e-3),)
  np.testing.assert_array_equal(
    fed_agg.learning_rates((tf.constant(steps),), small, h), np.full(3, np.float32(0.03))
  )
