"""Law: every runtime computes the same, and leaves no process behind."""

from __future__ import annotations

import os

import driver
import numpy as np
import pytest
import tensorflow_federated as tff

from tff_algos.runtimes import runtime


@pytest.fixture(scope="module")
def local_worker(in_process):
  """TFF's worker; not installed."""
  worker = runtime.create_runtime("local_worker")
  yield worker
  worker.close()


@pytest.fixture
def on_worker(local_worker, in_process):
  """Runs a function with TFF's worker as the runtime."""

  def run(function):
    tff.framework.set_default_context(local_worker.context)
    try:
      return function()
    finally:
      tff.framework.set_default_context(in_process.context)

  return run


# Options that change what travels: FedGG's other direction sends two parts down.
CASES = driver.every_form(
  ("fedgg", dict(direction="broadcast")),
  ("scaffold", dict(option="I", momentum=0.9)),
)


# Of one size, as TFF's worker traces a computation anew for another number of clients.
ROUNDS = ((0, 1, 2, 3), (4, 2, 0, 1), (3, 2, 1, 0))


@pytest.mark.parametrize("name, settings", CASES)
@pytest.mark.parametrize(
  "problem", ["mlp", pytest.param("noisy", marks=pytest.mark.thorough)]
)
def test_local_worker_and_in_process_agree(federate, on_worker, name, settings, problem):
  """And the worker repeats itself.

  On a network, whose sums of large tensors are where a repetition once differed, and on a
  model that draws too, with the seed that any algorithm gives it.
  """

  def run():
    federation = federate(name, problem, **settings)
    start, rounds = federation.weights, []
    for clients in ROUNDS:
      federation.round(clients)
      states = [federation.client_states[c] for c in sorted(federation.client_states)]
      rounds.append((federation.state, states, federation.metrics))
    return start, federation.weights, rounds

  here = run()
  there, again = on_worker(lambda: [run(), run()])
  driver.assert_same(again, there, "the worker again")
  start, weights, rounds = here
  driver.assert_same(start, there[0])
  assert driver.differ(start, weights)
  # A state may be a difference of weights, as FedDyn's are, the server's too.
  size = max(np.max(np.abs(w)) for w in weights)
  for t, (ours, theirs) in enumerate(zip(rounds, there[2])):
    one, other = (metrics["client_work"]["train"] for *_, metrics in (ours, theirs))
    driver.assert_within_rounding(one, other, f"the metrics, round {t}")
    assert one["num_examples"] == other["num_examples"]
    if t == 1:  # Beyond that, roundings have added up.
      driver.assert_within_rounding(ours[:2], theirs[:2], "the states", size=size)


@pytest.mark.parametrize(
  "name", [pytest.param("fedavg", marks=pytest.mark.thorough), "scaffold"]
)
def test_local_worker_drops_what_is_not_finite_too(federate, on_worker, name):
  def run():
    federation = federate(name).round((0, 1)).round((0, 1, 2), {1: "nan"})
    assert federation.training["num_dropped"] == 1
    return federation

  here, there = run(), on_worker(run)
  driver.assert_within_rounding(here.state.variables.model, there.state.variables.model)


def children() -> set[int]:
  """The ids of the processes that this one started."""
  found = set()
  for entry in filter(str.isdigit, os.listdir("/proc")):
    try:
      with open(f"/proc/{entry}/stat") as f:
        parent = int(f.read().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
      continue
    if parent == os.getpid():
      found.add(int(entry))
  return found


def test_worker_is_gone_after_close(federate):
  others = children()
  federation = federate("fedavg")
  with runtime.create_runtime("local_worker"):
    (worker,) = children() - others
    os.kill(worker, 0)
    federation.round((0, 1))
  with pytest.raises(ProcessLookupError):
    os.kill(worker, 0)
  assert children() == others
  federation.round((1, 2))  # by the runtime that was installed before
