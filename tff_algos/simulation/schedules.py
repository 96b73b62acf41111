"""Learning rates that change from round to round: factors of the rate that was given.

A schedule is a pure function of the number of rounds done, `(rounds_done) -> factor`, by
which a round's `learning_rate` is multiplied; any such function will do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from tff_algos import spellings
from tff_algos.errors import InputError, check_number, check_whole_number

if TYPE_CHECKING:
  from tff_algos.templates.stateful_process import StatefulProcess

Schedule = Callable[[int], float]

_WHAT = "learning rate schedule"


def exponential(*, decay: float) -> Schedule:
  """decay^t, t = 0, 1, ..., with 0 < decay.

  Raises:
    InputError: `decay` is no number or out of range.
  """
  decay = check_number(f"{_WHAT} exponential: decay", decay)
  _check("exponential", "decay", decay, 0 < decay < math.inf, "> 0")
  return lambda rounds_done: decay**rounds_done


def step(*, every: int, factor: float) -> Schedule:
  """factor^floor(t / every), with 0 < factor and 1 <= every.

  Raises:
    InputError: `every` is no whole number, `factor` no number, or one is out of range.
  """
  every = check_whole_number(f"{_WHAT} step: every", every, 1)
  factor = check_number(f"{_WHAT} step: factor", factor)
  _check("step", "factor", factor, 0 < factor < math.inf, "> 0")
  return lambda rounds_done: factor ** (rounds_done // every)


def cosine(*, rounds: int, final: float = 0.0) -> Schedule:
  """final + (1 - final) (1 + cos(pi t / rounds)) / 2, and `final` from t = rounds on.

  Args:
    rounds: >= 1.
    final: 0..1.

  Raises:
    InputError: `rounds` is no whole number, `final` no number, or one is out of range.
  """
  rounds = check_whole_number(f"{_WHAT} cosine: rounds", rounds, 1)
  final = check_number(f"{_WHAT} cosine: final", final)
  _check("cosine", "final", final, 0 <= final <= 1, "in 0..1")

  def factor(rounds_done: int) -> float:
    share = min(rounds_done, rounds) / rounds
    return final + (1 - final) * (1 + math.cos(math.pi * share)) / 2

  return factor


SCHEDULES: Mapping[str, Callable[..., Schedule]] = {
  "exponential": exponential,
  "step": step,
  "cosine": cosine,
}


def parse(spec: str) -> Schedule:
  """A schedule by its name, as in "step:every=50,factor=0.1".

  Raises:
    InputError: There is none of this name, or a parameter is wrong.
  """
  name, parameters = spellings.parse(spec, _WHAT, SCHEDULES)
  return SCHEDULES[name](**parameters)


def rates(schedule: Schedule, learning_rate: float, rounds: int) -> Sequence[float]:
  """The learning rate of each round, as the float32 that is used.

  Args:
    schedule: The schedule.
    learning_rate: What it multiplies.
    rounds: How many rounds.

  Raises:
    InputError: A rate is not a number above 0.
  """
  found: list[float] = []
  for done in range(rounds):
    factor = schedule(done)
    try:
      with np.errstate(over="ignore"):
        rate = float(np.float32(np.float32(learning_rate) * factor))
    except (TypeError, ValueError, OverflowError) as error:
      raise InputError(
        f"The learning rate schedule gives round {done + 1} of {rounds} the factor "
        f"{factor!r:.40}: return a number that float32 holds."
      ) from error
    if not 0 < rate < math.inf:
      raise InputError(
        f"The learning rate schedule gives round {done + 1} of {rounds} a learning rate "
        f"of {rate:g}, which must be > 0: choose another schedule, or fewer rounds."
      )
    found.append(rate)
  return found


def adjustment(
  process: StatefulProcess, schedule: Optional[Schedule], rounds: int
) -> Callable[[Any, int], tuple[Any, dict[str, float]]]:
  """`(state, rounds done) -> (state with the round's learning rate, what is recorded)`.

  Args:
    process: Whose `learning_rate` the schedule multiplies.
    schedule: The schedule; None: the state is left as it is.
    rounds: How many rounds.

  Raises:
    InputError: The process's learning rate cannot be changed, or a rate is not above 0.
  """
  if schedule is None:
    return lambda state, rounds_done: (state, {})
  given = dict(process.get_hparams(process.initialize()))
  if "learning_rate" not in given:
    raise InputError(
      "The process has no tunable learning_rate, so it takes no learning rate schedule: "
      "leave it out."
    )
  planned = rates(schedule, float(given["learning_rate"]), rounds)

  def adjust(state: Any, rounds_done: int) -> tuple[Any, dict[str, float]]:
    rate = planned[rounds_done]
    changed = process.set_hparams(state, {**given, "learning_rate": np.float32(rate)})
    return changed, {"learning_rate": rate}

  return adjust


def _check(name: str, parameter: str, value: float, fits: bool, said: str) -> None:
  if not fits:
    raise InputError(
      f"{_WHAT} {name}: {parameter} must be {said} but is {value:g}: correct it."
    )
