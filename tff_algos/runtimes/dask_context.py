"""Runs TFF computations on the workers of a Dask cluster.

What is at the server is done in this process, as by in_process; the parts of a cohort
are tasks for the workers. A part's clients, the order in which they are added and the
tree that joins the parts are in_process's own, so the results are the same bits,
whichever worker does a part and however often one is lost.
"""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import contextlib
import itertools
import shutil
import sys
import tempfile
import threading
import time
import uuid
import weakref
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple, Optional

import dask
import distributed
from distributed.scheduler import KilledWorker

from tff_algos.errors import InputError, WorkerLostError
from tff_algos.runtimes import (
  accumulation,
  dask_errors,
  dask_tasks,
  dask_worker,
  execution,
  in_process,
  values,
)
from tff_algos.runtimes.dask_placement import Given, workers_for
from tff_algos.runtimes.dask_tasks import Done, Failed, InFile, Job, Machine, Refused
from tff_algos.runtimes.planned_context import PlannedContext

# How long a cluster may be without any worker.
WITHOUT_WORKERS_SECONDS = 60.0
_POLL_SECONDS = 1.0
_TOGETHER_SECONDS = 0.01

# Given out at once, even to a few threads.
_FEWEST_AT_ONCE = 16

_TIMEOUTS = (TimeoutError, asyncio.TimeoutError, concurrent.futures.TimeoutError)
_CANCELLED = (asyncio.CancelledError, concurrent.futures.CancelledError)

_PREFIX = "tff_algos_"

# A client has one handler of a topic, for all of its contexts.
_open: weakref.WeakSet[DaskContext] = weakref.WeakSet()


class _Call(NamedTuple):
  """What all parts of a cohort work with; the futures keep it on the cluster."""

  computation: distributed.Future
  broadcast: distributed.Future | InFile


