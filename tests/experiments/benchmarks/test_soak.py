"""What long runs are said to add in a round."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.benchmarks import soak


def test_growth_is_the_slope_after_the_first_quarter():
  """Before it a run takes what it will keep: that is no growth."""
  rounds = np.arange(0.0, 101.0, 5.0)
  values = 7 + 0.5 * rounds - 100 * np.maximum(25 - rounds, 0)
  assert soak.growth(rounds, values) == pytest.approx(0.5)
