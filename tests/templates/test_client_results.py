"""What of a client's result is looked at before it counts."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
import tree

import tff_algos
from tff_algos.client_work.model_update import ClientResult
from tff_algos.templates import client_results


@pytest.mark.parametrize("part", ["message", "weight", "client_state", "metrics"])
def test_a_number_that_is_not_finite_anywhere_in_a_result_drops_it(part):
  one = tf.constant(1.0)
  result = ClientResult(
    OrderedDict(model=(tf.ones([2]),)),
    OrderedDict(model=one),
    tf.ones([3]),
    OrderedDict(loss=(one, one)),
  )
  before = tf.zeros([3])
  kept = client_results.drop_non_finite(result, before, tf.constant(5))
  assert int(kept.totals["counts"]["num_accepted"]) == 1
  spoilt = tf.nest.map_structure(lambda v: v * np.nan, getattr(result, part))
  changed = result._replace(**{part: spoilt})
  found = client_results.drop_non_finite(changed, before, tf.constant(5))
  assert int(found.totals["counts"]["num_dropped"]) == 1
  for value in tree.flatten((found.message, found.weight, found.client_state)):
    np.testing.assert_array_equal(value, np.zeros_like(value))


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_client_that_was_dropped_stays_so_and_counts_once(is_kept):
  """Such as one that is not finite, whose norm of zeros is within any limit."""
  one = tf.constant(1.0)
  result = ClientResult(
    OrderedDict(model=one * np.nan), OrderedDict(model=one), (), OrderedDict()
  )
  dropped = client_results.drop_non_finite(result, (), tf.constant(5))
  found = client_results.drop_unless(tf.constant(is_kept), dropped, ())
  counts = {name: int(count) for name, count in found.totals["counts"].items()}
  assert counts == dict(num_examples=0, num_accepted=0, num_dropped=1)


@pytest.mark.parametrize("least, is_taken", [(-1e-3, False), (0.0, True), (2.0, True)])
def test_negative_weight_of_any_part_drops_the_client(least, is_taken):
  ones, one = (tf.ones([2]),), tf.constant(1.0)
  result = ClientResult(
    OrderedDict(model=ones, extra=ones),
    OrderedDict(model=one, extra=tf.constant(least)),
    (),
    OrderedDict(loss=(one, one)),
  )
  found = client_results.drop_non_finite(result, (), tf.constant(5))
  assert bool(found.totals["counts"]["num_accepted"]) == is_taken
  np.testing.assert_array_equal(found.message["model"][0], np.ones(2) * is_taken)


@pytest.mark.parametrize(
  "value, is_taken",
  [
    (tf.fill([9], tf.constant(1e3, tf.float16)), True),  # Their squares are infinite.
    (tf.constant([1, np.inf], tf.float16), False),
    (tf.constant([1 + 2j, 3], tf.complex64), True),
    (tf.constant([complex(1, np.nan)], tf.complex64), False),
    (tf.fill([9], tf.constant(1e30, tf.float64)), False),  # As the docstring says.
    (tf.constant([2**62], tf.int64), True),
  ],
)
def test_numbers_of_all_types_are_looked_at(value, is_taken):
  one = tf.constant(1.0)
  result = ClientResult(
    OrderedDict(model=(value,)), OrderedDict(model=one), (), OrderedDict(loss=(one, one))
  )
  found = client_results.drop_non_finite(result, (), tf.constant(5))
  assert bool(found.totals["counts"]["num_accepted"]) == is_taken


def _by_labels(factory, tmp_path, norm_limit=None):
  """A process whose clients send 0.5 and weigh the sum of their labels, and two files.

  Returns:
    The process, and `(the clients' states, labels: 0 or 1 for each) -> its inputs`.
  """
  spec = tff_algos.ExampleSpec(
    tf.TensorSpec([1], tf.float32), tf.TensorSpec([], tf.float32)
  )
  model = tff_algos.Model(
    initial_weights=(np.zeros([1], np.float32),),
    weight_names=("w",),
    example_spec=spec,
    predict=lambda weights, x, training, seed: x * weights[0],
    example_losses=lambda y, predicted: y - predicted[:, 0],
    metrics={},
  )

  def client_update(received, client_state, examples, seed, h):
    return ClientResult(
      OrderedDict(model=(tf.constant([0.5]),)),
      OrderedDict(model=tf.reduce_sum(examples.y)),
      client_state,
      OrderedDict(loss=(tf.constant(1.0), tf.constant(1.0))),
    )

  def server_update(variables, aggregate, num_clients, h):
    moved = tuple(map(tf.add, variables.model, aggregate["model"]))
    return variables._replace(model=moved)

  process = tff_algos.compose_process(
    model,
    tff_algos.FedAvgHparams(),
    rounds=tff_algos.Round(client_update, server_update),
    aggregators=OrderedDict(model=factory),
    norm_limit=norm_limit,
  )
  clients = {f"{k}": (np.ones([2, 1], np.float32), np.float32([k, k])) for k in range(2)}
  directory = tff_algos.write_clients(str(tmp_path / "clients"), clients, spec)

  def inputs(labels):
    return [
      tff_algos.ClientInput(directory.path(str(label)), tff_algos.client_seed(0, 0, k))
      for k, label in enumerate(labels)
    ]

  return process, inputs


@pytest.mark.parametrize(
  "factory",
  [
    tff_algos.mean(),
    tff_algos.median_factory(),
    tff.learning.robust_aggregator(),
    pytest.param(tff.learning.secure_aggregator(), marks=pytest.mark.thorough),
  ],
  ids=["mean", "median", "robust", "secure"],
)
@pytest.mark.parametrize("norm_limit", [None, 5.0])
def test_a_round_of_clients_that_count_for_nothing_changes_nothing(
  in_process, tmp_path, factory, norm_limit
):
  """Else the model, or a norm that an aggregator learns, would be no number for good."""
  process, inputs = _by_labels(factory, tmp_path, norm_limit)
  found = []
  state = process.initialize()
  for labels in ([0, 0], [0, 1], [0, 0], [1]):
    states = [process.initialize_client() for _ in labels]
    output = process.next(state, states, inputs(labels))
    if labels == [0, 0]:
      tree.map_structure(
        np.testing.assert_array_equal, state.aggregator, output.state.aggregator
      )
    state = output.state
    counts = output.metrics["client_work"]["train"]
    found.append((counts["num_accepted"], counts["num_dropped"], counts["num_examples"]))
  assert found == [(0, 0, 4), (1, 0, 4), (0, 0, 4), (1, 0, 2)]
  # A secure sum is of whole numbers.
  np.testing.assert_allclose(process.get_model_weights(state).trainable[0], [1], 1e-3)


def test_clients_count_where_their_weights_are_not_looked_at(in_process, tmp_path):
  mean = tff.aggregators.UnweightedMeanFactory()
  process, inputs = _by_labels(mean, tmp_path, norm_limit=5.0)
  state = process.initialize()
  for labels, moved in (([0, 1], 0.5), ([0], 1.0), ([0, 0], 1.5)):
    output = process.next(state, [()] * len(labels), inputs(labels))
    state = output.state
    np.testing.assert_allclose(state.variables.model[0], [moved])
    assert output.metrics["client_work"]["train"]["num_accepted"] == len(labels)


def test_client_whose_weight_has_become_0_takes_back_what_it_added(in_process, tmp_path):
  """Of clients that count 4 together, it is 2 in round 1 and sends 0.5."""
  factory = tff_algos.TemporalWeightingFactory(
    [np.zeros([1], np.float32)], total_weight=4.0, base=1.0
  )
  process, inputs = _by_labels(factory, tmp_path)
  state, own = process.initialize(), process.initialize_client()
  for label, expected in ((1, 2 * 0.5 / 4), (0, 0.0)):
    output = process.next(state, [own], inputs([label]))
    state, [own] = output.state, output.client_states
    np.testing.assert_allclose(state.variables.model[0], [expected])


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
def test_messages_in_half_precision_have_their_mean_in_float32(in_process, dtype):
  """700 times 100 is infinite in float16, and 1,400 + 1 has no place in it."""
  mixed = tff.to_type((tff.TensorType(dtype.as_numpy_dtype, [2]), np.float32))
  process = tff_algos.mean().create(mixed, tff.TensorType(np.float32))
  sent = np.array([[100, 0.5], [-3, 1], [100, 7]], np.float32)
  weights = [700.0, 701.0, 1.0]
  values = [(tf.constant(row, dtype), row[1]) for row in sent]
  half, whole = process.next(process.initialize(), values, weights).result
  expected = np.average(sent.astype(np.float64), axis=0, weights=weights)
  assert half.dtype == whole.dtype == np.float32
  np.testing.assert_allclose(half, expected, rtol=1e-6)
  np.testing.assert_allclose(whole, expected[1], rtol=1e-6)


@pytest.mark.parametrize("dtype", [tf.float32, tf.float16, tf.bfloat16])
def test_mean_of_clients_that_count_for_nothing_is_0(in_process, dtype):
  """Which may be accepted, so that the model would be no number from then on."""
  process = tff_algos.mean().create(
    tff.TensorType(dtype.as_numpy_dtype, [2]), tff.TensorType(np.float32)
  )
  values = [tf.constant([1, 2], dtype), tf.constant([3, 6], dtype)]
  for weights, expected in (([0.0, 0.0], [0, 0]), ([1.0, 3.0], [2.5, 5])):
    found = process.next(process.initialize(), values, weights)
    np.testing.assert_array_equal(found.result, expected)
