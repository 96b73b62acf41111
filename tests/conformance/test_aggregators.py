"""Law: another aggregator is of the model's part of the message, clients' work included.

That every algorithm takes one, `test_built_anew.py` shows. TWAFL and its parts, whose
server keeps sums of all clients' last uploads, take another way to sum.
"""

from __future__ import annotations

import driver
import numpy as np
import pytest
import tensorflow_federated as tff

from tff_algos.aggregators import table
from tff_algos.algorithms import registry
from tff_algos.errors import InputError
from tff_algos.privacy.dp_sgd_step import DpSgd

_THOROUGH = pytest.mark.thorough
# Whose messages have one part, and two.
CLIPPED = ("fedavg", pytest.param("scaffold", marks=_THOROUGH))


def federation_with(name, problem, aggregator) -> driver.Federation:
  hparams = driver.hparams_of(name)
  process = driver.build(name, problem, hparams, aggregator)
  return driver.Federation(process, problem, hparams, seed=1)


@pytest.mark.parametrize("name", CLIPPED)
def test_clipping_is_of_the_models_part(federate, problem_of, name):
  """Of a norm that every update exceeds: all are clipped, and the model goes less far."""
  norm = 1e-3
  mean = tff.aggregators.MeanFactory(no_nan_division=True)
  clipping = tff.aggregators.clipping_factory(norm, mean)
  clipped = federation_with(name, problem_of("mlp"), clipping)
  plain = federate(name)
  start = plain.weights
  clipped.round([0, 1, 2])
  plain.round([0, 1, 2])
  measured = clipped.metrics["aggregator"]["model"]
  assert measured["clipped_count"] == 3
  assert all(np.isfinite(w).all() for w in clipped.weights)
  assert driver.differ(clipped.weights, start)
  assert driver.differ(clipped.weights, plain.weights)
  driver.assert_same(clipped.state.variables.extra, plain.state.variables.extra)


@pytest.mark.parametrize("name", registry.ALGORITHMS)
def test_row_says_whether_it_takes_one(name):
  row = registry.get(name)
  assert row.takes_aggregator == (name not in driver.SUMMING)
  if not row.takes_aggregator:
    with pytest.raises(InputError, match=f"^{name} takes no aggregator, [^\\n]*$"):
      row.check_aggregator()


@pytest.mark.parametrize(
  "name",
  [
    name if name == "fedavg" else pytest.param(name, marks=_THOROUGH)
    for name in registry.ALGORITHMS
    if name not in driver.SUMMING
  ],
)
def test_median_of_one_client_is_its_update(federate, problem_of, name):
  """As the mean of one is; and so is that of three when two of them are not finite.

  But not in the private forms, which leave out examples and no clients.
  """
  factory = table.make("median", clients_per_round=1)
  problem = problem_of("mlp")
  median = federation_with(name, problem, factory)
  plain = federate(name, seed=median.seed)
  is_private = issubclass(registry.get(name).hparams_class, DpSgd)
  cases = [((1,), {}), ((0, 1, 2), {0: "nan", 2: "inf"})]
  for clients, spoilt in cases[:1] if is_private else cases:
    median.round(clients, spoilt)
    plain.round(clients, spoilt)
    driver.assert_within_rounding(median.weights, plain.weights, f"clients {clients}")


@pytest.mark.parametrize(
  "spec",
  [
    # `test_secure_sums.py` is about it.
    pytest.param(spec, marks=_THOROUGH) if spec == "secure_sum" else spec
    for spec in table.AGGREGATORS
  ],
)
def test_every_aggregator_of_the_table_makes_rounds(problem_of, spec):
  words = {"dp": "dp:noise_multiplier=1e-3", "trimmed_mean": "trimmed_mean:share=0.34"}
  factory = table.make(words.get(spec, spec), clients_per_round=3)
  federation = federation_with("fedavg", problem_of("mlp"), factory)
  start = federation.weights
  federation.round([0, 1, 2]).round([2, 3, 4])
  assert all(np.isfinite(w).all() for w in federation.weights)
  assert driver.differ(federation.weights, start)
  assert federation.training["num_accepted"] == 3


@pytest.mark.parametrize("name", driver.SUMMING)
def test_what_does_not_sum_is_refused_in_one_sentence(problem_of, name):
  with pytest.raises(ValueError, match=r"^sum_factory must sum [^\n]*\.$"):
    mean = tff.learning.robust_aggregator()
    federation_with(name, problem_of("mlp"), mean)
