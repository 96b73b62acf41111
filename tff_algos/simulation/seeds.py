"""Every random draw is keyed by (run seed, what for, round, client).

So a round is a pure function of its inputs: it can be run again after a failure, and does
not depend on what was drawn before it.
"""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray


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
  """
  words = sequence(seed, "client", round_num, place).generate_state(2, np.uint32)
  return words.view(np.int32)
