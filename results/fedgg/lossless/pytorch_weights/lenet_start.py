"""FedGG's LeNet on CIFAR-10 from initial weights drawn as PyTorch draws them: a task.

With this folder on PYTHONPATH, `--task=lenet_start:WEIGHTS` is `cifar10_lenet_augmented`
with such weights. FedGG's authors use PyTorch.
"""

from __future__ import annotations

import tensorflow as tf

from tasks.models import cnn
from tasks.registry import TASKS


def _build(shape: tuple[int, ...], num_classes: int) -> tf.keras.Model:
  model = cnn.lenet_augmented(shape, num_classes)
  for layer in model.layers:
    if hasattr(layer, "kernel"):
      # Uniform within 1 / sqrt(inputs of a unit), biases too [code, PyTorch's layers].
      limit = float(tf.size(layer.kernel[..., 0])) ** -0.5
      layer.kernel_initializer = tf.keras.initializers.RandomUniform(-limit, limit)
      layer.bias_initializer = tf.keras.initializers.RandomUniform(-limit, limit)
  return model


WEIGHTS = TASKS["cifar10_lenet_augmented"]._replace(
  name="cifar10_lenet_augmented_weights", build_keras_model=_build
)
