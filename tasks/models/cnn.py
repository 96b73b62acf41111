"""Convolutional networks for small pictures; all return logits."""

from __future__ import annotations

import tensorflow as tf

_layers = tf.keras.layers


def digits(shape: tuple[int, ...], num_classes: int) -> tf.keras.Model:
  """A small network for 8 x 8 pictures: 13,706 weights [convention]."""
  return tf.keras.Sequential(
    [
      _layers.Input(shape),
      _layers.Conv2D(16, 3, padding="same", activation="relu"),
      _layers.MaxPool2D(),
      _layers.Conv2D(32, 3, padding="same", activation="relu"),
      _layers.MaxPool2D(),
      _layers.Flatten(),
      _layers.Dense(64, "relu"),
      _layers.Dense(num_classes),
    ]
  )


def mcmahan(shape: tuple[int, ...], num_classes: int) -> tf.keras.Model:
  """SAME padding: 1,663,370 weights on MNIST [paper, McMahan et al. 2017]."""
  return _two_convolutions(shape, num_classes, "same")


def twafl(shape: tuple[int, ...], num_classes: int) -> tf.keras.Model:
  """VALID padding: 582,026 weights on MNIST, 52,096 convolutional [paper, TWAFL]."""
  return _two_convolutions(shape, num_classes, "valid")


def _two_convolutions(shape, num_classes, padding) -> tf.keras.Model:
  return tf.keras.Sequential(
    [
      _layers.Input(shape),
      _layers.Conv2D(32, 5, padding=padding, activation="relu"),
      _layers.MaxPool2D(),
      _layers.Conv2D(64, 5, padding=padding, activation="relu"),
      _layers.MaxPool2D(),
      _layers.Flatten(),
      _layers.Dense(512, "relu"),
      _layers.Dense(num_classes),
    ]
  )


def fed_reg(shape: tuple[int, ...], num_classes: int) -> tf.keras.Model:
  """Three VALID 5x5 convolutions, 256: 228,010 weights on MNIST [paper, FedReg B.1]."""
  return tf.keras.Sequential(
    [
      _layers.Input(shape),
      _layers.Conv2D(32, 5, activation="relu"),
      _layers.Conv2D(32, 5, activation="relu"),
      _layers.MaxPool2D(),
      _layers.Conv2D(64, 5, activation="relu"),
      _layers.MaxPool2D(),
      _layers.Flatten(),
      _layers.Dense(256, "relu"),
      _layers.Dense(num_classes),
    ]
  )


def lenet(shape: tuple[int, ...], num_classes: int) -> tf.keras.Model:
  """5x5x6, 5x5x16, pools, 120, 84: 62,006 weights on CIFAR-10 [paper, FedGG 4.1]."""
  return tf.keras.Sequential(
    [
      _layers.Input(shape),
      _layers.Conv2D(6, 5, activation="relu"),
      _layers.MaxPool2D(),
      _layers.Conv2D(16, 5, activation="relu"),
      _layers.MaxPool2D(),
      _layers.Flatten(),
      _layers.Dense(120, "relu"),
      _layers.Dense(84, "relu"),
      _layers.Dense(num_classes),
    ]
  )
