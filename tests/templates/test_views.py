"""The views of a process as TFF's own kinds, by running both."""

from __future__ import annotations

import collections
import os

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
import tree

import tff_algos
from tff_algos.runtimes import runtime
from tff_algos.simulation import measurements
from tff_algos.templates import views

_SPEC = tff_algos.ExampleSpec(
  tf.TensorSpec([4, 4, 1], tf.uint8), tf.TensorSpec([], tf.int32)
)
_RATE = 0.3


@pytest.fixture(scope="module", autouse=True)
def installed():
  with runtime.create_runtime():
    yield


@pytest.fixture(scope="module")
def keras_model():
  model = tf.keras.Sequential(
    [
      tf.keras.layers.Input((4, 4, 1)),
      tf.keras.layers.Flatten(),
      tf.keras.layers.Dense(3),
    ]
  )
  tff_algos.reinitialize(model, 1)
  return model


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
  draw = np.random.default_rng(0)
  clients = {
    str(i): (
      draw.integers(0, 255, (5 + i, 4, 4, 1), dtype=np.uint8),
      draw.integers(0, 3, 5 + i, dtype=np.int32),
    )
    for i in range(4)
  }
  folder = str(tmp_path_factory.mktemp("clients"))
  directory = tff_algos.write_clients(folder, clients, _SPEC)
  return [
    tff_algos.ClientInput(directory.path(c), tff_algos.client_seed(0, 0, i))
    for i, c in enumerate(directory.ids)
  ]


@pytest.fixture(scope="module")
def fed_avg(keras_model):
  model = tff_algos.from_keras(keras_model, _SPEC)
  hparams = tff_algos.FedAvgHparams(batch_size=None, learning_rate=_RATE)
  return tff_algos.build_fed_avg(model, hparams)


@pytest.fixture(scope="module")
def scaffold(keras_model):
  model = tff_algos.from_keras(keras_model, _SPEC)
  return tff_algos.build_scaffold(model, num_clients=4)


def _assert_equal(a, b):
  tree.map_structure(np.testing.assert_array_equal, a, b)


def test_a_learning_process_does_the_same_round(fed_avg, inputs):
  view = views.as_learning_process(fed_avg)
  assert isinstance(view, tff.learning.templates.LearningProcess)
  state = fed_avg.initialize()
  expected = fed_avg.next(state, [()] * len(inputs), inputs)
  found = view.next(view.initialize(), inputs)
  _assert_equal(found.state, expected.state)
  _assert_equal(found.metrics, expected.metrics)
  _assert_equal(view.get_model_weights(state), fed_avg.get_model_weights(state))
  assert view.get_hparams(state)["learning_rate"] == np.float32(_RATE)
  changed = {**view.get_hparams(state), "learning_rate": np.float32(0.5)}
  assert view.get_hparams(view.set_hparams(state, changed)) == changed


def test_a_learning_process_whose_metrics_are_a_number_is_simulated(inputs):
  """It has nothing for a record."""
  to_weights = tff.learning.models.ModelWeights

  @tff.federated_computation
  def initialize():
    return tff.federated_value(0, tff.SERVER)

  @tff.federated_computation(
    tff.FederatedType(np.int32, tff.SERVER),
    tff.FederatedType(tff.SequenceType(np.int32), tff.CLIENTS),
  )
  def next_fn(state, data):
    count = tff.tensorflow.computation(lambda x: x + 1, np.int32)
    new = tff.federated_map(count, state)
    return tff.learning.templates.LearningProcessOutput(new, new)

  @tff.tensorflow.computation(np.int32)
  def get_weights(state):
    return to_weights((tf.cast(state, tf.float32),), ())

  @tff.tensorflow.computation(np.int32, get_weights.type_signature.result)
  def set_weights(state, weights):
    return state

  process = tff_algos.from_learning_process(
    tff.learning.templates.LearningProcess(initialize, next_fn, get_weights, set_weights),
    _SPEC,
    lambda examples, seed: tf.data.Dataset.from_tensor_slices(examples.y),
  )
  folder = os.path.dirname(os.path.dirname(inputs[0].path))
  clients = tff_algos.ClientDirectory(folder)
  done = tff_algos.simulate(process, clients, tff_algos.Settings(2, 2))
  assert done.state == 2
  assert measurements.training_columns(process) == []
  assert measurements.aggregators_columns(process) == []
  assert not [name for name in done.records[0] if name.startswith(("train", "aggreg"))]


