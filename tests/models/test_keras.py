"""Keras models as pure functions: Keras's own numbers, and nothing left behind."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tff_algos import client_data
from tff_algos.algorithms import fed_avg
from tff_algos.client_work import gradients, local_training
from tff_algos.errors import InputError
from tff_algos.models import functional, keras

_layers = tf.keras.layers
_SEED = tf.constant([1, 2])


def _sequential(*layers) -> tf.keras.Model:
  return tf.keras.Sequential(layers)


def _input(*shape, dtype=None):
  return _layers.Input(shape, dtype=dtype)


def _dense():
  return _sequential(_input(4), _layers.Dense(5, "tanh"), _layers.Dense(3))


def _convolutions():
  return _sequential(
    _input(8, 8, 2),
    _layers.Conv2D(4, 3, padding="same", activation="relu"),
    _layers.GroupNormalization(2),
    _layers.MaxPool2D(),
    _layers.DepthwiseConv2D(3),
    _layers.SeparableConv2D(3, 2),
    _layers.Flatten(),
    _layers.Dense(3),
  )


def _normalized():
  return _sequential(
    _input(4), _layers.Dense(6), _layers.LayerNormalization(), _layers.Dense(3)
  )


def _characters():
  return _sequential(
    _input(6, dtype="int32"),
    _layers.Embedding(9, 4),
    _layers.LSTM(5, return_sequences=True),
    _layers.LSTM(4),
    _layers.Dense(3),
  )


def _gated():
  return _sequential(
    _input(6, 3), _layers.Bidirectional(_layers.GRU(4)), _layers.Dense(3)
  )


def _cells():
  cells = [_layers.LSTMCell(4), _layers.GRUCell(3)]
  return _sequential(_input(5, 3), _layers.RNN(cells), _layers.Dense(3))


def _attention():
  x = _input(5, 4)
  heads = _layers.MultiHeadAttention(num_heads=2, key_dim=3)(x, x)
  return tf.keras.Model(x, _layers.Dense(3)(_layers.Flatten()(heads)))


def _shared():
  """One layer at two places: its gradient is the sum over both."""
  x, layer = _input(4), _layers.Dense(4, "tanh")
  return tf.keras.Model(x, _layers.Dense(3)(layer(layer(x))))


def _nested():
  inner = _sequential(_input(4), _layers.Dense(5, "tanh"))
  outer = _sequential(_input(4), _sequential(inner, _layers.Dense(4)))
  x = _input(4)
  return tf.keras.Model(x, _layers.Dense(3)(_layers.Add()([outer(x), x])))


class _Subclassed(tf.keras.Model):
  def __init__(self):
    super().__init__()
    self.first, self.last = _layers.Dense(5, "tanh"), _layers.Dense(3)

  def call(self, x, training=None):
    return self.last(self.first(x))


def _subclassed():
  model = _Subclassed()
  model.build((None, 4))
  return model


_ZOO = {
  f.__name__[1:]: f
  for f in (
    _dense,
    _convolutions,
    _normalized,
    _characters,
    _gated,
    _cells,
    _attention,
    _shared,
    _nested,
    _subclassed,
  )
}
_SHAPES = dict(
  convolutions=(8, 8, 2), characters=(6,), gated=(6, 3), cells=(5, 3), attention=(5, 4)
)

# In half precision: layer normalization is never fused here, and what is used more than
# once has the sum of its gradients there.
_ROUNDED_APART = ("normalized", "cells", "shared")

every_model = pytest.mark.parametrize(
  "name",
  # Another recurrent network, as long as five others.
  [pytest.param(n, marks=pytest.mark.thorough) if n == "gated" else n for n in _ZOO],
)


def _spec(shape, dtype=tf.float32) -> functional.ExampleSpec:
  label = tf.TensorSpec([], tf.int32)
  return functional.ExampleSpec(tf.TensorSpec(shape, dtype), label)


def _convert(keras_model, *shape) -> functional.Model:
  return keras.from_keras(keras_model, _spec(shape or (4,)))


def _convert_from_zoo(name: str) -> tuple[tf.keras.Model, functional.Model]:
  """With the same weights each time: how much half precision loses depends on them."""
  tf.keras.utils.set_random_seed(1)
  keras_model = _ZOO[name]()
  dtype = tf.int32 if name == "characters" else tf.float32
  spec = _spec(_SHAPES.get(name, (4,)), dtype)
  return keras_model, keras.from_keras(keras_model, spec)


def _batch(spec: functional.ExampleSpec, size: int = 7) -> tf.Tensor:
  rng = np.random.default_rng(5)
  if spec.x.dtype == tf.int32:
    return tf.constant(rng.integers(0, 9, (size, *spec.x.shape)), tf.int32)
  return tf.constant(rng.normal(size=(size, *spec.x.shape)), tf.float32)


def _other_weights(model: functional.Model) -> tuple:
  """Others than the Keras model has, so that using its own is seen."""
  rng = np.random.default_rng(6)
  return tuple(
    tf.constant(w + 0.3 * rng.normal(size=w.shape), tf.float32)
    for w in model.initial_weights
  )


# --- The same numbers as Keras ------------------------------------------------------


@contextlib.contextmanager
def _policy(name: str):
  before = tf.keras.mixed_precision.global_policy()
  tf.keras.mixed_precision.set_global_policy(name)
  try:
    yield
  finally:
    tf.keras.mixed_precision.set_global_policy(before)


@every_model
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_forward_pass_and_gradient_are_keras_own(name, policy):
  with _policy(policy):
    keras_model, model = _convert_from_zoo(name)
  x, weights = _batch(model.example_spec), _other_weights(model)
  labels = tf.range(7) % 3

  def differentiate(weights, x, labels):
    return gradients.batch_gradient(model, weights, x, labels, _SEED)

  if policy == "float32":  # In half precision, what a graph fuses rounds otherwise.
    differentiate = tf.function(differentiate)
  found_gradient, found_loss = differentiate(weights, x, labels)
  found = model.predict(weights, model.preprocess(x), False, _SEED)
  for variable, value in zip(keras_model.trainable_variables, weights):
    variable.assign(value)
  with tf.GradientTape() as tape:
    assert found.dtype == tf.float32
    expected = tf.cast(keras_model(x, training=True), tf.float32)
    losses = tf.keras.losses.sparse_categorical_crossentropy(
      labels, expected, from_logits=True
    )
    mean = tf.reduce_mean(losses)
  gradient = tape.gradient(mean, keras_model.trainable_variables)
  is_apart = policy != "float32" and name in _ROUNDED_APART
  rounding = 2**-6 if is_apart else 2e-6
  atol = rounding * np.max(np.abs(expected)) if is_apart else 1e-6
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=atol)
  np.testing.assert_allclose(found_loss, 7 * mean, rtol=max(1e-5, rounding))
  assert len(found_gradient) == len(gradient) == len(weights)
  for a, b in zip(found_gradient, map(tf.convert_to_tensor, gradient)):
    assert isinstance(a, tf.Tensor)  # An embedding's is sparse by itself.
    assert a.dtype == tf.float32
    largest = np.max(np.abs(b), initial=1e-3)
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=rounding * largest)


@every_model
def test_initial_weights_are_those_of_the_keras_model_in_its_order(name):
  keras_model, model = _convert_from_zoo(name)
  variables = keras_model.trainable_variables
  assert len(model.initial_weights) == len(variables)
  for array, variable, weight in zip(
    model.initial_weights, variables, model.weight_names
  ):
    np.testing.assert_array_equal(array, variable)
    assert array.dtype == np.float32
    assert f"{weight}:0" == variable.name
  assert model.num_weights == sum(int(tf.size(v)) for v in variables)


@every_model
def test_takes_weights_as_arrays(name):
  """`Model.predict` takes tensors or arrays, such as `initial_weights`."""
  keras_model, model = _convert_from_zoo(name)
  x = _batch(model.example_spec)
  found = model.predict(model.initial_weights, model.preprocess(x), False, _SEED)
  np.testing.assert_allclose(found, keras_model(x), rtol=1e-5, atol=1e-6)


def test_frozen_batch_normalization_stays_so_though_its_layer_does_not():
  """In training mode it would else take the batch's mean."""
  frozen = _layers.BatchNormalization(trainable=False)
  keras_model = _sequential(_input(4), frozen, _layers.Dense(3))
  model = _convert(keras_model)
  weights = tuple(map(tf.constant, model.initial_weights))
  x = tf.constant(np.random.default_rng(0).normal(5, 2, (6, 4)), tf.float32)
  before = model.predict(weights, x, True, tf.constant([0, 0]))
  frozen.trainable = True
  after = model.predict(weights, x, True, tf.constant([0, 0]))
  np.testing.assert_array_equal(before, after)


