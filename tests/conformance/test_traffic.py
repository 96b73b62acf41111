"""Bytes that cross, against formulas worked out by hand.

The composer writes down what it has cross, part by part; the sums must be those of the
compiled computation.

With P weights of 4 bytes, `compose_process` sends to each client

- the parts that the algorithm distributes, by name: 4 P for a model,
- "hparams": 4 for each tunable hyper-parameter, which lives in the server state,
- "round_num": 4 where clients remember what they sent;

and each client sends

- the parts of its message, by name: 4 P for an update,
- "aggregation": 4 for each part with a weighted mean, whose weights are summed beside
  it, or that clients remember; nothing for a plain sum,
- "metrics": 8 for the training loss, a float32 total and a float32 count, 8 for the
  number of examples, an int64, and 4 and 4 for the numbers of accepted and of dropped
  clients, int32.

Client states and the metrics of aggregators do not cross.
"""

from __future__ import annotations

import types
from collections import OrderedDict

import driver
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tasks.models import cnn
from tff_algos.algorithms import fed_avg, fed_curv, registry, twafl
from tff_algos.client_work.model_update import ClientResult
from tff_algos.hyper_parameters import HyperParameters
from tff_algos.models import functional, keras
from tff_algos.simulation import measurements
from tff_algos.templates import composer, ledger, rounds

pytestmark = pytest.mark.usefixtures("in_process")

_METRICS = 8 + 8 + 4 + 4
# The model of the fixture: a hidden layer of 5, shallow, on 4 inputs; 3 classes, deep.
_SHALLOW, _DEEP = 4 * 5 + 5, 5 * 3 + 3
_P = _SHALLOW + _DEEP


# --- The formulas -------------------------------------------------------------------


def _round(tunables: int, down: dict, up: dict, weighted: int) -> ledger.RoundTraffic:
  """Of bytes of the algorithm's own parts; `weighted` of those up have weights."""
  added = {"aggregation": 4 * weighted} if weighted else {}
  return ledger.RoundTraffic(
    down={**down, "hparams": 4 * tunables}, up={**up, **added, "metrics": _METRICS}
  )


def _like_fed_avg(tunables: int):
  """The model down, its update up."""
  return {"": _round(tunables, {"model": 4 * _P}, {"model": 4 * _P}, 1)}


def _scaffold(tunables: int):
  """The server's control variate down too, each client's change of its own up."""
  parts = {"model": 4 * _P, "control_variate": 4 * _P}
  return {"": _round(tunables, parts, parts, 2)}


def _fed_curv(tunables: int):
  """Two sums of the size of a model both ways, without weights, and their round down."""
  parts = {"model": 4 * _P, "fisher": 4 * _P, "fisher_model": 4 * _P}
  return {"": _round(tunables, {**parts, "fisher_round": 4}, parts, 1)}


def _previous_round(epochs: int):
  """FedAgg: estimates of L epochs both ways; of phi2 the last is the model's update."""
  sent = 4 * epochs * _P
  down = {"model": 4 * _P, "phi1": sent, "phi2": sent, "is_known": 1}
  up = {"model": 4 * _P, "phi1": sent, "phi2": sent - 4 * _P}
  up = {part: count for part, count in up.items() if count}
  # learning_rate, alpha, max_learning_rate
  return {"": _round(3, down, up, len(up))}


def _fixed_point(epochs: int, passes: int):
  """FedAgg: in each of J passes 2 L models both ways."""
  sent = passes * 4 * epochs * _P
  parts = {"model": 4 * _P, "phi1": sent, "phi2": sent}
  return {"": _round(3, parts, parts, 1 + 2 * passes)}


def _tefl(tunables: int, weights: int):
  """The model both ways, and the number of the round down."""
  return {
    "": _round(
      tunables, {"model": 4 * weights, "round_num": 4}, {"model": 4 * weights}, 1
    )
  }


