"""Law: every runtime computes the same, and leaves no process behind."""

from __future__ import annotations

import os

import driver
import numpy as np
import pytest
import tensorflow_federated as tff

from tff_algos.algorithms import registry
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


# Options that change what travels: FedGG's other direction sends two parts down; FedAgg's
# other estimates are exchanges before the training, with nothing kept.
CASES = [(name, {}) for name in registry.ALGORITHMS] + [
  ("fedgg", dict(direction="broadcast")),
  ("fedagg", driver.ESTIMATES),
  ("scaffold", dict(option="I", momentum=0.9)),
]


@pytest.mark.parametrize(
  "name, settings", CASES, ids=[f"{n}-{'-'.join(s) or 'plain'}" for n, s in CASES]
)
def test_local_worker_and_in_process_agree(federate, on_worker, name, settings):
  rounds = ((0, 1, 2), (3, 1, 0))

  def run():
    federation = federate(name, "noisy", **settings)
    start = federation.weights
    metrics = [federation.round(clients).training for clients in rounds]
    return federation, start, metrics

  here, start, metrics_here = run()
  there, start_there, metrics_there = on_worker(run)
  driver.assert_same(start, start_there)
  assert driver.differ(start, here.weights)
  # A state may be a difference of weights, as FedDyn's are, the server's too.
  size = max(np.max(np.abs(w)) for w in driver.flat(here.weights))
  driver.assert_within_rounding(here.state, there.state, "the server state", size=size)
  for client in range(4):
    states = here.client_states[client], there.client_states[client]
    driver.assert_within_rounding(*states, f"client {client}", size=size)
  for one, other in zip(metrics_here, metrics_there):
    driver.assert_within_rounding(one, other, "the metrics")
    assert one["num_examples"] == other["num_examples"]


@pytest.mark.parametrize(
  "name, settings", CASES, ids=[f"{n}-{'-'.join(s) or 'plain'}" for n, s in CASES]
)
def test_local_worker_repeats_itself(federate, on_worker, name, settings):
  """On a network, whose sums of large tensors are where a repetition once differed."""
  cohorts = ((0, 1, 2, 3, 4), (4, 2, 0), (3, 2, 1, 0))

  def run():
    federation = federate(name, "mlp", **settings).run(cohorts)
    states = [federation.client_states[c] for c in sorted(federation.client_states)]
    return federation.state, states, federation.metrics

  first, again = on_worker(lambda: [run(), run()])
  driver.assert_same(again, first)


@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
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
