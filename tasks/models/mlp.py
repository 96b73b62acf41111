"""Dense networks for flat or small pictures; all return logits."""

from __future__ import annotations

import tensorflow as tf

_layers = tf.keras.layers


def softmax_regression(shape: tuple[int, ...], num_classes: int) -> tf.keras.Model:
  """One dense layer: 7,850 weights on MNIST [paper, FedAgg Section VII]."""
  return tf.keras.Sequential(
    [_layers.Input(shape), _layers.Flatten(), _layers.Dense(num_classes)]
  )


def one_hidden_layer(
  shape: tuple[int, ...], num_classes: int, width: int = 512
) -> tf.keras.Model:
  """3072-512-10 with ReLU: 1,578,506 weights on SVHN [paper, FedGG 4.1]."""
  return tf.keras.Sequential(
    [
      _layers.Input(shape),
      _layers.Flatten(),
      _layers.Dense(width, "relu"),
      _layers.Dense(num_classes),
    ]
  )


def two_hidden_layers(shape: tuple[int, ...], num_classes: int) -> tf.keras.Model:
  """784-200-200-10 with ReLU, "2NN": 199,210 weights [paper, McMahan et al. 2017]."""
  return tf.keras.Sequential(
    [
      _layers.Input(shape),
      _layers.Flatten(),
      _layers.Dense(200, "relu"),
      _layers.Dense(200, "relu"),
      _layers.Dense(num_classes),
    ]
  )
