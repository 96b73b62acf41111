"""Learning rates of the rounds, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tff_algos.errors import InputError
from tff_algos.simulation import schedules


def _factors(schedule, rounds: int) -> list[float]:
  return [schedule(t) for t in range(rounds)]


def test_exponential_by_hand():
  found = _factors(schedules.exponential(decay=0.5), 4)
  assert found == [1, 0.5, 0.25, 0.125]
  assert set(_factors(schedules.exponential(decay=1.0), 50)) == {1.0}


def test_step_by_hand():
  found = _factors(schedules.step(every=3, factor=0.1), 8)
  assert found == pytest.approx([1, 1, 1, 0.1, 0.1, 0.1, 0.01, 0.01])


def test_cosine_by_hand():
  """At the start 1, in the middle the mean of both ends, then the end for good."""
  found = _factors(schedules.cosine(rounds=4, final=0.2), 7)
  slope = 0.4 * math.sqrt(0.5)
  expected = [1, 0.6 + slope, 0.6, 0.6 - slope, 0.2, 0.2, 0.2]
  assert found == pytest.approx(expected)
  assert schedules.cosine(rounds=10)(10) == pytest.approx(0, abs=1e-16)


@pytest.mark.parametrize(
  "spec, expected",
  [
    ("exponential:decay=0.9", schedules.exponential(decay=0.9)),
    ("step:every=2,factor=0.5", schedules.step(every=2, factor=0.5)),
    ("cosine:rounds=5,final=0.1", schedules.cosine(rounds=5, final=0.1)),
  ],
)
def test_word_is_its_function(spec, expected):
  assert _factors(schedules.parse(spec), 9) == _factors(expected, 9)


@pytest.mark.parametrize(
  "spec, said",
  [
    ("expo:decay=0.9", "the nearest is 'exponential'"),
    ("exponential", r"decay is missing: exponential takes decay \(float, required\)"),
    ("exponential:decay=0", "decay must be > 0 but is 0"),
    ("exponential:decay=inf", "decay must be > 0"),
    ("step:every=0,factor=0.1", "every must be at least 1; found 0"),
    ("step:every=1.5,factor=0.1", "every=1.5 is not int"),
    ("step:every=2,factor=-1", "factor must be > 0 but is -1"),
    ("cosine:rounds=0", "rounds must be at least 1"),
    ("cosine:rounds=5,final=2", r"final must be in 0\.\.1 but is 2"),
  ],
)
def test_word_that_is_none_is_refused(spec, said):
  with pytest.raises(ValueError, match=f"learning rate schedule.*{said}"):
    schedules.parse(spec)


@pytest.mark.parametrize(
  "schedule, arguments, said",
  [
    (schedules.exponential, dict(decay="0.9"), "exponential: decay must be a number"),
    (schedules.step, dict(every=2.5, factor=0.5), "step: every must be a whole number"),
    (schedules.step, dict(every=2, factor=None), "step: factor must be a number"),
    (schedules.cosine, dict(rounds=9.5), "cosine: rounds must be a whole number"),
    (schedules.cosine, dict(rounds=9, final=[0]), "cosine: final must be a number"),
  ],
)
def test_value_of_another_kind_is_one_sentence(schedule, arguments, said):
  with pytest.raises(InputError, match=f"^learning rate schedule {said}; found "):
    schedule(**arguments)


def test_rates_are_the_float32_that_is_used():
  found = schedules.rates(lambda t: 1.0 + t, 0.1, 3)
  assert found[0] == float(np.float32(0.1)) != 0.1
  assert found == pytest.approx([0.1, 0.2, 0.3], rel=1e-7)
  assert all(type(rate) is float for rate in found)


@pytest.mark.parametrize(
  "schedule, rounds, said",
  [
    (schedules.cosine(rounds=4), 6, "round 5 of 6 a learning rate of"),
    (lambda t: 10.0 ** (-5 * t), 20, "round 10 of 20 a learning rate of 0"),  # float32's
    (lambda t: -1.0, 2, "round 1 of 2 a learning rate of -0.1"),
    (lambda t: 10**400, 2, "the factor 10*: return a number that float32 holds"),
    (lambda t: None, 2, "gives round 1 of 2 the factor None: return a number"),
    (lambda t: [0.1, 0.2], 2, r"the factor \[0.1, 0.2\]: return a number"),
    (lambda t: math.nan, 2, "learning rate of nan"),
    (lambda t: 1e40, 2, "learning rate of inf"),
  ],
)
def test_rate_that_is_none_is_refused(schedule, rounds, said):
  with pytest.raises(ValueError, match=said):
    schedules.rates(schedule, 0.1, rounds)