def test_frozen_weights_are_constants():
  frozen = _layers.Dense(4, "tanh", trainable=False)
  keras_model = _sequential(_input(4), frozen, _layers.Dense(3))
  model = _convert(keras_model)
  assert len(model.initial_weights) == 2
  x = _batch(model.example_spec)
  expected = keras_model(x).numpy()
  frozen.kernel.assign(2 * frozen.kernel)
  weights = tuple(map(tf.constant, model.initial_weights))
  found = model.predict(weights, x, False, _SEED)
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_model_runs_after_another_was_made_in_a_graph():
  """As TFF's own builders do, after which Keras runs none that was made before."""
  keras_model = _convolutions()
  x = tf.random.stateless_uniform([2, 8, 8, 2], [1, 2])
  expected = keras_model(x)
  spec = functional.ExampleSpec(
    tf.TensorSpec([8, 8, 2], tf.float32), tf.TensorSpec([], tf.int32)
  )
  model = keras.from_keras(keras_model, spec)
  with tf.Graph().as_default():
    _convolutions()
  with pytest.raises(ValueError, match="in an invalid state"):
    keras_model(x)
  found = model.predict(model.initial_weights, x, False, _SEED)
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
  np.testing.assert_allclose(keras_model(x), expected, rtol=1e-5, atol=1e-6)


