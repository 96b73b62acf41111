"""Fixtures for the tests of splits."""

from __future__ import annotations

import numpy as np
import pytest
import split_laws


@pytest.fixture(scope="session")
def mnist() -> np.ndarray:
  """As many labels of each digit as MNIST's training pictures have, in random order."""
  return split_laws.shuffled(split_laws.MNIST_SIZES)
