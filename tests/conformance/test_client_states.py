"""Law: each client gets its own state back, and their order decides nothing."""

from __future__ import annotations

import driver
import numpy as np
import pytest

from tff_algos.algorithms import registry


@pytest.mark.parametrize("name", registry.ALGORITHMS)
def test_order_of_the_clients_does_not_matter(federate, name):
  one, other = (federate(name).round((0, 1, 2, 3)) for _ in range(2))
  one.round((0, 1, 2, 4))
  other.round((4, 1, 0, 2))
  for client in (0, 1, 2, 4):
    states = one.client_states[client], other.client_states[client]
    driver.assert_same(*states, f"client {client}")
  driver.assert_within_rounding(one.weights, other.weights)
  # What the server sums of client states may be small where they are not.
  sizes = [np.max(np.abs(v)) for v in driver.flat(one.client_states)]
  extras = one.state.variables.extra, other.state.variables.extra
  driver.assert_within_rounding(*extras, size=max(sizes, default=0.0))
  counts = [{k: v for k, v in f.training.items() if k != "loss"} for f in (one, other)]
  assert counts[0] == counts[1]


@pytest.mark.parametrize("name", registry.ALGORITHMS)
def test_client_states_differ_between_clients_where_there_are_any(federate, name):
  """Otherwise the law above could not see them exchanged.

  FedGG's state is the model received, the same for all clients of a round, so they are
  compared after different rounds.
  """
  federation = federate(name).round((0, 1)).round((2, 1))
  has_state = bool(driver.flat(federation.process.initialize_client()))
  assert has_state != federation.process.is_stateless
  states = federation.client_states
  assert driver.differ(states[0], states[1]) == has_state


@pytest.mark.parametrize("name", registry.ALGORITHMS)
def test_round_changes_nothing_that_it_was_given(federate, name):
  """Not the server's state, no client's, absent or not, nor that of a new client."""
  federation = federate(name).round((0, 1, 2))
  new = federation.process.initialize_client()
  given = federation.state, dict(federation.client_states), new
  kept = [v.copy() for v in driver.flat(given)]
  federation.round((1, 3)).round((3, 1))
  driver.assert_same(given, kept)
  driver.assert_same(federation.process.initialize_client(), new)
  for absent in (0, 2):
    driver.assert_same(federation.client_states[absent], given[1][absent])
