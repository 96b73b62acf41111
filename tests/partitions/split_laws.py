"""Labels to split, and what is measured of a split.

Expected values come from the definitions (counting, or integrals over the draws that a
docstring names), never from what the code returned.
"""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

laws = settings(max_examples=50, deadline=None)
seeds = st.integers(0, 2**40)

# How many training pictures of MNIST show each digit.
MNIST_SIZES = (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)

DISJOINT = (
  "iid",
  "shards",
  "dirichlet:beta=0.5",
  "dirichlet_by_class:beta=0.5",
  "dirichlet_equal:beta=0.6",
  "power_law:classes_per_client=2",
)
ALL = (*DISJOINT, "twafl")


def shuffled(sizes) -> np.ndarray:
  labels = np.repeat(np.arange(len(sizes)), sizes)
  return np.random.default_rng(7).permutation(labels)


@st.composite
def labelled_clients(draw):
  """A small label vector in random order, its class sizes and a number of clients."""
  sizes = draw(st.lists(st.integers(5, 40), min_size=1, max_size=5))
  labels = np.array(draw(st.permutations(np.repeat(np.arange(len(sizes)), sizes))))
  return labels, np.array(sizes), draw(st.integers(1, len(labels) // 5))


def assert_disjoint_and_complete(split, labels, num_clients):
  assert len(split.clients) == num_clients
  assert all(client.dtype == np.int64 for client in split.clients)
  assert split.left_over.dtype == np.int64
  assert (np.diff(split.left_over) > 0).all()
  everything = np.concatenate([*split.clients, split.left_over])
  np.testing.assert_array_equal(np.sort(everything), np.arange(len(labels)))


def sizes_of(split):
  return np.array([len(client) for client in split.clients])


def counts_of(split, labels):
  return np.array(
    [np.bincount(labels[c], minlength=labels.max() + 1) for c in split.clients]
  )


def equal(a, b):
  return all(map(np.array_equal, (*a.clients, a.left_over), (*b.clients, b.left_over)))


def grid():
  """Midpoints of a fine grid over the square (0, 1) x (0, 1)."""
  points = (np.arange(1000) + 0.5) / 1000
  return np.meshgrid(points, points)
