"""Every random draw is keyed by (run seed, what for, round, client).

So a round is a pure function of its inputs: it can be run again after a failure, and does
not depend on what was drawn before it.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from tff_algos.errors import check_whole_number

_Words = NDArray[np.uint32]


def sequence(seed: int, purpose: str, *keys: int) -> np.random.SeedSequence:
  """The seed sequence of one purpose.

  Args:
    seed: The run's seed, >= 0.
    purpose: What is drawn, such as "cohort".
    *keys: Non-negative integers, such as the round and the client's place.
  """
  return np.random.SeedSequence([seed, zlib.crc32(purpose.encode()), *keys])


def generator(seed: int, purpose: str, *keys: int) -> np.random.Generator:
  """A NumPy generator of one purpose; arguments as of `sequence`."""
  return np.random.default_rng(sequence(seed, purpose, *keys))


def client_seed(seed: int, round_num: int, place: int) -> NDArray[np.int32]:
  """The key of all draws of a client in a round: int32 (2,).

  Args:
    seed: The run's seed.
    round_num: The round, from 0.
    place: The client's position in `ClientDirectory.ids`.

  Raises:
    InputError: One of them is no whole number of at least 0.
  """
  for name, value in (("seed", seed), ("round_num", round_num), ("place", place)):
    check_whole_number(name, value, 0)
  words = sequence(seed, "client", round_num, place).generate_state(2, np.uint32)
  return words.view(np.int32)


def client_seeds(
  seed: int, round_num: int, places: Sequence[int]
) -> list[NDArray[np.int32]]:
  """`client_seed` of each client of a cohort: all at once, as there may be thousands.

  Args:
    seed: The run's seed.
    round_num: The round, from 0.
    places: The clients' positions in `ClientDirectory.ids`.

  Returns:
    For each client int32 (2,).
  """
  keys = (seed, zlib.crc32(b"client"), round_num)
  if not len(places) or max(*keys, *places) > _MOST:
    return [client_seed(seed, round_num, place) for place in places]
  return list(_states([*(np.full(len(places), key) for key in keys), np.asarray(places)]))


_MOST = 2**32 - 1


def _states(entropy: Sequence[NDArray[np.int_]]) -> NDArray[np.int32]:
  """`SeedSequence(e).generate_state(2)` for many e of four numbers of 32 bits.

  NumPy keeps it as it is, which is M. E. O'Neill's `seed_seq_fe` [code], but has no form
  for many: in a round of 1,000 small clients these were an eighth of all time.

  Args:
    entropy: Four arrays (n,).

  Returns:
    int32 (n, 2).
  """
  mixed = _hash(0x43B0D7E5, 0x931E8875)
  pool = [mixed(words.astype(np.uint32)) for words in entropy]
  for source, target in itertools.permutations(range(4), 2):
    left, right = pool[target], mixed(pool[source])
    pool[target] = _folded(left * np.uint32(0xCA01F9DD) - right * np.uint32(0x4973F715))
  drawn = _hash(0x8B51F9DD, 0x58F38DED)
  return np.stack([drawn(words) for words in pool[:2]], axis=1).view(np.int32)


def _hash(constant: int, factor: int) -> Callable[[_Words], _Words]:
  """A hash of words that is another one at each call."""

  def hashed(words: _Words) -> _Words:
    nonlocal constant
    words = words ^ np.uint32(constant)
    constant = constant * factor & _MOST
    return _folded(words * np.uint32(constant))

  return hashed


def _folded(words: _Words) -> _Words:
  return words ^ (words >> np.uint32(16))
