"""Dividing a computation into parts, and joining them."""

from __future__ import annotations

import driver
import numpy as np
import problems
import pytest
import tensorflow_federated as tff

from tff_algos.errors import UnsupportedComputationError
from tff_algos.runtimes import mergeable

_AT_CLIENTS = tff.FederatedType(np.float32, tff.CLIENTS)
_AT_SERVER = tff.FederatedType(np.float32, tff.SERVER)


@tff.tensorflow.computation(np.float32, np.float32)
def _add(x, y):
  return x + y


def _run_in_parts(comp: tff.Computation, arg, num_parts: int):
  """What the computation returns, and how many parts there were."""
  parameter = comp.type_signature.parameter
  divided = mergeable.split(comp)
  arguments = mergeable.split_argument(arg, parameter, num_parts)
  parts = [divided.part(*argument) for argument in arguments]
  at_server = []
  if divided.build_join is not None:
    no_clients = mergeable.with_clients(arg, parameter, slice(0))
    join = divided.build_join(len(parts))
    at_server = join(no_clients, [part[0] for part in parts])
  each = [part[1] for part in parts]
  return mergeable.join_results(divided, each, at_server), len(parts)


@pytest.fixture(autouse=True)
def _installed(in_process):
  """The parts run in this process."""


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "twafl", "fedcurv"])
def test_a_round_in_parts_is_the_round(tmp_path, name):
  problem = problems.make("noisy", str(tmp_path))
  hparams = driver.hparams_of(name)
  process = driver.build(name, problem, hparams)
  whole = driver.Federation(process, problem, hparams, seed=3).round((0, 1, 2))
  next_fn = process.next_of(1)
  inputs = [
    driver.ClientInput(problem.directory.path(str(c)), problems.client_seed(3, 1, c))
    for c in (2, 0, 1)
  ]
  arg = whole.state, [whole.client_states[c] for c in (2, 0, 1)], inputs
  expected = next_fn(*arg)
  found, num_parts = _run_in_parts(next_fn, arg, 2)
  assert num_parts == 2
  assert type(found) is type(expected)
  assert type(found.state) is type(expected.state)
  driver.assert_within_rounding(found.state, expected.state, "the server state")
  driver.assert_same(found.client_states, expected.client_states)
  driver.assert_within_rounding(found.metrics, expected.metrics, "the metrics")


def test_clients_are_divided_evenly_and_in_order():
  parameter = tff.StructType([("x", _AT_CLIENTS), ("y", _AT_SERVER)])

  def divide(num_clients, num_parts):
    arg = list(range(num_clients)), 7.0
    parts = mergeable.split_argument(arg, parameter, num_parts)
    assert all(part.y == 7.0 for part in parts)
    return [part.x for part in parts]

  assert divide(7, 3) == [[0, 1, 2], [3, 4], [5, 6]]
  assert divide(2, 3) == [[0], [1]]
  assert divide(0, 3) == [[]]


def test_refuses_arguments_for_different_numbers_of_clients():
  parameter = tff.StructType([_AT_CLIENTS, _AT_CLIENTS])
  with pytest.raises(ValueError, match="different numbers of clients: 1, 2"):
    mergeable.split_argument(([1.0], [1.0, 2.0]), parameter, 2)


def test_results_may_be_anywhere():
  @tff.federated_computation(_AT_CLIENTS, _AT_SERVER)
  def comp(values, offset):
    shifted = tff.federated_map(_add, (values, tff.federated_broadcast(offset)))
    total = tff.federated_sum(shifted)
    return (
      shifted,
      (tff.federated_broadcast(offset), total),
      tff.federated_map(_add, (total, offset)),
      values,
    )

  found, _ = _run_in_parts(comp, ([1.0, 2.0, 3.0], 10.0), 2)
  assert found == ([11.0, 12.0, 13.0], (10.0, 36.0), 46.0, [1.0, 2.0, 3.0])


@pytest.mark.parametrize("num_parts", [1, 2])
def test_parts_are_merged_before_the_report(num_parts):
  integer = tff.FederatedType(np.int32, tff.CLIENTS)
  pair = (np.int32, np.int32)
  add = tff.tensorflow.computation(lambda x, y: x + y, pair)
  square = tff.tensorflow.computation(lambda x: x * x, np.int32)

  @tff.federated_computation(integer, _AT_SERVER)
  def squared_total(values, other):
    return tff.federated_aggregate(values, 0, add, add, square), other

  found = _run_in_parts(squared_total, ([1, 2, 3], 4.0), num_parts)
  assert found == ((36, 4.0), num_parts)


def test_without_an_aggregation_there_is_nothing_to_join():
  @tff.federated_computation(_AT_CLIENTS)
  def double(values):
    return tff.federated_map(_add, (values, values))

  divided = mergeable.split(double)
  assert divided.build_join is None
  parts = [[[2.0]], [[4.0, 6.0]]]
  assert mergeable.join_results(divided, parts, []) == [2.0, 4.0, 6.0]


def test_refuses_an_aggregate_of_an_aggregate():
  @tff.federated_computation(_AT_CLIENTS)
  def comp(values):
    total = tff.federated_broadcast(tff.federated_sum(values))
    return tff.federated_sum(tff.federated_map(_add, (values, total)))

  with pytest.raises(UnsupportedComputationError, match="more than once in a row"):
    mergeable.split(comp)


def test_refuses_to_give_clients_an_aggregate():
  @tff.federated_computation(_AT_CLIENTS)
  def comp(values):
    return tff.federated_broadcast(tff.federated_sum(values))

  with pytest.raises(UnsupportedComputationError, match="gives back to its clients"):
    mergeable.split(comp)


def test_knows_what_takes_clients():
  assert mergeable.takes_clients(tff.StructType([_AT_SERVER, _AT_CLIENTS]))
  assert not mergeable.takes_clients(tff.StructType([_AT_SERVER]))
  assert not mergeable.takes_clients(None)
