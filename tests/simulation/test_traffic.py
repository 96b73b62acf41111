"""Bytes that cross, against formulas worked out by hand.

With P weights of 4 bytes, `compose_process` sends to each client

- the parts that the algorithm distributes: 4 P for a model,
- 4 for each tunable hyper-parameter, which lives in the server state;

and each client sends

- the parts of its message: 4 P for an update,
- 4 for each part with a weighted mean, whose weights are summed beside it,
- 8 for the training loss, a float32 total and a float32 count,
- 8 for the number of examples, an int64,
- 4 and 4 for the numbers of accepted and of dropped clients, int32.

Client states and the metrics of aggregators do not cross.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.algorithms import fed_avg, fed_gg, registry
from tff_algos.client_work.model_update import ClientResult
from tff_algos.hyper_parameters import HyperParameters
from tff_algos.simulation import traffic
from tff_algos.templates import composer

pytestmark = pytest.mark.usefixtures("in_process")

_METRICS = 8 + 8 + 4 + 4
_WEIGHT = 4
# The model of the fixture: a kernel of 4 x 3 and a bias of 3.
_P = 4 * 3 + 3


def _expected(down_parts: int, tunables: int, up_parts: int, weighted: int):
  return traffic.RoundTraffic(
    down=4 * down_parts + 4 * tunables,
    up=4 * up_parts + _WEIGHT * weighted + _METRICS,
  )


_EXPECTED = {
  # learning_rate, server_learning_rate
  "fedavg": _expected(_P, 2, _P, 1),
  # learning_rate of the server
  "fedsgd": _expected(_P, 1, _P, 1),
  # ... and mu
  "fedprox": _expected(_P, 3, _P, 1),
  # The model and the server's control variate down; both changes up, each with a mean.
  "scaffold": _expected(2 * _P, 2, 2 * _P, 2),
  # learning_rate, server_learning_rate, tau, beta1, beta2
  "fedadam": _expected(_P, 5, _P, 1),
  "fedyogi": _expected(_P, 5, _P, 1),
  # ... without beta2
  "fedadagrad": _expected(_P, 4, _P, 1),
  # learning_rate, server_learning_rate, mu, fixed_weight
  "fedgg": _expected(_P, 4, _P, 1),
}


@pytest.mark.parametrize("name", _EXPECTED)
def test_traffic_of_an_algorithm(process_of, name):
  assert traffic.bytes_per_client(process_of(name).next) == _EXPECTED[name]


def test_every_algorithm_has_a_formula():
  assert set(_EXPECTED) == set(registry.ALGORITHMS)


def test_client_state_costs_no_traffic_and_the_broadcast_another_model(federation):
  """FedGG's direction: both ways send the same up; the broadcast 4 P more down."""
  assert federation.model.num_weights == _P

  def count(direction: str):
    hparams = fed_gg.FedGGHparams(direction=direction)
    process = fed_gg.build_fed_gg(federation.model, hparams)
    return traffic.bytes_per_client(process.next)

  kept, broadcast = count("client_state"), count("broadcast")
  assert broadcast.down - kept.down == 4 * _P
  assert broadcast.up == kept.up
  fed_avg_bytes = _EXPECTED["fedavg"]
  # FedGG has two more tunable hyper-parameters: mu and fixed_weight.
  assert kept == traffic.RoundTraffic(fed_avg_bytes.down + 8, fed_avg_bytes.up)


def test_weighting_of_the_clients_changes_no_bytes(federation, process_of):
  hparams = fed_avg.FedAvgHparams(client_weighting="uniform")
  process = fed_avg.build_fed_avg(federation.model, hparams)
  assert traffic.bytes_per_client(process.next) == _EXPECTED["fedavg"]


def test_unweighted_aggregator_sends_no_weight(federation):
  process = fed_avg.build_fed_avg(
    federation.model, model_aggregator=tff.aggregators.SumFactory()
  )
  assert traffic.bytes_per_client(process.next) == _expected(_P, 2, _P, 0)


def test_what_an_aggregator_sends_is_counted(federation):
  """Clipping at a fixed norm sends that norm down and a count of clipped ones up."""
  clipping = tff.aggregators.clipping_factory(1.0, composer.mean())
  process = fed_avg.build_fed_avg(federation.model, model_aggregator=clipping)
  found = traffic.bytes_per_client(process.next)
  plain = _EXPECTED["fedavg"]
  assert found == traffic.RoundTraffic(plain.down + 4, plain.up + 4)


def test_every_part_counts_by_its_type(federation):
  """8-bit flags down; a part of its own up, which is summed without weights."""

  def distribute(variables):
    return OrderedDict(model=variables.model, flags=variables.extra)

  def client_update(received, client_state, examples, seed, h):
    del client_state, seed, h
    mean = tf.reduce_mean(examples.x, axis=0)
    return ClientResult(
      message=OrderedDict(model=received["model"], sums=mean[:2]),
      weight=OrderedDict(model=tf.constant(1.0), sums=tf.constant(1.0)),
      client_state=(),
      metrics=OrderedDict(),
    )

  process = composer.compose_process(
    federation.model,
    HyperParameters(),
    rounds=composer.Round(
      client_update,
      lambda variables, aggregate, num_clients, h: variables,
      distribute,
    ),
    aggregators=OrderedDict(model=composer.mean(), sums=tff.aggregators.SumFactory()),
    init_server=lambda: tf.zeros([5], tf.int8),
  )
  found = traffic.bytes_per_client(process.next)
  counts = 8 + 4 + 4
  assert found == traffic.RoundTraffic(4 * _P + 5, 4 * _P + _WEIGHT + 2 * 4 + counts)


def test_counts_every_exchange_of_a_computation():
  """A second broadcast, of what was aggregated, and a mean are counted too."""
  vector = tff.TensorType(np.float64, [5])

  @tff.federated_computation(
    tff.FederatedType(vector, tff.SERVER), tff.FederatedType(vector, tff.CLIENTS)
  )
  def exchange(at_server, at_clients):
    received = tff.federated_broadcast(at_server)
    total = tff.federated_sum(tff.federated_zip((at_clients, received)))
    return tff.federated_broadcast(total)

  # Down the vector, then the two sums; up two vectors.
  found = traffic.bytes_per_client(exchange)
  assert found == traffic.RoundTraffic(down=3 * 5 * 8, up=2 * 5 * 8)


def test_computation_without_exchange_has_no_traffic():
  @tff.tensorflow.computation(np.float32)
  def double(x):
    return 2 * x

  @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
  def at_clients(x):
    return tff.federated_map(double, x)

  assert traffic.bytes_per_client(at_clients) == traffic.RoundTraffic(0, 0)
