"""FedReg's CIFAR-10 with its authors' pictures augmented otherwise: tasks.

With this folder on PYTHONPATH, `--task=authors_pictures:UNIFORM` is
`cifar10_uniform_resnet9` with pictures that layers of the network shift, by up to an
eighth on black, and perhaps mirror: FedReg's pseudo data are of the picture as it is, and
shifted in training as it is. ONE_CLASS is the same of `cifar10_one_class_resnet9`, and
PIXELS is UNIFORM with pictures that are neither shifted nor mirrored.
"""

from __future__ import annotations

from typing import Optional

import numpy as np
import tensorflow as tf

from tasks.datasets.dataset import Dataset
from tasks.models import augmentation, resnet
from tasks.registry import TASKS
from tasks.task import Task

_layers = tf.keras.layers
MEANS, DEVIATIONS = augmentation.CIFAR10


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


# Standardized as they are loaded.
_PLAIN = dict(load_data=_load, make_model=Task._field_defaults["make_model"])
UNIFORM, ONE_CLASS = (
  TASKS[f"cifar10_{name}_resnet9"]._replace(
    name=f"cifar10_{name}_authors", build_keras_model=_build, **_PLAIN
  )
  for name in ("uniform", "one_class")
)
PIXELS = TASKS["cifar10_uniform_resnet9"]._replace(
  name="cifar10_uniform_pixels", **_PLAIN
)
