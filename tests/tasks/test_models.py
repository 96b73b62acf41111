"""The networks of the tasks: how many weights they have, and that they give logits."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tasks import registry

# Worked out by hand. The papers print 1,663,370, 199,210 and 582,026, of which 52,096
# are convolutional.
_FED_REG = [
  ((5, 5, 1, 32), (32,)),
  ((5, 5, 32, 32), (32,)),
  ((5, 5, 32, 64), (64,)),
  ((3 * 3 * 64, 256), (256,)),
  ((256, 10), (10,)),
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
  "mnist_two_class": _FED_REG,
  "mnist_one_class": _FED_REG,
  "cifar10_lenet": [
    ((5, 5, 3, 6), (6,)),
    ((5, 5, 6, 16), (16,)),
    ((5 * 5 * 16, 120), (120,)),
    ((120, 84), (84,)),
    ((84, 10), (10,)),
  ],
}
_COUNTS = {
  "digits_cnn": 13_706,
  "mnist_linear": 7_850,
  "mnist_2nn": 199_210,
  "mnist_cnn": 1_663_370,
  "mnist_cnn_twafl": 582_026,
  "mnist_two_class": 228_010,
  "mnist_one_class": 228_010,
  "cifar10_lenet": 62_006,
}
_PICTURES = {"digits_cnn": (8, 8, 1), "cifar10_lenet": (32, 32, 3)}


def _build(name: str) -> tf.keras.Model:
  shape = _PICTURES.get(name, (28, 28, 1))
  return registry.get(name).build_keras_model(shape, 10)


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
  logits = keras_model(100 * x).numpy()
  assert logits.shape == (5, 10)
  assert logits.min() < 0
  assert np.all(np.abs(logits.sum(axis=1) - 1) > 1e-3)


@pytest.mark.parametrize("name", _SHAPES)
def test_descriptions_give_the_right_number_of_weights(name):
  description = registry.get(name).description
  if "weights" in description:
    assert f"({_COUNTS[name]:,} weights)" in description
