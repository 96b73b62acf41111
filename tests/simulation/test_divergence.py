"""A run that has come to nothing says so, once."""

from __future__ import annotations

import dataclasses
import math
import re
import warnings

import pytest

from tff_algos.errors import InputWarning
from tff_algos.simulation import divergence, evaluation, loop


def record(number, train_loss, *, accepted=10, dropped=0, **others):
  counts = dict(num_accepted=accepted, num_dropped=dropped)
  return dict(round=number, train_loss=train_loss, **counts, **others)


@pytest.mark.parametrize(
  "bad, said",
  [
    (record(3, 1e13), r"^Round 3: the training loss is 1e\+13, 4e\+12 times the first: "),
    (record(3, math.inf), "^Round 3: the training loss is inf: "),
    (record(3, 2.0, test_loss=math.nan), "^Round 3: the test loss is nan: "),
    (record(3, 2.0, test_loss=301.0), "^Round 3: the test loss is 301, "),
    (
      record(3, math.nan, accepted=0, dropped=10),
      "^Round 3: no client's result could be used: ",
    ),
  ],
)
def test_divergence_is_said_once(bad, said):
  watch = divergence.Watch([record(1, 2.5, test_loss=3.0)])
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    watch.see(record(2, 249.0, test_loss=299.0))
  with pytest.warns(InputWarning, match=said):
    watch.see(bad)
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    watch.see({**bad, "round": 4})
    divergence.Watch([record(1, 2.5, test_loss=3.0), bad]).see({**bad, "round": 4})


def test_first_loss_is_said_where_it_is_far_from_that_of_guessing():
  for watch in (divergence.Watch([], num_classes=10), divergence.Watch([])):
    with warnings.catch_warnings():
      warnings.simplefilter("error")
      watch.see(record(1, 100 * math.log(10) * 0.999))
  said = r"^Round 1: the training loss is 4\.78e\+15, 2\.1e\+15 times that of guessing: "
  with pytest.warns(InputWarning, match=said):
    divergence.Watch([], num_classes=10).see(record(1, 4.78e15))
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    divergence.Watch([]).see(record(1, 4.78e15))  # It may be of another loss.


@pytest.mark.parametrize(
  "fine",
  [
    record(2, math.nan, accepted=0),  # Nobody came.
    record(2, 0.0),
    record(2, 2.0, test_loss=None),
  ],
)
def test_nothing_is_said_of_a_round_without_clients_or_test(fine):
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    divergence.Watch([record(1, 2.5, test_loss=3.0)]).see(fine)


@pytest.mark.parametrize(
  "first_long, measures, said",
  [
    # A client's loss is taken before its one step, so that it is the next round's.
    (1, False, r"Round 3: the training loss is \S+, \S+ times the first: "),
    (0, True, r"Round 1: the test loss is \S+, \S+ times that of guessing: "),
  ],
  ids=["training", "test"],
)
def test_a_run_of_far_too_long_steps_says_so_once(
  process_of, federation, tmp_path, first_long, measures, said
):
  settings = loop.Settings(
    rounds=4,
    clients_per_round=3,
    checkpoint_folder=tmp_path,
    learning_rate_schedule=lambda done: 1e9 if done >= first_long else 1.0,
  )
  evaluate = evaluation.build_evaluation(
    federation.model, federation.test_x, federation.test_y
  )

  def messages(rounds):
    with warnings.catch_warnings(record=True) as caught:
      warnings.simplefilter("always")
      loop.simulate(
        process_of("fedavg"),
        federation.clients,
        dataclasses.replace(settings, rounds=rounds),
        evaluate=evaluate if measures else None,
        resume=True,
      )
    return [str(w.message) for w in caught if issubclass(w.category, InputWarning)]

  [message] = messages(4)
  assert re.match(said, message)
  assert messages(6) == []  # Also where it goes on.
