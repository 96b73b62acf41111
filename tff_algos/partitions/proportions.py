"""Proportions, and whole numbers in these proportions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def softmax(logits: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
  """Proportions exp(logits), of sum 1 along the axis; none of them overflows."""
  weights = np.exp(logits - logits.max(axis=axis, keepdims=True))
  shares: NDArray[np.float64] = weights / weights.sum(axis=axis, keepdims=True)
  return shares


def round_columns(
  shares: NDArray[np.float64], totals: int | NDArray[np.int64]
) -> NDArray[np.int64]:
  """Rounds shares >= 0 by largest remainders so that column j sums to totals[j]."""
  counts = np.floor(shares).astype(np.int64)
  by_remainder = np.argsort(counts - shares, axis=0, kind="stable")
  rank = np.argsort(by_remainder, axis=0)
  rounded: NDArray[np.int64] = counts + (rank < totals - counts.sum(axis=0))
  return rounded
