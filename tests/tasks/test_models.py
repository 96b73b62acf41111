"""The networks of the tasks: how many weights they have, and that they give logits."""

from __future__ import annotations

import functools
import gc
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import tensorflow as tf

from tasks import registry
from tasks.datasets import dataset
from tasks.models import cnn, densenet, group_norm, lstm, pytorch_start, resnet, vit
from tff_algos.client_data import Examples
from tff_algos.client_work import local_training
from tff_algos.client_work.local_sgd import LocalSgd
from tff_algos.distributors.partial_broadcast import PartialBroadcast
from tff_algos.errors import InputError
from tff_algos.models import functional, keras, to_keras

_layers = tf.keras.layers

# ViT's sizes are those of a file: here of a small one.
_SMALL_VIT = dict(picture=8, patch=4, width=6, depth=2, heads=2, mlp=7)

# Worked out by hand. The papers print 1,663,370, 199,210 and 582,026, of which 52,096
# are convolutional.
_FED_REG = [
  ((5, 5, 1, 32), (32,)),
  ((5, 5, 32, 32), (32,)),
  ((5, 5, 32, 64), (64,)),
  ((3 * 3 * 64, 256), (256,)),
  ((256, 10), (10,)),
]


_LENET = [
  ((5, 5, 3, 6), (6,)),
  ((5, 5, 6, 16), (16,)),
  ((5 * 5 * 16, 120), (120,)),
  ((120, 84), (84,)),
  ((84, 10), (10,)),
]
_LENET5 = [((800, 120), (120,)), ((120, 84), (84,))]


def _conv(size: int, inputs: int, outputs: int, bias: bool = True):
  """A convolution and the normalization behind it."""
  norm = ((outputs,), (outputs,))
  return ((size, size, inputs, outputs), *[(outputs,)] * bias, *norm)


def _vgg(*channels: int, num_classes: int):
  pairs = zip((3, *channels), channels)
  return [*(_conv(3, a, b) for a, b in pairs), ((512, num_classes), (num_classes,))]


def _resnet18():
  layers = [_conv(3, 3, 64, False)]
  for a, b in ((64, 64), (64, 128), (128, 256), (256, 512)):
    layers += [_conv(3, a, b, False), *[_conv(3, b, b, False)] * 3]
    layers += [_conv(1, a, b, False)] * (a != b)
  return [*layers, ((512, 10), (10,))]


def _resnet9(num_classes: int):
  """Numbers (1,) shift before and behind each layer, and one multiplies."""
  shift = scale = (1,)

  def layer(a: int, b: int):
    return (shift, (3, 3, a, b), scale, shift)

  def block(a: int):
    kernel = (3, 3, a, a)
    return (shift, kernel, shift, shift, kernel, scale, shift)

  return [
    *[layer(3, 64), layer(64, 128), block(128), layer(128, 256), layer(256, 512)],
    *[block(512), (shift, (512, num_classes), (num_classes,))],
  ]


def _googlenet():
  """Szegedy et al., Table 1; two 3x3 convolutions for a 5x5 one."""
  layers = [_conv(3, 3, 192)]
  inputs = 192
  for one, reduce3, three, reduce5, five, pool in (
    (64, 96, 128, 16, 32, 32),
    (128, 128, 192, 32, 96, 64),
    (192, 96, 208, 16, 48, 64),
    (160, 112, 224, 24, 64, 64),
    (128, 128, 256, 24, 64, 64),
    (112, 144, 288, 32, 64, 64),
    (256, 160, 320, 32, 128, 128),
    (256, 160, 320, 32, 128, 128),
    (384, 192, 384, 48, 128, 128),
  ):
    layers += [_conv(1, inputs, b) for b in (one, reduce3, reduce5, pool)]
    layers += [_conv(3, reduce3, three), _conv(3, reduce5, five), _conv(3, five, five)]
    inputs = one + three + five + pool
  return [*layers, ((1024, 10), (10,))]