def _layerwise(tunables: int, shallow: int, deep: int):
  """The shallow layers alone, or both parts, each with a weight of its own."""
  part = {"shallow": 4 * shallow}
  both = {**part, "deep": 4 * deep}
  return {
    "shallow": _round(tunables, {**part, "round_num": 4}, part, 1),
    "full": _round(tunables, {**both, "round_num": 4}, both, 2),
  }


# Algorithm to kind of round to bytes; the numbers are those of tunable hyper-parameters.
_EXPECTED = {
  # learning_rate, server_learning_rate
  "fedavg": _like_fed_avg(2),
  # learning_rate of the server
  "fedsgd": _like_fed_avg(1),
  # ... of FedAvg and mu
  "fedprox": _like_fed_avg(2 + 1),
  "scaffold": _scaffold(2),
  # ... of FedAvg, tau, beta1, beta2
  "fedadam": _like_fed_avg(2 + 3),
  "fedyogi": _like_fed_avg(2 + 3),
  # ... of FedAvg and server_momentum
  "fedavgm": _like_fed_avg(2 + 1),
  # ... without beta2
  "fedadagrad": _like_fed_avg(2 + 2),
  # ... of FedAvg, mu, fixed_weight
  "fedgg": _like_fed_avg(2 + 2),
  "sgd": _like_fed_avg(1),
  # learning_rate, alpha
  "feddyn": _like_fed_avg(2),
  # ... of FedAvg and curvature
  "fedcurv": _fed_curv(2 + 1),
  "twafl": _layerwise(2, _SHALLOW, _DEEP),
  "tefl": _tefl(2, _P),
  "afl": _layerwise(2, _SHALLOW, _DEEP),
  "fedagg": _previous_round(epochs=2),
  # learning_rate, server_learning_rate, gamma, pseudo_step, perturbation_ratio
  "fedreg": _like_fed_avg(5),
  "fedreg_mg": _like_fed_avg(5),
  # ... of FedAvg
  "pfedgp": _like_fed_avg(2),
  # ... of the plain form, clip_norm and noise_multiplier
  "dpsgd": _like_fed_avg(1 + 2),
  "fedavg_dpsgd": _like_fed_avg(2 + 2),
  "fedprox_dpsgd": _like_fed_avg(3 + 2),
  "fedcurv_dpsgd": _fed_curv(3 + 2),
}


def _assert_exact(process):
  """The sums are what crosses in the compiled computation of each kind of round."""
  assert set(process.traffic) == set(process.next_fns)
  for kind, next_fn in process.next_fns.items():
    exact = ledger.bytes_per_client(next_fn)
    for parts, crossing in zip(process.traffic[kind], exact):
      assert sum(parts.values()) == sum(crossing.values())


@pytest.fixture(scope="module")
def problem(problem_of):
  return problem_of("mlp")


def _build(problem, name: str, **hparams):
  return driver.build(name, problem, registry.get(name).hparams_class(**hparams))


@pytest.mark.parametrize("name", registry.ALGORITHMS)
def test_traffic_of_every_kind_of_round_of_an_algorithm(federate, name):
  assert name in _EXPECTED, f"{name} has no formula"
  process = federate(name).process
  assert process.traffic == _EXPECTED[name]
  _assert_exact(process)


def test_formulas_are_of_the_models_weights_and_of_algorithms_that_there_are(problem):
  assert problem.model.num_weights == _P
  assert set(_EXPECTED) == set(registry.ALGORITHMS)


@pytest.mark.parametrize(
  "name, models_down, models_up",
  [
    ("fedavg", 1, 1),
    ("scaffold", 2, 2),
    ("fedgg", 1, 1),
    ("feddyn", 1, 1),
    ("fedcurv", 3, 3),
    ("tefl", 1, 1),
    ("fedagg", 5, 4),
    ("fedreg", 1, 1),
    ("fedreg_mg", 1, 1),
    ("fedcurv_dpsgd", 3, 3),
  ],
)
def test_how_many_models_cross(name, models_down, models_up):
  """What does not grow with the model left out."""
  [expected] = _EXPECTED[name].values()
  small = {"hparams", "round_num", "fisher_round", "is_known", "aggregation", "metrics"}
  for parts, models in zip(expected, (models_down, models_up)):
    assert sum(n for part, n in parts.items() if part not in small) == models * 4 * _P


