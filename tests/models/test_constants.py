"""What a Keras model does not train: constants, which take part and never move.

In every model here only the last layer, a softmax regression on the features that the
layers before it give, is trained. So NumPy replays a process by features and formulas.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from tff_algos import client_data
from tff_algos.algorithms import fed_avg, scaffold
from tff_algos.errors import InputError
from tff_algos.models import functional, keras, to_keras

_layers = tf.keras.layers
_SEED = tf.constant([1, 2])
_FEATURES, _WIDTH, _CLASSES = 6, 30, 3
_SIZES = (7, 12, 4)
_RATE, _EPOCHS = 0.3, 2
_SPEC = functional.ExampleSpec(
  tf.TensorSpec([_FEATURES], tf.float32), tf.TensorSpec([], tf.int32)
)


class _Case(NamedTuple):
  """A Keras model, and what its layers before the last one compute, in float64."""

  keras_model: tf.keras.Model
  features: object


def _input():
  return _layers.Input([_FEATURES])


def _draw(seed: int = 0) -> np.random.Generator:
  return np.random.default_rng(seed)


def _with_pretrained_base() -> _Case:
  # Of more than 128 numbers: TensorFlow copies smaller tensors into its graphs by itself.
  kernel = _draw().normal(size=(_FEATURES, _WIDTH))
  bias = _draw(1).normal(size=_WIDTH)
  base = tf.keras.Sequential([_input(), _layers.Dense(_WIDTH, "tanh")])
  base.set_weights([kernel, bias])
  base.trainable = False
  model = tf.keras.Sequential([_input(), base, _layers.Dense(_CLASSES)])
  return _Case(model, lambda x: np.tanh(x @ kernel + bias))


def _with_adapted_normalization() -> _Case:
  seen = _draw().normal(3.0, 2.0, size=(500, _FEATURES)) * np.arange(1, 1 + _FEATURES)
  layer = _layers.Normalization()
  layer.adapt(seen)
  model = tf.keras.Sequential([_input(), layer, _layers.Dense(_CLASSES)])
  return _Case(model, lambda x: (x - seen.mean(0)) / seen.std(0))


def _with_frozen_batch_normalization() -> _Case:
  layer = _layers.BatchNormalization(epsilon=0.1)
  model = tf.keras.Sequential([_input(), layer, _layers.Dense(_CLASSES)])
  gamma, beta, mean, variance = _draw().uniform(0.5, 2.0, size=(4, _FEATURES))
  layer.set_weights([gamma, beta, mean, variance])
  layer.trainable = False
  return _Case(model, lambda x: gamma * (x - mean) / np.sqrt(variance + 0.1) + beta)


_CASES = dict(
  base=_with_pretrained_base,
  normalization=_with_adapted_normalization,
  batch_normalization=_with_frozen_batch_normalization,
)
every_case = pytest.mark.parametrize("name", _CASES)


def _batch(seed: int = 5, size: int = 9) -> np.ndarray:
  return _draw(seed).normal(2.0, 2.0, size=(size, _FEATURES)).astype(np.float32)


def _predict(model: functional.Model, weights, x, training: bool = False) -> np.ndarray:
  return tf.function(model.predict)(weights, x, training, _SEED).numpy()


# --- In a process ---------------------------------------------------------------------


def _gradient(weights, features, y):
  """Of the mean cross-entropy of all examples: kernel and bias."""
  logits = features @ weights[0] + weights[1]
  p = np.exp(logits - logits.max(1, keepdims=True))
  p = p / p.sum(1, keepdims=True) - np.eye(_CLASSES)[y]
  return np.array([features.T @ p / len(y), p.mean(0)], dtype=object)


def _replay_fed_avg(weights, clients, num_rounds: int):
  """x <- sum n_i w_i / sum n_i, with w <- w - eta g(w) on all examples of a client."""
  for _ in range(num_rounds):
    local = []
    for features, y in clients:
      w = weights
      for _ in range(_EPOCHS):
        w = w - _RATE * _gradient(w, features, y)
      local.append(w)
    sizes = [len(y) for _, y in clients]
    weights = sum(n * w for n, w in zip(sizes, local)) / sum(sizes)
  return weights


def _replay_scaffold(weights, clients, num_rounds: int):
  """Option II, of all clients in each round: K = _EPOCHS steps along g(w) - c_i + c."""
  c, c_i = 0 * weights, [0 * weights for _ in clients]
  for _ in range(num_rounds):
    moves, changes = [], []
    for i, (features, y) in enumerate(clients):
      w = weights
      for _ in range(_EPOCHS):
        w = w - _RATE * (_gradient(w, features, y) - c_i[i] + c)
      renewed = c_i[i] - c + (weights - w) / (_EPOCHS * _RATE)
      moves.append(w - weights)
      changes.append(renewed - c_i[i])
      c_i[i] = renewed
    weights = weights + sum(moves) / len(clients)
    c = c + sum(changes) / len(clients)
  return weights


_OPTIONS: dict = dict(epochs=_EPOCHS, batch_size=None, learning_rate=_RATE)


def _build_fed_avg(model):
  return fed_avg.build_fed_avg(model, fed_avg.FedAvgHparams(**_OPTIONS))


def _build_scaffold(model):
  hparams = scaffold.ScaffoldHparams(**_OPTIONS)
  return scaffold.build_scaffold(model, hparams, num_clients=len(_SIZES))


@every_case
@pytest.mark.parametrize(
  "build, replay",
  [
    (_build_fed_avg, _replay_fed_avg),
    pytest.param(_build_scaffold, _replay_scaffold, marks=pytest.mark.thorough),
  ],
  ids=["fedavg", "scaffold"],
)
def test_process_trains_what_is_not_frozen(in_process, tmp_path, name, build, replay):
  keras_model, features_of = _CASES[name]()
  keras.reinitialize(keras_model, 0)  # Else what is trained might hardly move, by chance.
  before = keras_model.get_weights()
  model = keras.from_keras(keras_model, _SPEC)
  process = build(model)
  # Small inputs, so that float32 keeps within 1e-6 of float64.
  data = {
    f"c{i}": (0.3 * _batch(i, n), _draw(i).integers(0, _CLASSES, n))
    for i, n in enumerate(_SIZES)
  }
  clients = client_data.write_clients(str(tmp_path), data, _SPEC)
  state = process.initialize()
  states = [process.initialize_client() for _ in data]
  for round_num in range(2):
    seed = np.array([0, round_num], np.int32)
    inputs = [client_data.ClientInput(clients.path(c), seed) for c in data]
    output = process.next(state, states, inputs)
    state, states = output.state, output.client_states
  found = process.get_model_weights(state).trainable
  start = np.array(list(map(np.float64, model.initial_weights)), dtype=object)
  replayed = [(features_of(np.float64(x)), y) for x, y in data.values()]
  expected = replay(start, replayed, 2)
  for a, b, first in zip(found, expected, start):
    assert np.abs(b - first).max() > 1e-3
    np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)
  for a, b in zip(keras_model.get_weights(), before):
    np.testing.assert_array_equal(a, b)
  # The trained weights mean the same in the Keras model, whose other values they met.
  for variable, value in zip(keras_model.trainable_variables, found):
    variable.assign(value)
  x = _batch()
  expected_logits = features_of(np.float64(x)) @ expected[0] + expected[1]
  np.testing.assert_allclose(keras_model(x), expected_logits, rtol=1e-5, atol=1e-5)
  np.testing.assert_allclose(_predict(model, found, x), keras_model(x), atol=1e-6)
  # And a process goes on with them, frozen layers or not.
  made = to_keras.keras_weights(to_keras.to_keras(model, found))
  new = process.set_model_weights(process.initialize(), made)
  for a, b in zip(process.get_model_weights(new).trainable, found):
    np.testing.assert_array_equal(a, b)


@every_case
def test_only_what_is_trained_is_counted_and_travels(name):
  keras_model, _ = _CASES[name]()
  model = keras.from_keras(keras_model, _SPEC)
  width = _WIDTH if name == "base" else _FEATURES
  assert model.num_weights == (width + 1) * _CLASSES
  assert [w.shape for w in model.initial_weights] == [(width, _CLASSES), (_CLASSES,)]
  (moved,) = _build_fed_avg(model).traffic.values()
  assert moved.down["model"] == moved.up["model"] == 4 * model.num_weights


# --- The Keras model may change -------------------------------------------------------


def _train(keras_model):
  keras_model.compile("sgd", "mse", metrics=["accuracy"])
  keras_model.fit(_batch(), np.ones((9, _CLASSES)), verbose=0)
  keras_model.evaluate(_batch(), np.ones((9, _CLASSES)), verbose=0)


def _set_weights(keras_model):
  keras_model.set_weights([w + 1 for w in keras_model.get_weights()])


def _adapt(keras_model):
  keras_model.layers[0].adapt(_batch(8, 20))


def _thaw(keras_model):
  keras_model.trainable = True


def _freeze(keras_model):
  keras_model.trainable = False


@pytest.mark.parametrize(
  "name, change",
  [
    *itertools.product(_CASES, [_train, _set_weights, _thaw, _freeze]),
    ("normalization", _adapt),
  ],
)
def test_later_changes_of_the_keras_model_do_not_reach_the_model(name, change):
  keras_model, features_of = _CASES[name]()
  model = keras.from_keras(keras_model, _SPEC)
  weights = tuple(w + 0.1 for w in model.initial_weights)
  x = _batch()
  before = [_predict(model, weights, x, training) for training in (False, True)]
  expected = features_of(np.float64(x)) @ weights[0] + weights[1]
  np.testing.assert_allclose(before[0], expected, rtol=1e-5, atol=1e-5)
  change(keras_model)
  after = [_predict(model, weights, x, training) for training in (False, True)]
  np.testing.assert_array_equal(after, before)


def test_layer_that_is_added_or_taken_away_later_is_refused():
  keras_model, _ = _with_pretrained_base()
  model = keras.from_keras(keras_model, _SPEC)
  keras_model.add(_layers.Dense(_CLASSES))
  with pytest.raises(InputError, match="other layers than when from_keras") as caught:
    model.predict(model.initial_weights, _batch(), False, _SEED)
  assert "\n" not in str(caught.value)
  keras_model.pop()
  assert model.predict(model.initial_weights, _batch(), False, _SEED).shape == (9, 3)


# --- In a graph -----------------------------------------------------------------------


def test_graph_holds_constants_once():
  """However many functions and loops in it call the model."""
  keras_model, _ = _with_pretrained_base()
  model = keras.from_keras(keras_model, _SPEC)
  weights = tuple(map(np.float32, model.initial_weights))

  @tf.function
  def predict(x):
    return model.predict(weights, x, True, _SEED.numpy())

  with tf.Graph().as_default() as graph:
    x = tf.compat.v1.placeholder(tf.float32, [9, _FEATURES])
    tf.while_loop(
      lambda i, y: i < 3,
      lambda i, y: (i + 1, predict(x) + predict(2 * x)),
      (0, predict(x)),
    )
    model.predict(weights, x, False, _SEED.numpy())
  definition = graph.as_graph_def()
  functions = [node for f in definition.library.function for node in f.node_def]
  shapes = [
    tuple(d.size for d in node.attr["value"].tensor.tensor_shape.dim)
    for node in [*definition.node, *functions]
    if node.op == "Const"
  ]
  assert shapes.count((_FEATURES, _WIDTH)) == 1


# --- What is refused ------------------------------------------------------------------


def test_model_that_is_wholly_frozen_is_refused():
  keras_model, _ = _with_pretrained_base()
  keras_model.trainable = False
  with pytest.raises(InputError, match="nothing to train: set trainable=True") as caught:
    keras.from_keras(keras_model, _SPEC)
  assert "\n" not in str(caught.value)


def test_batch_normalization_that_is_not_frozen_is_refused_and_freezing_named():
  keras_model, _ = _with_frozen_batch_normalization()
  keras_model.layers[0].trainable = True
  with pytest.raises(InputError, match="or freeze the layer by trainable=False"):
    keras.from_keras(keras_model, _SPEC)


_WIDE = functional.ExampleSpec(tf.TensorSpec([200], tf.float32), _SPEC.y)


class _Shift(_layers.Layer):
  """Adds something, which it keeps in an attribute or in a list."""

  def __init__(self, shift):
    super().__init__()
    self.shift = shift

  def call(self, x):
    return x + (self.shift[0] if isinstance(self.shift, list) else self.shift)


def _as_an_attribute(shift):
  layers = [_layers.Input([200]), _Shift(shift), _layers.Dense(_CLASSES)]
  return tf.keras.Sequential(layers), {}


def _in_a_list(shift):
  return _as_an_attribute([shift])


def _in_an_operation(shift):
  x = _layers.Input([200])
  return tf.keras.Model(x, _layers.Dense(_CLASSES)(x + shift)), {}


def _in_preprocess(shift):
  keras_model = tf.keras.Sequential([_layers.Input([200]), _layers.Dense(_CLASSES)])
  return keras_model, dict(preprocess=lambda x: x + shift)


def _in_a_layer_of_preprocess(shift):
  keras_model = tf.keras.Sequential([_layers.Input([200]), _layers.Dense(_CLASSES)])
  scale = _layers.Normalization(mean=shift.numpy(), variance=np.ones(200))
  return keras_model, dict(preprocess=scale)


@pytest.mark.parametrize(
  "build", [_in_a_list, _in_an_operation, _in_preprocess, _in_a_layer_of_preprocess]
)
def test_tensor_that_is_no_attribute_is_refused(build):
  keras_model, options = build(tf.range(200.0))
  with pytest.raises(InputError, match=r"200,?\) that TFF cannot take along") as caught:
    keras.from_keras(keras_model, _WIDE, **options)
  assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
  "build, constant",
  [
    (_as_an_attribute, tf.range(200.0)),
    (_in_a_list, np.arange(200, dtype=np.float32)),
    (_in_preprocess, np.arange(200, dtype=np.float32)),
  ],
)
def test_attribute_or_array_is_taken(build, constant):
  keras_model, options = build(constant)
  model = keras.from_keras(keras_model, _WIDE, **options)
  kernel, bias = model.initial_weights
  found = _predict(model, (kernel, bias), model.preprocess(tf.zeros([1, 200])))
  np.testing.assert_allclose(found[0], np.arange(200) @ kernel + bias, rtol=1e-4)
