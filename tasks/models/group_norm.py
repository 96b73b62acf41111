"""Group normalization, where the original network has batch normalization.

Batch statistics cannot be averaged over clients; those of a group of channels belong to
one example alone (Wu & He, Group Normalization, 2018).
"""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

_layers = tf.keras.layers


class GroupNorm(tf.keras.layers.GroupNormalization):
  """Keras's layer for pictures of a known size, of fewer operations.

  Weights and values are those of `tf.keras.layers.GroupNormalization`; inputs (B, height,
  width, channels) float32.
  """

  # Keras's layer makes about a hundred operations, most of them on shapes that are known:
  # DenseNet has 121 such layers and each is traced several times.

  def call(self, inputs: tf.Tensor) -> tf.Tensor:
    """Gives the shape of `inputs`."""
    _, height, width, channels = inputs.shape
    groups = [-1, height, width, self.groups, channels // self.groups]
    x = tf.reshape(inputs, groups)
    mean, variance = tf.nn.moments(x, [1, 2, 4], keepdims=True)
    x = (x - mean) * tf.math.rsqrt(variance + self.epsilon)
    x = tf.reshape(x, [-1, height, width, channels])
    if self.scale:
      x *= self.gamma
    return x + self.beta if self.center else x

  def standard_layer(self, weights: list[Any]) -> tuple[tf.keras.layers.Layer, list[Any]]:
    """Keras's layer, for `tff_algos.to_keras`."""
    config = self.get_config()
    return tf.keras.layers.GroupNormalization.from_config(config), weights


def convolve(
  x: Any, channels: int, size: int = 3, strides: int = 1, use_bias: bool = True
) -> Any:
  """A SAME convolution, then normalization in up to 32 groups of equal size.

  32 groups are those of Wu & He [recalled]; where they do not divide the channels, the
  largest power of two that does [convention].

  Args:
    x: Keras tensor (B, height, width, any channels).
    channels: The number of channels that come out.
    size: Height and width of the kernel.
    strides: Of the convolution, in both directions.
    use_bias: Whether the convolution has a bias.

  Returns:
    A Keras tensor (B, height / strides, width / strides, channels).
  """
  x = _layers.Conv2D(channels, size, strides, padding="same", use_bias=use_bias)(x)
  return GroupNorm(math.gcd(32, channels))(x)