# --- Options ------------------------------------------------------------------------


def test_fed_ggs_broadcast_costs_another_model_down(problem):
  """Kept in the client state, the model before costs nothing."""
  process = _build(problem, "fedgg", direction="broadcast")
  _assert_exact(process)
  kept = _EXPECTED["fedgg"][""]
  expected = kept._replace(down={**kept.down, "previous_model": 4 * _P})
  assert process.traffic == {"": expected}


@pytest.mark.parametrize("epochs", [1, 3])
def test_fed_aggs_estimates_of_the_previous_round(problem, epochs):
  """With one epoch all of phi2 is the model's update, which is not sent twice."""
  found = _build(problem, "fedagg", epochs=epochs).traffic
  assert found == _previous_round(epochs)
  assert ("phi2" in found[""].up) == (epochs > 1)


@pytest.mark.parametrize(
  "epochs, passes", [(3, 2), pytest.param(1, 3, marks=pytest.mark.thorough)]
)
def test_fed_aggs_estimates_by_a_fixed_point(problem, epochs, passes):
  options = dict(estimates="fixed_point", epochs=epochs, passes=passes)
  process = _build(problem, "fedagg", **options)
  _assert_exact(process)
  assert process.traffic == _fixed_point(epochs, passes)


@pytest.mark.parametrize(
  "name, options",
  [
    ("fedavg", dict(client_weighting="uniform", epochs=3, momentum=0.9)),
    ("scaffold", dict(option="I", client_weighting="examples")),
    ("twafl", dict(base=1.0, normalization="examples", rounds_in_loop=4, freq=3)),
  ],
)
def test_options_that_change_no_bytes(problem, name, options):
  assert _build(problem, name, **options).traffic == _EXPECTED[name]


# --- TWAFL on its network -----------------------------------------------------------

# Kernel and bias: 5 x 5 convolutions of 1, 32, 64 channels, then 4 x 4 x 64, 512, 10.
_TWAFL_SHALLOW = (5 * 5 * 1 * 32 + 32) + (5 * 5 * 32 * 64 + 64)
_TWAFL_DEEP = (4 * 4 * 64 * 512 + 512) + (512 * 10 + 10)


@pytest.fixture(scope="module")
def twafl_process(in_process):
  picture = tf.TensorSpec([28, 28, 1], tf.uint8)
  spec = functional.ExampleSpec(picture, tf.TensorSpec([], tf.int32))
  model = keras.from_keras(cnn.twafl((28, 28, 1), 10), spec)
  hparams = twafl.TwaflHparams(rounds_in_loop=15, freq=5)
  return twafl.build_twafl(model, hparams, num_clients=20, num_examples=1000)


@pytest.fixture(scope="module")
def twafl_traffic(twafl_process):
  return twafl_process.traffic


def test_twafls_shallow_round_moves_the_convolutions_alone(twafl_traffic):
  assert (_TWAFL_SHALLOW, _TWAFL_SHALLOW + _TWAFL_DEEP) == (52_096, 582_026)
  for parts in twafl_traffic["shallow"]:
    assert parts["shallow"] == 4 * 52_096
    assert "deep" not in parts
  for parts in twafl_traffic["full"]:
    assert parts["shallow"] + parts["deep"] == 4 * 582_026
  assert twafl_traffic == _layerwise(2, _TWAFL_SHALLOW, _TWAFL_DEEP)


