"""Runs TFF computations on TFF's workers of several machines at once.

A round's clients are divided into as many parts as there are workers, whichever of them
answer: a part that a lost worker had is done again by another one, and the parts are
joined in their order, so that a failure does not change a run's numbers. TFF's own
executor tries a lost worker again without end and asks the workers one after the other;
here every wait is bounded and each worker has a thread.
"""

from __future__ import annotations

import collections
import concurrent.futures
import functools
import os
import re
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Optional

import tensorflow_federated as tff

from tff_algos.errors import InputError, WorkerLostError
from tff_algos.runtimes import child_process, compiler, mergeable, tunnel
from tff_algos.runtimes.remote_connection import LostError, RemoteWorker

# How long to wait for a worker to come back when all are lost.
_RETURN_SECONDS = 20.0
_POLL_SECONDS = 0.1
_TUNNEL_START_SECONDS = 10.0


def parse_address(address: str) -> tuple[str, int]:
  """`host:port` or `[IPv6 address]:port` as host and port.

  Raises:
    InputError: It is neither.
  """
  found = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([^\s:\[\]]+)):(\d{1,5})", address)
  if not found or not 0 < int(found[3]) < 65536:
    raise InputError(f"A worker's address is host:port; found {address!r}.")
  return found[1] or found[2], int(found[3])


def parse_addresses(workers: Sequence[str]) -> list[tuple[str, int]]:
  """Hosts and ports of several workers.

  Raises:
    InputError: There is none, one is given twice, or one is no address.
  """
  if not workers:
    raise InputError("remote_workers needs the addresses of workers, as host:port.")
  addresses = [parse_address(worker) for worker in workers]
  for address, count in collections.Counter(addresses).items():
    if count > 1:
      raise InputError(f"The worker {address[0]}:{address[1]} is given {count} times.")
  return addresses


class RemoteWorkers:
  """The workers, and the tunnel to them.

  Attributes:
    context: The `tff.framework.SyncContext`.
  """

  def __init__(
    self,
    workers: Sequence[str],
    tls: Optional[tunnel.TlsFiles] = None,
    log_path: Optional[str] = None,
  ):
    """Connects to the workers.

    Args:
      workers: The address of each, as host:port.
      tls: This program's certificate, its key and the workers' authority; None where the
        workers are on a trusted network and have no tunnel.
      log_path: File for the tunnel's output; default: one in the temporary folder.

    Raises:
      InputError: An address is ill-formed or given twice, or the files are not right.
      FileNotFoundError: There is no stunnel.
      WorkerLostError: No worker answers.
    """
    addresses = parse_addresses(workers)
    targets = list(workers)
    self._tunnel = None
    if tls is not None:
      self._tunnel = _Tunnel(addresses, tls, log_path)
      targets = [f"unix:{path}" for path in self._tunnel.sockets]
    self._workers = [RemoteWorker(*pair) for pair in zip(workers, targets)]
    self.context = _Context(self._workers, self._why_lost)
    try:
      self.context.find_workers()
    except BaseException:
      self.close()
      raise

  @property
  def notice(self) -> str:
    """How many workers answer, and who can read what they are sent."""
    lost = [worker.address for worker in self._workers if worker.is_lost]
    found = f"{len(self._workers) - len(lost)} of {len(self._workers)} workers answer"
    if lost:
      found += f" (not {', '.join(lost)})"
    if self._tunnel is None:
      return f"remote_workers: {found}; what they are sent travels in the clear."
    return f"remote_workers: {found}; stunnel's log is {self._tunnel.log_path}."

  def _why_lost(self) -> str:
    """What may be wrong where no worker answers."""
    if self._tunnel is None:
      return ""
    if not self._tunnel.is_alive:
      return f": stunnel has ended; its log is {self._tunnel.log_path}"
    return (
      ": they cannot be reached, or one of the two sides refused the other's "
      f"certificate; see stunnel's log, {self._tunnel.log_path}, and the workers' logs"
    )

  def close(self) -> None:
    """Ends the tunnel and what waits for workers."""
    self.context.close()
    if self._tunnel is not None:
      self._tunnel.close()


class _Tunnel:
  """This side's stunnel.

  Attributes:
    sockets: For each worker the path of the Unix socket that leads to it.
    log_path: Where its output is.
  """

  def __init__(
    self,
    addresses: Sequence[tuple[str, int]],
    files: tunnel.TlsFiles,
    log_path: Optional[str],
  ):
    if threading.current_thread() is not threading.main_thread():
      raise RuntimeError(
        "Start the remote_workers runtime in the main thread: its tunnel would end with "
        "the thread that started it."
      )
    files.check()
    if log_path is None:
      handle, log_path = tempfile.mkstemp(prefix="tff_algos_stunnel_", suffix=".log")
      os.close(handle)
    self.log_path = log_path
    # The workers obey whoever can open its sockets: in this folder no other user can.
    self._folder = tempfile.TemporaryDirectory(prefix="tff_algos_")
    self._process, self.sockets = tunnel.start_client(
      addresses, files, folder=self._folder.name, log_path=log_path
    )
    deadline = time.monotonic() + _TUNNEL_START_SECONDS
    while not all(map(os.path.exists, self.sockets)):
      if not self.is_alive or time.monotonic() > deadline:
        self.close()
        raise WorkerLostError(f"stunnel does not start; its log is {log_path}.")
      time.sleep(_POLL_SECONDS)

  @property
  def is_alive(self) -> bool:
    return self._process.poll() is None

  def close(self) -> None:
    child_process.stop(self._process)
    self._folder.cleanup()


