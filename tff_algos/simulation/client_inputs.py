"""What the clients of a round are handed."""

from __future__ import annotations

from collections.abc import Sequence

from tff_algos.client_data import ClientDirectory, ClientInput
from tff_algos.simulation import seeds


def of_cohort(
  clients: ClientDirectory, cohort: Sequence[int], seed: int, round_num: int
) -> list[ClientInput]:
  """Each one's file, and the key of all its draws.

  Args:
    clients: All clients.
    cohort: The places of the round's in `clients.ids`.
    seed: The run's seed, >= 0.
    round_num: The round, from 0.
  """
  keys = seeds.client_seeds(seed, round_num, cohort)
  paths = (clients.path(clients.ids[place]) for place in cohort)
  # TFF's worker takes text in ASCII alone, and any bytes.
  return [
    ClientInput(path if path.isascii() else path.encode(), key)
    for path, key in zip(paths, keys)
  ]
