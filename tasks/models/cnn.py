"""Convolutional networks for small pictures; all return logits."""

from __future__ import annotations

import tensorflow as tf

from tasks.models import group_norm

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
  """Three VALID 5x5 convolutions, 256: 228,010 weights on MNIST.

  The paper has three convolutions and two dense layers [paper, FedReg 4.1], their sizes
  are its authors' program's [code].
  """
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


def pfl_research(shape: tuple[int, ...], num_classes: int) -> tf.keras.Model:
  """Two VALID 3x3 convolutions, one pool, 128: 1,626,442 weights on CIFAR-10.

  `simple_cnn` of pfl-research's benchmarks [code, github.com/apple/pfl-research].
  """
  return tf.keras.Sequential(
    [
      _layers.Input(shape),
      _layers.Conv2D(32, 3, activation="relu"),
      _layers.Conv2D(64, 3, activation="relu"),
      _layers.MaxPool2D(),
      _layers.Dropout(0.25),
      _layers.Flatten(),
      _layers.Dense(128, "relu"),
      _layers.Dropout(0.5),
      _layers.Dense(num_classes),
    ]
  )


def lenet(shape: tuple[int, ...], num_classes: int) -> tf.keras.Model:
  """5x5x6, 5x5x16, pools, 120, 84: 62,006 weights on CIFAR-10 [paper, FedGG 4.1]."""
  return _lenet(shape, num_classes, (6, 16))


def lenet_augmented(shape: tuple[int, ...], num_classes: int) -> tf.keras.Model:
  """`lenet`, in training on pictures shifted by up to an eighth and perhaps mirrored.

  The benchmark of Li et al. 2022 (github.com/Xtra-Computing/NIID-Bench), whose split and
  network FedGG's are, trains on CIFAR-10 so [code]: pictures reflected at their border,
  cropped, mirrored. FedGG says nothing of it.
  """
  # It knows no bfloat16.
  shift = _layers.RandomTranslation(1 / 8, 1 / 8, "reflect", "nearest", dtype="float32")
  return _lenet(shape, num_classes, (6, 16), shift, _layers.RandomFlip("horizontal"))


def lenet5(shape: tuple[int, ...], num_classes: int) -> tf.keras.Model:
  """5x5x16, 5x5x32, pools, 120, 84: 121,182 weights on CIFAR-10, 121,742 on letters.

  FedAgg VII-A5 has 5 x 5 x 32 inputs of the first dense layer [paper]; so the second
  convolution has 32 channels and sees pictures of 32 x 32 [derived], hence smaller ones
  get a border of zeros [paper, LeCun et al. 1998]; 16 channels before [convention].
  """
  border = (32 - shape[0]) // 2
  return _lenet(
    shape,
    num_classes,
    (16, 32),
    *([_layers.ZeroPadding2D(border)] if border else []),
  )


def _lenet(shape, num_classes, channels, *before) -> tf.keras.Model:
  return tf.keras.Sequential(
    [
      _layers.Input(shape),
      *before,
      _layers.Conv2D(channels[0], 5, activation="relu"),
      _layers.MaxPool2D(),
      _layers.Conv2D(channels[1], 5, activation="relu"),
      _layers.MaxPool2D(),
      _layers.Flatten(),
      _layers.Dense(120, "relu"),
      _layers.Dense(84, "relu"),
      _layers.Dense(num_classes),
    ]
  )


def cnn3(shape: tuple[int, ...], num_classes: int) -> tf.keras.Model:
  """Three 3x3 convolutions, 512: 586,250 weights on CIFAR-10.

  FedAgg VII-A5: a pool after each convolution, 4 x 4 x 64 values behind them, dropout
  before each dense layer [paper]; 32 and 64 channels before and a half dropped out
  [convention].
  """
  return tf.keras.Sequential(
    [
      _layers.Input(shape),
      _layers.Conv2D(32, 3, padding="same", activation="relu"),
      _layers.MaxPool2D(),
      _layers.Conv2D(64, 3, padding="same", activation="relu"),
      _layers.MaxPool2D(),
      _layers.Conv2D(64, 3, padding="same", activation="relu"),
      _layers.MaxPool2D(),
      _layers.Flatten(),
      _layers.Dropout(0.5),
      _layers.Dense(512, "relu"),
      _layers.Dropout(0.5),
      _layers.Dense(num_classes),
    ]
  )


def alexnet(shape: tuple[int, ...], num_classes: int) -> tf.keras.Model:
  """AlexNet for 32 x 32 pictures: 2,472,266 weights on CIFAR-10.

  Krizhevsky et al., 2012, in the form most used on CIFAR [convention,
  github.com/bearpaw/pytorch-classification]: one dense layer, smaller pools.
  """
  return tf.keras.Sequential(
    [
      _layers.Input(shape),
      _layers.Conv2D(64, 11, 4, padding="same", activation="relu"),
      _layers.MaxPool2D(),
      _layers.Conv2D(192, 5, padding="same", activation="relu"),
      _layers.MaxPool2D(),
      _layers.Conv2D(384, 3, padding="same", activation="relu"),
      _layers.Conv2D(256, 3, padding="same", activation="relu"),
      _layers.Conv2D(256, 3, padding="same", activation="relu"),
      _layers.MaxPool2D(),
      _layers.Flatten(),
      _layers.Dense(num_classes),
    ]
  )


def cnn10(shape: tuple[int, ...], num_classes: int, width: int = 128) -> tf.keras.Model:
  """Nine 3x3 convolutions and a dense layer: 15,676,418 weights on (128, 128, 3), 2.

  FedReg B.4 gives the number of layers [paper]; channels, the one pool and the two
  normalizations over all channels are its public program's [code].

  Args:
    shape: Of a picture.
    num_classes: The number of logits.
    width: Channels of the first convolution; the others have 2 and 4 times as many.
  """
  wide = 4 * width
  return tf.keras.Sequential(
    [
      _layers.Input(shape),
      _layers.Conv2D(width, 3, padding="same", activation="relu"),
      _layers.Conv2D(2 * width, 3, padding="same", activation="relu"),
      _layers.Conv2D(2 * width, 3, padding="same", activation="relu"),
      _layers.Conv2D(wide, 3, padding="same", activation="relu"),
      _layers.Conv2D(wide, 3, padding="same", activation="relu"),
      _layers.Conv2D(wide, 3, padding="same"),
      group_norm.GroupNorm(1),
      _layers.ReLU(),
      _layers.MaxPool2D(3),
      _layers.Conv2D(wide, 3, padding="same", activation="relu"),
      _layers.Conv2D(wide, 3, padding="same"),
      group_norm.GroupNorm(1),
      _layers.ReLU(),
      _layers.Conv2D(wide, 3, padding="same", activation="relu"),
      _layers.Flatten(),
      _layers.Dense(num_classes),
    ]
  )