def test_threads_use_their_own_weights():
  """Clients are traced and run by several threads at once."""
  keras_model, model = _convert_from_zoo("shared")
  x = _batch(model.example_spec)
  scales = np.linspace(0.5, 2, 24)
  weights = [tuple(tf.constant(s * w) for w in model.initial_weights) for s in scales]
  with concurrent.futures.ThreadPoolExecutor(8) as pool:
    found = list(pool.map(lambda w: model.predict(w, x, False, _SEED).numpy(), weights))
  for mine, result in zip(weights, found):
    keras_model.set_weights(mine)
    np.testing.assert_allclose(result, keras_model(x), rtol=1e-5, atol=1e-6)


# --- Random layers ------------------------------------------------------------------


def _mean_of(*layers, width: int) -> functional.Model:
  """The mean over the outputs of some layers, as the one prediction."""
  mean = _layers.Dense(1, use_bias=False, kernel_initializer="ones")
  model = _convert(_sequential(_input(width), *layers, mean), width)
  return dataclasses.replace(
    model, initial_weights=(np.full((width, 1), 1 / width, np.float32),)
  )


_RANDOM = {
  "dropout": (lambda: _layers.Dropout(0.3), 0.3 / 0.7),
  "seeded dropout": (lambda: _layers.Dropout(0.3, seed=1), 0.3 / 0.7),
  "gaussian noise": (lambda: _layers.GaussianNoise(0.5), 0.25),
  "gaussian dropout": (lambda: _layers.GaussianDropout(0.2), 0.2 / 0.8),
}

random_layers = pytest.mark.parametrize("name", _RANDOM)


@random_layers
def test_random_layer_draws_from_the_seed_alone(name):
  model = _mean_of(_RANDOM[name][0](), width=20)
  weights, x = tuple(map(tf.constant, model.initial_weights)), tf.ones((5, 20))
  traced = tf.function(lambda seed: model.predict(weights, x, True, seed))
  seeds = [tf.constant(s) for s in ([1, 2], [1, 3], [2, 2], [2, 1])]
  tf.random.set_seed(1)
  found = [traced(seed).numpy() for seed in seeds]
  tf.random.set_seed(2)
  for seed, result in zip(seeds, found):
    np.testing.assert_array_equal(traced(seed), result)
    eager = model.predict(weights, x, True, seed)
    np.testing.assert_allclose(eager, result, rtol=1e-6)
  assert len({result.tobytes() for result in found}) == len(seeds)


@random_layers
def test_random_layer_is_off_outside_training(name):
  model = _mean_of(_RANDOM[name][0](), width=20)
  x = _batch(_spec((20,)))
  found = model.predict(model.initial_weights, x, False, _SEED)
  np.testing.assert_allclose(found, tf.matmul(x, model.initial_weights[0]), rtol=1e-6)


@random_layers
def test_random_layer_keeps_the_mean_and_has_the_right_variance(name):
  """Each prediction is the mean of 100 independent draws of known variance around 1.

  Of 8,000 such predictions the mean is within 5 standard errors, and so is the
  variance, whose relative standard error is sqrt(2 / 8000). One mask for a whole batch,
  or one for all seeds, would give the predictions other variances.
  """
  layer, variance = _RANDOM[name]
  model = _mean_of(layer(), width=100)
  weights = tuple(map(tf.constant, model.initial_weights))
  traced = tf.function(
    lambda seed: model.predict(weights, tf.ones((40, 100)), True, seed)
  )
  found = np.array([traced(tf.constant([3, s])) for s in range(200)], np.float64)
  assert found.size == 8000
  expected = variance / 100
  assert abs(found.mean() - 1) < 5 * np.sqrt(expected / 8000)
  relative_error = found.var() / expected - 1
  assert abs(relative_error) < 5 * np.sqrt(2 / 8000)
  between_seeds = found.mean(axis=(1, 2)).var() / (expected / 40) - 1
  assert abs(between_seeds) < 5 * np.sqrt(2 / 200)


