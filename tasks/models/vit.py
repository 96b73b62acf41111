"""A Vision Transformer (Dosovitskiy et al., 2020) with published weights, to fine-tune.

The file decides the network: size and number of patches, width, depth and heads are those
of its arrays, which are named as by github.com/google-research/vision_transformer.
"""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Mapping
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from tasks.datasets import dataset
from tff_algos import durable_files
from tff_algos.errors import InputError, first_line

_layers = tf.keras.layers

WEIGHTS_VARIABLE = "TFF_ALGOS_VIT_WEIGHTS"
_EXAMPLE = (
  "https://storage.googleapis.com/vit_models/imagenet21k+imagenet2012/ViT-B_32.npz"
)


class Tokens(tf.keras.layers.Layer):
  """Puts the class token before the patches and adds the positions.

  Inputs (B, patches, width) give (B, 1 + patches, width).
  """

  def __init__(self, class_token: np.ndarray, positions: np.ndarray):
    """Takes the initial values, (1, 1, width) and (1, 1 + patches, width)."""
    super().__init__()
    self.class_token_initializer = tf.keras.initializers.Constant(class_token)
    self.positions_initializer = tf.keras.initializers.Constant(positions)
    self.class_token = self.add_weight(
      "class_token", class_token.shape, initializer=self.class_token_initializer
    )
    self.positions = self.add_weight(
      "positions", positions.shape, initializer=self.positions_initializer
    )

  def call(self, inputs: tf.Tensor) -> tf.Tensor:
    """Gives the tokens in front of the first encoder block."""
    first = tf.repeat(self.class_token, tf.shape(inputs)[0], axis=0)
    return tf.concat([first, inputs], axis=1) + self.positions

  def standard_layer(self, weights: list[Any]) -> tuple[tf.keras.layers.Layer, list[Any]]:
    """Both arrays as constants, for `tff_algos.to_keras`: Keras has no layer for them.

    A token of zeros is put in front, and the mean that is taken from all tokens is what
    is to be added.
    """
    class_token, positions = (weight[0] for weight in weights)
    added = positions.copy()
    added[:1] += class_token
    layers = [_layers.ZeroPadding1D((1, 0)), _layers.Normalization(axis=(1, 2))]
    network = tf.keras.Sequential(layers, name=self.name)
    return network, [-added, np.ones_like(added), np.int64(0)]


def pretrained(
  shape: tuple[int, ...], num_classes: int, path: Optional[str] = None
) -> tf.keras.Model:
  """The network of a checkpoint with its weights and a new classifier of zeros.

  Pictures 0..1 are resized (bilinear) to the checkpoint's size and brought to -1..1. The
  file's arrays are the initializers of the layers' weights, so that drawing the initial
  weights anew gives them again. A classifier of zeros is the original's for fine-tuning
  [code, google-research/vision_transformer]; FedReg's of ones [code] gives the same
  probabilities and the same gradients, since the softmax ignores what all logits share.
  There is no dropout. ViT-B/16 at 224 has 85,798,656 weights without the classifier.

  Args:
    shape: Of a picture (height, width, channels).
    num_classes: The number of logits.
    path: The checkpoint, a NumPy .npz; None: where $TFF_ALGOS_VIT_WEIGHTS says.

  Raises:
    DataMissingError: There is no such file; the message says how to get it.
    InputError: It is no ViT checkpoint, or one for pictures of other channels.
  """
  path = path or os.environ.get(WEIGHTS_VARIABLE)
  if not path or not os.path.isfile(os.path.expanduser(path)):
    found = f"{path} is no file" if path else f"${WEIGHTS_VARIABLE} is not set"
    raise dataset.DataMissingError(
      f"The pretrained ViT's weights are missing ({found}): download a checkpoint, such "
      f"as {_EXAMPLE} (FedReg's), and set {WEIGHTS_VARIABLE} to its path."
    )
  path = os.path.expanduser(path)
  try:
    if not zipfile.is_zipfile(path):
      raise zipfile.BadZipFile("it is no complete .npz file")
    with np.load(path) as archive:
      arrays = {name: archive[name] for name in archive.files}
  # The others are of damaged files.
  except (*durable_files.ZIP_DAMAGES, NotImplementedError, OSError, ValueError) as error:
    raise _no_checkpoint(path, first_line(error)) from error
  try:
    return _vision_transformer(shape, num_classes, arrays)
  except KeyError as error:
    raise _no_checkpoint(path, f"it lacks {error}") from error


