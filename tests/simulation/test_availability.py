"""Who drops out and who is late: by chance, but the same for the same seed."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest

from tff_algos.simulation import availability
from tff_algos.simulation.availability import Availability, ClientDurations

_EVERYONE = range(50)


def _out(dropout: float, seed: int, round_num: int, cohort=_EVERYONE) -> list[int]:
  found = Availability(dropout).attendance(cohort, seed, round_num)
  assert sorted([*found.taking_part, *found.dropped_out]) == sorted(cohort)
  assert (found.late, found.seconds) == ([], None)
  return found.dropped_out


@pytest.mark.parametrize("dropout", [0.05, 0.5, 0.9])
def test_number_of_drop_outs_is_binomial(dropout):
  """Mean and variance over seeds and rounds; each bound is 5 sigma."""
  counts = [len(_out(dropout, s, r)) for s, r in itertools.product(range(40), range(10))]
  trials, n, variance = len(counts), len(_EVERYONE), dropout * (1 - dropout)
  assert abs(np.mean(counts) - n * dropout) < 5 * math.sqrt(n * variance / trials)
  # The variance of a sample's variance is about 2 sigma^4 / trials.
  assert abs(np.var(counts) / (n * variance) - 1) < 5 * math.sqrt(2 / trials)


def test_each_client_drops_out_as_often_and_by_itself():
  """Of 400 rounds; pairs as often as the product of their chances says."""
  gone = np.zeros((400, 10), bool)
  for round_num in range(400):
    gone[round_num, _out(0.3, 7, round_num, range(10))] = True
  sigma = math.sqrt(400 * 0.3 * 0.7)
  assert np.all(np.abs(gone.sum(axis=0) - 120) < 5 * sigma)
  together = gone.T.astype(int) @ gone
  pairs = together[np.triu_indices(10, 1)]
  assert np.all(np.abs(pairs - 400 * 0.09) < 5 * math.sqrt(400 * 0.09 * 0.91))


def test_a_fate_is_of_seed_round_and_client_alone():
  alone = [place for place in _EVERYONE if _out(0.4, 3, 5, [place])]
  assert alone == _out(0.4, 3, 5)
  assert _out(0.4, 3, 5, [9, 4, 30]) == [p for p in (9, 4, 30) if p in alone]
  fates = {tuple(_out(0.4, s, r)) for s, r in itertools.product(range(5), range(5))}
  assert len(fates) == 25


def test_who_drops_out_at_a_low_rate_does_at_a_higher():
  assert set(_out(0.2, 1, 1)) < set(_out(0.6, 1, 1))
  assert _out(0.0, 1, 1) == []


# --- How long clients take -----------------------------------------------------------


def _logarithms(durations: ClientDurations, clients: int, rounds: int) -> np.ndarray:
  found = [[durations.seconds(2, r, p) for p in range(clients)] for r in range(rounds)]
  return np.log(found)


def test_durations_have_their_mean_and_spreads():
  """ln d = ln 10 - (0.25^2 + 0.5^2) / 2 + speed + noise, each sum of 40 000 draws."""
  logs = _logarithms(ClientDurations(10.0, sigma=0.25, speed_sigma=0.5), 800, 20)
  centre = math.log(10) - (0.25**2 + 0.5**2) / 2
  # What counts is the 800 speeds.
  assert abs(logs.mean() - centre) < 5 * 0.5 / math.sqrt(800) + 0.01
  assert abs(np.exp(logs).mean() - 10) < 5 * 10 * 0.56 / math.sqrt(800)
  assert logs.std(axis=0, ddof=1).mean() == pytest.approx(0.25, rel=0.05)
  assert logs.mean(axis=0).std() == pytest.approx(0.5, rel=0.15)


def test_without_noise_a_client_always_takes_as_long():
  logs = _logarithms(ClientDurations(3.0, sigma=0.0, speed_sigma=1.0), 5, 4)
  assert np.all(logs == logs[0])
  assert len(set(logs[0])) == 5
  assert np.all(_logarithms(ClientDurations(3.0, 0.0, 0.0), 5, 4) == np.log(3.0))


def test_late_are_those_after_the_deadline():
  durations = ClientDurations(10.0)
  cohort = [4, 1, 17, 8, 30, 2]
  seconds = {place: durations.seconds(6, 3, place) for place in cohort}
  second, third = sorted(seconds.values())[1:3]
  deadline = (second + third) / 2
  found = Availability(0.0, durations, deadline).attendance(cohort, 6, 3)
  assert found.taking_part == [p for p in cohort if seconds[p] <= second]
  assert found.late == [p for p in cohort if seconds[p] >= third]
  assert found.seconds == deadline

  free = Availability(0.0, durations).attendance(cohort, 6, 3)
  assert (free.taking_part, free.late) == (cohort, [])
  assert free.seconds == max(seconds.values())


def test_what_comes_at_the_deadline_is_in_time():
  always = ClientDurations(10.0, sigma=0.0, speed_sigma=0.0)
  found = Availability(0.0, always, 10.0).attendance([2, 0], 0, 0)
  assert found == ([2, 0], [], [], 10.0)


def test_who_has_dropped_out_is_not_late_too():
  both = Availability(0.5, ClientDurations(10.0), 8.0).attendance(_EVERYONE, 0, 0)
  only = Availability(0.0, ClientDurations(10.0), 8.0).attendance(_EVERYONE, 0, 0)
  assert both.dropped_out == _out(0.5, 0, 0)
  assert both.late == [p for p in only.late if p not in both.dropped_out]
  assert set(both.late) < set(only.late)
  assert len(both.taking_part) + len(both.dropped_out) + len(both.late) == 50


def test_record_has_what_was_asked_for():
  for asked, columns in (
    (Availability(), []),
    (Availability(0.5), ["num_dropped_out"]),
    (Availability(durations=ClientDurations(1.0)), ["num_late", "round_duration"]),
    (
      Availability(0.5, ClientDurations(1.0), 0.5),
      ["num_dropped_out", "num_late", "round_duration"],
    ),
  ):
    found = asked.record(asked.attendance(_EVERYONE, 0, 0))
    assert list(found) == asked.columns() == columns
    assert all(value > 0 for name, value in found.items() if asked.deadline)


def test_numpys_numbers_draw_as_pythons_and_can_be_kept():
  """Ones that float32 holds, of which NumPy would compute in float32."""
  given = Availability(0.25, ClientDurations(10.0, 0.5, 0.125), 12.0)
  same = Availability(
    np.float32(0.25),
    ClientDurations(np.float32(10), np.float32(0.5), np.float32(0.125)),
    np.int64(12),
  )
  for round_num in range(5):
    found = same.attendance(_EVERYONE, 3, round_num)
    assert found == given.attendance(_EVERYONE, 3, round_num)
    assert json.loads(json.dumps(same.record(found)))["round_duration"] == found.seconds


def test_durations_are_read_from_a_word():
  found = availability.parse_durations("lognormal:mean=10,sigma=0.25")
  assert found == ClientDurations(10.0, 0.25, 0.5)
  with pytest.raises(ValueError, match="mean is missing"):
    availability.parse_durations("lognormal:sigma=1")
  with pytest.raises(ValueError, match="no client duration named 'normal'"):
    availability.parse_durations("normal:mean=1")


@pytest.mark.parametrize(
  "make, said",
  [
    (lambda: Availability(1.0), r"dropout must be in \[0, 1\); found 1"),
    (lambda: Availability(-0.1), r"dropout must be in \[0, 1\)"),
    (lambda: Availability(math.nan), r"dropout must be in \[0, 1\)"),
    (lambda: Availability(deadline=3.0), "deadline needs durations"),
    (lambda: Availability(0.0, ClientDurations(1.0), 0.0), "deadline must be > 0"),
    (lambda: ClientDurations(0.0), "mean of durations must be > 0"),
    (lambda: ClientDurations(1.0, sigma=-1.0), "sigma of durations must be 0 to 10;"),
    (lambda: ClientDurations(1.0, sigma=11.0), "sigma of durations must be 0 to 10"),
    (lambda: ClientDurations(1.0, 0.5, math.inf), "speed_sigma of durations must be"),
    (lambda: Availability("0.5"), "dropout must be a number; found '0.5'"),
    (lambda: Availability(durations=3.0), "must be a tff_algos.ClientDurations; .* 3"),
    (lambda: Availability(0.0, ClientDurations(1), "3"), "deadline must be a number"),
    (lambda: ClientDurations(None), "mean of durations must be a number; found None"),
    (lambda: ClientDurations(1.0, sigma="a"), "The sigma of durations must be a number"),
  ],
)
def test_what_cannot_be_is_refused(make, said):
  with pytest.raises(ValueError, match=said):
    make()


@pytest.mark.parametrize("spreads", [dict(sigma=0.0), dict(speed_sigma=0.0)])
def test_durations_are_of_the_seed(spreads):
  durations = ClientDurations(10.0, **spreads)
  assert len({durations.seconds(seed, 0, 3) for seed in range(5)}) == 5
