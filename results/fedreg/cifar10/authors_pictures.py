"""FedReg's CIFAR-10 with its authors' pictures: tasks.

With this folder on PYTHONPATH, `--task=authors_pictures:UNIFORM` is
`cifar10_uniform_resnet9` with pixels less their channel's mean, over its deviation, so
that FedReg's steps are in the units of its authors' program, and with pictures that are
shifted by up to an eighth on black, and perhaps mirrored, in training. ONE_CLASS is the
same of `cifar10_one_class_resnet9`. Both shift by layers of the network: pseudo data are
of the picture as it is, and shifted in training as it is. UNIFORM_READ and ONE_CLASS_READ
shift as their program does when it reads a picture: pseudo data are of pictures already
shifted, and stay as they are. PIXELS is UNIFORM with pictures that are neither shifted
nor mirrored. Their repository is github.com/Zoesgithub/FedReg.
"""

from __future__ import annotations

import dataclasses
from typing import Optional

import numpy as np
import tensorflow as tf

from tasks.datasets.dataset import Dataset
from tasks.models import resnet
from tasks.registry import TASKS
from tff_algos import from_keras
from tff_algos.models.functional import ExampleSpec, Model

_layers = tf.keras.layers
MEANS, DEVIATIONS = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)  # [code]


def _load(data_dir: Optional[str], cache_dir: str) -> Dataset:
  data = TASKS["cifar10_uniform_resnet9"].load_data(data_dir, cache_dir)

  def standardized(x: np.ndarray) -> np.ndarray:
    return ((x / np.float32(255) - MEANS) / DEVIATIONS).astype(np.float32)

  return data._replace(
    train_x=standardized(data.train_x), test_x=standardized(data.test_x)
  )


def _build(shape: tuple[int, ...], num_classes: int) -> tf.keras.Model:
  means, deviations = np.array(MEANS), np.array(DEVIATIONS)
  return tf.keras.Sequential(
    [
      _layers.Input(shape),
      _layers.Rescaling(deviations.tolist(), means.tolist()),
      _layers.RandomTranslation(1 / 8, 1 / 8, "constant", "nearest"),
      _layers.RandomFlip("horizontal"),
      _layers.Rescaling((1 / deviations).tolist(), (-means / deviations).tolist()),
      resnet.resnet9(shape, num_classes),
    ]
  )


def shift_and_mirror(x: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
  """Each picture by up to four pixels on black, and perhaps mirrored [code].

  As torchvision's RandomCrop(32, padding=4) and RandomHorizontalFlip.

  Args:
    x: Standardized pictures, float32 (B, 32, 32, 3).
    seed: int32 (2,).
  """
  black = tf.constant(-np.array(MEANS) / DEVIATIONS, tf.float32)
  padded = tf.pad(x - black, [[0, 0], [4, 4], [4, 4], [0, 0]]) + black
  seeds = tf.random.experimental.stateless_split(seed, 3)
  for axis in (1, 2):
    first = tf.random.stateless_uniform([tf.shape(x)[0], 1], seeds[axis], 0, 9, tf.int32)
    padded = tf.gather(padded, first + tf.range(32), axis=axis, batch_dims=1)
  mirrored = tf.random.stateless_uniform([tf.shape(x)[0], 1, 1, 1], seeds[0]) < 0.5
  return tf.where(mirrored, padded[:, :, ::-1], padded)


def _reading(keras_model: tf.keras.Model, spec: ExampleSpec) -> Model:
  return dataclasses.replace(from_keras(keras_model, spec), augment=shift_and_mirror)


UNIFORM, ONE_CLASS = (
  TASKS[f"cifar10_{name}_resnet9"]._replace(
    name=f"cifar10_{name}_authors", load_data=_load, build_keras_model=_build
  )
  for name in ("uniform", "one_class")
)
UNIFORM_READ, ONE_CLASS_READ = (
  TASKS[f"cifar10_{name}_resnet9"]._replace(
    name=f"cifar10_{name}_read", load_data=_load, make_model=_reading
  )
  for name in ("uniform", "one_class")
)
PIXELS = TASKS["cifar10_uniform_resnet9"]._replace(
  name="cifar10_uniform_pixels", load_data=_load
)
