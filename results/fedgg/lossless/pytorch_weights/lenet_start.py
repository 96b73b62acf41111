"""FedGG's LeNet on CIFAR-10 from initial weights drawn as PyTorch draws them: a task.

With this folder on PYTHONPATH, `--task=lenet_start:WEIGHTS` is `cifar10_lenet_augmented`
with such weights. FedGG's authors use PyTorch.
"""

from __future__ import annotations

import tensorflow as tf

from tasks.models import cnn
from tasks.models.pytorch_start import draw_as_pytorch
from tasks.registry import TASKS


def _build(shape: tuple[int, ...], num_classes: int) -> tf.keras.Model:
  return draw_as_pytorch(cnn.lenet_augmented(shape, num_classes))


WEIGHTS = TASKS["cifar10_lenet_augmented"]._replace(
  name="cifar10_lenet_augmented_weights", build_keras_model=_build
)