@pytest.mark.parametrize("is_shared", [True, False])
def test_each_call_of_a_random_layer_draws_anew(is_shared):
  x, first = _input(50), _layers.Dropout(0.5)
  second = first if is_shared else _layers.Dropout(0.5)
  outputs = _layers.Concatenate()([first(x), second(x)])
  model = _convert(tf.keras.Model(x, _layers.Dense(100)(outputs)), 50)
  weights = tf.eye(100), tf.zeros(100)
  masks = model.predict(weights, tf.ones((1, 50)), True, _SEED).numpy()[0] > 0
  # Two independent masks agree in all of 50 places once in 10^15.
  assert not np.array_equal(masks[:50], masks[50:])


def test_dropout_inside_recurrent_layers_draws_from_the_seed():
  recurrent = _layers.LSTM(4, dropout=0.4, recurrent_dropout=0.4)
  keras_model = _sequential(_input(6, 3), recurrent, _layers.Dense(3))
  model = _convert(keras_model, 6, 3)
  weights = tuple(map(tf.constant, model.initial_weights))
  x = _batch(model.example_spec)
  traced = tf.function(lambda training, seed: model.predict(weights, x, training, seed))
  one, again, other = (
    traced(True, tf.constant(s)).numpy() for s in ([1, 2], [1, 2], [1, 3])
  )
  np.testing.assert_array_equal(one, again)
  assert not np.allclose(one, other)
  np.testing.assert_allclose(traced(False, _SEED), keras_model(x), rtol=1e-5, atol=1e-6)


def test_dropout_works_inside_a_process(in_process, tmp_path):
  """A round is the local training with the client's seed, drawn by the same layers."""
  keras_model = _sequential(_input(4), _layers.Dropout(0.5), _layers.Dense(3))
  model = _convert(keras_model)
  rng = np.random.default_rng(0)
  x = rng.normal(size=(9, 4)).astype(np.float32)
  y = rng.integers(0, 3, 9).astype(np.int32)
  clients = client_data.write_clients(str(tmp_path), {"a": (x, y)}, model.example_spec)
  hparams = fed_avg.FedAvgHparams(epochs=2, batch_size=4)
  process = fed_avg.build_fed_avg(model, hparams)

  def train(seed):
    seed = np.array(seed, np.int32)
    client = client_data.ClientInput(clients.path("a"), seed)
    output = process.next(process.initialize(), [()], [client])
    return process.get_model_weights(output.state).trainable

  def train_directly(seed):
    start = tuple(map(tf.constant, model.initial_weights))
    examples = client_data.Examples(tf.constant(x), tf.constant(y))
    return local_training.train_client(
      model, start, examples, hparams, tf.constant(seed)
    ).weights

  first, again, other = (train(seed) for seed in ([7, 8], [7, 8], [7, 9]))
  for a, b, c, expected in zip(first, again, other, train_directly([7, 8])):
    np.testing.assert_array_equal(a, b)
    assert not np.allclose(a, c)
    np.testing.assert_allclose(a, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
  "layer",
  [
    _layers.RandomFlip,
    lambda: _layers.RandomContrast(0.5),
    lambda: _layers.RandomRotation(0.5),
    lambda: _layers.RandomCrop(3, 3),
  ],
)
def test_random_picture_layers_draw_from_the_seed(layer):
  picture, flat = _input(8, 8, 1), _layers.Flatten()
  keras_model = _sequential(picture, layer(), flat, _layers.Dense(4))
  model = _convert(keras_model, 8, 8, 1)
  weights = tuple(map(tf.constant, model.initial_weights))
  x = _batch(model.example_spec)
  traced = tf.function(lambda seed: model.predict(weights, x, True, seed))
  one, again, other = (traced(tf.constant(s)) for s in ([1, 2], [1, 2], [1, 3]))
  np.testing.assert_array_equal(one, again)
  assert not np.allclose(one, other)


# --- What cannot be made a pure function is refused ----------------------------------


@pytest.mark.parametrize(
  "build",
  [
    lambda: _sequential(_input(4), _layers.BatchNormalization(), _layers.Dense(3)),
    lambda: _sequential(
      _input(4),
      _sequential(_input(4), _layers.Dense(4), _layers.BatchNormalization()),
      _layers.Dense(3),
    ),
  ],
  ids=["plain", "in a submodel"],
)
def test_batch_normalization_is_refused_and_the_alternative_named(build):
  with pytest.raises(ValueError, match="GroupNormalization") as caught:
    _convert(build())
  assert "batch_normalization" in str(caught.value)


