"""Law: the number of a cluster's workers does not matter, nor does its being one.

The workers are threads of this process, each with its own plan of what it is sent. Those
of other processes, and what they do when they are lost: `tests/runtimes/test_dask_*.py`.
"""

from __future__ import annotations

import contextlib
import time

import distributed
import driver
import pytest
import tensorflow_federated as tff

from tff_algos.runtimes import runtime

ROUNDS = ((0, 1, 2, 3, 4), (4, 2, 0), (3, 2, 1, 0))


@pytest.fixture(scope="module")
def cluster():
  with distributed.LocalCluster(
    n_workers=3, threads_per_worker=1, processes=False, dashboard_address=None
  ) as started:
    yield started


@pytest.fixture
def on_cluster(cluster, in_process):
  """Runs a function with a cluster of so many workers as the runtime."""

  def run(function, num_workers=3, **settings):
    cluster.scale(num_workers)
    with contextlib.ExitStack() as stack:
      client = stack.enter_context(distributed.Client(cluster, set_as_default=False))
      # Not by wait_for_workers, which has a LocalCluster forget a worker that goes just
      # then: its word of that, which comes later, would end the cluster with a KeyError.
      deadline = time.monotonic() + 60
      while len(client.nthreads()) != num_workers:
        assert time.monotonic() < deadline
        time.sleep(0.01)
      made = runtime.create_runtime("dask", client=client, **settings)
      stack.callback(made.close)
      stack.callback(tff.framework.set_default_context, in_process.context)
      tff.framework.set_default_context(made.context)
      return function()

  return run


def everything(federation):
  states = [federation.client_states[c] for c in sorted(federation.client_states)]
  return federation.state, states, federation.metrics


@pytest.mark.parametrize("name, settings", driver.every_form())
def test_a_cluster_gives_the_same_bits(federate, on_cluster, name, settings):
  def run():
    return everything(federate(name, "noisy_mlp", **settings).run(ROUNDS))

  driver.assert_same(on_cluster(run), run(), "a cluster")


@pytest.mark.parametrize("num_workers", [1, 2, 3, 7])
def test_the_number_of_workers_does_not_matter(federate, on_cluster, num_workers):
  def run():
    return everything(federate("scaffold", "noisy_mlp").run(ROUNDS))

  driver.assert_same(on_cluster(run, num_workers), run(), f"{num_workers} workers")


@pytest.mark.parametrize("size", [2, 4])
def test_parts_of_other_sizes_are_the_same_on_a_cluster(
  federate, in_process, on_cluster, size
):
  def run():
    return everything(federate("scaffold", "noisy_mlp").run(ROUNDS))

  found = on_cluster(run, clients_per_part=size)
  with runtime.create_runtime(clients_per_part=size):
    expected = run()
  driver.assert_same(found, expected, f"parts of {size}")
