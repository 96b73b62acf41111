"""What a run's summary says."""

from __future__ import annotations

import collections
import math
import types

from experiments import finishing
from tff_algos.privacy import accounting
from tff_algos.simulation import loop
from tff_algos.simulation.availability import Availability, ClientDurations


def test_epsilon_is_of_the_client_that_has_uploaded_most_often_also_too_late():
  availability = Availability(0.2, ClientDurations(10.0), 9.0)
  settings = loop.Settings(12, 3, seed=2, availability=availability)
  loaded = types.SimpleNamespace(clients=range(5))
  prepared = types.SimpleNamespace(settings=settings, loaded=loaded)
  mechanism = accounting.GaussianMechanism(1.0, 2, 1e-5)
  uploads: collections.Counter = collections.Counter()
  in_time: collections.Counter = collections.Counter()
  for done in range(12):
    attendance = settings.attendance(5, done)
    uploads.update([*attendance.taking_part, *attendance.late])
    in_time.update(attendance.taking_part)
    most = max(uploads.values())
    assert finishing._privacy(prepared, mechanism, done + 1) == dict(
      epsilon=accounting.epsilon(1.0, 2 * most, 1e-5),
      delta=1e-5,
      most_participations=most,
    )
  assert most > max(in_time.values())  # Else it would show nothing.


def test_last_accuracy_that_is_no_number_is_said():
  config = types.SimpleNamespace(target_accuracy=None)
  summary = dict(rounds=2, best_accuracy=0.5, best_accuracy_round=1, final_accuracy=None)
  assert finishing._summary_line(summary, "accuracy", config) == (
    "2 rounds: best test accuracy 50.00 % (round 1), final not a number"
  )


def test_model_without_accuracy_has_its_loss_in_the_last_line():
  config = types.SimpleNamespace(target_accuracy=None)
  summary = dict(rounds=3, best_loss=0.5, best_loss_round=2, final_loss=1.25)
  assert finishing._summary_line(summary, "loss", config) == (
    "3 rounds: best test loss 0.5000 (round 2), final 1.2500"
  )


def test_without_noise_there_is_no_epsilon():
  """JSON, as `finite` makes it, has no infinity."""
  loaded = types.SimpleNamespace(clients=range(2))
  prepared = types.SimpleNamespace(settings=loop.Settings(3, 2), loaded=loaded)
  mechanism = accounting.GaussianMechanism(0.0, 2, 1e-5)
  assert finishing._privacy(prepared, mechanism, 3) == dict(
    epsilon=math.inf, delta=1e-5, most_participations=3
  )
