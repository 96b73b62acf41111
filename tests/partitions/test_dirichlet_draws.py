"""dirichlet, dirichlet_by_class and dirichlet_equal."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from split_laws import (
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

# --- dirichlet ----------------------------------------------------------------------


@laws
@given(labelled_clients(), st.floats(0.05, 100), st.integers(1, 2), seeds)
def test_dirichlet_uses_everything_and_keeps_min_size(labelled, beta, min_size, seed):
  labels, _, num_clients = labelled
  try:
    split = partitions.dirichlet(
      labels, num_clients, seed=seed, beta=beta, min_size=min_size
    )
  except ValueError as error:
    assume("draws" not in str(error))  # A rare class can make min_size unreachable.
    raise
  assert_disjoint_and_complete(split, labels, num_clients)
  assert not len(split.left_over)
  assert sizes_of(split).min() >= min_size


def test_dirichlet_shares_have_the_moments_of_the_definition():
  # Two clients, two classes, beta = 1: p_1 = (U, 1 - U), p_2 = (V, 1 - V) with U, V
  # uniform, and the first client gets U / (U + V) of class 0 and
  # (1 - U) / (2 - U - V) of class 1. By hand, the variance is 3/4 - log 2 = 0.057. One
  # vector over the clients per class would give 1/12 = 0.083 and no correlation.
  u, v = grid()
  x, y = u / (u + v), (1 - u) / (2 - u - v)
  assert x.var() == pytest.approx(0.75 - np.log(2), rel=1e-3)
  labels, draws = shuffled([200, 200]), 4000
  shares = np.array(
    [
      counts_of(partitions.dirichlet(labels, 2, seed=seed, beta=1.0), labels)[0] / 200
      for seed in range(draws)
    ]
  )
  for ours, true in zip(shares.T, (x, y)):
    assert ours.mean() == pytest.approx(0.5, abs=5 * x.std() / np.sqrt(draws))
    spread = ((true - 0.5) ** 2).std() / np.sqrt(draws)
    assert np.mean((ours - 0.5) ** 2) == pytest.approx(true.var(), abs=5 * spread)
  products = (x - 0.5) * (y - 0.5)
  assert products.mean() < -0.03
  assert np.mean((shares[:, 0] - 0.5) * (shares[:, 1] - 0.5)) == pytest.approx(
    products.mean(), abs=5 * products.std() / np.sqrt(draws)
  )


def test_dirichlet_with_large_beta_divides_every_class_equally():
  labels = shuffled([100, 200, 400])
  counts = counts_of(partitions.dirichlet(labels, 10, seed=0, beta=1e6), labels)
  assert (np.abs(counts - [10, 20, 40]) <= 1).all()


@pytest.mark.parametrize("seed", range(20))
def test_dirichlet_with_tiny_beta_loses_no_class(seed):
  # In the limit each p_i is 1 at one class. A class that nobody drew has a column of
  # zeros in floats; it then belongs to the client with the largest p_ij, however small.
  sizes = np.arange(50, 70)
  labels = shuffled(sizes)
  split = partitions.dirichlet(labels, 5, seed=seed, beta=1e-6)
  assert_disjoint_and_complete(split, labels, 5)
  assert not len(split.left_over)
  for column in counts_of(split, labels).T:
    assert np.ptp(column[column > 0]) <= 1  # Whole, or shared equally.


def test_dirichlet_draws_again_until_min_size():
  # Client sizes at beta = 1 and two clients spread over 1..399; 150 is often missed.
  labels = shuffled([200, 200])
  free, kept = [], []
  for seed in range(200):
    free.append(sizes_of(partitions.dirichlet(labels, 2, seed=seed, beta=0.2)).min())
    kept.append(
      sizes_of(partitions.dirichlet(labels, 2, seed=seed, beta=0.2, min_size=150)).min()
    )
  assert min(free) < 150 <= min(kept)


@pytest.mark.parametrize("split", ["dirichlet", "dirichlet_by_class"])
def test_every_client_may_have_min_size_and_no_more(split):
  """Where all of 4 clients must have a fourth of the 40 examples."""
  labels = np.repeat(np.arange(2), 20)
  drawn = partitions.SPLITS[split].function(labels, 4, seed=0, beta=1e6, min_size=10)
  assert sizes_of(drawn).tolist() == [10] * 4


def test_dirichlet_says_what_to_change_when_min_size_is_out_of_reach():
  # About half of the 30 clients want the class of one example.
  labels = shuffled([1000, 1])
  with pytest.raises(ValueError, match=r"beta=0.01 .*min_size=30.*raise beta, or lower"):
    partitions.dirichlet(labels, 30, seed=0, beta=0.01, min_size=30)


# --- dirichlet_by_class -------------------------------------------------------------


@laws
@given(labelled_clients(), st.floats(0.05, 100), st.integers(1, 2), seeds)
def test_by_class_uses_everything_and_fills_nobody_twice(labelled, beta, min_size, seed):
  labels, _, num_clients = labelled
  try:
    split = partitions.dirichlet_by_class(
      labels, num_clients, seed=seed, beta=beta, min_size=min_size
    )
  except ValueError as error:
    assume("draws" not in str(error))
    raise
  assert_disjoint_and_complete(split, labels, num_clients)
  assert not len(split.left_over)
  assert sizes_of(split).min() >= min_size
  # Who holds an equal part of all examples gets nothing of later classes.
  counts = counts_of(split, labels)
  held = np.cumsum(counts, axis=1)[:, :-1]
  assert not counts[:, 1:][held >= len(labels) / num_clients].any()


def test_by_class_gives_nothing_to_who_has_just_its_share():
  """Of 3, 1 and 2 examples one client has the first class, so the other has the rest."""
  labels = np.repeat([0, 1, 2], [3, 1, 2])
  for seed in range(20):
    split = partitions.dirichlet_by_class(labels, 2, seed=seed, beta=1e-6, min_size=1)
    assert sorted(sorted(labels[client]) for client in split.clients) == [
      [0, 0, 0],
      [1, 2, 2],
    ]


def test_by_class_shares_have_the_moments_of_the_definition():
  # Two clients, two classes of equal size, beta = 1: each class's first share is uniform,
  # of variance 1/12, and no client is full after the first; so they are independent.
  labels, draws = shuffled([200, 200]), 4000
  shares = np.array(
    [
      counts_of(
        partitions.dirichlet_by_class(labels, 2, seed=seed, beta=1.0, min_size=1), labels
      )[0]
      / 200
      for seed in range(draws)
    ]
  )
  # Of a uniform U, (U - 1/2)^2 has the standard deviation 1 / sqrt(180).
  for ours in shares.T:
    assert ours.mean() == pytest.approx(0.5, abs=5 / np.sqrt(12 * draws))
    assert np.mean((ours - 0.5) ** 2) == pytest.approx(
      1 / 12, abs=5 / (180 * draws) ** 0.5
    )
  product = np.mean((shares[:, 0] - 0.5) * (shares[:, 1] - 0.5))
  assert product == pytest.approx(0, abs=5 / 12 / np.sqrt(draws))


def test_by_class_gives_each_client_an_equal_part_on_average():
  # Five clients, a class: of Dirichlet(b, ..., b), mean 1/5, variance 4 / 25 / (5 b + 1).
  labels, draws, beta = shuffled([500]), 2000, 0.6
  shares = (
    np.array(
      [
        sizes_of(
          partitions.dirichlet_by_class(labels, 5, seed=seed, beta=beta, min_size=1)
        )
        for seed in range(draws)
      ]
    )
    / 500
  )
  variance = 4 / 25 / (5 * beta + 1)
  # Draws that leave a client without an example are drawn again, so not exactly.
  assert shares.mean(axis=0) == pytest.approx(np.full(5, 0.2), abs=0.03)
  assert shares.var(axis=0) == pytest.approx(np.full(5, variance), rel=0.2)


def test_by_class_wants_ten_examples_at_every_client():
  labels = shuffled([300, 300])
  sizes = [
    sizes_of(partitions.dirichlet_by_class(labels, 6, seed=seed, beta=0.3)).min()
    for seed in range(100)
  ]
  free = [
    sizes_of(partitions.dirichlet_by_class(labels, 6, seed=s, beta=0.3, min_size=1)).min()
    for s in range(100)
  ]
  assert min(free) < 10 <= min(sizes)


def test_by_class_says_what_to_change_when_min_size_is_out_of_reach():
  with pytest.raises(ValueError, match=r"^dirichlet_by_class: none .* raise beta"):
    partitions.dirichlet_by_class(shuffled([300]), 30, seed=0, beta=1e-3)


# --- dirichlet_equal ----------------------------------------------------------------


@laws
@given(labelled_clients(), st.floats(1e-6, 100), seeds)
def test_dirichlet_equal_sizes_are_exact(labelled, beta, seed):
  labels, _, num_clients = labelled
  split = partitions.dirichlet_equal(labels, num_clients, seed=seed, beta=beta)
  assert_disjoint_and_complete(split, labels, num_clients)
  assert set(sizes_of(split)) == {len(labels) // num_clients}
  assert len(split.left_over) == len(labels) % num_clients


@pytest.mark.parametrize("sizes, draws", [((500, 500), 3000), ((200, 1800), 1000)])
def test_dirichlet_equal_mix_has_the_moments_of_the_definition(sizes, draws):
  # Two clients of n, beta = 1, n large: they ask for n (U + V) of class 0, whatever the
  # classes' sizes. If that is too much, the first gets U / (U + V) of it and fills up
  # from class 1; if too little, the same holds for class 1.
  u, v = grid()
  size, other = sizes
  n = (size + other) / 2
  x = np.where(
    n * (u + v) >= size, u / (u + v), (n - other * (1 - u) / (2 - u - v)) / size
  )
  labels = shuffled(sizes)
  shares = np.array(
    [
      counts_of(partitions.dirichlet_equal(labels, 2, seed=seed, beta=1.0), labels)[0, 0]
      / size
      for seed in range(draws)
    ]
  )
  assert shares.mean() == pytest.approx(0.5, abs=5 * x.std() / np.sqrt(draws))
  spread = ((x - 0.5) ** 2).std() / np.sqrt(draws)
  # Drawing places and, of a class that ran out, its takers adds chance of up to 1/4
  # per place each.
  assert shares.var() == pytest.approx(x.var(), abs=5 * spread + 0.5 / size)


def test_dirichlet_equal_with_large_beta_is_nearly_iid():
  # All p_i are (1/4, ...): a binomial count, 100 +- 8.7, before classes run out.
  labels = shuffled([2000] * 4)
  counts = counts_of(partitions.dirichlet_equal(labels, 20, seed=0, beta=1e6), labels)
  assert (np.abs(counts - 100) < 60).all()
  assert counts.std() < 12


def test_dirichlet_equal_with_tiny_beta_concentrates_clients():
  # 1,000 of each of 10 classes over 1,000 clients of 10: each p_i is 1 at one class,
  # and about 100 clients ask for the 1,000 places of each. The number X_j of clients
  # that ask for class j is Binomial(1000, 1/10), mean 100, standard deviation 9.5; what
  # classes cannot serve is sum (X_j - 100)+ = 0.4 x 9.5 x 10 clients, about 4 %.
  labels = shuffled([1000] * 10)
  counts = counts_of(partitions.dirichlet_equal(labels, 1000, seed=0, beta=1e-6), labels)
  assert counts.max(axis=1).sum() > 0.9 * 10_000


def test_dirichlet_equal_serves_no_client_last():
  # Were the clients served one after the other, the last would take what is left.
  # The largest class share of the first and the last of 10 clients has the same mean.
  labels = shuffled([100] * 10)
  largest = np.array(
    [
      counts_of(partitions.dirichlet_equal(labels, 10, seed=s, beta=0.1), labels).max(1)
      for s in range(400)
    ]
  )
  gap = largest[:, 0] - largest[:, -1]
  assert abs(gap.mean()) < 5 * gap.std() / np.sqrt(len(gap))
