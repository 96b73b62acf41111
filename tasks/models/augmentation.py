"""Colour pictures as a program in PyTorch reads them: standardized, and augmented."""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tff_algos.models.functional import ExampleSpec, Model
from tff_algos.models.keras import from_keras

_MARGIN = 4  # Pixels [code, FedReg's authors'; common].


class Colours(NamedTuple):
  """Means and deviations of a data set's pixels by channel, of 0..1, three each."""

  means: tuple[float, ...]
  deviations: tuple[float, ...]

  @property
  def black(self) -> np.ndarray:
    """A black pixel, standardized: float32 (3,)."""
    return (-np.array(self.means) / self.deviations).astype(np.float32)


# [code, FedReg's authors']
CIFAR10 = Colours((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
CIFAR100 = Colours((0.507, 0.487, 0.441), (0.267, 0.256, 0.276))


def standardized_and_shifted(
  keras_model: tf.keras.Model, spec: ExampleSpec, colours: Colours
) -> Model:
  """A model of pictures less their channel's mean, over its deviation.

  In training they are shifted and mirrored before the network, `Model.augment`.

  Args:
    keras_model: Takes such pictures, float32 (B, height, width, 3).
    spec: Of uint8 pictures and their labels.
    colours: Of the data set.
  """
  deviations = np.array(colours.deviations)
  standardize = tf.keras.layers.Rescaling(
    (1 / 255 / deviations).tolist(), colours.black.tolist()
  )
  model = from_keras(keras_model, spec, preprocess=standardize)
  augment = functools.partial(shift_and_mirror, black=colours.black)
  return dataclasses.replace(model, augment=augment)


def shift_and_mirror(x: tf.Tensor, seed: tf.Tensor, *, black: np.ndarray) -> tf.Tensor:
  """Each picture shifted by up to four pixels on black, and perhaps mirrored.

  As torchvision's RandomCrop(padding=4) and RandomHorizontalFlip() [code, FedReg's
  authors'].

  Args:
    x: Pictures, float32 (B, height, width, channels).
    seed: int32 (2,).
    black: What stands around them, (channels,).
  """
  count, height, width = tf.shape(x)[0], x.shape[1], x.shape[2]
  sides = [_MARGIN, _MARGIN]
  seeds = tf.random.experimental.stateless_split(seed, 3)
  x = tf.pad(x - black, [[0, 0], sides, sides, [0, 0]]) + black
  for axis, size in ((1, height), (2, width)):
    first = tf.random.stateless_uniform(
      [count, 1], seeds[axis], 0, 2 * _MARGIN + 1, tf.int32
    )
    x = tf.gather(x, first + tf.range(size), axis=axis, batch_dims=1)
  is_mirrored = tf.random.stateless_uniform([count, 1, 1, 1], seeds[0]) < 0.5
  return tf.where(is_mirrored, x[:, :, ::-1], x)
