"""Which clients take part in a round."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Optional

import numpy as np
from numpy.typing import NDArray

from tff_algos.errors import InputError
from tff_algos.simulation import seeds

if TYPE_CHECKING:
  from tff_algos.templates.stateful_process import Population


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


def held_out_clients(num_clients: int, count: int, seed: int) -> Sequence[int]:
  """The places of clients that never train: the last of a permutation, in their order.

  Args:
    num_clients: N, the number of all clients.
    count: How many, 0..N-1; with a larger one these and others.
    seed: The run's seed.

  Raises:
    InputError: There are not as many that others train.
  """
  return _split(num_clients, count, seed)[1]


def training_clients(num_clients: int, held_out: int, seed: int) -> Sequence[int]:
  """The places of all others, in their order; arguments as of `held_out_clients`."""
  return _split(num_clients, held_out, seed)[0]


@functools.lru_cache(maxsize=8)  # Which is asked in every round.
def _split(
  num_clients: int, held_out: int, seed: int
) -> tuple[Sequence[int], Sequence[int]]:
  if not held_out:
    return range(num_clients), ()
  if not 0 < held_out < num_clients:
    raise InputError(
      f"held_out_clients must be in 0..{num_clients - 1}, less than the number of "
      f"clients; found {held_out}."
    )
  order = seeds.generator(seed, "held out", num_clients).permutation(num_clients)
  first, last = order[: num_clients - held_out], order[num_clients - held_out :]
  return tuple(sorted(first.tolist())), tuple(sorted(last.tolist()))


def check_population(
  population: Optional[Population], num_examples: NDArray[np.int64]
) -> None:
  """Compares the clients that a process was built for with those that train.

  Args:
    population: The process's.
    num_examples: Of each client that trains, shape (clients,).

  Raises:
    InputError: They are not as many, or have not as many examples.
  """
  if population is None:
    return
  found = dict(num_clients=len(num_examples), num_examples=int(num_examples.sum()))
  for name, given in population._asdict().items():
    if given not in (None, found[name]):
      raise InputError(
        f"The process was built with {name}={given}, but of the clients that train it is "
        f"{found[name]}: build it with {name}={found[name]}."
      )


def most_participations(rounds: Iterable[Sequence[int]]) -> int:
  """In how many rounds the client takes part that does so most often.

  Args:
    rounds: The clients of each, by their places.
  """
  counts = Counter(place for clients in rounds for place in clients)
  return max(counts.values(), default=0)
