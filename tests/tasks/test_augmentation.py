"""Colour pictures as FedReg's authors' program reads them."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tff_algos
from tasks import registry
from tasks.models import augmentation

_SEED = tf.constant([1, 2])
_NAMES = ("cifar10_uniform_resnet9", "cifar10_one_class_resnet9", "cifar100_resnet9")


def _model(name, network=None):
  task = registry.get(name)
  shape, classes = (32, 32, 3), 100 if "100" in name else 10
  keras_model = (network or task.build_keras_model)(shape, classes)
  spec = tff_algos.ExampleSpec(
    tf.TensorSpec(shape, tf.uint8), tf.TensorSpec([], tf.int32)
  )
  return task.make_model(keras_model, spec)


def _flat(shape, num_classes):
  layers = tf.keras.layers
  return tf.keras.Sequential(
    [layers.Input(shape), layers.Flatten(), layers.Dense(num_classes)]
  )


def _pictures(count):
  return np.random.default_rng(0).integers(0, 256, (count, 32, 32, 3), np.uint8)


def test_shifted_pictures_are_cut_out_of_a_black_frame_at_every_place():
  x = np.random.default_rng(0).normal(size=(600, 6, 7, 3)).astype(np.float32)
  black = np.array([-2, -1, 3], np.float32)
  found = augmentation.shift_and_mirror(tf.constant(x), _SEED, black=black)
  seen = []
  for picture, ours in zip(x, found.numpy()):
    large = np.full((14, 15, 3), black)
    large[4:10, 4:11] = picture
    cuts = {
      (top, left, way): large[top : top + 6, left : left + 7][:, ::way]
      for top in range(9)
      for left in range(9)
      for way in (1, -1)
    }
    [place] = [p for p, cut in cuts.items() if np.abs(cut - ours).max() < 1e-5]
    seen.append(place)
  # Uniform on 9, 9 and 2 places, each by itself: within five standard deviations.
  for values, part in zip((range(9), range(9), (1, -1)), zip(*seen)):
    expected = len(seen) / len(values)
    counts = np.array([part.count(value) for value in values])
    assert np.abs(counts - expected).max() < 5 * expected**0.5
  assert len(set(seen)) > 120  # Of 162, if they are independent 158 [derived].


@pytest.mark.parametrize("name", _NAMES)
def test_tasks_of_resnet9_take_standardized_pictures(name):
  of_100 = (0.507, 0.487, 0.441), (0.267, 0.256, 0.276)
  of_10 = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
  means, deviations = map(np.array, of_100 if "100" in name else of_10)
  model, x = _model(name, _flat), _pictures(5)
  expected = (x / 255 - means) / deviations
  np.testing.assert_allclose(model.preprocess(tf.constant(x)), expected, atol=1e-5)
  # A white picture tells what stands around it, and that it is shifted in training.
  white = tf.fill([40, 32, 32, 3], tf.constant(255, tf.uint8))
  found = model.inputs(white, True, _SEED).numpy().reshape(-1, 3)
  colours = np.unique(found.round(4), axis=0)
  two = np.stack([-means / deviations, (1 - means) / deviations])
  np.testing.assert_allclose(colours, two, atol=1e-3)


def test_black_is_what_a_black_picture_is_standardized_to():
  model = _model("cifar100_resnet9", _flat)
  black = model.preprocess(tf.zeros([1, 1, 1, 3], tf.uint8))
  np.testing.assert_allclose(black[0, 0, 0], augmentation.CIFAR100.black, atol=1e-6)


def test_exported_model_standardizes_and_does_not_shift():
  model, x = _model("cifar10_uniform_resnet9", _flat), _pictures(3)
  [kernel, bias] = model.initial_weights
  inputs = (x / 255 - augmentation.CIFAR10.means) / augmentation.CIFAR10.deviations
  exported = tff_algos.to_keras(model, model.initial_weights)
  expected = inputs.reshape(3, -1) @ kernel + bias
  np.testing.assert_allclose(exported(x), expected, rtol=1e-4, atol=1e-4)