def test_batch_normalization_inside_a_wrapper_is_refused():
  wrapped = _layers.TimeDistributed(_layers.BatchNormalization())
  keras_model = _sequential(_input(5, 4), wrapped, _layers.Flatten(), _layers.Dense(3))
  with pytest.raises(ValueError, match="GroupNormalization"):
    _convert(keras_model, 5, 4)


def test_model_that_is_not_built_is_refused():
  with pytest.raises(ValueError, match="not built yet: give it an Input layer"):
    _convert(_sequential(_layers.Dense(3)))


def test_model_without_weights_is_refused():
  with pytest.raises(ValueError, match="at least one trainable weight"):
    _convert(_sequential(_input(4), _layers.Flatten()))


class _Custom(_layers.Layer):
  """A dense layer whose output some function changes: `(layer, output) -> output`."""

  def __init__(self, change=lambda layer, output: output):
    super().__init__()
    self.change = change

  def build(self, shape):
    self.matrix = self.add_weight("matrix", (shape[-1], 3))
    self.counter = self.add_weight("counter", (), initializer="zeros", trainable=False)

  def call(self, x):
    return self.change(self, tf.matmul(x, self.matrix))


class _InList(_layers.Layer):
  def build(self, shape):
    self.matrices = [self.add_weight("hidden_matrix", (shape[-1], 3))]

  def call(self, x):
    return tf.matmul(x, self.matrices[0])


def _one_line(error) -> str:
  """Its message, which must be one sentence for a user."""
  text = str(error.value)
  assert "\n" not in text, text
  assert len(text) < 400, text
  return text


def test_custom_layer_with_weights_in_attributes_is_taken():
  keras_model = _sequential(_input(4), _Custom())
  model = _convert(keras_model)
  x, weights = _batch(model.example_spec), _other_weights(model)
  found = model.predict(weights, x, True, _SEED)
  np.testing.assert_allclose(found, tf.matmul(x, weights[0]), rtol=1e-6)


def test_weight_in_a_list_is_refused_by_its_name():
  with pytest.raises(ValueError, match="keep weights in layer attributes") as caught:
    _convert(_sequential(_input(4), _InList()))
  assert "hidden_matrix" in _one_line(caught)


@pytest.mark.filterwarnings("ignore")
def test_variable_of_no_layer_is_refused():
  scale = tf.Variable(2.0)
  keras_model = _sequential(
    _input(4), _layers.Lambda(lambda x: x * scale), _layers.Dense(3)
  )
  with pytest.raises(ValueError, match="a variable that cannot be replaced") as caught:
    _convert(keras_model)
  _one_line(caught)


def _count(layer, output):
  layer.counter.assign_add(1.0)
  return output


def _grow(layer, output):
  layer.matrix.assign(2 * layer.matrix)
  return output


@pytest.mark.parametrize("change", [_count, _grow])
def test_layer_that_assigns_to_a_weight_is_refused(change):
  with pytest.raises(ValueError, match="changes a weight of its own") as caught:
    _convert(_sequential(_input(4), _Custom(change)))
  _one_line(caught)


def _noise(layer, output):
  return output + tf.random.uniform(tf.shape(output))


def _noise_in_a_function(layer, output):
  return tf.function(lambda x: x + tf.random.uniform(tf.shape(x)))(output)


def _noise_in_a_branch(layer, output):
  is_positive = tf.reduce_sum(output) > 0
  return tf.cond(is_positive, lambda: _noise(layer, output), lambda: output)


def _truncated_noise(layer, output):
  return output + tf.random.truncated_normal(tf.shape(output))


def _sample(layer, output):
  return output + tf.cast(tf.random.categorical(output, 1), tf.float32)


def _shuffle(layer, output):
  return tf.random.shuffle(output)


def _python_noise(layer, output):
  noise = tf.numpy_function(lambda: np.float32(np.random.normal()), [], tf.float32)
  return output + noise


@pytest.mark.parametrize(
  "change",
  [
    _noise,
    _noise_in_a_function,
    _noise_in_a_branch,
    _truncated_noise,
    _sample,
    _shuffle,
    _python_noise,
  ],
)
def test_layer_that_draws_from_global_state_is_refused(change):
  with pytest.raises(ValueError, match="stateful") as caught:
    _convert(_sequential(_input(4), _Custom(change)))
  _one_line(caught)


