"""Law: a process is what it was built with, and nothing else.

Every builder takes the given aggregator for the mean of the model (TWAFL and its parts:
for the sum of each part), and every process starts where it should. One of each kind is
built anew, with half of every tunable hyper-parameter and with an aggregator of ours, and
starts with that aggregator's state. Its rounds are those of the process that the other
tests share, where the same values were set: bit for bit, so that

- setting a hyper-parameter is building with it,
- a process built anew, and traced anew, gives the same,
- the aggregator that it has by default is the mean (TWAFL and its parts: the sum), for
  ours is the mean too, or the sum, until in round 2 it begins to halve it.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections import OrderedDict

import driver
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.aggregators.client_memory import Contribution
from tff_algos.algorithms import registry
from tff_algos.errors import InputError
from tff_algos.templates import composer

# The last one is halved.
ROUNDS = ((0, 1, 2, 3, 4), (4, 2, 0), (3, 2, 1, 0))


def halved_from_round_2(process: tff.templates.AggregationProcess):
  """The process, with the number of its rounds in its state."""
  state_type = process.state_type.member
  result_type = process.next.type_signature.result.result.member

  @tff.tensorflow.computation(result_type, np.int32)
  def scale(result, rounds_done):
    factor = tf.where(rounds_done < len(ROUNDS) - 1, 1.0, 0.5)
    return tf.nest.map_structure(lambda v: v * factor, result)

  @tff.tensorflow.computation(np.int32)
  def count(rounds_done):
    return rounds_done + 1

  @tff.federated_computation
  def initialize():
    nothing_done = tff.federated_value(np.int32(0), tff.SERVER)
    return tff.federated_zip((process.initialize(), nothing_done))

  def finish(output, rounds_done):
    return tff.templates.MeasuredProcessOutput(
      tff.federated_zip((output.state, tff.federated_map(count, rounds_done))),
      tff.federated_map(scale, (output.result, rounds_done)),
      tff.federated_zip(OrderedDict(rounds_done=rounds_done, inner=output.measurements)),
    )

  arguments = list(process.next.type_signature.parameter)[1:]
  types = tff.FederatedType((state_type, np.int32), tff.SERVER), *arguments
  if process.is_weighted:

    @tff.federated_computation(*types)
    def next_fn(state, value, weight):
      return finish(process.next(state[0], value, weight), state[1])

  else:

    @tff.federated_computation(*types)
    def next_fn(state, value):
      return finish(process.next(state[0], value), state[1])

  return tff.templates.AggregationProcess(initialize, next_fn)


class HalvedMean(tff.aggregators.WeightedAggregationFactory):
  def create(self, value_type, weight_type):
    mean = tff.aggregators.MeanFactory(no_nan_division=True)
    return halved_from_round_2(mean.create(value_type, weight_type))


class HalvedSum(tff.aggregators.UnweightedAggregationFactory):
  def create(self, value_type):
    return halved_from_round_2(tff.aggregators.SumFactory().create(value_type))


def halved(name: str) -> dict:
  """Of all tunables, half the value that `federate` gives them."""
  values = driver.tunables_of(driver.hparams_of(name)).items()
  return {k: 0.5 * float(v) for k, v in values if k not in driver.SHAPE_THE_START}


@pytest.fixture(scope="module")
def build_anew(in_process, problem_of):
  """`(name) -> process`; the last one is kept for the next test of the algorithm."""
  made = {}

  def get(name):
    if name not in made:
      made.clear()
      hparams = driver.hparams_of(name, **halved(name))
      aggregator = HalvedSum() if name in driver.SUMMING else HalvedMean()
      made[name] = driver.build(name, problem_of("noisy_mlp"), hparams, aggregator)
    return made[name]

  return get


class Composed(Exception):
  """A process was about to be composed, with these aggregators."""


class Asked(Exception):
  """A factory was asked for an aggregation process."""


class Asking(HalvedSum):
  def create(self, value_type):
    raise Asked


@pytest.mark.parametrize("name", registry.ALGORITHMS)
def test_every_builder_takes_the_given_aggregator(problem_of, monkeypatch, name):
  """For the model and no other part, or for each part that is summed."""

  def compose(model, hparams, *, aggregators, **others):
    raise Composed(aggregators)

  monkeypatch.setattr(composer, "compose_process", compose)
  given = Asking() if name in driver.SUMMING else HalvedMean()
  with pytest.raises(Composed) as composed:
    driver.build(name, problem_of("mlp"), driver.hparams_of(name), given)
  [aggregators] = composed.value.args
  if name not in driver.SUMMING:
    assert [part for part, factory in aggregators.items() if factory is given] == [
      "model"
    ]
    return
  for factory in aggregators.values():
    with pytest.raises(Asked):
      factory.create(tff.to_type(Contribution((np.float32,), np.float32)))


def assert_starts_where_it_should(process, problem, hparams):
  state = process.initialize()
  weights = process.get_model_weights(state)
  driver.assert_same(weights.trainable, problem.model.initial_weights)
  assert weights.non_trainable == ()
  tunables = [f.name for f in dataclasses.fields(hparams) if f.metadata["tunable"]]
  found = process.get_hparams(state)
  assert "learning_rate" in tunables and list(found) == tunables
  for tunable in tunables:
    assert found[tunable] == np.float32(getattr(hparams, tunable))
  assert state.round_num == 0
  return state


@pytest.mark.parametrize("name", registry.ALGORITHMS)
def test_every_process_starts_at_the_models_weights_and_its_hparams(federate, name):
  federation = federate(name)
  built_with = driver.fixed_part(federation.hparams)
  assert_starts_where_it_should(federation.process, federation.problem, built_with)


@driver.every_algorithm
def test_it_starts_with_the_given_hparams_and_its_aggregators_state(
  build_anew, problem_of, name
):
  hparams = driver.hparams_of(name, **halved(name))
  process = build_anew(name)
  state = assert_starts_where_it_should(process, problem_of("noisy_mlp"), hparams)
  parts = state.aggregator
  ours = (
    [p["sum"] for p in parts.values()] if name in driver.SUMMING else [parts["model"]]
  )
  assert all(rounds_done == 0 for _, rounds_done in ours)


@driver.every_algorithm
def test_its_rounds_are_the_same_until_its_aggregator_is_another(
  build_anew, federate, name
):
  untouched, tuned = federate(name, "noisy_mlp"), federate(name, "noisy_mlp")
  new = {k: np.float32(v) for k, v in halved(name).items()}
  tuned.state = driver.set_hparams(tuned.process, tuned.state, new)
  found = tuned.process.get_hparams(tuned.state)
  assert {k: found[k] for k in new} == new
  hparams = driver.hparams_of(name, **halved(name))
  process = build_anew(name)
  anew = driver.Federation(process, tuned.problem, hparams, tuned.seed)
  anew.state = process.initialize()
  for t, clients in enumerate(ROUNDS):
    for federation in (untouched, tuned, anew):
      federation.round(clients)
    assert driver.differ(tuned.weights, untouched.weights)
    if t == len(ROUNDS) - 1:
      assert driver.differ(anew.weights, tuned.weights)
      continue
    for part in ("variables", "hparams", "round_num"):
      found, expected = (getattr(f.state, part) for f in (anew, tuned))
      driver.assert_same(found, expected, f"{part}, round {t}")
    driver.assert_same(anew.training, tuned.training, f"the metrics, round {t}")
    driver.assert_same(anew.client_states, tuned.client_states, f"clients, round {t}")


_COUNTS = [
  (name, count)
  for name, row in registry.ALGORITHMS.items()
  for count in ("num_clients", "num_examples")
  if count in inspect.signature(row.builder).parameters
]


@pytest.mark.parametrize("value", [0, -1, 1.5, True])
@pytest.mark.parametrize("name, count", _COUNTS)
def test_a_population_that_is_none_is_refused(problem_of, name, count, value):
  """Of no example FedDyn's share would be infinite, and nothing would regularize."""
  counts = {**{c: 5 for n, c in _COUNTS if n == name}, count: value}
  hparams = driver.hparams_of(name)
  with pytest.raises(InputError, match=rf"^{count} must be .*{value}"):
    registry.get(name).builder(problem_of("mlp").model, hparams, **counts)
