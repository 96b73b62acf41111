"""Law: an algorithm takes another aggregator for the model's part of its message.

But TWAFL and its parts, whose server keeps sums of all clients' last uploads: these take
another way to sum.
"""

from __future__ import annotations

import inspect

import driver
import numpy as np
import pytest
import tensorflow_federated as tff

from tff_algos.algorithms import registry

SUMMING = {"afl", "tefl", "twafl"}
REPLACING = [name for name in registry.ALGORITHMS if name not in SUMMING]

ROUNDS = ((0, 1), (2, 0, 3))


def federation_with(name, problem, **aggregators) -> driver.Federation:
  row, hparams = registry.get(name), driver.hparams_of(name)
  options = inspect.signature(row.builder).parameters
  population = dict(num_clients=5, num_examples=30)
  known = {k: v for k, v in population.items() if k in options}
  process = row.builder(problem.model, hparams, **known, **aggregators)
  return driver.Federation(process, problem, hparams, seed=1)


def assert_same_run(found, expected):
  for clients in ROUNDS:
    found.round(clients)
    expected.round(clients)
    driver.assert_same(found.state, expected.state)
    driver.assert_same(found.client_states, expected.client_states)


@pytest.mark.parametrize("name", REPLACING)
def test_default_is_the_mean(federate, problem_of, name):
  mean = tff.aggregators.MeanFactory(no_nan_division=True)
  found = federation_with(name, problem_of("linear"), model_aggregator=mean)
  assert_same_run(found, federate(name))


@pytest.mark.parametrize("name", sorted(SUMMING))
def test_default_is_the_sum(federate, problem_of, name):
  plain = tff.aggregators.SumFactory()
  found = federation_with(name, problem_of("linear"), sum_factory=plain)
  assert_same_run(found, federate(name))


@pytest.mark.parametrize("name", REPLACING)
def test_clipping_is_of_the_models_part(federate, problem_of, name):
  """Of a norm that every update exceeds: all are clipped, and the model goes less far."""
  norm = 1e-3
  mean = tff.aggregators.MeanFactory(no_nan_division=True)
  clipping = tff.aggregators.clipping_factory(norm, mean)
  clipped = federation_with(name, problem_of("linear"), model_aggregator=clipping)
  plain = federate(name)
  start = plain.weights
  clipped.round([0, 1, 2])
  plain.round([0, 1, 2])
  measured = clipped.metrics["aggregator"]["model"]
  assert measured["clipped_count"] == 3
  assert all(np.isfinite(w).all() for w in clipped.weights)
  assert driver.differ(clipped.weights, start)
  assert driver.differ(clipped.weights, plain.weights)


@pytest.mark.parametrize("name", sorted(SUMMING))
def test_what_does_not_sum_is_refused_in_one_sentence(problem_of, name):
  with pytest.raises(ValueError, match=r"^sum_factory must sum [^\n]*\.$"):
    mean = tff.learning.robust_aggregator()
    federation_with(name, problem_of("linear"), sum_factory=mean)
