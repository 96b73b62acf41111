"""GoogLeNet for 32 x 32 pictures (Szegedy et al., 2014); returns logits."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tasks.models import group_norm

_layers = tf.keras.layers

# Channels of the four branches: 1x1; 1x1 then 3x3; 1x1 then "5x5"; pool then 1x1
# [paper]. A pool stands between the tuples.
_INCEPTIONS = (
  ((64, (96, 128), (16, 32), 32), (128, (128, 192), (32, 96), 64)),
  (
    (192, (96, 208), (16, 48), 64),
    (160, (112, 224), (24, 64), 64),
    (128, (128, 256), (24, 64), 64),
    (112, (144, 288), (32, 64), 64),
    (256, (160, 320), (32, 128), 128),
  ),
  ((256, (160, 320), (32, 128), 128), (384, (192, 384), (48, 128), 128)),
)


def googlenet(shape: tuple[int, ...], num_classes: int) -> tf.keras.Model:
  """Nine inception modules behind a 3x3 stem: 6,166,250 weights on CIFAR-10.

  The form most used on CIFAR [convention, github.com/kuangliu/pytorch-cifar]: no
  auxiliary classifiers, two 3x3 convolutions for a 5x5 one; with group instead of its
  batch normalization.
  """
  inputs = _layers.Input(shape)
  x = _convolve(inputs, 192, 3)
  for place, modules in enumerate(_INCEPTIONS):
    if place:
      x = _layers.MaxPool2D(3, 2, padding="same")(x)
    for module in modules:
      x = _inception(x, *module)
  x = _layers.GlobalAveragePooling2D()(x)
  return tf.keras.Model(inputs, _layers.Dense(num_classes)(x))


def _inception(x: Any, one, three, five, pooled) -> Any:
  branches = (
    _convolve(x, one, 1),
    _convolve(_convolve(x, three[0], 1), three[1], 3),
    _convolve(_convolve(_convolve(x, five[0], 1), five[1], 3), five[1], 3),
    _convolve(_layers.MaxPool2D(3, 1, padding="same")(x), pooled, 1),
  )
  return _layers.Concatenate()(branches)


def _convolve(x: Any, channels: int, size: int) -> Any:
  return _layers.ReLU()(group_norm.convolve(x, channels, size))
