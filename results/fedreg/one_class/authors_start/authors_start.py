"""FedReg's tasks of MNIST from where its authors start: tasks, and a check.

  PYTHONPATH=. python results/fedreg/one_class/authors_start/authors_start.py DATA_DIR

prints the loss of their initial weights on pictures of several scales. In their public
log it is 2.3127 on the 27,700 training pictures of clients of one class, and 2.3123 on
the 27,779 of two. With this folder on PYTHONPATH, `--task=authors_start:AUTHORS` has
their initial weights, and pictures as Li et al.'s generator of clients of MNIST makes
them; STANDARDIZED has these pictures alone, WEIGHTS these weights, and AUTHORS_TWO_CLASS
both on clients of two classes. Their repository is github.com/Zoesgithub/FedReg.
"""

from __future__ import annotations

import sys
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from tasks.datasets import tfds_images
from tasks.datasets.dataset import Dataset
from tasks.models import cnn
from tasks.registry import TASKS

# Their models begin with torch.manual_seed(123 + 1) [code].
TORCH_SEED = 124


def standardized(data_dir: Optional[str], cache_dir: str) -> Dataset:
  """MNIST, each pixel less its mean, over its deviation + 0.001 [code, Li et al.].

  Mean and deviation are those of the pixel over all 70,000 pictures, 0..255.
  """
  del cache_dir
  data = tfds_images.load("mnist", data_dir)
  pictures = np.concatenate([data.train_x, data.test_x]).astype(np.float32)
  mean, deviation = pictures.mean(axis=0), pictures.std(axis=0)

  def scale(x: np.ndarray) -> np.ndarray:
    return ((x - mean) / (deviation + np.float32(0.001))).astype(np.float32)

  return data._replace(train_x=scale(data.train_x), test_x=scale(data.test_x))


def authors_network(shape: tuple[int, ...], num_classes: int) -> tf.keras.Model:
  """FedReg's network for MNIST with the initial weights of its authors' program.

  PyTorch draws the weights of a layer and then its biases, all uniform within
  1 / sqrt(inputs of a unit), from 24 bits of a generator that is NumPy's RandomState too:
  they are those of PyTorch 1.12.1 within 2e-8.
  """
  random = np.random.RandomState(TORCH_SEED)

  def draw(size: tuple[int, ...], limit: np.float32) -> np.ndarray:
    bits = random.randint(0, 2**32, np.prod(size), np.uint32) & (2**24 - 1)
    unit = bits.astype(np.float32) * np.float32(2**-24)
    return np.reshape(unit * (2 * limit) - limit, size)

  model = cnn.fed_reg(shape, num_classes)
  channels: Optional[int] = None
  for layer in model.layers:
    if not layer.weights:
      continue
    *inputs, outputs = layer.kernel.shape
    limit = np.float32(np.prod(inputs) ** -0.5)
    if len(inputs) == 3:
      height, width, channels_in = inputs
      drawn = draw((outputs, channels_in, height, width), limit)
      kernel, channels = drawn.transpose(2, 3, 1, 0), outputs
    else:
      drawn = draw((outputs, *inputs), limit)
      if channels:  # Of pictures laid flat: PyTorch's have their channels first.
        side = round((inputs[0] / channels) ** 0.5)
        drawn = drawn.reshape(outputs, channels, side, side).transpose(0, 2, 3, 1)
        drawn, channels = drawn.reshape(outputs, -1), None
      kernel = drawn.T
    layer.set_weights([kernel, draw((outputs,), limit)])
  return model


_ONE_CLASS, _TWO_CLASS = TASKS["mnist_one_class"], TASKS["mnist_two_class"]
_PICTURES: dict[str, Any] = dict(load_data=standardized)
_WEIGHTS: dict[str, Any] = dict(build_keras_model=authors_network, is_pretrained=True)

STANDARDIZED = _ONE_CLASS._replace(name="mnist_one_class_standardized", **_PICTURES)
WEIGHTS = _ONE_CLASS._replace(name="mnist_one_class_weights", **_WEIGHTS)
AUTHORS = _ONE_CLASS._replace(name="mnist_one_class_authors", **_PICTURES, **_WEIGHTS)
AUTHORS_TWO_CLASS = _TWO_CLASS._replace(
  name="mnist_two_class_authors", **_PICTURES, **_WEIGHTS
)


def main() -> None:
  """Prints the initial weights' loss and accuracy on all 60,000 training pictures."""
  if len(sys.argv) != 2:
    sys.exit("authors_start.py takes one argument, the folder of the data set MNIST.")
  data = tfds_images.load("mnist", sys.argv[1])
  x, y = data.train_x.astype(np.float32) / 255, data.train_y
  model = authors_network(x.shape[1:], data.num_classes)
  axes = (1, 2, 3)
  standardized_pictures = (x - x.mean(axes, keepdims=True)) / x.std(axes, keepdims=True)
  for scale, pictures in (
    ("0..1, as here", x),
    ("-1..1", 2 * x - 1),
    ("less their mean 0.1307, over their deviation 0.3081", (x - 0.1307) / 0.3081),
    ("each picture standardized", standardized_pictures),
    ("each pixel standardized, as Li et al.", standardized(sys.argv[1], "").train_x),
  ):
    logits = model.predict(pictures, batch_size=1000, verbose=0)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits).numpy()
    error = losses.std() * (1 / 27_700 - 1 / len(y)) ** 0.5
    accuracy = np.mean(logits.argmax(axis=1) == y)
    print(f"{losses.mean():.4f}, 27,700 of them +- {error:.4f}; {accuracy:.4f}: {scale}")


if __name__ == "__main__":
  main()
