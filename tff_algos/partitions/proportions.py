"""Proportions, and whole numbers in these proportions."""

from __future__ import annotations

import numpy as np


def softmax(logits: np.ndarray, axis: int) -> np.ndarray:
  """Proportions exp(logits), of sum 1 along the axis; none of them overflows."""
  weights = np.exp(logits - logits.max(axis=axis, keepdims=True))
  return weights / weights.sum(axis=axis, keepdims=True)


def round_columns(shares: np.ndarray, totals: int | np.ndarray) -> np.ndarray:
  """Rounds shares >= 0 by largest remainders so that column j sums to totals[j]."""
  counts = np.floor(shares).astype(np.int64)
  by_remainder = np.argsort(counts - shares, axis=0, kind="stable")
  rank = np.argsort(by_remainder, axis=0)
  return counts + (rank < totals - counts.sum(axis=0))