def _no_checkpoint(path: str, reason: str) -> InputError:
  return InputError(
    f"{path} is no checkpoint of a Vision Transformer ({reason}): give the .npz as "
    "published by google-research/vision_transformer."
  )


def _vision_transformer(
  shape: tuple[int, ...], num_classes: int, arrays: Mapping[str, np.ndarray]
) -> tf.keras.Model:
  patch, _, channels, width = arrays["embedding/kernel"].shape
  if channels != shape[-1]:
    raise InputError(
      f"The pretrained ViT takes pictures of {channels} channels, but the data's have "
      f"{shape[-1]}: choose another checkpoint or other data."
    )
  positions = arrays["Transformer/posembed_input/pos_embedding"]
  patches = positions.shape[1] - 1
  side = patch * math.isqrt(patches)
  inputs = _layers.Input(shape)
  x = _layers.Rescaling(2.0, -1.0)(_layers.Resizing(side, side)(inputs))
  x = _layers.Conv2D(width, patch, patch, **_weights(arrays, "embedding"))(x)
  x = Tokens(arrays["cls"], positions)(_layers.Reshape((patches, width))(x))
  block = 0
  while f"Transformer/encoderblock_{block}/LayerNorm_0/scale" in arrays:
    x = _encoder_block(x, arrays, f"Transformer/encoderblock_{block}")
    block += 1
  x = _normalize(x, arrays, "Transformer/encoder_norm")
  outputs = _layers.Dense(num_classes, kernel_initializer="zeros")(x[:, 0])
  return tf.keras.Model(inputs, outputs)


def _encoder_block(x: Any, arrays: Mapping[str, np.ndarray], name: str) -> Any:
  y = _normalize(x, arrays, f"{name}/LayerNorm_0")
  x = x + _attend(y, arrays, f"{name}/MultiHeadDotProductAttention_1")
  y = _normalize(x, arrays, f"{name}/LayerNorm_2")
  y = _dense(y, arrays, f"{name}/MlpBlock_3/Dense_0")
  # The approximation by tanh is that of the original's library [code].
  return x + _dense(tf.nn.gelu(y, approximate=True), arrays, f"{name}/MlpBlock_3/Dense_1")


def _attend(x: Any, arrays: Mapping[str, np.ndarray], name: str) -> Any:
  """Self-attention, (B, tokens, width) to the same."""
  width, heads, size = arrays[f"{name}/query/kernel"].shape
  # Not by tf.einsum, with which Keras cannot read the model again.
  query, key, value = (
    _layers.Permute((2, 1, 3))(
      _layers.EinsumDense(
        "btw,whs->bths",
        (None, heads, size),
        bias_axes="hs",
        **_weights(arrays, f"{name}/{part}"),
      )(x)
    )
    for part in ("query", "key", "value")
  )
  scores = tf.matmul(query, key, transpose_b=True) / math.sqrt(size)
  mixed = tf.matmul(tf.nn.softmax(scores), value)
  return _layers.EinsumDense(
    "bhts,hsw->btw", (None, width), bias_axes="w", **_weights(arrays, f"{name}/out")
  )(mixed)


def _dense(x: Any, arrays: Mapping[str, np.ndarray], name: str) -> Any:
  units = len(arrays[f"{name}/bias"])
  return _layers.Dense(units, **_weights(arrays, name))(x)


def _normalize(x: Any, arrays: Mapping[str, np.ndarray], name: str) -> Any:
  return _layers.LayerNormalization(
    epsilon=1e-6,
    gamma_initializer=tf.keras.initializers.Constant(arrays[f"{name}/scale"]),
    beta_initializer=tf.keras.initializers.Constant(arrays[f"{name}/bias"]),
  )(x)


def _weights(arrays: Mapping[str, np.ndarray], name: str) -> dict[str, Any]:
  return {
    f"{weight}_initializer": tf.keras.initializers.Constant(arrays[f"{name}/{weight}"])
    for weight in ("kernel", "bias")
  }
