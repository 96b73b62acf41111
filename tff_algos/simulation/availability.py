"""Clients that a round cannot count on: those that drop out, and those that are late."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

from tff_algos import spellings
from tff_algos.errors import InputError, check_is, set_number
from tff_algos.simulation import seeds

# Beyond it nearly all durations are next to 0, and some too large for a number.
_LARGEST_SIGMA = 10


@dataclasses.dataclass(frozen=True)
class ClientDurations:
  """How long a client takes for a round: lognormal, and some are always slower.

  mean * exp(speed_sigma z_i - speed_sigma^2 / 2) * exp(sigma z_it - sigma^2 / 2), where
  z_i is standard normal, drawn once for each client, and z_it for each round too. The
  number of a client's examples does not matter.

  Attributes:
    mean: The mean over clients and rounds in seconds, > 0.
    sigma: How much a client's rounds differ, 0 to 10.
    speed_sigma: How much clients differ, 0 to 10.

  Raises:
    InputError: A value is of another kind or out of range.
  """

  mean: float
  sigma: float = 0.5
  speed_sigma: float = 0.5

  def __post_init__(self) -> None:
    set_number(self, "mean", "The mean of durations")
    if not 0 < self.mean < math.inf:
      raise InputError(f"The mean of durations must be > 0; found {self.mean:g}.")
    for name in ("sigma", "speed_sigma"):
      set_number(self, name, f"The {name} of durations")
      if not 0 <= getattr(self, name) <= _LARGEST_SIGMA:
        raise InputError(
          f"The {name} of durations must be 0 to {_LARGEST_SIGMA}; found "
          f"{getattr(self, name):g}."
        )

  def seconds(self, seed: int, round_num: int, place: int) -> float:
    """A client's duration in a round.

    Args:
      seed: The run's seed.
      round_num: The round, from 0.
      place: The client's position in `ClientDirectory.ids`.
    """
    speed = seeds.generator(seed, "speed", place).standard_normal()
    round_ = seeds.generator(seed, "duration", round_num, place).standard_normal()
    exponent = self.speed_sigma * speed + self.sigma * round_
    exponent -= (self.speed_sigma**2 + self.sigma**2) / 2
    return self.mean * math.exp(exponent)


class Attendance(NamedTuple):
  """Who of a round's cohort takes part, in the order of the cohort.

  Attributes:
    taking_part: The clients whose results count, by their places.
    dropped_out: Those that have got nothing and do nothing.
    late: Those that do all and send it, but after the deadline: it counts for nothing,
      and their own states stay as they were.
    seconds: What the round takes by the clients' durations, the deadline where a client
      is late; None where durations are not drawn.
  """

  taking_part: list[int]
  dropped_out: list[int]
  late: list[int]
  seconds: Optional[float]


@dataclasses.dataclass(frozen=True)
class Availability:
  """What keeps clients of a cohort from counting in its round.

  Attributes:
    dropout: The probability that a client drops out of a round, 0..1 but not 1.
    durations: How long clients take; None: this is not looked at.
    deadline: The seconds of a round after which results come too late; None: never.

  Raises:
    InputError: A value is of another kind or out of range, or there is a deadline without
      durations.
  """

  dropout: float = 0.0
  durations: Optional[ClientDurations] = None
  deadline: Optional[float] = None

  def __post_init__(self) -> None:
    set_number(self, "dropout")
    if not 0 <= self.dropout < 1:
      raise InputError(f"dropout must be in [0, 1); found {self.dropout:g}.")
    if self.durations is not None:
      check_is("durations", self.durations, ClientDurations)
    if self.deadline is not None:
      set_number(self, "deadline", "The deadline")
      if not 0 < self.deadline < math.inf:
        raise InputError(f"The deadline must be > 0 seconds; found {self.deadline:g}.")
      if self.durations is None:
        raise InputError("A deadline needs durations: say how long clients take.")

  def attendance(self, cohort: Sequence[int], seed: int, round_num: int) -> Attendance:
    """Who takes part; each client's fate is its own, whoever else is in the cohort.

    Args:
      cohort: The clients' places.
      seed: The run's seed.
      round_num: The round, from 0.
    """
    if not self.dropout and self.durations is None:
      return Attendance(list(cohort), [], [], None)
    stays = {
      place: seeds.generator(seed, "dropout", round_num, place).random() >= self.dropout
      for place in cohort
    }
    there = [place for place in cohort if stays[place]]
    dropped_out = [place for place in cohort if not stays[place]]
    if self.durations is None:
      return Attendance(there, dropped_out, [], None)
    seconds = {p: self.durations.seconds(seed, round_num, p) for p in there}
    deadline = math.inf if self.deadline is None else self.deadline
    late = [place for place in there if seconds[place] > deadline]
    in_time = [place for place in there if seconds[place] <= deadline]
    longest = max(seconds.values(), default=0.0)
    return Attendance(in_time, dropped_out, late, min(longest, deadline))

  def columns(self) -> list[str]:
    """What a round's record has of this."""
    names = ["num_dropped_out"] if self.dropout else []
    if self.durations is not None:
      names += ["num_late", "round_duration"]
    return names

  def record(self, attendance: Attendance) -> dict[str, Any]:
    """For a round's record: what `columns` names, the duration in seconds."""
    values: dict[str, Any] = {
      "num_dropped_out": len(attendance.dropped_out),
      "num_late": len(attendance.late),
      "round_duration": attendance.seconds,
    }
    return {name: values[name] for name in self.columns()}


def _lognormal(
  *, mean: float, sigma: float = 0.5, speed_sigma: float = 0.5
) -> ClientDurations:
  return ClientDurations(mean, sigma, speed_sigma)


def parse_durations(spec: str) -> ClientDurations:
  """Durations by the name of their distribution, as in "lognormal:mean=10,sigma=0.5".

  Raises:
    InputError: There is none of this name, or a parameter is wrong.
  """
  _, parameters = spellings.parse(spec, "client duration", {"lognormal": _lognormal})
  return _lognormal(**parameters)
