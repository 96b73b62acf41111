"""Densely connected networks (Huang et al., 2017); all return logits.

Group normalization stands for batch normalization [paper, FedReg B.2], in 4 groups
[code, FedReg's public program].
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tasks.models import group_norm

_layers = tf.keras.layers

_DEPTHS = (6, 12, 24, 16)


def densenet(shape: tuple[int, ...], num_classes: int) -> tf.keras.Model:
  """For 32 x 32 pictures, growth rate 12: 1,000,618 weights on CIFAR-10.

  DenseNet-121's depth with a 3x3 stem and no first pool, the form most used on CIFAR
  [convention, github.com/kuangliu/pytorch-cifar].
  """
  inputs = _layers.Input(shape)
  x = _layers.Conv2D(24, 3, padding="same", use_bias=False)(inputs)
  return tf.keras.Model(inputs, _dense_blocks(x, num_classes, growth=12))


def densenet121(shape: tuple[int, ...], num_classes: int) -> tf.keras.Model:
  """DenseNet-121, growth rate 32: 7,978,856 weights for 1,000 classes [paper]."""
  inputs = _layers.Input(shape)
  x = _layers.Conv2D(64, 7, 2, padding="same", use_bias=False)(inputs)
  x = _layers.MaxPool2D(3, 2, padding="same")(_normalize(x))
  return tf.keras.Model(inputs, _dense_blocks(x, num_classes, growth=32))


def _dense_blocks(x: Any, num_classes: int, growth: int) -> Any:
  for place, depth in enumerate(_DEPTHS):
    if place:
      x = _layers.Conv2D(x.shape[-1] // 2, 1, use_bias=False)(_normalize(x))
      x = _layers.AvgPool2D()(x)
    for _ in range(depth):
      y = _layers.Conv2D(4 * growth, 1, use_bias=False)(_normalize(x))
      y = _layers.Conv2D(growth, 3, padding="same", use_bias=False)(_normalize(y))
      x = _layers.Concatenate()([x, y])
  x = _layers.GlobalAveragePooling2D()(_normalize(x))
  return _layers.Dense(num_classes)(x)


def _normalize(x: Any) -> Any:
  return _layers.ReLU()(group_norm.GroupNorm(4)(x))
