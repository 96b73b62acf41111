"""iid, shards and natural."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from split_laws import (
  MNIST_SIZES,
  assert_disjoint_and_complete,
  counts_of,
  labelled_clients,
  laws,
  seeds,
  shuffled,
  sizes_of,
)

from tff_algos import partitions

# --- iid ----------------------------------------------------------------------------


@laws
@given(labelled_clients(), seeds)
def test_iid_uses_everything_in_near_equal_sizes(labelled, seed):
  labels, _, num_clients = labelled
  split = partitions.iid(labels, num_clients, seed=seed)
  assert_disjoint_and_complete(split, labels, num_clients)
  assert not len(split.left_over)
  assert np.ptp(sizes_of(split)) <= 1


def test_iid_mnist_has_600_each(mnist):
  split = partitions.iid(mnist, 100, seed=0)
  assert set(sizes_of(split)) == {600}
  # A class count is hypergeometric: its standard deviation is below sqrt(600 p).
  p = np.array(MNIST_SIZES) / 60_000
  assert (np.abs(counts_of(split, mnist) - 600 * p) < 6 * np.sqrt(600 * p)).all()


def test_iid_draws_who_gets_which_example(mnist):
  # Two independent samples of 600 of 60,000 share 6 examples on average.
  a, b = (partitions.iid(mnist, 100, seed=seed).clients[0] for seed in (0, 1))
  assert len(np.intersect1d(a, b)) < 30


# --- shards -------------------------------------------------------------------------


@laws
@given(labelled_clients(), st.integers(1, 3), seeds)
def test_shards_laws(labelled, shards_per_client, seed):
  labels, sizes, num_clients = labelled
  split = partitions.shards(
    labels, num_clients, seed=seed, shards_per_client=shards_per_client
  )
  assert_disjoint_and_complete(split, labels, num_clients)
  num_shards = num_clients * shards_per_client
  shard_size = len(labels) // num_shards
  assert set(sizes_of(split)) == {shards_per_client * shard_size}
  assert len(split.left_over) == len(labels) % num_shards
  # Each of the classes - 1 borders adds at most one (shard, label) pair.
  labels_held = np.count_nonzero(counts_of(split, labels), axis=1)
  assert labels_held.sum() <= num_shards + len(sizes) - 1
  if shard_size <= sizes.min() - len(split.left_over):
    assert labels_held.max() <= 2 * shards_per_client  # A shard touches two classes.


def test_shards_of_balanced_classes_hold_one_label_each():
  labels = shuffled([6000] * 10)
  split = partitions.shards(labels, 100, seed=0)
  assert not len(split.left_over)
  counts = counts_of(split, labels)
  assert set(counts.ravel()) == {0, 300, 600}
  assert (counts.sum(axis=1) == 600).all()
  # Dealt at random, a client's second shard is of the class of its first with
  # probability 19/199: 9.5 of 100 clients; in order of the labels it would be all.
  assert 1 <= np.count_nonzero(counts == 600) <= 25


def test_shards_mnist_is_the_pathological_split(mnist):
  split = partitions.shards(mnist, 100, seed=0)
  assert not len(split.left_over)
  assert set(sizes_of(split)) == {600}
  # 200 shards of 300 cross at most 9 borders, so at least 91 clients have <= 2 digits.
  labels_held = np.count_nonzero(counts_of(split, mnist), axis=1)
  assert np.count_nonzero(labels_held <= 2) >= 91


def test_one_shard_per_client_gives_the_equal_one_class_split():
  labels = shuffled([500] * 10)
  split = partitions.shards(labels, 1000, seed=0, shards_per_client=1)
  assert set(counts_of(split, labels).ravel()) == {0, 5}
  assert not len(split.left_over)


def test_shards_remainder_comes_from_all_classes():
  # Class 2 would be last in the sorted list; one example is left over per seed.
  labels = np.array([0, 0, 1, 1, 2])
  left = {
    int(labels[partitions.shards(labels, 2, seed=s).left_over[0]]) for s in range(99)
  }
  assert left == {0, 1, 2}


# --- natural ------------------------------------------------------------------------


@st.composite
def _grouped(draw):
  """Groups 0..G-1 in random order, none empty, and a number of clients up to G."""
  sizes = draw(st.lists(st.integers(1, 9), min_size=1, max_size=8))
  groups = np.array(draw(st.permutations(np.repeat(np.arange(len(sizes)), sizes))))
  return groups, draw(st.integers(1, len(sizes)))


@laws
@given(_grouped(), seeds)
def test_natural_clients_are_whole_groups_in_their_order(grouped, seed):
  groups, num_clients = grouped
  labels = np.zeros(len(groups), int)
  split = partitions.partition("natural", labels, num_clients, seed, groups=groups)
  assert_disjoint_and_complete(split, labels, num_clients)
  held = [np.unique(groups[client]) for client in split.clients]
  assert all(len(of_client) == 1 for of_client in held)
  assert (np.diff(np.concatenate(held)) > 0).all()
  assert not set(groups[split.left_over]) & set(np.concatenate(held))


def test_natural_draws_each_group_equally_often():
  """2 of 5 groups, 500 seeds: each 200 times, standard deviation 11."""
  groups = np.arange(5)
  drawn = np.zeros(5)
  for seed in range(500):
    split = partitions.natural(groups, 2, seed=seed, groups=groups)
    drawn[np.concatenate(split.clients)] += 1
  assert np.abs(drawn - 200).max() < 55


def test_natural_shuffles_within_a_client():
  groups = np.zeros(1000, int)
  [client] = partitions.natural(groups, 1, seed=0, groups=groups).clients
  assert 400 < np.count_nonzero(np.diff(client) > 0) < 600


@pytest.mark.parametrize(
  "num_clients, groups, match",
  [
    (4, np.array([0, 1, 2]), "natural: 4 clients but the data come from 3: lower"),
    (1, None, "natural: these data do not say from whom"),
    (1, np.array([0, 1]), r"groups must be 3 integers, .* have shape \(2,\)"),
    (1, np.array([0.0, 1, 2]), "groups must be 3 integers, .* dtype float64"),
    (1, np.array([0, 2, 2]), "groups go from 0 to 2 with 2 different numbers"),
    (1, np.array([0, 1, 10**13]), "groups go from 0 to 10000000000000 with 3 different"),
    (1, np.array([0, 2, 2], np.uint64), "groups go from 0 to 2 with 2 different numbers"),
    (1, np.array([-1, 0, 1]), "groups go from -1 to 1 with 3 different numbers"),
    (0, np.array([0, 1, 2]), "natural: num_clients must be at least 1; found 0"),
  ],
)
def test_natural_refuses(num_clients, groups, match):
  with pytest.raises(ValueError, match=match) as caught:
    partitions.partition("natural", np.zeros(3, int), num_clients, 0, groups=groups)
  assert "\n" not in str(caught.value)


def test_groups_are_no_parameter_of_the_command_line():
  assert partitions.parse("natural") == ("natural", {})
  with pytest.raises(ValueError, match="no parameter 'groups': natural takes no param"):
    partitions.parse("natural:groups=3")
