"""What lying clients send, and what a run is defended by; free of TensorFlow.

Both are named by a word of the command line, name or name:key=value.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Optional

from tff_algos import spellings
from tff_algos.aggregators import table as aggregators
from tff_algos.errors import InputError, is_held_by_float32
from tff_algos.templates import composer

#: The name of runs in which nobody lies.
NOBODY = "nobody"
# Beyond it the square of the factor alone, which a client's state holds here, is
# infinite, so that the client would be dropped whatever it sends.
_MOST = 1e19


class Lie(NamedTuple):
  """What a client sends, of what its honest work gave.

  Attributes:
    factor: What each part of the message is multiplied by.
    noise: Added to each part: Gaussian noise of so many times the part's norm.
  """

  factor: float
  noise: float


HONEST = Lie(1.0, 0.0)


def _scaled(*, factor: float = -1e6) -> Lie:
  return Lie(_finite("factor", factor), 0.0)


def _sign_flipped(*, factor: float = 1.0) -> Lie:
  return Lie(-_above_0("factor", factor), 0.0)


def _random(*, factor: float = 100.0) -> Lie:
  return Lie(0.0, _above_0("factor", factor))


# All parts of a message, after the client's own work [convention].
ATTACKS: dict[str, Callable[..., Lie]] = {
  # A long vector against the way down: Blanchard et al., "Machine Learning with
  # Adversaries: Byzantine Tolerant Gradient Descent", NeurIPS 2017, whose adversary knows
  # the gradient of all [recalled]; here it is the client's own update.
  "scaled": _scaled,
  # Li et al., "RSA: Byzantine-Robust Stochastic Aggregation", AAAI 2019 [recalled].
  "sign_flipped": _sign_flipped,
  # Blanchard et al. 2017 too, there of a fixed variance [recalled].
  "random": _random,
}


class Defence(NamedTuple):
  """What a run has against lies.

  Attributes:
    aggregator: As `aggregators.table.parse` takes it; None: the algorithm's own.
    norm_limit: As `compose_process` takes it; None: no limit.
  """

  aggregator: Optional[str] = None
  norm_limit: Optional[float] = None


def _none() -> Defence:
  return Defence()


def _norm_limit(*, times: float = 5.0) -> Defence:
  return Defence(norm_limit=composer.check_norm_limit(times))


class Request(NamedTuple):
  """What the flags ask for.

  Attributes:
    task: A name of `tasks.registry`.
    algorithms: Names of `algorithms.registry`.
    attacks: By the words that name them.
    defences: By the words that name them.
    liars: The share of all clients who lie.
    num_clients: All clients; None: the task's.
    clients_per_round: The size of the cohort; None: the task's.
    rounds: Of each run; None: the task's.
    repeats: Runs of each, with seeds 0, 1, ...: of cohorts, of who lies, of shuffles and
      of noise; initial weights and split stay.
    hparams: Algorithm to its hyper-parameters that differ from the task's and its own
      defaults.
    data_dir: Where the data set is; None: where its loader looks by itself.
    cache_dir: Where prepared client data are kept.
    out: Where the results go.
  """

  task: str
  algorithms: Sequence[str]
  attacks: Mapping[str, Lie]
  defences: Mapping[str, Defence]
  liars: float
  num_clients: Optional[int]
  clients_per_round: Optional[int]
  rounds: Optional[int]
  repeats: int
  hparams: Mapping[str, Mapping[str, Any]]
  data_dir: Optional[str]
  cache_dir: str
  out: str


def parse_attacks(words: Sequence[str]) -> dict[str, Lie]:
  """The attacks that words name.

  Raises:
    InputError: There is none, or one cannot be read or is out of range.
  """
  _check_any("attacks", words, ATTACKS)
  found = {}
  for word in words:
    name, kwargs = spellings.parse(word, "attack", ATTACKS)
    found[word] = ATTACKS[name](**kwargs)
    if found[word] == HONEST:
      raise InputError(f"The attack {word!r} changes nothing: give another factor.")
  return found


def parse_defences(words: Sequence[str]) -> dict[str, Defence]:
  """The defences that words name: none, norm_limit, or an aggregator.

  Raises:
    InputError: There is none, or one cannot be read or is out of range.
  """
  own: dict[str, Callable[..., Defence]] = {"none": _none, "norm_limit": _norm_limit}
  known: dict[str, Callable[..., Any]] = dict(own)
  known.update((name, row.function) for name, row in aggregators.AGGREGATORS.items())
  _check_any("defences", words, known)
  found = {}
  for word in words:
    name, kwargs = spellings.parse(word, "defence", known, given=("clients_per_round",))
    make = own.get(name, functools.partial(Defence, word))
    found[word] = make(**kwargs) if name in own else make()
  return found


def check_share(liars: float) -> None:
  """Raises `InputError` unless it is a share of clients."""
  if not 0 < liars < 1:
    raise InputError(f"liars must be above 0 and below 1; found {liars:g}.")


def check_names(rows: Sequence[Any]) -> None:
  """Raises `InputError` for two algorithms of one name, by which results are kept."""
  names = [row.name for row in rows]
  for name in names:
    if names.count(name) > 1:
      raise InputError(
        f"Two of the algorithms are called {name}: give yours another name, or leave one "
        "out."
      )


def _check_any(flag: str, words: Sequence[str], known: Mapping[str, Any]) -> None:
  if not words:
    raise InputError(f"--{flag} is empty: name at least one of {', '.join(known)}.")


def _finite(name: str, value: float) -> float:
  if not abs(value) <= _MOST:
    raise InputError(f"{name} must be from -{_MOST:g} to {_MOST:g}; found {value:g}.")
  return value


def _above_0(name: str, value: float) -> float:
  if not (0 < value <= _MOST and is_held_by_float32(value)):
    raise InputError(f"{name} must be above 0 and at most {_MOST:g}; found {value:g}.")
  return value
