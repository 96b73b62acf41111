"""What the loop can do besides: clients that drop out or are late, and the like."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tree

from tff_algos.simulation import cohorts, loop
from tff_algos.simulation.availability import Availability, Durations

_SECONDS = ("seconds", "evaluation_seconds", "client_evaluation_seconds")


def _settings(rounds: int = 6, **options) -> loop.Settings:
  return loop.Settings(rounds=rounds, clients_per_round=4, seed=8, **options)


def _without_seconds(records: list[dict]) -> list[dict]:
  return [{k: v for k, v in r.items() if k not in _SECONDS} for r in records]


def _assert_same_state(found: loop.Result, expected: loop.Result) -> None:
  """Bit for bit, of the server and of the clients."""
  every = range(6)
  for a, b in (
    (found.state, expected.state),
    (found.client_states.get(every), expected.client_states.get(every)),
  ):
    tree.assert_same_structure(a, b)
    for x, y in zip(tree.flatten(a), tree.flatten(b)):
      np.testing.assert_array_equal(x, y)


def _assert_same(found: loop.Result, expected: loop.Result) -> None:
  _assert_same_state(found, expected)
  assert _without_seconds(found.records) == _without_seconds(expected.records)


# --- Clients that drop out, and clients that are late -------------------------------


@pytest.mark.parametrize(
  "availability",
  [Availability(0.4), Availability(0.2, Durations(10.0), 9.0)],
  ids=["dropout", "deadline"],
)
def test_run_is_that_of_the_clients_that_are_left(
  process_of, federation, monkeypatch, availability
):
  process, settings = process_of("scaffold"), _settings(availability=availability)
  rounds = [settings.attendance(6, r) for r in range(6)]
  assert any(a.dropped_out for a in rounds)
  assert all(a.taking_part for a in rounds), "another seed: rounds are to have clients"
  result = loop.simulate(process, federation.clients, settings)
  with monkeypatch.context() as patched:
    patched.setattr(
      cohorts, "uniform_cohort", lambda n, m, seed, r: rounds[r].taking_part
    )
    expected = loop.simulate(process, federation.clients, _settings())
  _assert_same_state(result, expected)
  for record, other, a in zip(result.records, expected.records, rounds):
    assert record["train_loss"] == other["train_loss"]
    assert record["num_accepted"] == len(a.taking_part)
    assert record["num_dropped"] == 0
    assert record["num_dropped_out"] == len(a.dropped_out)
    assert record.get("num_late", 0) == len(a.late)
    assert record.get("round_duration") == a.seconds
    # Who is late has been sent the model and has sent its own.
    senders = len(a.taking_part) + len(a.late)
    assert record["bytes_up"] * len(a.taking_part) == other["bytes_up"] * senders


@pytest.mark.parametrize("name", ["scaffold", "fedadam", "tefl", "fedagg"])
def test_round_with_nobody_leaves_the_model(process_of, federation, name):
  """The round is counted, by the server too; the run goes on."""
  settings = dataclasses.replace(
    _settings(4, availability=Availability(0.5)), clients_per_round=1, seed=63
  )
  sizes = [len(settings.attendance(6, r).taking_part) for r in range(4)]
  assert sizes == [1, 0, 1, 1], "another seed: round 2 is to be empty"
  starts = []
  result = loop.simulate(
    process_of(name), federation.clients, settings, before_round=starts.append
  )
  states = [*(start.state for start in starts), result.state]
  for a, b in zip(tree.flatten(states[1].variables), tree.flatten(states[2].variables)):
    np.testing.assert_array_equal(a, b)
  assert [int(state.round_num) for state in states] == [0, 1, 2, 3, 4]
  for before, after in ((0, 1), (2, 3)):
    weights = [np.array(states[k].variables.model[0]) for k in (before, after)]
    assert not np.array_equal(*weights)
    assert np.all(np.isfinite(weights[1]))
  empty = result.records[1]
  assert np.isnan(empty["train_loss"])
  assert (empty["num_examples"], empty["num_accepted"]) == (0, 0)
  assert (empty["num_dropped"], empty["num_dropped_out"]) == (0, 1)
  assert (empty["bytes_down"], empty["bytes_up"]) == (0, 0)


def test_resumed_run_has_the_same_clients(process_of, federation, tmp_path):
  process, asked = process_of("scaffold"), []
  settings = _settings(
    availability=Availability(0.3, Durations(10.0), 12.0),
    checkpoint_folder=str(tmp_path / "a"),
  )
  unbroken = loop.simulate(process, federation.clients, settings)
  settings = dataclasses.replace(settings, checkpoint_folder=str(tmp_path / "b"))

  def should_stop():
    asked.append(None)
    return len(asked) == 2

  loop.simulate(process, federation.clients, settings, should_stop=should_stop)
  resumed = loop.simulate(process, federation.clients, settings, resume=True)
  _assert_same(resumed, unbroken)
