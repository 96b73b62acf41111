"""FedAgg's LeNet-5 on CIFAR-10 from where programs in PyTorch often start: tasks.

With this folder on PYTHONPATH, `--task=lenet5_start:PIXELS` is `cifar10_lenet5` on pixels
less their channel's mean, over its deviation; WEIGHTS has initial weights drawn as those
of PyTorch, BOTH these and those pixels, and AUGMENTED, besides, pictures shifted by up to
an eighth and perhaps mirrored. FedAgg says of none of it whether its authors have it.
"""

from __future__ import annotations

import functools

import tensorflow as tf

from tasks.models import cnn
from tasks.models.pytorch_start import draw_as_pytorch
from tasks.registry import TASKS

_layers = tf.keras.layers
# Of the 50,000 training pictures' red, green and blue, 0..1.
MEANS = (0.4914, 0.4822, 0.4465)
DEVIATIONS = (0.2470, 0.2435, 0.2616)


def _build(
  shape: tuple[int, ...], num_classes: int, pixels: bool, weights: bool, augmented: bool
) -> tf.keras.Model:
  model = cnn.lenet5(shape, num_classes)
  if weights:
    draw_as_pytorch(model)
  before = []
  if augmented:
    before += [
      _layers.RandomTranslation(1 / 8, 1 / 8, "reflect", "nearest"),
      _layers.RandomFlip("horizontal"),
    ]
  if pixels:
    scale = [1 / deviation for deviation in DEVIATIONS]
    offset = [-mean / deviation for mean, deviation in zip(MEANS, DEVIATIONS)]
    before.append(_layers.Rescaling(scale, offset))
  return tf.keras.Sequential([_layers.Input(shape), *before, *model.layers])


def _task(name: str, pixels: bool, weights: bool, augmented: bool = False):
  build = functools.partial(_build, pixels=pixels, weights=weights, augmented=augmented)
  return TASKS["cifar10_lenet5"]._replace(
    name=f"cifar10_lenet5_{name}", build_keras_model=build
  )


PIXELS = _task("pixels", pixels=True, weights=False)
WEIGHTS = _task("weights", pixels=False, weights=True)
BOTH = _task("both", pixels=True, weights=True)
AUGMENTED = _task("augmented", pixels=True, weights=True, augmented=True)
