"""Law: `process.client_work` is what a client of the real round does.

In a round of one client the server of these algorithms takes the client's model.
"""

from __future__ import annotations

from collections import OrderedDict

import driver
import problems
import pytest
import tensorflow as tf

from tff_algos import client_data
from tff_algos.aggregators.temporal_weighting import TemporalWeightingFactory

# With a pull, with noise, with pseudo data.
NAMES = ("fedprox", "fedavg_dpsgd", pytest.param("fedreg_mg", marks=pytest.mark.thorough))


@pytest.mark.parametrize("name", NAMES)
def test_client_work_is_that_of_a_round(federate, name):
  federation = federate(name, seed=3)
  process = federation.process
  x, y = federation.problem.clients[1]
  result = tf.function(process.client_work)(
    federation.state.variables,
    process.initialize_client(),
    client_data.Examples(tf.constant(x), tf.constant(y)),
    tf.constant(problems.client_seed(3, 0, 1)),
  )
  expected = [w + d for w, d in zip(federation.weights, result.message["model"])]
  federation.round([1])
  driver.assert_within_rounding(federation.weights, expected)


@pytest.mark.parametrize(
  "name", ["fedgg", pytest.param("fedcurv", marks=pytest.mark.thorough)]
)
def test_what_aggregators_remember_of_a_client_is_none_of_its_work(federate, name):
  """These clients look at their state."""
  federation = federate(name)
  temporal = TemporalWeightingFactory(
    federation.problem.model.initial_weights, total_weight=sum(problems.SIZES)
  )
  plain, x_y = federation.process, federation.problem.clients[1]
  aggregators = OrderedDict(plain.composed_of["aggregators"], model=temporal)
  uploads = []
  for process in (plain, plain.recomposed(aggregators=aggregators)):
    result = tf.function(process.client_work)(
      federation.state.variables,
      process.initialize_client(),
      client_data.Examples(*map(tf.constant, x_y)),
      tf.constant(problems.client_seed(3, 0, 1)),
    )
    uploads.append(result.message["model"])
  driver.assert_close(*uploads)


def test_work_that_is_another_in_some_rounds_is_not_known(federate):
  assert federate("twafl").process.client_work is None
  assert federate("tefl").process.client_work is not None


def test_client_work_of_clients_that_estimate_together_is_refused(federate):
  process = federate("fedagg", **driver.ESTIMATES).process
  with pytest.raises(ValueError, match="first estimate something together"):
    process.client_work(None, None, None, None)