class DaskContext(PlannedContext):
  """A TFF execution context on a Dask cluster."""

  def __init__(
    self,
    client: distributed.Client,
    clients_per_part: Optional[int] = None,
    folder: Optional[str] = None,
  ):
    """Makes the context.

    Args:
      client: Of the cluster; it is not closed by this.
      clients_per_part: As in `PlannedContext`.
      folder: One that this process and the workers share, for arrays, which are sent
        otherwise.

    Raises:
      InputError: A part has no client.
    """
    super().__init__(in_process.prepare()[0], clients_per_part)
    self._client, self._folder = client, folder
    self._name = uuid.uuid4().hex[:8]
    self._numbers = itertools.count()
    self._computations: weakref.WeakKeyDictionary[execution.Plan, distributed.Future] = (
      weakref.WeakKeyDictionary()
    )
    self._machine: Optional[Machine] = None
    self._choosing = threading.Lock()
    # Addresses of workers that are not like the machine.
    self._refused: set[str] = set()
    _open.add(self)
    self._client.subscribe_topic("all", dask_errors.tell_of_lost)
    # So that workers import TensorFlow while this process builds what they will run.
    self._machines = self._ask_machines()

  def close(self) -> None:
    """Lets the cluster forget what it was sent."""
    if self._is_closed:
      return
    super().close()
    self._computations.clear()
    self._machines.clear()
    _open.discard(self)
    if all(context._client is not self._client for context in _open):
      with contextlib.suppress(Exception):  # The cluster may be gone.
        self._client.unsubscribe_topic("all")

  def peak_memory(self) -> int:
    """The most memory that the workers held, each at its own time, in bytes."""
    with contextlib.suppress(Exception):  # Not worth a run's end.
      return sum(self._client.run(dask_tasks.peak_memory).values())
    return 0

  def _ask_machines(self) -> list[distributed.Future]:
    return [
      # Where it is lost, with its answer or before it, another answers for itself: Dask
      # would wait without end for a worker of this very address.
      self._submit(dask_tasks.machine, workers=[worker], allow_other_workers=True)
      for worker in self._threads()
    ]

  def _run_cohort(
    self, plan: execution.Plan, cohort: execution.Cohort
  ) -> Iterator[execution.PartResult]:
    if not cohort.parts:
      return
    machine = self._expected_machine()
    leaves = [values.to_portable(n.type, v) for n, v in cohort.broadcast.items()]
    # One of its own, as what a round that fails leaves there is more than is known here.
    folder = self._folder and tempfile.mkdtemp(dir=self._folder)
    broadcast = dask_tasks.put(leaves, folder)
    held = broadcast
    if not isinstance(held, InFile):  # Workers hand it on to each other.
      held = self._submit(dask_tasks.hold, broadcast)
    call = _Call(self._computation_of(plan), held)
    kept_nodes = plan.kept_of(cohort.work)
    together = accumulation.subtrees(
      len(cohort.parts), sum(self._threads_in_use().values()) or 1
    )
    jobs = (
      _job_of(cohort, machine, cohort.parts[r.start : r.stop], folder) for r in together
    )
    try:
      for parts, done in zip(together, self._in_order(call, jobs)):
        totals, kept = dask_tasks.take(done.content)
        dask_tasks.drop(done.content)
        yield execution.PartResult(totals, dict(zip(kept_nodes, kept)), len(parts))
    finally:
      if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)

  def _in_order(self, call: _Call, jobs: Iterator[Job]) -> Iterator[Done]:
    """Each job's results; no more jobs are given out than keep all workers busy."""
    waiting: collections.deque[Given] = collections.deque()

    def give_out() -> None:
      threads = self._threads_in_use()
      most = max(_FEWEST_AT_ONCE, 2 * sum(threads.values()))
      # Of workers that are lost more may wait.
      batch = list(itertools.islice(jobs, max(0, most - len(waiting))))
      workers = workers_for(batch, threads, waiting)
      waiting.extend(self._submit_jobs(call, batch, workers))

    try:
      give_out()
      while waiting:
        waiting[0] = self._wait_for_job(call, waiting[0])
        self._wait_a_moment([given.future for given in waiting])
        ready = list(itertools.takewhile(lambda given: given.future.done(), waiting))
        for _ in ready:
          waiting.popleft()
        give_out()
        answers = self._gather([given.future for given in ready])
        for given, answer in zip(ready, answers):
          done = self._done(call, given.job, answer)
          dask_tasks.drop(given.job.own)
          yield done
    finally:
      if waiting:
        with contextlib.suppress(Exception):  # The cluster may be gone.
          self._client.cancel([given.future for given in waiting])

  def _submit_jobs(
    self, call: _Call, jobs: list[Job], workers: list[Optional[str]]
  ) -> list[Given]:
    # Others may take a job from a worker that is slow or lost, but for refused ones.
    only = tuple(self._wait_for_workers()) if self._refused else ()
    futures = [
      self._submit(
        dask_tasks.run_parts,
        *call,
        job,
        # By a key's first word the scheduler remembers how long such tasks take, which
        # it needs to give all workers as much.
        name=f"run_{len(job.sizes)}_parts",
        workers=list(only) or (worker and [worker]),
        allow_other_workers=not only and worker is not None,
      )
      for job, worker in zip(jobs, workers)
    ]
    return [Given(*given, only) for given in zip(jobs, workers, futures)]

  def _wait_for_job(self, call: _Call, given: Given) -> Given:
    """Waits for a job's end; gives it out again where all who may do it are lost."""
    # Dask would wait without end for workers of these very addresses.
    while not self._wait(given.future, given.only):
      self._client.cancel([given.future])
      [given] = self._submit_jobs(call, [given.job], [None])
    return given

  def _submit(
    self, function: Any, *arguments: Any, name: str = "", **settings: Any
  ) -> distributed.Future:
    # Several threads may call this, and two keys that are the same are one task.
    key = f"{_PREFIX}{name or function.__name__}-{self._name}-{next(self._numbers)}"
    with self._sending():
      return self._client.submit(
        function, *arguments, key=key, pure=False, retries=0, **settings
      )

  @contextlib.contextmanager
  def _sending(self) -> Iterator[None]:
    """Sends a task, without Dask's advice against sending much, as client states are.

    Raises:
      WorkerLostError: The scheduler has been gone for so long that nothing is tried.
    """
    if self._client.status in ("closing", "closed"):
      raise WorkerLostError(dask_errors.NO_SCHEDULER)
    name = "distributed.admin.large-graph-warning-threshold"
    with dask.config.set({name: "1 PiB"}):
      yield

  def _computation_of(self, plan: execution.Plan) -> distributed.Future:
    future = self._computations.get(plan)
    if future is None or future.status in ("cancelled", "lost"):
      future = self._computations[plan] = self._submit(dask_tasks.hold, plan.serialized)
    return future

  def _expected_machine(self) -> Machine:
    """What workers have to be like: this machine, and the first worker's device."""
    with self._choosing:
      if self._machine is None:
        self._wait_for_workers()
        self._machines = self._machines or self._ask_machines()
        found = dict(sorted(self._gather(self._machines)))
        self._machines = []
        here = dask_worker.machine()
        first = next(iter(found.values()))
        # Of its own threads for an operation this process may have had no say.
        settings = dask_worker.settings(1)
        if first.settings == here.settings:
          settings = here.settings
        expected = here._replace(device=first.device, settings=settings)
        for worker, machine in found.items():
          if machine != expected:
            self._refuse(Refused(worker, machine), expected)
        if self._refused >= found.keys():
          self._refused.clear()  # The next round asks again whoever is there then.
          raise InputError(dask_errors.UNLIKE.format(first.differences(expected)))
        self._machine = expected
      return self._machine

  def _refuse(self, refused: Refused, expected: Machine) -> None:
    if refused.worker not in self._refused:
      self._refused.add(refused.worker)
      print(
        f"The worker {refused.worker} is not used, as it would round differently: it has "
        f"{refused.machine.differences(expected)}.",
        file=sys.stderr,
        flush=True,
      )

  def _done(self, call: _Call, job: Job, answer: Any) -> Done:
    """The results of a job, which are another worker's where this one is refused."""
    while not isinstance(answer, Done):
      if isinstance(answer, Failed):
        raise dask_errors.error_of(answer)
      self._refuse(answer, job.machine)
      [again] = self._submit_jobs(call, [job], [None])
      [answer] = self._gather([self._wait_for_job(call, again).future])
    return answer

  def _wait(self, future: distributed.Future, only: Collection[str] = ()) -> bool:
    """Waits for the end of a task; False where others than `only` are there alone.

    Raises:
      WorkerLostError: The scheduler is gone, or there is no worker for long.
    """
    since: Optional[float] = None
    while not future.done():
      try:
        with self._client.as_current():
          distributed.wait(future, timeout=_POLL_SECONDS)
      except _TIMEOUTS:
        since = self._since_without_workers(since)
        if only and since is None and not self._threads_in_use().keys() & set(only):
          return False
      except (*_CANCELLED, OSError) as error:
        raise WorkerLostError(dask_errors.NO_SCHEDULER) from error
    return True

  def _wait_a_moment(self, futures: list[distributed.Future]) -> None:
    """Waits for more, as results that are fetched together cost as much as one."""
    with contextlib.suppress(*_TIMEOUTS, *_CANCELLED), self._client.as_current():
      distributed.wait(futures, timeout=_TOGETHER_SECONDS)

  def _gather(self, futures: list[distributed.Future]) -> list[Any]:
    """The tasks' results.

    Raises:
      WorkerLostError: As `_wait`; or workers die of the task.
    """
    for future in futures:
      self._wait(future)
    try:
      results: list[Any] = self._client.gather(futures)
    except KilledWorker as error:
      raise WorkerLostError(
        f"{error.allowed_failures + 1} workers have died one after another of the same "
        "part of a round, as when their memory is short: see their logs; smaller parts "
        "(clients_per_part) or fewer threads need less."
      ) from error
    except (*_CANCELLED, OSError) as error:
      raise WorkerLostError(dask_errors.NO_SCHEDULER) from error
    return results

  def _threads(self) -> dict[str, int]:
    """The number of threads of each worker that is there.

    Raises:
      WorkerLostError: The scheduler is gone.
    """
    try:
      found: dict[str, int] = self._client.nthreads()
    except (*_CANCELLED, *_TIMEOUTS, OSError, RuntimeError) as error:
      raise WorkerLostError(dask_errors.NO_SCHEDULER) from error
    return found

  def _threads_in_use(self) -> dict[str, int]:
    """As `_threads`, without those that are refused."""
    return {w: n for w, n in self._threads().items() if w not in self._refused}

  def _since_without_workers(self, since: Optional[float]) -> Optional[float]:
    """Since when there is no worker that is used; None where there is one."""
    if self._client.status != "running":
      raise WorkerLostError(dask_errors.NO_SCHEDULER)
    if self._threads_in_use():
      return None
    now = time.monotonic()
    if since is not None and now - since > WITHOUT_WORKERS_SECONDS:
      but = " but such as are not used" if self._threads() else ""
      raise WorkerLostError(
        f"The Dask cluster has had no worker{but} for "
        f"{WITHOUT_WORKERS_SECONDS:.0f} seconds: start some."
      )
    return now if since is None else since

  def _wait_for_workers(self) -> dict[str, int]:
    """Those in use, once there is one."""
    since: Optional[float] = None
    while not (found := self._threads_in_use()):
      since = self._since_without_workers(since)
      time.sleep(_POLL_SECONDS / 10)
    return found


def _job_of(
  cohort: execution.Cohort, machine: Machine, parts: list[range], folder: Optional[str]
) -> Job:
  clients = range(parts[0].start, parts[-1].stop)
  own = [
    [values.to_portable(n.type, of_clients[client]) for client in clients]
    for n, of_clients in cohort.own.items()
  ]
  return Job(
    level=cohort.level,
    num_clients=cohort.num_clients,
    first=clients.start,
    sizes=[len(part) for part in parts],
    own=dask_tasks.put(own, folder),
    machine=machine,
    folder=folder,
  )
