"""The networks of the tasks: how many weights they have, and that they give logits."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tensorflow as tf

from tasks import registry
from tasks.models import lstm
from tff_algos.client_data import Examples
from tff_algos.client_work import local_training
from tff_algos.distributors.partial_broadcast import PartialBroadcast
from tff_algos.hyper_parameters import LocalSgd
from tff_algos.models import functional, keras

_layers = tf.keras.layers

# Worked out by hand. The papers print 1,663,370, 199,210 and 582,026, of which 52,096
# are convolutional.
_FED_REG = [
  ((5, 5, 1, 32), (32,)),
  ((5, 5, 32, 32), (32,)),
  ((5, 5, 32, 64), (64,)),
  ((3 * 3 * 64, 256), (256,)),
  ((256, 10), (10,)),
]


def _har_lstm(a: int, b: int):
  """Kernel, recurrent kernel and bias of each LSTM, with four gates side by side."""
  return [
    ((9, 4 * a), (a, 4 * a), (4 * a,)),
    ((a, 4 * b), (b, 4 * b), (4 * b,)),
    ((b, 128), (128,)),
    ((128, 6), (6,)),
  ]


_SHAPES = {
  "digits_cnn": [
    ((3, 3, 1, 16), (16,)),
    ((3, 3, 16, 32), (32,)),
    ((2 * 2 * 32, 64), (64,)),
    ((64, 10), (10,)),
  ],
  "mnist_linear": [((784, 10), (10,))],
  "mnist_2nn": [((784, 200), (200,)), ((200, 200), (200,)), ((200, 10), (10,))],
  "mnist_cnn": [
    ((5, 5, 1, 32), (32,)),
    ((5, 5, 32, 64), (64,)),
    ((7 * 7 * 64, 512), (512,)),
    ((512, 10), (10,)),
  ],
  "mnist_cnn_twafl": [
    ((5, 5, 1, 32), (32,)),
    ((5, 5, 32, 64), (64,)),
    ((4 * 4 * 64, 512), (512,)),
    ((512, 10), (10,)),
  ],
  "har_lstm": _har_lstm(20, 10),
  "har_lstm_25_25": _har_lstm(25, 25),
  "har_lstm_100_100": _har_lstm(100, 100),
  "mnist_two_class": _FED_REG,
  "mnist_one_class": _FED_REG,
  "cifar10_lenet": [
    ((5, 5, 3, 6), (6,)),
    ((5, 5, 6, 16), (16,)),
    ((5 * 5 * 16, 120), (120,)),
    ((120, 84), (84,)),
    ((84, 10), (10,)),
  ],
  "shakespeare_lstm": [
    ((90, 8),),
    ((8, 4 * 256), (256, 4 * 256), (4 * 256,)),
    ((256, 4 * 256), (256, 4 * 256), (4 * 256,)),
    ((256, 90), (90,)),
  ],
}
_COUNTS = {
  "digits_cnn": 13_706,
  "mnist_linear": 7_850,
  "mnist_2nn": 199_210,
  "mnist_cnn": 1_663_370,
  "mnist_cnn_twafl": 582_026,
  "har_lstm": 5_822,
  "har_lstm_25_25": 12_702,
  "har_lstm_100_100": 138_102,
  "mnist_two_class": 228_010,
  "mnist_one_class": 228_010,
  "cifar10_lenet": 62_006,
  "shakespeare_lstm": 820_522,
}
# Of an example, and the number of classes, by the first word of a task's name.
_DATA = {
  "digits": ((8, 8, 1), 10),
  "mnist": ((28, 28, 1), 10),
  "cifar10": ((32, 32, 3), 10),
  "har": ((128, 9), 6),
  "shakespeare": ((80,), 90),
}


def _build(name: str) -> tf.keras.Model:
  return registry.get(name).build_keras_model(*_DATA[name.split("_")[0]])


def test_every_task_is_counted():
  assert set(_SHAPES) == set(_COUNTS) == set(registry.TASKS)


@pytest.mark.parametrize("name", _SHAPES)
def test_weights_are_those_of_the_paper(name):
  keras_model = _build(name)
  found = [tuple(w.shape) for w in keras_model.trainable_weights]
  assert found == [shape for layer in _SHAPES[name] for shape in layer]
  assert sum(int(np.prod(shape)) for shape in found) == _COUNTS[name]
  assert keras_model.non_trainable_weights == []


def test_convolutions_of_the_twafl_network_are_its_shallow_part():
  keras_model = _build("mnist_cnn_twafl")
  shallow = [w for w in keras_model.trainable_weights if "conv" in w.name]
  count = sum(int(tf.size(w)) for w in shallow)
  assert count == 5 * 5 * 1 * 32 + 32 + 5 * 5 * 32 * 64 + 64 == 52_096
  assert _COUNTS["mnist_cnn_twafl"] - count == 529_930


@pytest.mark.parametrize("name", _SHAPES)
def test_outputs_are_logits(name):
  """Neither bounded below by 0 nor summing to 1, whatever the picture."""
  keras_model = _build(name)
  x = np.random.default_rng(0).random((5, *keras_model.input_shape[1:]), np.float32)
  logits = keras_model(88 * x).numpy()  # Numbers of characters go to 89.
  shape, num_classes = _DATA[name.split("_")[0]]
  steps = shape if name == "shakespeare_lstm" else ()
  assert logits.shape == (5, *steps, num_classes)
  assert logits.min() < 0
  assert np.all(np.abs(logits.sum(axis=-1) - 1) > 1e-3)


@pytest.mark.parametrize("name", _SHAPES)
def test_descriptions_give_the_right_number_of_weights(name):
  description = registry.get(name).description
  if "weights" in description:
    assert f"({_COUNTS[name]:,} weights)" in description


# --- Recurrent networks -------------------------------------------------------------


@pytest.mark.parametrize("a, b", [(20, 10), (25, 25), (100, 100)])
def test_weights_of_the_har_network_by_the_formula(a, b):
  keras_model = lstm.har_lstm((128, 9), 6, (a, b))
  lstms = 4 * a * (9 + a + 1) + 4 * b * (a + b + 1)
  assert keras_model.count_params() == lstms + (b + 1) * 128 + (128 + 1) * 6


@pytest.mark.parametrize("v, d, n", [(90, 8, 256), (5, 3, 7)])
def test_weights_of_the_character_network_by_the_formula(v, d, n):
  keras_model = lstm.character_lstm((4,), v, embedding=d, units=n)
  lstms = 4 * n * (d + n + 1) + 4 * n * (n + n + 1)
  assert keras_model.count_params() == v * d + lstms + (n + 1) * v


def test_character_network_looks_only_back():
  """A prediction depends on its own and earlier characters, not on padding behind."""
  keras_model = lstm.character_lstm((6,), 5, embedding=3, units=7)
  x = np.array([[1, 2, 3, 4, 1, 2]], np.float32)
  changed = x.copy()
  changed[:, 3:] = 0
  before, after = keras_model(x).numpy(), keras_model(changed).numpy()
  np.testing.assert_array_equal(before[:, :3], after[:, :3])
  assert np.all(np.abs(before[:, 3:] - after[:, 3:]).max(axis=-1) > 1e-6)


def test_recurrent_layers_of_the_har_network_are_its_shallow_part():
  names = [w.name for w in _build("har_lstm").trainable_weights]
  assert PartialBroadcast(names).num_shallow == 6


def _twins(*lstm_sizes: int, channels: int = 3) -> list[tf.keras.Model]:
  """The same network of our LSTM and of Keras's, with the same random weights."""
  models = []
  for layer in (lstm.BlockLSTM, _layers.LSTM):
    *first, last = lstm_sizes
    models.append(
      tf.keras.Sequential(
        [
          _layers.Input((None, channels)),
          *(layer(units, return_sequences=True) for units in first),
          layer(last),
          _layers.Dense(4),
        ]
      )
    )
  draw = np.random.default_rng(7)
  weights = [draw.normal(scale=0.5, size=w.shape) for w in models[0].get_weights()]
  for keras_model in models:
    keras_model.set_weights(weights)
  return models


