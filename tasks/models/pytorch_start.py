"""Initial weights drawn as PyTorch draws them, where a paper's program is in PyTorch."""

from __future__ import annotations

import tensorflow as tf


def draw_as_pytorch(model: tf.keras.Model) -> tf.keras.Model:
  """Gives dense layers and convolutions PyTorch's initializers; the same model.

  Kernels and biases are uniform within 1 / sqrt(inputs of a unit) [code, PyTorch's Linear
  and Conv2d]. They are drawn where `reinitialize` draws, as by a task, and not here.
  """
  for layer in model.layers:
    if isinstance(layer, (tf.keras.layers.Dense, tf.keras.layers.Conv2D)):
      limit = float(tf.size(layer.kernel[..., 0])) ** -0.5
      layer.kernel_initializer = tf.keras.initializers.RandomUniform(-limit, limit)
      layer.bias_initializer = tf.keras.initializers.RandomUniform(-limit, limit)
  return model