def test_layer_with_a_regularizer_is_refused():
  """Its loss would be left out of training without a word."""
  regularized = _layers.Dense(3, kernel_regularizer="l2")
  with pytest.raises(ValueError, match="regulariz") as caught:
    _convert(_sequential(_input(4), regularized))
  _one_line(caught)


def test_weight_with_a_constraint_is_refused():
  """It would never be applied to a client's weights."""
  bound = _layers.Dense(3, kernel_constraint="max_norm")
  with pytest.raises(ValueError, match="constraint") as caught:
    _convert(_sequential(_input(4), bound))
  _one_line(caught)


@pytest.mark.parametrize(
  "policies, said",
  [
    (("mixed_float16", "float32"), "Layer 'hidden' .* in float16, .* mixed_bfloat16"),
    (("float32", "mixed_float16"), "Layer 'last' .* in float16, .* mixed_bfloat16"),
    (("float64", "float64"), "'hidden/kernel:0' .* is float64: .* must be float32"),
    (("float32", "float16"), "'last/kernel:0' .* is float16: .* must be float32"),
  ],
)
def test_other_precisions_are_refused_by_name(policies, said):
  hidden, last = policies
  keras_model = tf.keras.Sequential(
    [
      tf.keras.Input((3,)),
      tf.keras.layers.Dense(4, dtype=hidden, name="hidden"),
      tf.keras.layers.Dense(2, dtype=last, name="last"),
    ]
  )
  with pytest.raises(InputError, match=said):
    keras.from_keras(keras_model, _spec((3,)))


def test_whole_model_under_a_policy_is_refused_by_a_layer_of_its_own():
  with _policy("mixed_float16"):
    recurrent = tf.keras.layers.GRU(4)
    keras_model = tf.keras.Sequential([tf.keras.Input((3, 1)), recurrent])
  with pytest.raises(InputError, match=f"^Layer '{recurrent.cell.name}' .* float16"):
    keras.from_keras(keras_model, _spec((3, 1)))


def test_examples_that_the_model_does_not_take_are_refused_in_one_sentence():
  with pytest.raises(ValueError) as caught:
    _convert(_dense(), 5)
  _one_line(caught)


class _Deciding(_layers.Layer):
  def call(self, inputs):
    return 2 * inputs if tf.reduce_mean(inputs) > 0 else inputs


@pytest.mark.parametrize(
  "layer", [_Deciding(), _layers.SpectralNormalization(_layers.Dense(3))]
)
def test_layer_that_decides_in_python_is_named_and_the_way_out_said(layer):
  with pytest.raises(
    InputError, match=r"decides in Python by a tensor.*tf\.cond"
  ) as caught:
    _convert(_sequential(_input(4), layer, _layers.Dense(2)))
  assert repr(layer.name) in str(caught.value)
  _one_line(caught)


def test_look_up_is_refused_and_said_where_it_belongs():
  table = _layers.IntegerLookup(vocabulary=[1, 2, 3])
  embedding = _layers.Embedding(5, 2), _layers.GlobalAveragePooling1D()
  keras_model = _sequential(tf.keras.Input([4], dtype="int64"), table, *embedding)
  with pytest.raises(
    InputError, match=f"looks up in a table .*{table.name}.* to the data"
  ):
    keras.from_keras(keras_model, _spec([4], tf.int64))


def test_numbers_to_embed_are_not_taken_for_pictures():
  """All would be the embedding's first row."""
  layers = _layers.Embedding(50, 8), _layers.GlobalAveragePooling1D(), _layers.Dense(2)
  keras_model = _sequential(_input(5), *layers)
  with pytest.raises(InputError, match=r"^Layer 'embedding.*' .* embeds the inputs"):
    keras.from_keras(keras_model, _spec([5], tf.uint8))
  keras.from_keras(keras_model, _spec([5], tf.int32))
  keras.from_keras(keras_model, _spec([5], tf.uint8), preprocess=tf.identity)


# --- Nothing is left behind ----------------------------------------------------------


def _attributes(keras_model) -> list[dict]:
  """What every layer holds, to be compared by identity."""
  return [dict(vars(layer)) for layer in keras_model._flatten_layers()]


def _assert_same_objects(found: list[dict], expected: list[dict]):
  assert len(found) == len(expected)
  for a, b in zip(found, expected):
    for name, value in b.items():
      if isinstance(value, tf.Variable) or name == "_random_generator":
        assert a[name] is value, name


