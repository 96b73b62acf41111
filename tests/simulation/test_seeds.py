"""Every draw has a key of its own, and depends on nothing else."""

from __future__ import annotations

import itertools
import zlib

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tff_algos.simulation import seeds

_NATURALS = st.integers(0, 2**40)


@settings(max_examples=50)
@given(_NATURALS, st.text(max_size=5), st.lists(_NATURALS, max_size=3))
def test_generator_is_a_function_of_its_key(seed, purpose, keys):
  np.random.seed(0)
  first = seeds.generator(seed, purpose, *keys).integers(0, 2**60, 4)
  seeds.generator(seed, "something else").normal(size=10)
  np.random.seed(1)
  again = seeds.generator(seed, purpose, *keys).integers(0, 2**60, 4)
  np.testing.assert_array_equal(first, again)


def test_keys_do_not_share_draws():
  """Not even where the seed, the round and the client are exchanged."""
  numbers = (0, 1, 2, 7)
  keys = itertools.product(numbers, ("cohort", "client", "noise"), numbers, numbers)
  draws = [tuple(seeds.generator(*key).integers(0, 2**60, 2)) for key in keys]
  assert len(set(draws)) == len(draws) == 4 * 3 * 4 * 4


def test_seeds_of_clients_are_pairs_of_int32_and_all_different():
  keys = list(itertools.product((0, 1, 2), range(20), range(20)))
  found = [seeds.client_seed(*key) for key in keys]
  assert {(v.shape, v.dtype) for v in found} == {((2,), np.dtype(np.int32))}
  # Of 1,200 pairs of 64 bits two are equal once in 10^13.
  assert len({tuple(v) for v in found}) == len(keys)
  # Both words use all their bits, the sign too.
  words = np.array(found)
  for column in words.T:
    assert 0.4 < np.mean(column < 0) < 0.6
    assert np.abs(column.astype(np.int64)).max() > 2**30


def test_seeds_of_clients_do_not_depend_on_the_order_of_the_calls():
  keys = [(3, r, c) for r in range(4) for c in range(5)]
  forward = [tuple(seeds.client_seed(*key)) for key in keys]
  backward = [tuple(seeds.client_seed(*key)) for key in reversed(keys)]
  assert forward == backward[::-1]


@given(_NATURALS, st.integers(0, 2**33), st.lists(_NATURALS, max_size=5))
def test_seeds_of_a_cohort_are_those_of_its_clients(seed, round_num, places):
  """Numbers of more than 32 bits too, of which NumPy makes several words."""
  found = seeds.client_seeds(seed, round_num, places)
  expected = [seeds.client_seed(seed, round_num, place) for place in places]
  assert len(found) == len(places)
  for one, other in zip(found, expected):
    assert one.dtype == other.dtype
    np.testing.assert_array_equal(one, other)


@given(st.lists(st.lists(st.integers(0, 2**32 - 1), min_size=3, max_size=3)))
def test_many_small_numbers_at_once_are_what_numpy_makes_of_each(keys):
  for seed, round_num, place in keys:
    [found] = seeds.client_seeds(seed, round_num, [place])
    entropy = [seed, zlib.crc32(b"client"), round_num, place]
    expected = np.random.SeedSequence(entropy).generate_state(2, np.uint32)
    np.testing.assert_array_equal(found.view(np.uint32), expected)
