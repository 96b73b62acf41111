"""VGG for 32 x 32 pictures (Simonyan & Zisserman, 2014); all return logits.

The papers that train them do not say what they change for small pictures. So these are
what is most used on CIFAR [convention, github.com/kuangliu/pytorch-cifar]: normalization
after each convolution, one dense layer instead of three, no dropout.
"""

from __future__ import annotations

import tensorflow as tf

from tasks.models import group_norm

_layers = tf.keras.layers


def vgg11(shape: tuple[int, ...], num_classes: int) -> tf.keras.Model:
  """Eight convolutions: 9,231,114 weights on CIFAR-10, 9,277,284 on CIFAR-100."""
  return _vgg(shape, num_classes, (1, 1, 2, 2, 2))


def vgg16(shape: tuple[int, ...], num_classes: int) -> tf.keras.Model:
  """Thirteen convolutions: 14,774,436 weights on CIFAR-100."""
  return _vgg(shape, num_classes, (2, 2, 3, 3, 3))


def _vgg(shape, num_classes, depths) -> tf.keras.Model:
  inputs = x = _layers.Input(shape)
  for channels, depth in zip((64, 128, 256, 512, 512), depths):
    for _ in range(depth):
      x = _layers.ReLU()(group_norm.convolve(x, channels))
    x = _layers.MaxPool2D()(x)
  return tf.keras.Model(inputs, _layers.Dense(num_classes)(_layers.Flatten()(x)))
