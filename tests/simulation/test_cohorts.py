"""Cohorts are drawn uniformly, without replacement, by the seed and the round."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tff_algos.errors import InputError
from tff_algos.simulation import cohorts, seeds
from tff_algos.templates.stateful_process import Population


@settings(max_examples=100)
@given(st.data())
def test_cohort_holds_that_many_different_clients(data):
  num_clients = data.draw(st.integers(1, 300))
  size = data.draw(st.integers(1, num_clients))
  seed, round_num = data.draw(st.integers(0, 2**40)), data.draw(st.integers(0, 10**6))
  found = cohorts.uniform_cohort(num_clients, size, seed, round_num)
  assert len(found) == len(set(found)) == size
  assert all(type(place) is int and 0 <= place < num_clients for place in found)
  assert found == cohorts.uniform_cohort(num_clients, size, seed, round_num)


def test_whole_population_takes_part_where_the_cohort_is_as_large():
  assert sorted(cohorts.uniform_cohort(7, 7, 0, 0)) == list(range(7))


def test_rounds_and_seeds_have_cohorts_of_their_own():
  draws = [
    tuple(cohorts.uniform_cohort(1000, 10, seed, round_num))
    for seed, round_num in itertools.product(range(5), range(20))
  ]
  assert len(set(draws)) == 100


def _assert_uniform(counts, draws: int, share: float, freedom: int):
  """Pearson's test; neither too uneven nor, as a cycle would be, too even.

  Each count is of `draws` draws with probability `share`. Fails once in a million.
  """
  counts = np.asarray(counts, float)
  expected = draws * share
  statistic = np.sum((counts - expected) ** 2) / (expected * (1 - share))
  statistic *= freedom / len(counts)
  low, high = stats.chi2.ppf((5e-7, 1 - 5e-7), freedom)
  assert low < statistic < high, counts


def test_clients_are_drawn_uniformly():
  """Over 4,000 rounds: each client, each place of the cohort, and each pair."""
  rounds, num_clients, size = 4000, 10, 3
  draws = np.array(
    [cohorts.uniform_cohort(num_clients, size, 11, r) for r in range(rounds)]
  )
  counts = np.bincount(draws.ravel(), minlength=num_clients)
  _assert_uniform(counts, rounds, size / num_clients, num_clients - 1)
  for column in draws.T:
    counts = np.bincount(column, minlength=num_clients)
    _assert_uniform(counts, rounds, 1 / num_clients, num_clients - 1)
  pairs = list(itertools.combinations(range(num_clients), 2))
  is_in = np.zeros((rounds, num_clients), bool)
  np.put_along_axis(is_in, draws, True, axis=1)
  counts = np.array([np.sum(is_in[:, a] & is_in[:, b]) for a, b in pairs])
  share = size * (size - 1) / (num_clients * (num_clients - 1))
  # Pairs are not independent, so each by itself; 5 sigma.
  sigma = np.sqrt(rounds * share * (1 - share))
  assert np.all(np.abs(counts - rounds * share) < 5 * sigma), counts


def test_consecutive_rounds_are_independent():
  """A client of a round is in the next with probability m/N, whatever happened."""
  rounds, num_clients, size = 4000, 8, 2
  draws = [set(cohorts.uniform_cohort(num_clients, size, 3, r)) for r in range(rounds)]
  both = sum(len(a & b) for a, b in zip(draws, draws[1:]))
  share = size / num_clients
  expected = (rounds - 1) * size * share
  # The overlap of two cohorts is hypergeometric.
  variance = size * share * (1 - share) * (num_clients - size) / (num_clients - 1)
  assert abs(both - expected) < 5 * np.sqrt((rounds - 1) * variance)


@pytest.mark.parametrize("num_clients, size", [(5, 6), (5, 0), (5, -1), (1, 2)])
def test_impossible_cohort_is_refused(num_clients, size):
  with pytest.raises(ValueError, match=rf"in 1\.\.{num_clients}.*found {size}"):
    cohorts.uniform_cohort(num_clients, size, 0, 0)


def test_held_out_clients_are_the_last_of_a_permutation():
  """Fewer of them are among more; all others train."""
  for count in (0, 1, 4, 9):
    held_out = cohorts.held_out_clients(10, count, 3)
    training = cohorts.training_clients(10, count, 3)
    assert (len(held_out), len(training)) == (count, 10 - count)
    assert sorted([*held_out, *training]) == list(range(10))
    assert list(training) == sorted(training) and list(held_out) == sorted(held_out)
    assert set(held_out) <= set(cohorts.held_out_clients(10, 9, 3))
  assert all(type(place) is int for place in cohorts.training_clients(10, 4, 3))


@pytest.mark.parametrize("num_clients, count, seed", [(10, 4, 3), (30, 1, 8)])
def test_held_out_clients_stay_the_ones_that_a_seed_gave(num_clients, count, seed):
  """Else an earlier run would be evaluated on clients that trained its model."""
  order = seeds.generator(seed, "held out", num_clients).permutation(num_clients)
  assert list(cohorts.held_out_clients(num_clients, count, seed)) == sorted(
    order[-count:].tolist()
  )


def test_each_client_is_held_out_as_often():
  """Over 1,000 seeds; 5 sigma."""
  chosen = [cohorts.held_out_clients(8, 2, seed) for seed in range(1000)]
  counts = np.bincount(np.ravel(chosen), minlength=8)
  assert np.all(np.abs(counts - 250) < 5 * np.sqrt(1000 * 0.25 * 0.75)), counts


@pytest.mark.parametrize("count", [10, 11, -1])
def test_somebody_must_train(count):
  with pytest.raises(ValueError, match=rf"held_out_clients must be in 0\.\.9.*{count}"):
    cohorts.training_clients(10, count, 0)


@pytest.mark.parametrize(
  "population, said",
  [
    ((2, None), "num_clients=2, but of the clients that train it is 3: build it with "),
    ((3, 11), "num_examples=11, but of the clients that train it is 10: build it with "),
  ],
)
def test_a_process_is_built_for_the_clients_that_train(population, said):
  sizes = np.array([1, 2, 7])
  with pytest.raises(InputError, match=said):
    cohorts.check_population(Population(*population), sizes)
  for right in (None, Population(3), Population(3, 10)):
    cohorts.check_population(right, sizes)


def test_most_participations_by_hand():
  assert cohorts.most_participations([[0, 1], [2, 1], [], [1, 0], [3]]) == 3
  assert cohorts.most_participations([]) == 0
