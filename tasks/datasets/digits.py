"""The 1,797 handwritten 8x8 digits that come with scikit-learn: no download."""

from __future__ import annotations

import numpy as np
from sklearn import datasets as sklearn_datasets
from sklearn import model_selection

from tasks.datasets import dataset


def load() -> dataset.Dataset:
  """Loads the digits.

  The split is 80/20, stratified and always the same: 1,437 train and 360 test examples.

  Returns:
    Pictures (N, 8, 8, 1) uint8, where 255 is full ink (16 in the original), and labels
    0..9.
  """
  digits = sklearn_datasets.load_digits()
  x = np.rint(digits.images * (255 / 16)).astype(np.uint8)[..., np.newaxis]
  y = digits.target.astype(np.int32)
  train_x, test_x, train_y, test_y = model_selection.train_test_split(
    x, y, test_size=0.2, random_state=0, stratify=y
  )
  return dataset.Dataset(train_x, train_y, test_x, test_y, num_classes=10)