@pytest.mark.parametrize(
  "changed, said",
  [
    (dict(process=None), r"process must be a tff\.learning\.\w+\.LearningProcess; "),
    (dict(example_spec=None), r"ExampleSpec"),
    (dict(make_dataset=1), "make_dataset must be a function of examples and a seed; "),
  ],
)
def test_what_cannot_be_adapted_is_one_sentence(fed_avg, changed, said):
  given = dict(process=views.as_learning_process(fed_avg), example_spec=_SPEC)
  given["make_dataset"] = lambda examples, seed: None
  with pytest.raises(tff_algos.InputError, match=said):
    views.from_learning_process(**{**given, **changed})


def test_no_learning_process_of_clients_with_a_state(scaffold):
  with pytest.raises(ValueError, match="clients' states"):
    views.as_learning_process(scaffold)


def test_no_learning_process_of_several_kinds_of_rounds(fed_avg):
  """It would do those of one kind only."""
  kinds = tff_algos.StatefulProcess(
    fed_avg.initialize,
    fed_avg.initialize_client,
    {"even": fed_avg.next, "odd": fed_avg.next},
    fed_avg.get_model_weights,
    fed_avg.set_model_weights,
    fed_avg.get_hparams,
    fed_avg.set_hparams,
    schedule=("even", "odd"),
  )
  with pytest.raises(tff_algos.InputError, match=r"kinds of rounds \(even, odd\): use"):
    views.as_learning_process(kinds)


@pytest.mark.parametrize("name", ["fed_avg", "scaffold"])
def test_the_on_device_round_compiles_to_both_forms(name, request, inputs):
  process = request.getfixturevalue(name)
  on_device = views.on_device_next(process)
  compilers = tff.backends.mapreduce
  compilers.get_map_reduce_form_for_computation(on_device)
  compilers.get_distribute_aggregate_form_for_computation(on_device)
  own = process.initialize_client()
  state, metrics = on_device(
    process.initialize(), [views.OnDeviceInput(own, data) for data in inputs]
  )
  expected = process.next(process.initialize(), [own] * len(inputs), inputs)
  _assert_equal(state, expected.state)
  _assert_equal(metrics, expected.metrics)


@pytest.fixture(scope="module")
def stock(keras_model, fed_avg):
  """TFF's own FedAvg, which takes batches of pixels from 0 to 1.

  Making it leaves Keras models of no more use, so ours comes before it.
  """
  del fed_avg
  copy = tf.keras.models.clone_model(keras_model)
  copy.set_weights(keras_model.get_weights())
  functional = tff.learning.models.functional_model_from_keras(
    copy,
    tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    (tf.TensorSpec([None, 4, 4, 1], tf.float32), tf.TensorSpec([None], tf.int32)),
    metrics_constructor=collections.OrderedDict,
  )
  return tff.learning.algorithms.build_weighted_fed_avg(
    functional,
    client_optimizer_fn=tff.learning.optimizers.build_sgdm(_RATE),
    server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0),
  )


def test_a_stock_process_of_one_full_batch_is_our_fed_avg(stock, fed_avg, inputs):
  def one_batch(examples, seed):
    del seed
    x = tf.cast(examples.x, tf.float32) / 255
    return tf.data.Dataset.from_tensor_slices((x, examples.y)).batch(100)

  adapted = views.from_learning_process(stock, _SPEC, one_batch)
  nothing = [()] * len(inputs)
  # The weights' 51 numbers down; up these and more, such as the metrics.
  [crossing] = adapted.traffic.values()
  assert crossing.down == {"aggregation": 4 * 51}
  assert list(crossing.up) == ["aggregation"] and crossing.up["aggregation"] > 4 * 51
  found = adapted.next(adapted.initialize(), nothing, inputs)
  expected = fed_avg.next(fed_avg.initialize(), nothing, inputs)
  assert found.client_states == nothing
  weights = adapted.get_model_weights(found.state).trainable
  for a, b in zip(weights, expected.state.variables.model):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert np.abs(b).max() > 1e-3


