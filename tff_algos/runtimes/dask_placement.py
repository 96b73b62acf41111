"""Which worker of a Dask cluster does which job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Optional

import distributed

from tff_algos.runtimes.dask_tasks import Job


class Given(NamedTuple):
  """A job that was given out.

  Attributes:
    job: The job.
    worker: The worker that it was given to; None: the scheduler chooses.
    future: What its result will be in.
    only: The workers that may do it; (): all.
  """

  job: Job
  worker: Optional[str]
  future: distributed.Future
  only: tuple[str, ...] = ()


def workers_for(
  jobs: Sequence[Job], threads: Mapping[str, int], waiting: Iterable[Given]
) -> list[Optional[str]]:
  """For each job the worker that has least to do for each of its threads.

  The scheduler does not know how large jobs are and prefers a worker that has what they
  need: now and then it would have one worker do what two could.

  Args:
    jobs: To be given out.
    threads: Each worker's number; where there is none, no worker is chosen.
    waiting: What was given out, done or not.
  """
  parts = dict.fromkeys(threads, 0)
  for given in waiting:
    if given.worker in parts and not given.future.done():
      parts[given.worker] += len(given.job.sizes)
  found: list[Optional[str]] = []
  for job in jobs:
    worker = min(parts, key=lambda w: parts[w] / threads[w], default=None)
    found.append(worker)
    if worker is not None:
      parts[worker] += len(job.sizes)
  return found