def test_layers_are_as_they_were_after_tracing():
  keras_model = _sequential(
    _input(6, 3),
    _layers.Dropout(0.5),
    _sequential(_input(6, 3), _layers.LSTM(4, dropout=0.2)),
    _layers.Dense(3),
  )
  before = _attributes(keras_model)
  assert sum("_random_generator" in a for a in before) >= 2
  model = _convert(keras_model, 6, 3)
  _assert_same_objects(_attributes(keras_model), before)
  x = _batch(model.example_spec)
  weights = _other_weights(model)
  model.predict(weights, x, True, _SEED)
  tf.function(model.predict)(weights, x, True, _SEED)
  _assert_same_objects(_attributes(keras_model), before)
  for found, expected in zip(keras_model.get_weights(), model.initial_weights):
    np.testing.assert_array_equal(found, expected)


def test_layers_are_as_they_were_after_an_error():
  seen = []

  def fail_if_asked_to(layer, output):
    seen.append(layer.matrix)
    if failing:
      raise RuntimeError("the layer fails")
    return output

  failing = False
  keras_model = _sequential(_input(4), _layers.Dropout(0.5), _Custom(fail_if_asked_to))
  assert isinstance(seen[-1], tf.Variable)
  before = _attributes(keras_model)
  model = _convert(keras_model)
  failing = True
  with pytest.raises(RuntimeError, match="the layer fails"):
    model.predict(model.initial_weights, tf.zeros((1, 4)), True, _SEED)
  assert not isinstance(seen[-1], tf.Variable)
  _assert_same_objects(_attributes(keras_model), before)
  failing = False
  model.predict(model.initial_weights, tf.zeros((1, 4)), True, _SEED)
  _assert_same_objects(_attributes(keras_model), before)


def test_layers_are_as_they_were_after_a_refusal():
  keras_model = _sequential(_input(4), _layers.Dropout(0.5), _Custom(_noise))
  before = _attributes(keras_model)
  with pytest.raises(ValueError):
    _convert(keras_model)
  _assert_same_objects(_attributes(keras_model), before)


# --- Initial weights ------------------------------------------------------------------


@every_model
def test_reinitialized_weights_are_a_function_of_the_seed(name):
  def draw(global_seed, seed):
    tf.keras.utils.set_random_seed(global_seed)
    keras_model = _ZOO[name]()
    keras.reinitialize(keras_model, seed)
    return [(v.name, v.numpy()) for v in keras_model.weights]

  one, again, other = draw(1, 7), draw(2, 7), draw(1, 8)
  for (weight, a), (_, b) in zip(one, again):
    np.testing.assert_array_equal(a, b, err_msg=weight)
  for (weight, a), (_, b) in zip(one, other):
    is_constant = weight.rsplit("/", 1)[-1] in ("bias:0", "gamma:0", "beta:0")
    assert np.array_equal(a, b) == is_constant, weight


def test_reinitialized_layers_of_one_shape_are_drawn_apart():
  keras_model = _sequential(_input(4), _layers.Dense(4), _layers.Dense(4))
  keras.reinitialize(keras_model, 7)
  first, second = (layer.kernel.numpy() for layer in keras_model.layers)
  assert np.all(first != second)


def test_reinitialize_neither_reads_nor_moves_global_state():
  keras_model = _dense()
  draws = []
  for seed in (None, 5):
    tf.keras.utils.set_random_seed(3)
    if seed is not None:
      keras.reinitialize(keras_model, seed)
    draws.append((np.random.normal(), float(tf.random.uniform([]))))
  assert draws[0] == draws[1]


@pytest.mark.parametrize("use_bias", [False, True])
def test_layers_of_one_shape_get_different_weights(use_bias):
  same = [_layers.Dense(4, use_bias=use_bias) for _ in range(3)]
  keras_model = _sequential(_input(4), *same)
  keras.reinitialize(keras_model, 0)
  kernels = {layer.kernel.numpy().tobytes() for layer in keras_model.layers}
  assert len(kernels) == 3


def test_what_is_drawn_by_a_function_is_refused_unless_frozen():
  def ones(shape, dtype=None):
    return tf.ones(shape, dtype)

  keras_model = _sequential(_input(4), _layers.Dense(2, kernel_initializer=ones))
  with pytest.raises(InputError, match="draws its kernel by a function, which takes no"):
    keras.reinitialize(keras_model, 0)
  keras_model.layers[0].trainable = False
  keras.reinitialize(keras_model, 0)
  assert (keras_model.get_weights()[0] == 1).all()


