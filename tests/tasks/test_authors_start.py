"""FedReg's tasks from where its authors start, of which the results speak."""

from __future__ import annotations

import importlib.util
import pathlib
import types

import numpy as np
import pytest

from tasks.datasets import dataset, tfds_images

_FOLDER = pathlib.Path(__file__).resolve().parents[2] / "results/fedreg/one_class"

# What PyTorch 2.13.0 gives for `_ramp`: `torch.manual_seed(124)`, then Conv2d(1, 32, 5),
# Conv2d(32, 32, 5), Conv2d(32, 64, 5), Linear(576, 256) and Linear(256, 10).
_LOGITS = [
  *(-0.0891138, -0.0101720, 0.0757771, -0.0035083, 0.0594359),
  *(0.0335888, -0.0687230, -0.0542368, -0.0192659, 0.0334728),
]


@pytest.fixture(scope="module")
def authors_start() -> types.ModuleType:
  path = _FOLDER / "authors_start" / "authors_start.py"
  spec = importlib.util.spec_from_file_location("authors_start", path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def _ramp() -> np.ndarray:
  return (np.arange(784, dtype=np.float32) / 784).reshape(1, 28, 28, 1)


def test_the_network_is_pytorchs(authors_start):
  """Every weight has a part in the logits, and each has its place."""
  model = authors_start.authors_network((28, 28, 1), 10)
  np.testing.assert_allclose(model(_ramp()).numpy()[0], _LOGITS, atol=1e-6)


def test_pictures_are_standardized_pixel_by_pixel(authors_start, monkeypatch):
  """Of a pixel of 0, 3, 6, 3 over both splits, and one that is always 7."""
  train = np.array([[0, 7], [3, 7], [6, 7]], np.uint8).reshape(3, 1, 2, 1)
  test = np.array([[3, 7]], np.uint8).reshape(1, 1, 2, 1)
  labels = np.zeros(3, np.int32)
  pictures = dataset.Dataset(train, labels, test, labels[:1], num_classes=1)
  monkeypatch.setattr(tfds_images, "load", lambda name, folder: pictures)
  data = authors_start.standardized(None, "")
  far = 3 / (4.5**0.5 + 0.001)
  assert (data.train_x.dtype, data.train_x.shape) == (np.float32, train.shape)
  np.testing.assert_allclose(data.train_x.ravel(), [-far, 0, 0, 0, far, 0], rtol=1e-6)
  np.testing.assert_allclose(data.test_x.ravel(), [0, 0], atol=1e-6)
  assert data.num_classes == 1
  np.testing.assert_array_equal(data.train_y, labels)


@pytest.mark.parametrize(
  "name, classes, is_standardized, has_weights",
  [
    ("AUTHORS", 1, True, True),
    ("AUTHORS_TWO_CLASS", 2, True, True),
    ("STANDARDIZED", 1, True, False),
    ("WEIGHTS", 1, False, True),
  ],
)
def test_tasks_have_what_they_are_named_for(
  authors_start, name, classes, is_standardized, has_weights
):
  task = getattr(authors_start, name)
  assert task.partition == f"power_law:classes_per_client={classes}"
  assert (task.load_data is authors_start.standardized) == is_standardized
  assert (task.build_keras_model is authors_start.authors_network) == has_weights