class _Context(tff.framework.SyncContext):
  """Divides a computation's clients over workers."""

  def __init__(self, workers: Sequence[RemoteWorker], why_lost: Callable[[], str]):
    self._workers, self._why_lost = workers, why_lost
    self._pool = concurrent.futures.ThreadPoolExecutor(
      len(workers), thread_name_prefix="worker"
    )
    self._has_worked = False
    self._plans: dict[int, _Plan] = {}
    self._running = threading.Lock()

  def invoke(self, comp: tff.Computation, arg: Any) -> Any:
    """Runs `comp`; see `tff.framework.SyncContext.invoke`.

    Raises:
      UnsupportedComputationError: Several workers cannot share it.
      WorkerLostError: No worker answers, or it is lost again and again.
    """
    with self._running:
      plan = self._plans.get(id(comp))
      if plan is None:
        plan = self._plans[id(comp)] = _Plan(comp, len(self._workers))
        weakref.finalize(comp, self._plans.pop, id(comp), None)
      self.find_workers()
      return plan.run(arg, self._run_all)

  def find_workers(self) -> None:
    """Tries the lost workers again.

    Raises:
      WorkerLostError: None answers.
    """
    deadline = time.monotonic() + _RETURN_SECONDS
    while True:
      # Asked before the search: however long this process was held up, there is one more.
      is_late = time.monotonic() > deadline
      none_is_left = all(worker.is_lost for worker in self._workers)
      search = functools.partial(RemoteWorker.search, must=none_is_left)
      list(self._pool.map(search, self._workers))
      if not all(worker.is_lost for worker in self._workers):
        self._has_worked = True
        return
      if is_late or not self._has_worked:
        addresses = ", ".join(worker.address for worker in self._workers)
        raise WorkerLostError(f"No worker answers at {addresses}{self._why_lost()}.")
      time.sleep(_POLL_SECONDS)

  def _run_all(self, comp: tff.Computation, arguments: Sequence[Any]) -> list[Any]:
    """The results for some arguments, each worked out by whichever worker is free."""
    results: list[Any] = [None] * len(arguments)
    waiting = collections.deque(range(len(arguments)))
    running: dict[concurrent.futures.Future[Any], tuple[int, RemoteWorker]] = {}
    # A computation that kills every worker is not to do so for ever.
    losses_left = 2 * len(self._workers)

    def collect(future: concurrent.futures.Future[Any]) -> None:
      nonlocal losses_left
      number, worker = running.pop(future)
      try:
        results[number] = future.result()
      except LostError as error:
        waiting.appendleft(number)
        worker.lose(error)
        losses_left -= 1
        if not losses_left:
          raise WorkerLostError(
            f"Workers were lost {2 * len(self._workers)} times in one computation, the "
            f"last one at {worker.address} ({error}): it may need more memory than they "
            "have."
          ) from error

    try:
      while waiting or running:
        busy = [worker for _, worker in running.values()]
        for worker in self._workers:
          if waiting and not worker.is_lost and worker not in busy:
            number = waiting.popleft()
            future = self._pool.submit(worker.invoke, comp, arguments[number])
            running[future] = number, worker
        for future in concurrent.futures.wait(
          running, return_when=concurrent.futures.FIRST_COMPLETED
        ).done:
          collect(future)
        if waiting and not running:
          self.find_workers()
    except Exception:
      # Only Ctrl-C does not wait until the others are done.
      concurrent.futures.wait(running)
      raise
    return results

  def close(self) -> None:
    """Ends what waits for workers and forgets all compiled computations."""
    for worker in self._workers:
      worker.close()
    self._pool.shutdown(wait=True)
    self._plans.clear()


class _Plan:
  """A computation as what workers are sent, compiled once."""

  def __init__(self, comp: tff.Computation, num_workers: int):
    self._parameter = comp.type_signature.parameter
    self._num_workers = num_workers
    self._parts: Optional[mergeable.Mergeable] = None
    if num_workers > 1 and mergeable.takes_clients(self._parameter):
      self._parts = mergeable.split(comp)
      self._compiled = _compile(self._parts.part)
    else:
      self._compiled = _compile(comp)
    self._joins: dict[int, tff.Computation] = {}

  def run(self, arg: Any, run_all: Callable[..., Any]) -> Any:
    if self._parts is None:
      (result,) = run_all(self._compiled, [arg])
      return result
    arguments = mergeable.split_argument(arg, self._parameter, self._num_workers)
    parts = run_all(self._compiled, arguments)
    at_server: Any = []
    if self._parts.build_join is not None:
      join = self._joins.get(len(parts))
      if join is None:
        join = _compile(self._parts.build_join(len(parts)))
        self._joins[len(parts)] = join
      no_clients = mergeable.with_clients(arg, self._parameter, slice(0))
      sums = tff.structure.Struct.unnamed(*(part[0] for part in parts))
      argument = tff.structure.Struct.unnamed(no_clients, sums)
      (at_server,) = run_all(join, [argument])
    return mergeable.join_results(self._parts, [part[1] for part in parts], at_server)


def _compile(comp: tff.Computation) -> tff.Computation:
  compiled = compiler.to_native(comp)
  # Compilation loses Python's containers.
  return tff.framework.ConcreteComputation.with_type(compiled, comp.type_signature)
