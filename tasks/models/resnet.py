"""Residual networks for 32 x 32 pictures; all return logits."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tasks.models import group_norm

_layers = tf.keras.layers

# --- ResNet-18 ----------------------------------------------------------------------


def resnet18(shape: tuple[int, ...], num_classes: int) -> tf.keras.Model:
  """ResNet-18 with a 3x3 stem and no first pool: 11,173,962 weights on CIFAR-10.

  He et al., 2015, in the form most used on CIFAR [convention,
  github.com/kuangliu/pytorch-cifar], with group instead of batch normalization.
  """
  inputs = _layers.Input(shape)
  x = _layers.ReLU()(group_norm.convolve(inputs, 64, use_bias=False))
  for channels, strides in ((64, 1), (128, 2), (256, 2), (512, 2)):
    x = _basic_block(x, channels, strides)
    x = _basic_block(x, channels, 1)
  x = _layers.GlobalAveragePooling2D()(x)
  return tf.keras.Model(inputs, _layers.Dense(num_classes)(x))


def _basic_block(x: Any, channels: int, strides: int) -> Any:
  y = group_norm.convolve(x, channels, strides=strides, use_bias=False)
  y = group_norm.convolve(_layers.ReLU()(y), channels, use_bias=False)
  if x.shape[-1] != channels:
    x = group_norm.convolve(x, channels, 1, strides, use_bias=False)
  return _layers.ReLU()(_layers.Add()([x, y]))


# --- ResNet-9 with Fixup ------------------------------------------------------------


class Shift(tf.keras.layers.Layer):
  """Adds one number, at first 0, to all inputs."""

  def build(self, input_shape) -> None:
    """Makes the number; inputs may have any shape."""
    self.bias_initializer = tf.keras.initializers.Zeros()
    self.bias = self.add_weight("bias", (1,), initializer=self.bias_initializer)
    super().build(input_shape)

  def call(self, inputs: tf.Tensor) -> tf.Tensor:
    """Gives the shape of `inputs`."""
    return inputs + self.bias

  def standard_layer(self, weights: list[Any]) -> tuple[tf.keras.layers.Layer, list[Any]]:
    """Its number as a constant, for `tff_algos.to_keras`: Keras has no layer for it."""
    return _layers.Rescaling(1.0, float(weights[0][0]), name=self.name), []


class Multiply(tf.keras.layers.Layer):
  """Multiplies all inputs by one number, at first 1."""

  def build(self, input_shape) -> None:
    """Makes the number; inputs may have any shape."""
    self.scale_initializer = tf.keras.initializers.Ones()
    self.scale = self.add_weight("scale", (1,), initializer=self.scale_initializer)
    super().build(input_shape)

  def call(self, inputs: tf.Tensor) -> tf.Tensor:
    """Gives the shape of `inputs`."""
    return inputs * self.scale

  def standard_layer(self, weights: list[Any]) -> tuple[tf.keras.layers.Layer, list[Any]]:
    """As that of `Shift`."""
    return _layers.Rescaling(float(weights[0][0]), name=self.name), []


def resnet9(
  shape: tuple[int, ...],
  num_classes: int,
  channels: tuple[int, int, int, int] = (64, 128, 256, 512),
) -> tf.keras.Model:
  """ResNet-9 with Fixup: 6,568,673 weights on CIFAR-10, 6,614,843 on CIFAR-100.

  The network of Rothchild et al., FetchSGD, 2020, without normalization: two residual
  blocks, on the second and on the fourth of `channels`. Fixup (Zhang et al., 2019): a
  block's first convolution is scaled by L^(-1/(2m - 2)) with L = 2 blocks of m = 2
  convolutions, its last one and the classifier are 0 [paper]; where the numbers that
  shift and multiply stand, and the pools, are FedReg's public program's [code].

  So at first all logits are 0 and a first gradient reaches the classifier alone:
  gradients by the inputs and by the other weights start with the second local step.

  Args:
    shape: Of a picture, at least 32 x 32.
    num_classes: The number of logits.
    channels: Of the stem and of the three layers behind it.
  """
  stem, first, second, third = channels
  inputs = _layers.Input(shape)
  x = _fixup_layer(inputs, stem)
  x = _fixup_block(_layers.MaxPool2D()(_fixup_layer(x, first)))
  x = _layers.MaxPool2D()(_fixup_layer(x, second))
  x = _fixup_block(_layers.MaxPool2D()(_fixup_layer(x, third)))
  x = Shift()(_layers.GlobalMaxPool2D()(x))
  outputs = _layers.Dense(num_classes, kernel_initializer="zeros")(x)
  return tf.keras.Model(inputs, outputs)


def _fixup_layer(x: Any, channels: int) -> Any:
  x = _plain_convolution(Shift()(x), channels, _he_normal(2.0))
  return _layers.ReLU()(Shift()(Multiply()(x)))


def _fixup_block(x: Any) -> Any:
  channels = x.shape[-1]
  # L^(-1/(2m - 2)) = 2^(-1/2) as a factor of the variance.
  y = _plain_convolution(Shift()(x), channels, _he_normal(2.0 / 2))
  y = Shift()(_layers.ReLU()(Shift()(y)))
  y = Shift()(Multiply()(_plain_convolution(y, channels, "zeros")))
  return _layers.ReLU()(_layers.Add()([x, y]))


def _plain_convolution(x: Any, channels: int, initializer: Any) -> Any:
  return _layers.Conv2D(
    channels, 3, padding="same", use_bias=False, kernel_initializer=initializer
  )(x)


def _he_normal(scale: float) -> tf.keras.initializers.Initializer:
  """Normal with variance scale / (9 x the convolution's output channels)."""
  return tf.keras.initializers.VarianceScaling(scale, "fan_out", "untruncated_normal")