def test_a_round_with_nobody_leaves_a_stock_process_alone(stock, tmp_path):
  """TFF's own is not asked: some divide by the weight of all clients, which is 0."""
  draw = np.random.default_rng(0)
  data = {f"{k}": (draw.random((3, 4, 4, 1)), draw.integers(0, 3, 3)) for k in range(4)}
  spec = _SPEC._replace(x=tf.TensorSpec([4, 4, 1], tf.float32))
  clients = tff_algos.write_clients(str(tmp_path / "clients"), data, spec)

  def batches(examples, seed):
    del seed
    return tf.data.Dataset.from_tensor_slices((examples.x, examples.y)).batch(2)

  adapted = views.from_learning_process(stock, spec, batches)
  settings = tff_algos.Settings(
    rounds=6, clients_per_round=1, availability=tff_algos.Availability(0.5)
  )
  attending = [len(settings.attendance(4, t).taking_part) for t in range(6)]
  assert set(attending) == {0, 1}
  starts = []
  result = tff_algos.simulate(adapted, clients, settings, before_round=starts.append)
  states = [*(start.state for start in starts), result.state]
  for there, before, after, record in zip(attending, states, states[1:], result.records):
    a, b = (adapted.get_model_weights(s).trainable for s in (before, after))
    is_same = all(np.array_equal(x, y) for x, y in zip(a, b))
    assert is_same == (there == 0)
    assert there or "train_loss" not in record
    assert (record["bytes_up"] > 0) == (there == 1)


def test_each_client_of_a_stock_process_makes_its_data_set_by_its_own_seed(stock, inputs):
  """Examples that are nothing but draws: a step of softmax regression on them all."""

  def draw(number, seed):
    x = tf.random.stateless_normal([number, 4, 4, 1], seed)
    return x, tf.random.stateless_uniform([number], seed, maxval=3, dtype=tf.int32)

  def drawn(examples, seed):
    x, y = draw(tf.shape(examples.y)[0], seed)
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(100)

  adapted = views.from_learning_process(stock, _SPEC, drawn)

  def round_of(seeds):
    given = [i._replace(seed=np.array(s, np.int32)) for i, s in zip(inputs, seeds)]
    output = adapted.next(adapted.initialize(), [()] * len(given), given)
    return adapted.get_model_weights(output.state).trainable

  kernel, bias = stock.get_model_weights(stock.initialize()).trainable
  one, other = [[k, 7] for k in range(4)], [[7, 1], [1, 7], [0, 7], [0, 0]]
  for seeds in (one, other):
    parts = [draw(5 + k, seed) for k, seed in enumerate(seeds)]  # Of 5 to 8 examples.
    x, y = (np.concatenate(arrays) for arrays in zip(*parts))
    x = x.reshape(len(y), -1)
    powers = np.exp(x @ kernel + bias)
    slope = powers / powers.sum(axis=1, keepdims=True) - np.eye(3)[y]
    expected = kernel - _RATE * x.T @ slope / len(y), bias - _RATE * slope.mean(axis=0)
    for a, b in zip(round_of(seeds), expected):
      np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
  _assert_equal(round_of(one), round_of(one))


def test_a_stock_process_does_not_read_files_as_other_numbers(stock, tmp_path):
  """Of as many bytes, which would be trained on without a word."""
  written = _SPEC._replace(y=tf.TensorSpec([], tf.float32))
  data = {"a": (np.zeros((2, 4, 4, 1), np.uint8), [1.0, 2.0])}
  clients = tff_algos.write_clients(tmp_path, data, written)
  adapted = views.from_learning_process(
    stock,
    _SPEC,
    lambda examples, seed: tf.data.Dataset.from_tensors(
      (tf.cast(examples.x, tf.float32), examples.y)
    ),
  )
  with pytest.raises(tff_algos.InputError, match=r"written with .*'float32'"):
    tff_algos.simulate(adapted, clients, tff_algos.Settings(1, 1))
  with pytest.raises(tff_algos.InputError, match=r"written with .*'float32'"):
    clients.examples("a", _SPEC)
