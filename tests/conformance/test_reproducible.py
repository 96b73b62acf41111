"""Law: a run is a function of its seed, whatever the number of threads.

And whichever process of the same settings runs it: `test_built_anew.py`.
"""

from __future__ import annotations

import contextlib
import os

import driver
import pytest
import tensorflow_federated as tff

from tff_algos.algorithms import registry
from tff_algos.runtimes import runtime

ROUNDS = ((0, 1, 2, 3, 4), (4, 2, 0), (3, 2, 1, 0))

every_algorithm = pytest.mark.parametrize("name", registry.ALGORITHMS)


def everything(federation):
  states = [federation.client_states[c] for c in sorted(federation.client_states)]
  return federation.state, states, federation.metrics


@every_algorithm
def test_one_seed_gives_one_result_and_another_another(federate, name):
  first = federate(name, "noisy_mlp", seed=1).run(ROUNDS)
  again = federate(name, "noisy_mlp", seed=1).run(ROUNDS)
  driver.assert_same(everything(first), everything(again), "the same process again")
  other = federate(name, "noisy_mlp", seed=2).run(ROUNDS)
  assert driver.differ(first.weights, other.weights)


@every_algorithm
def test_clients_with_the_same_examples_draw_differently(federate, name):
  """Draws are keyed by the client's seed, not by its data or place in the cohort."""
  losses = [
    federate(name, "noisy_mlp").round([client], {client: "1"}).training["loss"]
    for client in (0, 2)
  ]
  assert losses[0] != losses[1]


@pytest.fixture(scope="module")
def other_threads(in_process):
  """A runtime of one thread where that of the tests has several; not installed."""
  threads = 1 if (os.cpu_count() or 1) > 1 else 4
  with contextlib.closing(
    runtime.create_runtime("in_process", num_threads=threads)
  ) as created:
    yield created


@every_algorithm
def test_number_of_threads_does_not_matter(federate, in_process, other_threads, name):
  expected = everything(federate(name, "noisy_mlp").run(ROUNDS))
  try:
    tff.framework.set_default_context(other_threads.context)
    found = everything(federate(name, "noisy_mlp").run(ROUNDS))
  finally:
    tff.framework.set_default_context(in_process.context)
  driver.assert_same(found, expected, "another number of threads")
