"""power_law and twafl."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from split_laws import (
  MNIST_SIZES,
  assert_disjoint_and_complete,
  counts_of,
  grid,
  labelled_clients,
  laws,
  seeds,
  shuffled,
  sizes_of,
)

from tff_algos import partitions

# --- power_law ----------------------------------------------------------------------


@laws
@given(
  labelled_clients(),
  st.integers(1, 3),
  st.floats(0, 4),
  st.integers(1, 4),
  seeds,
)
def test_power_law_laws(labelled, classes_per_client, sigma, min_size, seed):
  labels, sizes, num_clients = labelled
  assume(classes_per_client <= len(sizes) and num_clients * min_size <= len(labels))

  def split():
    return partitions.power_law(
      labels,
      num_clients,
      seed=seed,
      classes_per_client=classes_per_client,
      sigma=sigma,
      min_size=min_size,
    )

  # A table of 0 and 1 with these row sums and these bounds on its columns exists
  # exactly if (Gale and Ryser) the bounds, cut at the number of rows, suffice.
  base = -(-min_size // classes_per_client)
  room = np.minimum(sizes // base, num_clients)
  if room.sum() < num_clients * classes_per_client:
    with pytest.raises(ValueError, match="do not fit the classes' sizes"):
      split()
    return
  result = split()
  assert_disjoint_and_complete(result, labels, num_clients)
  assert sizes_of(result).min() >= max(min_size, classes_per_client)
  counts = counts_of(result, labels)
  assert (np.count_nonzero(counts, axis=1) == classes_per_client).all()
  assert counts[counts > 0].min() >= base
  # A class is used completely or not at all.
  used = counts.sum(axis=0)
  assert ((used == sizes) | (used == 0)).all()
  if num_clients * classes_per_client >= len(sizes) and base <= sizes.min():
    assert not len(result.left_over)


def test_power_law_rounds_what_each_class_gives_up():
  """With sigma 9 nearly all get nothing but the base, here 3 examples of two classes."""
  labels = shuffled([100, 100])
  split = partitions.power_law(
    labels, 40, seed=0, classes_per_client=2, sigma=9.0, min_size=3
  )
  assert counts_of(split, labels).min() == 2


@pytest.mark.parametrize("classes_per_client", [1, 2])
def test_power_law_mnist_over_5000_clients(mnist, classes_per_client):
  split = partitions.power_law(mnist, 5000, seed=0, classes_per_client=classes_per_client)
  assert_disjoint_and_complete(split, mnist, 5000)
  assert not len(split.left_over)
  counts = counts_of(split, mnist)
  assert (np.count_nonzero(counts, axis=1) == classes_per_client).all()
  # As many clients for a class as its examples ask for.
  clients = np.count_nonzero(counts, axis=0)
  expected = 5000 * classes_per_client * np.array(MNIST_SIZES) / 60_000
  assert (np.abs(clients - expected) <= 1).all()


def test_power_law_pairs_classes_at_random(mnist):
  split = partitions.power_law(mnist, 5000, seed=0, classes_per_client=2)
  pairs = {tuple(np.flatnonzero(row)) for row in counts_of(split, mnist)}
  assert len(pairs) == 45  # All of them; each is expected about 111 times.


def test_power_law_deals_a_class_to_any_client_as_often_as_it_has_places():
  # Of 12 clients 3 have class 0 and 9 class 1, the first and the last as all others.
  labels = shuffled([30, 90])
  holds = np.array(
    [
      counts_of(partitions.power_law(labels, 12, seed=seed, sigma=0.0), labels)[:, 0] > 0
      for seed in range(600)
    ]
  )
  np.testing.assert_array_equal(holds.sum(axis=1), 3)
  spread = np.sqrt(3 / 12 * 9 / 12 / len(holds))
  np.testing.assert_allclose(holds.mean(axis=0), 3 / 12, atol=5 * spread)


def test_power_law_sizes_are_lognormal():
  labels = np.zeros(200_000, np.int64)
  # Everyone has 1, the rest is in proportion to exp(0.5 Z), Z standard normal.
  sizes = sizes_of(partitions.power_law(labels, 2000, seed=0, sigma=0.5))
  logs = np.log(sizes - 1)
  assert logs.std() == pytest.approx(0.5, abs=5 * 0.5 / np.sqrt(2 * 2000))
  # Median over mean of lognormal(0, sigma) is exp(-sigma^2 / 2).
  assert np.median(sizes - 1) / np.mean(sizes - 1) == pytest.approx(
    np.exp(-0.125), rel=0.1
  )


def test_power_law_has_one_weight_for_all_classes_of_a_client():
  # Of two classes that several clients hold, each has the same ratio to one client.
  labels = np.repeat(np.arange(3), 300_000)
  split = partitions.power_law(labels, 30, seed=0, classes_per_client=2, sigma=1.0)
  logs = np.log(np.maximum(counts_of(split, labels) - 1, 1))
  for pair in ([0, 1], [1, 2], [2, 0]):
    both = logs[:, pair][(logs[:, pair] > 0).all(axis=1)]
    assert len(both) > 5
    assert np.ptp(both[:, 0]) > 1 and np.ptp(both[:, 0] - both[:, 1]) < 0.01


def test_power_law_default_has_the_long_tail_of_sigma_2():
  labels = np.zeros(400_000, np.int64)
  ratios = []
  for seed in range(10):
    sizes = sizes_of(partitions.power_law(labels, 2000, seed=seed)) - 1
    ratios.append(np.median(sizes) / np.mean(sizes))
  # The mean of 2,000 lognormal(0, 2) varies by sqrt((e^4 - 1) / 2000) = 16 %.
  assert np.mean(ratios) == pytest.approx(np.exp(-2), rel=5 * 0.16 / np.sqrt(10))


def test_power_law_with_sigma_0_gives_equal_sizes_and_proportional_clients():
  labels = shuffled([100, 300])
  counts = counts_of(partitions.power_law(labels, 40, seed=0, sigma=0.0), labels)
  # 400 examples over 40 clients: 10 of class 0, 30 of class 1, with 10 examples each.
  np.testing.assert_array_equal(np.count_nonzero(counts, axis=0), [10, 30])
  assert set(counts.ravel()) == {0, 10}


def test_power_law_with_few_clients_leaves_out_the_smallest_classes():
  labels = shuffled([10, 50, 20, 40, 30])
  split = partitions.power_law(labels, 3, seed=0)
  np.testing.assert_array_equal(counts_of(split, labels).sum(axis=0), [0, 50, 0, 40, 30])
  assert set(labels[split.left_over]) == {0, 2}
  assert len(split.left_over) == 30


# --- twafl --------------------------------------------------------------------------


@laws
@given(st.data(), st.lists(st.integers(5, 40), min_size=3, max_size=6), seeds)
def test_twafl_laws(data, class_sizes, seed):
  labels = shuffled(class_sizes)
  max_classes = data.draw(st.integers(1, 3))
  min_classes = data.draw(st.integers(1, max_classes))
  max_size = data.draw(st.integers(max_classes, min(class_sizes)))
  min_size = data.draw(st.integers(max_classes, max_size))
  split = partitions.twafl(
    labels,
    data.draw(st.integers(1, 10)),
    seed=seed,
    min_size=min_size,
    max_size=max_size,
    min_classes=min_classes,
    max_classes=max_classes,
  )
  for client in split.clients:
    assert client.dtype == np.int64
    assert len(np.unique(client)) == len(client)
    assert min_size <= len(client) <= max_size
    assert min_classes <= len(np.unique(labels[client])) <= max_classes
  held = set(np.concatenate(split.clients).tolist())
  assert split.left_over.tolist() == sorted(set(range(len(labels))) - held)


def test_twafl_mnist_defaults(mnist):
  split = partitions.twafl(mnist, 2000, seed=1)
  sizes = sizes_of(split)
  # Uniform over 601 sizes; standard error of the mean 600 / sqrt(12 x 2000).
  assert 1000 <= sizes.min() < 1010 and 1590 < sizes.max() <= 1600
  assert sizes.mean() == pytest.approx(1300, abs=5 * 600 / np.sqrt(12 * 2000))
  counts = counts_of(split, mnist)
  held = np.count_nonzero(counts, axis=1)
  assert set(held) == {2, 3}
  assert np.mean(held == 2) == pytest.approx(0.5, abs=5 * 0.5 / np.sqrt(2000))
  # Every digit is at a client with probability 2.5 / 10.
  assert (np.abs(np.mean(counts > 0, axis=0) - 0.25) < 5 * 0.433 / np.sqrt(2000)).all()
  # 20 clients of about 1,300 fit into 60,000, but they are drawn with overlap.
  twenty = partitions.twafl(mnist, 20, seed=1)
  assert 60_000 - len(twenty.left_over) < sizes_of(twenty).sum()


def test_twafl_draws_both_ends_of_the_size():
  labels = shuffled([50] * 4)
  sizes = sizes_of(partitions.twafl(labels, 600, seed=0, min_size=10, max_size=12))
  assert set(sizes) == {10, 11, 12}


def test_twafl_weights_are_normalised_uniforms(mnist):
  # With two classes the first has U / (U + V): variance 3/4 - log 2.
  split = partitions.twafl(
    mnist, 2000, seed=0, min_size=1000, max_size=1000, max_classes=2
  )
  counts = counts_of(split, mnist)
  shares = np.array([row[row > 0][0] for row in counts]) / 1000
  u, v = grid()
  x = u / (u + v)
  spread = ((x - 0.5) ** 2).std() / np.sqrt(len(shares))
  assert np.mean((shares - 0.5) ** 2) == pytest.approx(
    0.75 - np.log(2), abs=5 * spread + 0.002
  )