def test_twafls_full_exchange_costs_two_and_a_half_times_the_asynchronous_one(
  twafl_process, twafl_traffic
):
  """Over a loop of 15 rounds, in 5 of which all layers travel; each way and in all."""
  by_weights = 582_026 * 15 / (582_026 * 5 + 52_096 * 10)
  assert round(by_weights, 3) == 2.544
  [tefl] = _tefl(2, 582_026).values()
  names = {id(next_fn): kind for kind, next_fn in twafl_process.next_fns.items()}
  kinds = [names[id(twafl_process.next_of(r))] for r in range(15)]
  assert kinds == ["shallow"] * 10 + ["full"] * 5
  asynchronous = [measurements.of_traffic(twafl_traffic[kind], 1) for kind in kinds]
  for full in (
    measurements.of_traffic(twafl_traffic["full"], 1),
    measurements.of_traffic(tefl, 1),
  ):
    for directions in (["bytes_down"], ["bytes_up"], ["bytes_down", "bytes_up"]):
      cost = 15 * sum(full[d] for d in directions)
      spent = sum(record[d] for record in asynchronous for d in directions)
      assert cost / spent == pytest.approx(by_weights, rel=1e-3)


# --- Aggregators and parts of one's own ---------------------------------------------


@pytest.mark.filterwarnings("ignore:SumFactory adds")
def test_unweighted_aggregator_sends_no_weight(problem):
  process = fed_avg.build_fed_avg(
    problem.model, model_aggregator=tff.aggregators.SumFactory()
  )
  expected = _round(2, {"model": 4 * _P}, {"model": 4 * _P}, weighted=0)
  assert process.traffic == {"": expected}
  assert "aggregation" not in expected.up


def test_what_an_aggregator_sends_is_counted(problem):
  """Clipping at a fixed norm sends that norm down and a count of clipped ones up."""
  clipping = tff.aggregators.clipping_factory(1.0, rounds.mean())
  process = fed_avg.build_fed_avg(problem.model, model_aggregator=clipping)
  plain = _EXPECTED["fedavg"][""]
  expected = ledger.RoundTraffic(
    down={**plain.down, "aggregation": 4}, up={**plain.up, "aggregation": 4 + 4}
  )
  assert process.traffic == {"": expected}


def test_every_part_counts_by_its_type(problem):
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
    problem.model,
    HyperParameters(),
    rounds=rounds.Round(
      client_update,
      lambda variables, aggregate, num_clients, h: variables,
      distribute,
    ),
    aggregators=OrderedDict(model=rounds.mean(), sums=tff.aggregators.SumFactory()),
    init_server=lambda: tf.zeros([5], tf.int8),
  )
  [found] = process.traffic.values()
  _assert_exact(process)
  # There is no tunable hyper-parameter and no loss.
  assert found.down == {"model": 4 * _P, "flags": 5, "hparams": 0}
  counts = 8 + 4 + 4
  assert found.up == {
    "model": 4 * _P,
    "aggregation": 4,
    "sums": 2 * 4,
    "metrics": counts,
  }


# --- Any computation ----------------------------------------------------------------


def test_counts_every_exchange_of_a_computation():
  """A second broadcast, of what was aggregated, is counted too; nothing has a name."""
  vector = tff.TensorType(np.float64, [5])

  @tff.federated_computation(
    tff.FederatedType(vector, tff.SERVER), tff.FederatedType(vector, tff.CLIENTS)
  )
  def exchange(at_server, at_clients):
    received = tff.federated_broadcast(at_server)
    total = tff.federated_sum(tff.federated_zip((at_clients, received)))
    return tff.federated_broadcast(total)

  # Down the vector, then the two sums; up two vectors.
  assert ledger.bytes_per_client(exchange) == ledger.RoundTraffic(
    down={"aggregation": 3 * 5 * 8}, up={"aggregation": 2 * 5 * 8}
  )