def _dense_blocks(channels: int, growth: int, num_classes: int):
  """Huang et al., Table 1: bottlenecks of 4 k, transitions that halve the channels."""
  layers = []
  for place, depth in enumerate((6, 12, 24, 16)):
    if place:
      layers += [((channels,), (channels,)), ((1, 1, channels, channels // 2),)]
      channels //= 2
    for _ in range(depth):
      layers.append(((channels,), (channels,)))
      layers.append(_conv(1, channels, 4 * growth, False))
      layers.append(((3, 3, 4 * growth, growth),))
      channels += growth
  return [*layers, ((channels,), (channels,)), ((channels, num_classes), (num_classes,))]


def _densenet121(num_classes: int):
  stem = [_conv(7, 3, 64, False)[:1], ((64,), (64,))]
  return [*stem, *_dense_blocks(64, 32, num_classes)]


def _cnn10(width: int, num_features: int):
  """Appendix B.4 of FedReg: nine convolutions, two with normalization, one dense."""
  channels = (3, width, 2 * width, 2 * width, *[4 * width] * 6)
  layers = [((3, 3, a, b), (b,)) for a, b in zip(channels, channels[1:])]
  for place in (5, 7):
    layers[place] += ((4 * width,), (4 * width,))
  return [*layers, ((num_features, 2), (2,))]


def _vit(picture: int, patch: int, width: int, depth: int, heads: int, mlp: int):
  """Without the classifier."""
  part = ((width, heads, width // heads), (heads, width // heads))
  norm = ((width,), (width,))
  block = [norm, *[part] * 3, ((heads, width // heads, width), (width,)), norm]
  block += [((width, mlp), (mlp,)), ((mlp, width), (width,))]
  tokens = ((1, 1, width), (1, 1 + (picture // patch) ** 2, width))
  return [((patch, patch, 3, width), (width,)), tokens, *block * depth, norm]


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
  "cifar10_lenet": _LENET,
  "cifar10_lenet_augmented": _LENET,
  "covid_ct_densenet121": _densenet121(2),
  # Pictures of 64 by 64, pooled by 3.
  "covid_ct_cnn10": _cnn10(128, 21 * 21 * 512),
  "landmarks_densenet121": _densenet121(2028),
  "shakespeare_lstm": [
    ((90, 8),),
    ((8, 4 * 256), (256, 4 * 256), (4 * 256,)),
    ((256, 4 * 256), (256, 4 * 256), (4 * 256,)),
    ((256, 90), (90,)),
  ],
  "emnist_digits_one_class": _FED_REG,
  "svhn_mlp": [((3072, 512), (512,)), ((512, 10), (10,))],
  "cifar100_vgg16": _vgg(*(64, 64, 128, 128, 256, 256, 256, *[512] * 6), num_classes=100),
  "emnist_letters_lenet5": [
    *[((5, 5, 1, 16), (16,)), ((5, 5, 16, 32), (32,)), *_LENET5, ((84, 26), (26,))]
  ],
  "cifar100_vgg11": _vgg(64, 128, 256, 256, 512, 512, 512, 512, num_classes=100),
  "cifar10_cnn3": [
    ((3, 3, 3, 32), (32,)),
    ((3, 3, 32, 64), (64,)),
    ((3, 3, 64, 64), (64,)),
    ((4 * 4 * 64, 512), (512,)),
    ((512, 10), (10,)),
  ],
  "cifar10_lenet5": [
    *[((5, 5, 3, 16), (16,)), ((5, 5, 16, 32), (32,)), *_LENET5, ((84, 10), (10,))]
  ],
  "cifar10_alexnet": [
    ((11, 11, 3, 64), (64,)),
    ((5, 5, 64, 192), (192,)),
    ((3, 3, 192, 384), (384,)),
    ((3, 3, 384, 256), (256,)),
    ((3, 3, 256, 256), (256,)),
    ((256, 10), (10,)),
  ],
  "cifar10_vgg11": _vgg(64, 128, 256, 256, 512, 512, 512, 512, num_classes=10),
  "cifar10_resnet18": _resnet18(),
  "cifar10_googlenet": _googlenet(),
  "cifar10_densenet": [((3, 3, 3, 24),), *_dense_blocks(24, 12, 10)],
  "cifar10_uniform_resnet9": _resnet9(10),
  "cifar10_one_class_resnet9": _resnet9(10),
  "cifar100_resnet9": _resnet9(100),
  "cifar100_vit": [*_vit(**_SMALL_VIT), ((6, 100), (100,))],
}
# Branches: Keras orders their layers by the distance from the outputs.
_BRANCHED = {
  "cifar10_resnet18",
  "cifar10_googlenet",
  "cifar10_densenet",
  "cifar100_vit",
  "covid_ct_densenet121",
  "landmarks_densenet121",
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
  "cifar10_lenet_augmented": 62_006,
  "shakespeare_lstm": 820_522,
  # Of 7,978,856 weights for 1,000 classes 1,025,000 are the classifier's.
  "covid_ct_densenet121": 6_953_856 + 1025 * 2,
  # Of its 15,676,418 on pictures of 128 by 128, whose maps take 200 MB for good.
  "covid_ct_cnn10": 15_676_418 - 2 * 512 * (42 * 42 - 21 * 21),
  "landmarks_densenet121": 6_953_856 + 1025 * 2028,
  "emnist_digits_one_class": 228_010,
  "svhn_mlp": 1_578_506,
  # The convolutions of VGG-11 have 9,220,480 and of VGG-16 14,714,688 weights.
  "cifar100_vgg16": 14_714_688 + 2 * 4224 + 513 * 100,
  "cifar100_vgg11": 9_220_480 + 2 * 2752 + 513 * 100,
  "emnist_letters_lenet5": 121_742,
  "cifar10_cnn3": 586_250,
  "cifar10_lenet5": 121_182,
  # "2.47M" (bearpaw/pytorch-classification), and the four known of
  # kuangliu/pytorch-cifar, whose batch normalization has as many.
  "cifar10_alexnet": 2_472_266,
  "cifar10_vgg11": 9_231_114,
  "cifar10_resnet18": 11_173_962,
  "cifar10_googlenet": 6_166_250,
  "cifar10_densenet": 1_000_618,
  # "6.5M" (FetchSGD): eight kernels and the classifier, and 23 numbers.
  "cifar10_uniform_resnet9": 6_563_520 + 5130 + 23,
  "cifar10_one_class_resnet9": 6_563_520 + 5130 + 23,
  "cifar100_resnet9": 6_563_520 + 51_300 + 23,
  "cifar100_vit": 294 + 36 + 2 * 289 + 12 + 7 * 100,
}
# Of an example, and the number of classes, by what a task's name begins with.
_DATA = {
  "digits": ((8, 8, 1), 10),
  "mnist": ((28, 28, 1), 10),
  "emnist_digits": ((28, 28, 1), 10),
  "emnist_letters": ((28, 28, 1), 26),
  "svhn": ((32, 32, 3), 10),
  "cifar10": ((32, 32, 3), 10),
  "cifar100": ((32, 32, 3), 100),
  "har": ((128, 9), 6),
  "covid_ct_densenet121": ((224, 224, 3), 2),
  "covid_ct_cnn10": ((64, 64, 3), 2),
  "landmarks": ((64, 64, 3), 2028),
  "shakespeare": ((80,), 90),
}


def _data(name: str) -> tuple[tuple[int, ...], int]:
  return next(data for key, data in _DATA.items() if f"{name}_".startswith(f"{key}_"))


def _build(name: str) -> tf.keras.Model:
  return registry.get(name).build_keras_model(*_data(name))


# A hundred layers take seconds to make; `test_densenet121_is_that_of_the_paper` has them.
_LARGE = {"cifar10_densenet", "covid_ct_densenet121", "landmarks_densenet121"}


@pytest.fixture(
  scope="module",
  params=[
    pytest.param(n, marks=pytest.mark.thorough) if n in _LARGE else n for n in _SHAPES
  ],
)
def name_and_model(request, small_vit):
  """One after the other: together they have a hundred million weights."""
  yield request.param, _build(request.param)
  gc.collect()


@pytest.fixture(scope="module", autouse=True)
def small_vit(tmp_path_factory):
  """A small checkpoint of random numbers, where the task looks for one."""
  path = tmp_path_factory.mktemp("vit") / "small.npz"
  arrays = _vit_arrays(**_SMALL_VIT)
  np.savez(path, **arrays)
  with pytest.MonkeyPatch.context() as patched:
    patched.setenv("TFF_ALGOS_VIT_WEIGHTS", str(path))
    yield arrays


def test_every_task_is_counted():
  assert set(_SHAPES) == set(_COUNTS) == set(registry.TASKS)


@pytest.mark.parametrize(
  "name",
  [
    *("digits_cnn", "cifar10_lenet_augmented", "cifar10_uniform_resnet9", "har_lstm"),
    pytest.param("shakespeare_lstm", marks=pytest.mark.thorough),  # har_lstm's cells.
    *("cifar100_vgg11", "cifar100_vit"),
  ],
)
def test_networks_give_the_same_in_mixed_precision_but_for_rounding(name):
  def build(policy):
    tf.keras.mixed_precision.set_global_policy(policy)
    try:
      return _build(name)
    finally:
      tf.keras.mixed_precision.set_global_policy("float32")

  half, whole = build("mixed_bfloat16"), build("float32")
  draw = np.random.default_rng(0)
  weights = [draw.normal(0, 0.05, w.shape).astype(np.float32) for w in whole.weights]
  for keras_model in (half, whole):
    keras_model.set_weights(weights)
  x = draw.integers(0, 60, (3, *whole.input_shape[1:])).astype(np.float32)
  found, expected = (m(x, training=False) for m in (half, whole))
  assert found.dtype == tf.bfloat16
  assert half(x, training=True).shape == found.shape
  differences = np.abs(tf.cast(found, tf.float32) - expected)
  assert 0 < np.max(differences) < 2**-4 * np.max(np.abs(expected))


def test_weights_are_those_of_the_paper(name_and_model):
  name, keras_model = name_and_model
  found = [tuple(w.shape) for w in keras_model.trainable_weights]
  expected = [shape for layer in _SHAPES[name] for shape in layer]
  if name in _BRANCHED:
    found, expected = sorted(found), sorted(expected)
  assert found == expected
  assert sum(int(np.prod(shape)) for shape in found) == _COUNTS[name]
  assert keras_model.non_trainable_weights == []


def test_convolutions_of_the_twafl_network_are_its_shallow_part():
  keras_model = _build("mnist_cnn_twafl")
  shallow = [w for w in keras_model.trainable_weights if "conv" in w.name]
  count = sum(int(tf.size(w)) for w in shallow)
  assert count == 5 * 5 * 1 * 32 + 32 + 5 * 5 * 32 * 64 + 64 == 52_096
  assert _COUNTS["mnist_cnn_twafl"] - count == 529_930


def test_outputs_are_logits(name_and_model):
  """Of a classifier with columns of mean 0 they sum to 0, so that some are negative."""
  name, keras_model = name_and_model
  x = np.random.default_rng(0).random((1, *keras_model.input_shape[1:]), np.float32)
  kernel = keras_model.layers[-1].kernel
  drawn = tf.random.stateless_normal(kernel.shape, [0, 0])
  kernel.assign(drawn - tf.reduce_mean(drawn, axis=1, keepdims=True))
  logits = keras_model(88 * x).numpy()  # Numbers of characters go to 89.
  shape, num_classes = _data(name)
  steps = shape if name == "shakespeare_lstm" else ()
  assert logits.shape == (1, *steps, num_classes)
  assert logits.min() < 0
  size = np.abs(logits).sum(axis=-1)
  assert np.all(np.abs(logits.sum(axis=-1)) < 1e-3 * size)


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


@pytest.mark.parametrize("steps", [1, pytest.param(2, marks=pytest.mark.thorough), 30])
@pytest.mark.parametrize("batch", [pytest.param(1, marks=pytest.mark.thorough), 6])
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


@pytest.mark.thorough  # test_block_lstm_is_keras_lstm sees the outputs and the gradients.
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
    train = functools.partial(local_training.train_client, model)
    trained = tf.function(train, autograph=False)(
      model.initial_weights, examples, hparams, tf.constant([1, 2])
    )
    results.append(trained.weights)
    assert not np.allclose(results[-1][0], model.initial_weights[0], atol=1e-3)
  for ours, theirs in zip(*results):
    np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)


# --- Networks for small pictures ----------------------------------------------------


@pytest.mark.parametrize(
  "name, side",
  [
    ("resnet18", 4),
    ("googlenet", 8),
    pytest.param("densenet", 4, marks=pytest.mark.thorough),
  ],
)
def test_last_map_of_the_networks_for_small_pictures(name, side):
  """What the counts of weights do not see: kuangliu/pytorch-cifar pools maps so large."""
  assert _last_map(_build(f"cifar10_{name}"))[:2] == (side, side)


def _last_map(keras_model) -> tuple[int, ...]:
  pool = _layers.GlobalAveragePooling2D
  (layer,) = [layer for layer in keras_model.layers if isinstance(layer, pool)]
  return layer.input_shape[1:]


@pytest.mark.thorough
def test_densenet121_is_that_of_the_paper():
  """Huang et al., Table 1; 7,978,856 is known from torchvision's and Keras's."""
  keras_model = densenet.densenet121((224, 224, 3), 1000)
  assert _last_map(keras_model) == (7, 7, 1024)
  expected = _densenet121(1000)
  found = [tuple(w.shape) for w in keras_model.trainable_weights]
  assert sorted(found) == sorted(shape for layer in expected for shape in layer)
  assert keras_model.count_params() == 7_978_856


def test_cnn10_is_that_of_fedreg():
  """Appendix B.4: nine convolutions and one dense layer; the pool is by 3."""
  keras_model = cnn.cnn10((32, 32, 3), 2, width=4)
  kernels = [tuple(w.shape) for w in keras_model.trainable_weights if len(w.shape) > 1]
  channels = (3, 4, 8, 8, *[16] * 6)
  expected = [(3, 3, a, b) for a, b in zip(channels, channels[1:])]
  assert kernels == [*expected, (10 * 10 * 16, 2)]


def test_dense_layers_of_cnn3_have_dropout_before_them():
  """FedAgg VII-A5."""
  kinds = [type(layer) for layer in _build("cifar10_cnn3").layers]
  assert kinds[-4:] == [_layers.Dropout, _layers.Dense] * 2
  assert kinds.count(_layers.Dropout) == 2


@pytest.mark.parametrize(
  "groups, options",
  [(1, {}), (3, {}), (12, {}), (3, {"scale": False}), (3, {"center": False})],
)
def test_group_norm_is_keras_group_normalization(groups, options):
  """Outputs, and gradients by the weights and by the inputs."""
  draw = np.random.default_rng(groups)
  x = tf.constant(draw.normal(1, 2, size=(3, 4, 5, 12)), tf.float32)
  direction = tf.constant(draw.normal(size=x.shape), tf.float32)
  weights = [draw.normal(size=12) for _ in range(2 - len(options))]
  results = []
  for kind in (group_norm.GroupNorm, _layers.GroupNormalization):
    layer = kind(groups, **options)
    layer.build(x.shape)
    layer.set_weights(weights)
    with tf.GradientTape() as tape:
      tape.watch(x)
      y = layer(x)
      total = tf.reduce_sum(y * direction)
    results.append([y, *tape.gradient(total, [*layer.trainable_weights, x])])
  for ours, theirs in zip(*results):
    np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)


# --- ResNet-9 -----------------------------------------------------------------------


def test_resnet9_is_drawn_by_fixup():
  """Zhang et al., 2019: also when the weights are drawn anew."""
  keras_model = _build("cifar10_uniform_resnet9")
  keras.reinitialize(keras_model, 3)
  first = keras_model.get_weights()
  kernels = [w for w in first if w.ndim == 4]
  for place, kernel in enumerate(kernels):
    if place in (3, 7):  # The last one of a block.
      assert not kernel.any()
      continue
    variance = 2 / (9 * kernel.shape[-1])
    if place in (2, 6):  # The first one of a block: L^(-1/2) for L = 2 blocks.
      variance /= 2
    np.testing.assert_allclose(kernel.std(), variance**0.5, rtol=0.05)
    assert abs(kernel.mean()) < 0.05 * variance**0.5
  assert [w.shape for w in first if w.ndim == 2] == [(512, 10)]
  assert not first[-2].any()
  names = [w.name.split("/")[-1] for w in keras_model.weights]
  numbers = [(name, float(w)) for name, w in zip(names, first) if w.shape == (1,)]
  assert set(numbers) == {("bias:0", 0.0), ("scale:0", 1.0)}
  keras.reinitialize(keras_model, 4)
  changed = [np.any(a != b) for a, b in zip(first, keras_model.get_weights())]
  assert sum(changed) == 6


def _resnet9_forward(weights, x):
  """FedReg's public program: a layer's first shift comes before its kernel."""
  take = iter(weights)

  def convolve(x):
    return tf.nn.conv2d(x, next(take), 1, "SAME")

  def layer(x):
    return tf.nn.relu(convolve(x + next(take)) * next(take) + next(take))

  def block(x):
    y = tf.nn.relu(convolve(x + next(take)) + next(take))
    return tf.nn.relu(x + convolve(y + next(take)) * next(take) + next(take))

  def pool(x):
    return tf.nn.max_pool2d(x, 2, 2, "VALID")

  x = layer(x)
  x = block(pool(layer(x)))
  x = pool(layer(x))
  x = block(pool(layer(x)))
  x = tf.reduce_max(x, [1, 2]) + next(take)
  x = x @ next(take) + next(take)
  assert not list(take)
  return x


def test_resnet9_by_its_formula():
  keras_model = resnet.resnet9((32, 32, 3), 5, channels=(3, 4, 5, 6))
  draw = np.random.default_rng(1)
  weights = [draw.normal(scale=0.5, size=w.shape) for w in keras_model.weights]
  weights = [w.astype(np.float32) for w in weights]
  keras_model.set_weights(weights)
  x = draw.random((2, 32, 32, 3), np.float32)
  expected = _resnet9_forward(weights, x)
  np.testing.assert_allclose(keras_model(x), expected, rtol=1e-4, atol=1e-4)


# --- ViT ----------------------------------------------------------------------------


def _vit_arrays(picture, patch, width, depth, heads, mlp) -> dict[str, np.ndarray]:
  """A checkpoint as published, with the classifier that fine-tuning leaves out."""
  head = ((heads, width // heads), (width, heads, width // heads))
  shapes: dict[str, tuple[int, ...]] = {
    "cls": (1, 1, width),
    "embedding/kernel": (patch, patch, 3, width),
    "embedding/bias": (width,),
    "Transformer/posembed_input/pos_embedding": (1, 1 + (picture // patch) ** 2, width),
    "Transformer/encoder_norm/scale": (width,),
    "Transformer/encoder_norm/bias": (width,),
    "head/kernel": (width, 3),
    "head/bias": (3,),
  }
  for block in range(depth):
    for name, bias, kernel in (
      *(
        (f"MultiHeadDotProductAttention_1/{x}", *head) for x in ("query", "key", "value")
      ),
      ("MultiHeadDotProductAttention_1/out", (width,), (heads, width // heads, width)),
      ("MlpBlock_3/Dense_0", (mlp,), (width, mlp)),
      ("MlpBlock_3/Dense_1", (width,), (mlp, width)),
    ):
      shapes[f"Transformer/encoderblock_{block}/{name}/bias"] = bias
      shapes[f"Transformer/encoderblock_{block}/{name}/kernel"] = kernel
    for name in ("LayerNorm_0", "LayerNorm_2"):
      shapes[f"Transformer/encoderblock_{block}/{name}/bias"] = (width,)
      shapes[f"Transformer/encoderblock_{block}/{name}/scale"] = (width,)
  draw = np.random.default_rng(5)
  return {k: draw.normal(0, 0.5, s).astype(np.float32) for k, s in shapes.items()}


def _vit_forward(arrays, x: np.ndarray) -> np.ndarray:
  """The paper: the normalized class token of pictures 0..1 of the checkpoint's size."""

  def norm(x, name):
    centred = x - x.mean(-1, keepdims=True)
    x = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
    return x * arrays[f"{name}/scale"] + arrays[f"{name}/bias"]

  def attend(x, name):
    q, k, v = (
      np.einsum("btw,whd->bhtd", x, arrays[f"{name}/{part}/kernel"])
      + arrays[f"{name}/{part}/bias"][:, None]
      for part in ("query", "key", "value")
    )
    weights = np.exp(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]))
    weights /= weights.sum(-1, keepdims=True)
    y = np.einsum("bhtd,hdw->btw", weights @ v, arrays[f"{name}/out/kernel"])
    return y + arrays[f"{name}/out/bias"]

  def dense(x, name):
    return x @ arrays[f"{name}/kernel"] + arrays[f"{name}/bias"]

  def gelu(x):
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))

  kernel = arrays["embedding/kernel"]
  patch, side = len(kernel), x.shape[1] // len(kernel)
  x = (2 * x - 1).reshape(len(x), side, patch, side, patch, 3)
  x = np.einsum("bipjqc,pqcw->bijw", x, kernel) + arrays["embedding/bias"]
  x = x.reshape(len(x), side**2, -1)
  x = np.concatenate([arrays["cls"].repeat(len(x), 0), x], axis=1)
  x = x + arrays["Transformer/posembed_input/pos_embedding"]
  block = 0
  while f"Transformer/encoderblock_{block}/LayerNorm_0/scale" in arrays:
    name = f"Transformer/encoderblock_{block}"
    x = x + attend(
      norm(x, f"{name}/LayerNorm_0"), f"{name}/MultiHeadDotProductAttention_1"
    )
    y = dense(norm(x, f"{name}/LayerNorm_2"), f"{name}/MlpBlock_3/Dense_0")
    x = x + dense(gelu(y), f"{name}/MlpBlock_3/Dense_1")
    block += 1
  assert block == 2
  return norm(x, "Transformer/encoder_norm")[:, 0]


def test_weights_of_vit_b_16_by_the_same_formula():
  """85.8 M without the classifier, by google-research/vision_transformer."""
  layers = _vit(picture=224, patch=16, width=768, depth=12, heads=12, mlp=3072)
  count = sum(int(np.prod(shape)) for layer in layers for shape in layer)
  assert count == 85_798_656


def test_vit_is_the_checkpoint_with_a_classifier_of_zeros(small_vit):
  """Also when the weights are drawn anew; on pictures of its size and of twice that."""
  keras_model = vit.pretrained((16, 16, 3), 6)
  keras.reinitialize(keras_model, 3)
  spec = functional.ExampleSpec(
    tf.TensorSpec([16, 16, 3], tf.float32), tf.TensorSpec([], tf.int32)
  )
  model = keras.from_keras(keras_model, spec)
  *body, kernel, bias = model.initial_weights
  assert not kernel.any() and not bias.any()
  assert kernel.shape == (6, 6)
  x = np.random.default_rng(2).random((3, 8, 8, 3), np.float32)
  # Bilinear interpolation of each number by four equal ones gives it back.
  twice = x.repeat(2, axis=1).repeat(2, axis=2)
  seed = tf.constant([0, 0])
  weights = (*body, np.eye(6, dtype=np.float32), bias)
  found = model.predict(weights, tf.constant(twice), True, seed)
  np.testing.assert_allclose(found, _vit_forward(small_vit, x), rtol=1e-3, atol=1e-3)


def test_vit_without_its_file_says_what_to_get(monkeypatch, tmp_path):
  missing = str(tmp_path / "none.npz")
  with pytest.raises(dataset.DataMissingError, match=f"{missing} is no file.*download"):
    vit.pretrained((32, 32, 3), 10, missing)
  monkeypatch.delenv("TFF_ALGOS_VIT_WEIGHTS")
  with pytest.raises(dataset.DataMissingError, match=r"WEIGHTS is not set.*download"):
    vit.pretrained((32, 32, 3), 10)


def test_file_that_is_no_vit_is_refused(small_vit, tmp_path):
  path = tmp_path / "file.npz"
  path.write_text("not a checkpoint")
  with pytest.raises(ValueError, match=f"{path} is no checkpoint.*no complete .npz"):
    vit.pretrained((32, 32, 3), 10, str(path))
  np.savez(path, **{k: v for k, v in small_vit.items() if k != "cls"})
  with pytest.raises(ValueError, match=f"{path} is no checkpoint.*lacks 'cls'"):
    vit.pretrained((32, 32, 3), 10, str(path))
  with pytest.raises(ValueError, match="of 3 channels, but the data's have 1"):
    vit.pretrained((28, 28, 1), 10)


@pytest.mark.parametrize("place", [0.2, 0.5, 0.8])
def test_damaged_vit_is_refused_in_one_sentence(place, small_vit, tmp_path):
  path = tmp_path / "file.npz"
  np.savez_compressed(path, **small_vit)
  content = bytearray(path.read_bytes())
  start = int(place * len(content))
  content[start : start + 80] = bytes(b ^ 255 for b in content[start : start + 80])
  path.write_bytes(content)
  with pytest.raises(InputError, match=f"{path} is no checkpoint") as caught:
    vit.pretrained((32, 32, 3), 10, str(path))
  assert "\n" not in str(caught.value)


def test_lenet_augmented_shifts_and_mirrors_in_training_only():
  network = registry.get("cifar10_lenet_augmented").build_keras_model((32, 32, 3), 10)
  augment = network.layers[:2]
  rng = np.random.default_rng(0)
  pictures = rng.random((40, 32, 32, 3), np.float32)

  def augmented(training: bool) -> np.ndarray:
    x = tf.constant(pictures)
    for layer in augment:
      x = layer(x, training=training)
    return x.numpy()

  np.testing.assert_array_equal(augmented(False), pictures)
  shifts = set()
  for picture, found in zip(pictures, augmented(True)):
    border = np.pad(picture, ((4, 4), (4, 4), (0, 0)), "symmetric")
    crops = {
      (i, j, mirrored): crop[:, ::-1] if mirrored else crop
      for i in range(9)
      for j in range(9)
      for crop in [border[i : i + 32, j : j + 32]]
      for mirrored in (False, True)
    }
    (shift,) = [k for k, crop in crops.items() if np.array_equal(crop, found)]
    shifts.add(shift)
  assert len(shifts) > 20 and {mirrored for _, _, mirrored in shifts} == {False, True}


# --- Files that others open -------------------------------------------------------------

# One of each layer of our own, and of those that Keras must read again in an own way.
_PLAIN = {
  "GroupNorm": (lambda: cnn.cnn10((32, 32, 3), 2, width=4), (32, 32, 3), tf.uint8),
  "BlockLSTM": (lambda: lstm.har_lstm((12, 9), 6), (12, 9), tf.float32),
  "Shift": (lambda: resnet.resnet9((32, 32, 3), 5, (2, 4, 4, 4)), (32, 32, 3), tf.uint8),
  "Tokens": (lambda: vit.pretrained((16, 16, 3), 6), (16, 16, 3), tf.uint8),
  "random": (lambda: cnn.lenet_augmented((32, 32, 3), 10), (32, 32, 3), tf.uint8),
}

_OPEN_ALONE = """
  import sys

  for name in ("tff_algos", "tasks", "experiments"):
    sys.modules[name] = None  # Whoever imports it fails.
  import numpy as np
  import tensorflow as tf

  for name in sys.argv[2:]:
    keras_model = tf.keras.models.load_model(f"{sys.argv[1]}/{name}.keras")
    inputs = np.load(f"{sys.argv[1]}/{name}.npy")
    np.save(f"{sys.argv[1]}/{name}_found.npy", keras_model.predict(inputs, verbose=0))
"""


@pytest.mark.thorough
def test_networks_with_trained_weights_open_in_plain_keras(tmp_path):
  """In a process that cannot import us, and on stored inputs."""
  expected = {}
  for name, (build, shape, dtype) in _PLAIN.items():
    spec = functional.ExampleSpec(
      tf.TensorSpec(shape, dtype), tf.TensorSpec([], tf.int32)
    )
    model = keras.from_keras(build(), spec)
    draw = np.random.default_rng(3)
    weights = [
      w + 0.1 * draw.normal(size=w.shape).astype(np.float32)
      for w in model.initial_weights
    ]
    inputs = draw.integers(0, 256, (4, *shape)).astype(dtype.as_numpy_dtype)
    x = model.preprocess(tf.constant(inputs))
    expected[name] = model.predict(weights, x, False, tf.constant([0, 0])).numpy()
    assert np.ptp(expected[name], axis=0).max() > 1e-3
    to_keras.to_keras(model, weights).save(tmp_path / f"{name}.keras")
    np.save(tmp_path / f"{name}.npy", inputs)
  command = [sys.executable, "-c", textwrap.dedent(_OPEN_ALONE), str(tmp_path), *_PLAIN]
  done = subprocess.run(
    command, capture_output=True, text=True, cwd=tmp_path, timeout=300
  )
  assert done.returncode == 0, done.stderr
  for name, logits in expected.items():
    found = np.load(tmp_path / f"{name}_found.npy")
    np.testing.assert_allclose(found, logits, rtol=1e-4, atol=1e-5, err_msg=name)


def test_weights_as_of_pytorch_are_uniform_within_a_unit_s_inputs():
  """Their deviation is limit / sqrt(3); each bound is five sigma or more."""
  model = pytorch_start.draw_as_pytorch(cnn.lenet5((32, 32, 3), 10))
  keras.reinitialize(model, 7)
  inputs = [5 * 5 * 3, 5 * 5 * 16, 5 * 5 * 32, 120, 84]
  pairs = zip(model.trainable_weights[::2], model.trainable_weights[1::2])
  for n, (kernel, bias) in zip(inputs, pairs):
    limit = n**-0.5
    for drawn in (kernel.numpy(), bias.numpy()):
      assert 0 < np.abs(drawn).max() <= limit
    spread = limit / 3**0.5
    assert abs(kernel.numpy().std() / spread - 1) < 2.5 / kernel.numpy().size ** 0.5
    assert kernel.numpy().mean() == pytest.approx(
      0, abs=5 * spread / kernel.numpy().size ** 0.5
    )
