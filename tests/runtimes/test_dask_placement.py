"""Which worker does which job, by the laws of such schedules."""

from __future__ import annotations

import types

import pytest

from tff_algos.runtimes import accumulation, dask_placement, dask_tasks


def _job(num_parts: int) -> dask_tasks.Job:
  machine = dask_tasks.Machine("", "", "", "")
  return dask_tasks.Job(0, 1, 0, num_parts * [1], b"", machine, None)


def _given(num_parts: int, worker: str, done: bool) -> dask_placement.Given:
  future = types.SimpleNamespace(done=lambda: done)
  return dask_placement.Given(_job(num_parts), worker, future)


def _loads(jobs, workers) -> dict[str, int]:
  loads: dict[str, int] = {}
  for job, worker in zip(jobs, workers):
    loads[worker] = loads.get(worker, 0) + len(job.sizes)
  return loads


@pytest.mark.parametrize("num_workers", [1, 2, 3, 7, 16])
@pytest.mark.parametrize("num_parts", [1, 2, 10, 13, 16, 64, 1000])
def test_nobody_does_more_than_a_share(num_parts, num_workers):
  """Sizes that divide each other, the largest first: the greedy schedule is optimal."""
  jobs = [_job(len(r)) for r in accumulation.subtrees(num_parts, num_workers)]
  threads = {f"worker {i}": 1 for i in range(num_workers)}
  loads = _loads(jobs, dask_placement.workers_for(jobs, threads, []))
  assert max(loads.values()) == -(-num_parts // num_workers)


def test_a_share_is_by_threads():
  jobs = [_job(1) for _ in range(8)]
  found = dask_placement.workers_for(jobs, {"one": 1, "three": 3}, [])
  assert _loads(jobs, found) == {"one": 2, "three": 6}


def test_what_is_still_to_be_done_counts():
  waiting = [_given(4, "a", done=False), _given(4, "b", done=True)]
  waiting += [_given(4, "lost", done=False)]
  jobs = [_job(1) for _ in range(4)]
  assert dask_placement.workers_for(jobs, {"a": 1, "b": 1}, waiting) == ["b"] * 4


def test_without_workers_the_scheduler_waits_for_one():
  assert dask_placement.workers_for([_job(1)], {}, []) == [None]