@pytest.mark.parametrize(
  "factory, build",
  [
    (tff.learning.robust_aggregator, fed_curv.build_fed_curv),
    (tff.learning.compression_aggregator, fed_avg.build_fed_avg),
  ],
)
def test_an_aggregators_own_traffic_is_no_parts(problem, factory, build):
  """However it names what it sends for itself, or in what form it sends the model."""
  process = build(problem.model, model_aggregator=factory())
  own, [found] = build(problem.model).traffic[""], process.traffic.values()
  _assert_exact(process)
  assert set(found.down) == {*own.down, "aggregation"}
  assert set(found.up) == set(own.up)
  for parts, plain in zip(found, own):
    assert parts["aggregation"] > plain.get("aggregation", 0)
    assert all(parts[part] == plain[part] for part in plain if part != "aggregation")


class _SumOfFirst(tff.aggregators.UnweightedAggregationFactory):
  """Sends the first number of each array alone, and takes it for all of them."""

  def create(self, value_type):
    @tff.tensorflow.computation(value_type)
    def cut(value):
      return tuple(tf.reshape(v, [-1])[0] for v in value)

    @tff.tensorflow.computation(cut.type_signature.result)
    def fill(firsts):
      return tuple(tf.fill(t.shape, v) for t, v in zip(value_type, firsts))

    @tff.federated_computation
    def initialize():
      return tff.federated_value((), tff.SERVER)

    @tff.federated_computation(
      initialize.type_signature.result, tff.FederatedType(value_type, tff.CLIENTS)
    )
    def next_fn(state, values):
      summed = tff.federated_sum(tff.federated_map(cut, values))
      result = tff.federated_map(fill, summed)
      return tff.templates.MeasuredProcessOutput(state, result, state)

    return tff.templates.AggregationProcess(initialize, next_fn)


def test_part_that_is_sent_in_fewer_bytes_counts_these(problem):
  process = fed_avg.build_fed_avg(problem.model, model_aggregator=_SumOfFirst())
  _assert_exact(process)
  expected = _round(2, {"model": 4 * _P}, {"model": 4 * 4}, weighted=0)
  assert process.traffic == {"": expected}


def test_secure_sums_are_counted():
  """Of 5 numbers of 4 bytes."""

  @tff.federated_computation(tff.FederatedType((np.int32, [5]), tff.CLIENTS))
  def exchange(at_clients):
    return tff.federated_secure_sum_bitwidth(at_clients, 8)

  assert ledger.bytes_per_client(exchange).up == {"aggregation": 20}


def test_computation_without_exchange_has_no_traffic():
  @tff.tensorflow.computation(np.float32)
  def double(x):
    return 2 * x

  @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
  def at_clients(x):
    return tff.federated_map(double, x)

  found = ledger.bytes_per_client(at_clients)
  assert found == ledger.RoundTraffic({}, {})
  assert measurements.of_traffic(found, 5) == {"bytes_down": 0, "bytes_up": 0}


# --- Records ------------------------------------------------------------------------


def test_record_of_a_round_is_of_all_its_clients():
  found = ledger.RoundTraffic(
    down={"model": 60, "hparams": 8}, up={"model": 50, "aggregation": 4, "metrics": 24}
  )
  assert measurements.of_traffic(found, 3) == {
    "bytes_down": 3 * 68,
    "bytes_up": 3 * 78,
    "bytes_down_model": 180,
    "bytes_down_hparams": 24,
    "bytes_up_model": 150,
    "bytes_up_aggregation": 12,
    "bytes_up_metrics": 72,
  }


def test_columns_are_those_of_all_kinds_of_rounds(federate):
  first = ledger.RoundTraffic(down={"a": 1}, up={})
  second = ledger.RoundTraffic(down={"b": 8}, up={})
  process = types.SimpleNamespace(traffic={"first": first, "second": second})
  assert measurements.traffic_columns(process) == [
    "bytes_down",
    "bytes_down_a",
    "bytes_down_b",
    "bytes_up",
  ]
  assert measurements.traffic_columns(federate("twafl").process) == [
    "bytes_down",
    "bytes_down_deep",
    "bytes_down_hparams",
    "bytes_down_round_num",
    "bytes_down_shallow",
    "bytes_up",
    "bytes_up_aggregation",
    "bytes_up_deep",
    "bytes_up_metrics",
    "bytes_up_shallow",
  ]
