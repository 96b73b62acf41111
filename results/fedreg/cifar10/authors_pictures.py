"""FedReg's CIFAR-10 with its authors' pictures: tasks.

With this folder on PYTHONPATH, `--task=authors_pictures:UNIFORM` is
`cifar10_uniform_resnet9` with pixels less their channel's mean, over its deviation, so
that FedReg's steps are in the units of its authors' program, and with pictures that are
shifted by up to an eighth on black, and perhaps mirrored, in training. ONE_CLASS is the
same of `cifar10_one_class_resnet9`. There pseudo data are of a picture already shifted,
here of the picture as it is, and shifted in training as it is. PIXELS is UNIFORM with
pictures that are neither shifted nor mirrored. Their repository is
github.com/Zoesgithub/FedReg.
"""

from __future__ import annotations

from typing import Optional

import numpy as np
import tensorflow as tf

from tasks.datasets.dataset import Dataset
from tasks.models import resnet
from tasks.registry import TASKS

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


UNIFORM, ONE_CLASS = (
  TASKS[f"cifar10_{name}_resnet9"]._replace(
    name=f"cifar10_{name}_authors", load_data=_load, build_keras_model=_build
  )
  for name in ("uniform", "one_class")
)
PIXELS = TASKS["cifar10_uniform_resnet9"]._replace(
  name="cifar10_uniform_pixels", load_data=_load
)
