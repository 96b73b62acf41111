"""Which clients take part in a round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from tff_algos.errors import InputError
from tff_algos.simulation import seeds


def uniform_cohort(
  num_clients: int, clients_per_round: int, seed: int, round_num: int
) -> Sequence[int]:
  """Draws the places of a round's clients uniformly, without replacement.

  Args:
    num_clients: N, the number of all clients.
    clients_per_round: The size of the cohort, 1..N.
    seed: The run's seed.
    round_num: The round, from 0.

  Raises:
    InputError: The cohort is empty or larger than the population.
  """
  if not 1 <= clients_per_round <= num_clients:
    raise InputError(
      f"clients_per_round must be in 1..{num_clients}, the number of clients; found "
      f"{clients_per_round}."
    )
  draw = seeds.generator(seed, "cohort", round_num)
  places: list[int] = draw.choice(num_clients, clients_per_round, replace=False).tolist()
  return places


def most_participations(rounds: Iterable[Sequence[int]]) -> int:
  """In how many rounds the client takes part that does so most often.

  Args:
    rounds: The clients of each, by their places.
  """
  counts = Counter(place for clients in rounds for place in clients)
  return max(counts.values(), default=0)
