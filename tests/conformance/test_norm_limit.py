"""Law: a client over the norm limit is as if it had not been there, and is counted.

The limit is a multiple of the median, over the last ten rounds of a kind, of the rounds'
medians of their clients' norms.
"""

from __future__ import annotations

from collections import OrderedDict

import driver
import numpy as np
import problems
import pytest
import tensorflow as tf

from tff_algos.client_work.model_update import ClientResult
from tff_algos.errors import InputError
from tff_algos.templates import norm_limits

# One part; two parts; kinds of rounds, and clients that remember; estimates of the round
# before.
CASES = (
  pytest.param("fedavg", marks=pytest.mark.thorough),
  "scaffold",
  pytest.param("twafl", marks=pytest.mark.thorough),
  "fedagg",
)
ROUNDS = ((0, 1, 2), (3, 1, 0))


@pytest.fixture(scope="module")
def limited(federate):
  """`algorithm -> Federation` with a limit of 8 medians."""
  made = {}

  def make(name):
    plain = federate(name, "linear")
    if name not in made:
      made[name] = plain.process.recomposed(norm_limit=8.0)
    return driver.Federation(made[name], plain.problem, plain.hparams, plain.seed)

  return make


def medians(federation, part="update_norm"):
  values = np.asarray(federation.state.aggregator[part])
  return values[~np.isnan(values)]


@pytest.mark.parametrize("name", CASES)
def test_limit_that_nobody_exceeds_changes_nothing(federate, limited, name):
  plain, other = federate(name, "linear"), limited(name)
  for clients in ROUNDS:
    plain.round(clients)
    other.round(clients)
    driver.assert_same(other.state.variables, plain.state.variables)
    assert other.training.pop("num_too_long") == 0
    driver.assert_same(other.training, plain.training)
  for client, state in plain.client_states.items():
    driver.assert_same(other.client_states[client], state)


@pytest.mark.parametrize("name", CASES)
def test_client_over_the_limit_is_as_one_that_is_not_finite(federate, limited, name):
  plain, other = federate(name, "linear"), limited(name)
  for federation, spoilt in ((plain, "nan"), (other, "long")):
    federation.round((0, 1, 2)).round((3, 1, 0), {1: spoilt})
    assert federation.training["num_dropped"] == 1
  assert other.training["num_too_long"] == 1
  driver.assert_same(other.state.variables, plain.state.variables)
  for client, state in plain.client_states.items():
    driver.assert_same(other.client_states[client], state)


def test_medians_are_of_the_norms_of_the_updates(limited):
  """Of a client alone the update is the way of the server's model."""
  alone, norms = limited("fedavg"), []
  for client in (0, 1, 2):
    before = alone.weights
    alone.round([client])
    way = [a.astype(np.float64) - b for a, b in zip(alone.weights, before)]
    norms.append(np.sqrt(sum(np.sum(w**2) for w in way)))
  np.testing.assert_allclose(medians(alone), norms, rtol=1e-5)
  together, of_each = limited("fedavg").round((0, 1, 2)), []
  for client in (0, 1, 2):
    of_each += list(medians(limited("fedavg").round([client])))
  np.testing.assert_allclose(medians(together), [np.median(of_each)], rtol=1e-6)
  assert together.metrics["aggregator"]["update_norm"] == medians(together)[0]


def test_before_there_is_a_median_the_models_own_norm_counts(limited):
  federation = limited("fedavg")
  start = federation.weights
  size = np.sqrt(sum(np.sum(np.float64(w) ** 2) for w in start))
  federation.round((0, 1, 2), {1: "long"})
  [median] = medians(federation)
  assert median < 8 * size
  assert federation.training["num_too_long"] == 1


def test_of_parts_that_are_not_sent_there_is_no_limit_before_there_is_a_median():
  """Such as gradients, by an algorithm of one's own."""
  for median, expected in ((np.nan, False), (5.0, False), (0.5, True)):
    medians = np.full(10, median, np.float32)
    found = norm_limits.is_too_long(np.float32(8), 4.0, medians, {})
    assert bool(found) == expected


def test_each_kind_of_round_has_its_own_median(limited):
  federation = limited("twafl").run(problems.ROUNDS)
  kinds = [federation.process.kind_of_round(t) for t in range(len(problems.ROUNDS))]
  for kind in federation.process.next_fns:
    assert len(medians(federation, f"update_norm_{kind}")) == kinds.count(kind)


def test_time_in_which_all_updates_grow_comes_to_an_end(limited):
  """Those dropped count for the median, so that no run is without clients forever."""
  federation = limited("fedavg").round((0, 1, 2))
  longer = {k: "long" for k in (0, 1, 2)}
  counts = [
    federation.round((0, 1, 2), longer).training["num_too_long"] for _ in range(4)
  ]
  assert counts[0] == 3
  assert counts[-1] == 0


@pytest.mark.parametrize("times", [1.0, -3.0, float("inf"), float("nan")])
def test_limit_out_of_range_is_refused(federate, times):
  with pytest.raises(InputError, match="norm_limit must be finite and above 1"):
    federate("fedavg").process.recomposed(norm_limit=times)


def test_limit_that_float32_does_not_hold_is_refused(federate):
  with pytest.raises(InputError, match="norm_limit must be a number that float32 holds"):
    federate("fedavg").process.recomposed(norm_limit=1e39)


def test_estimates_that_it_would_not_hold_are_refused(federate):
  """A liar's would reach all clients, whose own updates would then be the long ones."""
  process = federate("fedagg", "linear", **driver.ESTIMATES).process
  with pytest.raises(InputError, match="estimates of the round before"):
    process.recomposed(norm_limit=8.0)


def test_the_norm_is_that_of_all_numbers_that_are_sent():
  """By hand: 3, 4, 12 and 84 are the legs of right triangles, the last one's 85 long."""
  message = OrderedDict(
    model=(tf.constant([3 + 4j], tf.complex64), tf.constant([12.0], tf.float16)),
    count=tf.constant(1000),
    other=tf.constant([84.0], tf.float64),
  )
  result = ClientResult(message, {}, (), {})
  found = norm_limits.with_norm(result, "norm", tf.constant(1.0))
  assert float(found.message["norm"]) == 85


@pytest.mark.parametrize("name", ["hparams", "model", "norm_limits"])
def test_what_recomposing_cannot_change_is_refused(federate, name):
  with pytest.raises(InputError, match=f"^'{name}' is nothing .* build the process anew"):
    federate("fedavg").process.recomposed(**{name: None})