@pytest.mark.parametrize("steps", [1, 2, 30])
@pytest.mark.parametrize("batch", [1, 6])
@pytest.mark.parametrize("sizes", [(5,), (6, 1, 3)])
def test_block_lstm_is_keras_lstm(sizes, batch, steps):
  """Outputs, and gradients by all weights and by the inputs."""
  draw = np.random.default_rng(steps)
  x = tf.constant(draw.normal(size=(batch, steps, 3)), tf.float32)
  direction = tf.constant(draw.normal(size=(batch, 4)), tf.float32)
  outputs, gradients = [], []
  for keras_model in _twins(*sizes):
    with tf.GradientTape() as tape:
      tape.watch(x)
      y = keras_model(x)
      total = tf.reduce_sum(y * direction)
    outputs.append(y)
    gradients.append(tape.gradient(total, [*keras_model.trainable_weights, x]))
  np.testing.assert_allclose(*outputs, rtol=1e-4, atol=1e-5)
  assert len(gradients[0]) == 3 * len(sizes) + 3
  for ours, theirs in zip(*gradients):
    np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)


def test_block_lstm_draws_the_initial_weights_of_keras_lstm():
  twins = _twins(5, 4)
  for keras_model in twins:
    keras.reinitialize(keras_model, 3)
  for ours, theirs in zip(*(keras_model.get_weights() for keras_model in twins)):
    np.testing.assert_array_equal(ours, theirs)
  forget = twins[0].layers[0].cell.bias[5:10]
  np.testing.assert_array_equal(forget, np.ones(5))


def test_local_training_of_block_lstm_is_that_of_keras_lstm():
  draw = np.random.default_rng(0)
  x = draw.normal(size=(25, 12, 3)).astype(np.float32)
  y = draw.integers(4, size=25).astype(np.int32)
  examples = Examples(tf.constant(x), tf.constant(y))
  spec = functional.ExampleSpec(
    tf.TensorSpec([12, 3], tf.float32), tf.TensorSpec([], tf.int32)
  )
  hparams = LocalSgd(epochs=2, batch_size=10, learning_rate=0.1, momentum=0.5)
  results = []
  for keras_model in _twins(5, 4):
    model = keras.from_keras(keras_model, spec)
    train = functools.partial(local_training.train, model)
    trained = tf.function(train, autograph=False)(
      model.initial_weights, examples, hparams, tf.constant([1, 2])
    )
    results.append(trained.weights)
    assert not np.allclose(results[-1][0], model.initial_weights[0], atol=1e-3)
  for ours, theirs in zip(*results):
    np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)