def test_reinitialize_does_not_depend_on_the_weights_before():
  keras_model = _convolutions()
  keras.reinitialize(keras_model, 4)
  first = keras_model.get_weights()
  keras_model.set_weights([w + 1 for w in first])
  keras.reinitialize(keras_model, 4)
  for a, b in zip(keras_model.get_weights(), first):
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
  "layer, shape, fan_in, fan_out",
  [
    (lambda: _layers.Dense(200), (300,), 300, 200),
    (lambda: _layers.Conv2D(64, 5), (9, 9, 32), 5 * 5 * 32, 5 * 5 * 64),
  ],
)
def test_glorot_uniform_has_its_limits_and_moments(layer, shape, fan_in, fan_out):
  """Uniform on +-sqrt(6 / (fan_in + fan_out)): mean 0 and variance limit^2 / 3.

  The sample variance of n uniform draws has the relative standard error sqrt(0.8 / n).
  """
  keras_model = _sequential(_input(*shape), layer())
  keras.reinitialize(keras_model, 1)
  kernel, bias = (w.astype(np.float64) for w in keras_model.get_weights())
  limit, n = np.sqrt(6 / (fan_in + fan_out)), kernel.size
  assert not bias.any()
  assert 0.999 * limit < np.abs(kernel).max() <= limit * (1 + 1e-6)
  assert abs(kernel.mean()) < 5 * limit / np.sqrt(3 * n)
  assert abs(kernel.var() / (limit**2 / 3) - 1) < 5 * np.sqrt(0.8 / n)


def test_layer_normalization_has_no_operation_that_threads_must_not_share():
  """With oneDNN, FusedBatchNormV3 of several batch sizes at once corrupts memory."""
  keras_model = _normalized()
  model = keras.from_keras(keras_model, _spec((4,)))

  @tf.function(autograph=False)
  def gradient(x, y):
    seed = tf.constant([0, 0])
    weights = tuple(map(tf.constant, model.initial_weights))
    return gradients.batch_gradient(model, weights, x, y, seed)

  traced = gradient.get_concrete_function(
    tf.TensorSpec([None, 4], tf.float32), tf.TensorSpec([None], tf.int32)
  )
  found = {operation.type for operation in traced.graph.get_operations()}
  assert not any("FusedBatchNorm" in name for name in found)


@pytest.mark.parametrize("seed", [None, -1, "1", 1.5, True])
def test_a_seed_that_is_no_whole_number_is_refused_and_weights_are_left(seed):
  keras_model = _dense()
  before = keras_model.get_weights()
  with pytest.raises(InputError, match=r"^seed must be "):
    keras.reinitialize(keras_model, seed)
  for found, expected in zip(keras_model.get_weights(), before):
    np.testing.assert_array_equal(found, expected)


def test_initializers_of_the_layer_are_kept():
  initializers = tf.keras.initializers
  keras_model = _sequential(
    _input(300),
    _layers.Dense(
      200,
      kernel_initializer=initializers.RandomNormal(1.0, 0.5, seed=3),
      bias_initializer=initializers.Constant(2.0),
    ),
    _layers.LayerNormalization(),
  )
  keras.reinitialize(keras_model, 1)
  kernel, bias, gamma, beta = keras_model.get_weights()
  assert abs(kernel.mean() - 1) < 5 * 0.5 / np.sqrt(60000)
  assert abs(kernel.std() / 0.5 - 1) < 5 / np.sqrt(2 * 60000)
  assert np.all(bias == 2) and np.all(gamma == 1) and np.all(beta == 0)


def test_forget_gates_of_an_lstm_start_open():
  """Keras's default `unit_forget_bias`: the second quarter of the bias is 1."""
  keras_model = _sequential(_input(5, 4), _layers.LSTM(3))
  assert keras_model.layers[0].cell.unit_forget_bias
  keras.reinitialize(keras_model, 0)
  bias = keras_model.layers[0].cell.bias
  np.testing.assert_array_equal(bias, [0] * 3 + [1] * 3 + [0] * 6)


def test_reinitialize_leaves_what_is_frozen():
  base = tf.keras.layers.Dense(3, trainable=False)
  keras_model = tf.keras.Sequential(
    [tf.keras.layers.Input((2,)), base, tf.keras.layers.Dense(2)]
  )
  base.set_weights([np.full((2, 3), 5.0), np.full(3, 7.0)])
  head = keras_model.layers[1].get_weights()[0]
  keras.reinitialize(keras_model, 3)
  kernel, bias = base.get_weights()
  assert (kernel == 5).all() and (bias == 7).all()
  drawn = keras_model.layers[1].get_weights()[0]
  assert not np.array_equal(head, drawn)
  # What the others get is of their places, frozen ones counted.
  base.trainable = True
  keras.reinitialize(keras_model, 3)
  np.testing.assert_array_equal(keras_model.layers[1].get_weights()[0], drawn)
  assert not (base.get_weights()[0] == 5).any()
