"""What a split is used for: counts of classes, and the clients' examples."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from split_laws import labelled_clients, laws, seeds, sizes_of

from tff_algos import partitions
from tff_algos.diagnostics import heterogeneity


def _by_hand(*clients):
  return partitions.Partition(tuple(map(np.array, clients)), np.array([], np.int64))


def test_class_counts_of_sequences_count_labelled_steps():
  labels = np.array([[0, 1, -1], [2, 2, 2], [1, -1, -1], [0, 0, -1]])
  counts = partitions.class_counts(_by_hand([3, 0], [1]), labels, 3)
  np.testing.assert_array_equal(counts, [[3, 1, 0], [0, 0, 3]])
  for wrong in (np.array([[0, 3]]), np.array([[-2, 0]])):
    with pytest.raises(ValueError, match="must be in -1 to 2"):
      partitions.class_counts(_by_hand([0]), wrong, 3)


def test_class_counts_by_hand():
  split = _by_hand([4, 0], [1, 2, 3])
  counts = partitions.class_counts(split, np.array([0, 2, 2, 1, 0]), 4)
  assert counts.dtype == np.int64
  np.testing.assert_array_equal(counts, [[2, 0, 0, 0], [0, 1, 2, 0]])


@pytest.mark.parametrize("labels", [[0, 3], [-1, 0]])
def test_class_counts_refuses_labels_out_of_range(labels):
  with pytest.raises(ValueError, match="must be in 0 to 2"):
    partitions.class_counts(_by_hand([0], [1]), np.array(labels), 3)


@laws
@given(labelled_clients(), seeds)
def test_class_counts_sum_to_what_is_held(labelled, seed):
  labels, sizes, num_clients = labelled
  split = partitions.iid(labels, num_clients, seed=seed)
  counts = partitions.class_counts(split, labels, len(sizes))
  np.testing.assert_array_equal(counts.sum(axis=0), sizes)
  np.testing.assert_array_equal(counts.sum(axis=1), sizes_of(split))


def test_wasserstein_distance_orders_the_splits(mnist):
  def distance(spec):
    split = partitions.partition(spec, mnist, 100, 0)
    counts = partitions.class_counts(split, mnist, 10)
    return heterogeneity.mean_wasserstein_distance(counts)

  # One class per client and uniform classes: |i - j| of two uniform digits has mean
  # (10^2 - 1) / 30 = 3.3, and none is further away.
  iid, mild, strong = map(distance, ("iid", "dirichlet:beta=1", "dirichlet:beta=0.1"))
  assert 0 < iid < 0.3 < mild < strong < 3.5
