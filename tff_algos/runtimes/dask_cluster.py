"""Clusters of Dask: one of processes on this machine, or the connection to another."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import multiprocessing
import os
import re
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import Any, Optional

import dask
import distributed
import tensorflow as tf
from distributed.security import Security

from tff_algos.errors import InputError, WorkerLostError
from tff_algos.runtimes import dask_nodes
from tff_algos.runtimes.tls_files import TlsFiles

_NAME = "tff_algos"
_CONNECT_SECONDS = 20
_GUARD = (
  "A script that starts workers on its own machine does so under `if __name__ == "
  '"__main__":`, as they import it.'
)
_HOW_TO = "docs/several_machines.md has the four commands that make them"


def check_address(address: str, tls: Optional[TlsFiles] = None) -> None:
  """Checks that a scheduler is reached in a way that keeps others out.

  Args:
    address: Such as tls://host:8786.
    tls: What is shown there; None: what Dask's configuration says.

  Raises:
    InputError: It is no address; it is neither on this machine nor behind TLS; or TLS
      lacks certificates.
  """
  if re.match(r"https?://", str(address)):
    raise InputError(
      f"The address {address} is for a browser, as that of Dask's dashboard is: give the "
      'one that the scheduler\'s log has after "Scheduler at:", like tls://host:8786.'
    )
  found = re.fullmatch(
    r"(\w+)://(?:\[([0-9a-fA-F:.]+)\]|([^\s:\[\]/]+)):(\d{1,5})", str(address)
  )
  if not found or not 0 < int(found[4]) < 65536:
    raise InputError(f"A scheduler's address is like tls://host:8786; found {address!r}.")
  protocol, host = found[1], found[2] or found[3]
  if protocol == "tls":
    if tls is not None:
      tls.check()
    elif not Security().tls_client_cert:
      raise InputError(
        f"The scheduler {address} is reached with a certificate: give the authority's, "
        f"this program's and its key (--tls_ca_file, --tls_cert, --tls_key); {_HOW_TO}."
      )
  elif tls is not None:
    raise InputError(
      f"Certificates are for an address of TLS, tls://{host}:{found[4]}; found {address}."
    )
  elif not _is_loopback(host):
    raise InputError(
      f"The scheduler {address} is on a network, where whoever reaches it could run code "
      f"on its workers: use TLS with certificates of both sides; {_HOW_TO}."
    )


def _is_loopback(host: str) -> bool:
  try:
    return ipaddress.ip_address(host).is_loopback
  except ValueError:
    return host == "localhost"


def check_client(client: distributed.Client) -> None:
  """Checks a client that somebody else has made, as `check_address` does.

  Raises:
    InputError: It is none, or closed, or asynchronous; or its scheduler is on a network
      without TLS.
  """
  # A client that is closed has no scheduler, and a cluster has one too.
  scheduler = getattr(client, "scheduler", None)
  is_cluster = isinstance(client, distributed.deploy.Cluster)
  if scheduler is None or is_cluster or getattr(client, "asynchronous", False):
    raise InputError(
      "client is an open distributed.Client, such as distributed.Client(cluster) makes, "
      f"and not asynchronous; found {client!r}."
    )
  address = scheduler.address
  if not address.startswith(("inproc://", "tls://")):
    check_address(address)


def connect(
  stack: contextlib.ExitStack, address: str, tls: Optional[TlsFiles]
) -> distributed.Client:
  """A client of a scheduler that runs.

  Args:
    stack: Takes the client, to close it.
    address: The scheduler's.
    tls: What is shown there; None: what Dask's configuration says.

  Raises:
    WorkerLostError: No scheduler answers, or one side refuses the other's certificate.
  """
  security = Security()
  if tls is not None:
    security = Security(
      tls_ca_file=tls.authority,
      tls_client_cert=tls.certificate,
      tls_client_key=tls.key,
      require_encryption=True,
    )
  stack.enter_context(_SILENT)
  try:
    return stack.enter_context(
      distributed.Client(
        address, security=security, timeout=_CONNECT_SECONDS, set_as_default=False
      )
    )
  except (OSError, ValueError) as error:
    raise WorkerLostError(
      f"No Dask scheduler answers at {address}, or one side refuses the other's "
      f"certificate ({_in_short(error)}): see its log, and start it as "
      "docs/several_machines.md says."
    ) from error


def _in_short(error: BaseException) -> str:
  """The first cause, which Dask wraps in several others."""
  while error.__cause__ is not None:
    error = error.__cause__
  return str(error).strip().rstrip(".") or type(error).__name__


def start(
  stack: contextlib.ExitStack, num_workers: Optional[int] = None
) -> tuple[distributed.Client, str]:
  """Starts a cluster of processes on this machine, which none but this process reaches.

  A scheduler in this process, workers with one thread and, where there are GPUs, one of
  them each. All listen on 127.0.0.1 and ask for a certificate that only they have. A
  worker that dies is started again.

  Args:
    stack: Takes the cluster, to stop it.
    num_workers: How many; default: one for each GPU, else for each core.

  Returns:
    A client, and a folder for what is handed over.

  Raises:
    InputError: This process may start none.
    WorkerLostError: They do not start.
  """
  # A worker that imports the program which has started it.
  process = multiprocessing.current_process()
  if process.name.startswith("Dask Worker process"):
    raise WorkerLostError(_GUARD)
  if process.daemon:
    raise InputError(
      f"The process {process.name} is daemonic, as those of a multiprocessing.Pool are, "
      "and so may start none for the dask runtime: start it in the main program, or give "
      "the address of a scheduler that runs."
    )
  gpus = len(tf.config.list_physical_devices("GPU"))
  if num_workers is None:
    num_workers = gpus or len(os.sched_getaffinity(0))
  options = {
    "host": "127.0.0.1",
    "protocol": "tls://",
    "security": Security.temporary(),
    "dashboard": False,
  }
  stack.enter_context(_SILENT)
  stack.enter_context(_SETTINGS)
  scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="tff_algos_"))
  workers = {
    i: {
      "cls": distributed.Nanny,
      "options": {
        **options,
        "nthreads": 1,
        "local_directory": scratch,
        "memory_limit": 0,  # As in_process has none.
        "worker_class": dask_nodes.Worker,
        "env": worker_environment(i, gpus),
        "silence_logs": logging.CRITICAL,
      },
    }
    for i in range(num_workers)
  }
  try:
    cluster = distributed.SpecCluster(
      scheduler={
        "cls": dask_nodes.Scheduler,
        "options": {**options, "dashboard_address": None},
      },
      workers=workers,
      worker=workers[0],
      security=options["security"],
      name=_NAME,
    )
    stack.enter_context(cluster)
    client = stack.enter_context(
      distributed.Client(cluster, set_as_default=False, direct_to_workers=True)
    )
  except (OSError, RuntimeError) as error:
    raise WorkerLostError(
      f"The processes of the dask runtime do not start: {_in_short(error)}. {_GUARD}"
    ) from error
  return client, scratch


# Those of Dask whose levels its configuration sets; the others have the first one's.
_LOGGERS = ("distributed", "distributed.client")


class _WhileAnyIsOpen:
  """What is entered with the first of several runtimes, and left with the last.

  They may be closed in any order: each by itself would put back what another has set.
  """

  def __init__(self, make: Callable[[], contextlib.AbstractContextManager[Any]]):
    self._make, self._stack = make, contextlib.ExitStack()
    self._changing, self._num_open = threading.Lock(), 0

  def __enter__(self) -> None:
    with self._changing:
      if not self._num_open:
        self._stack.enter_context(self._make())
      self._num_open += 1

  def __exit__(self, *_: object) -> None:
    with self._changing:
      self._num_open -= 1
      if not self._num_open:
        self._stack.close()


@contextlib.contextmanager
def _silent() -> Iterator[None]:
  """Without the log of what a cluster does all the time; what matters has our words."""
  loggers = [logging.getLogger(name) for name in _LOGGERS]
  levels = [logger.level for logger in loggers]
  for logger in loggers:
    logger.setLevel(logging.CRITICAL + 1)
  try:
    yield
  finally:
    for logger, level in zip(loggers, levels):
      logger.setLevel(level)


def _settings() -> dask.config.set:
  """Those of Dask for processes on this machine."""
  found: dict[str, Any] = {
    # Else a worker that is killed, or is slow to start again, is given up for good where
    # none has come in its place 15 seconds after the last one's death.
    "distributed.deploy.lost-worker-timeout": "1d",
    # Dask has malloc give back memory at once, which makes large arrays dear.
    "distributed.nanny.pre-spawn-environ": {},
  }
  # A process that has run TensorFlow cannot be forked: the copy waits for its threads.
  method = "distributed.worker.multiprocessing-method"
  if dask.config.get(method) == "fork":
    found[method] = "spawn"
  return dask.config.set(found)


_SILENT, _SETTINGS = _WhileAnyIsOpen(_silent), _WhileAnyIsOpen(_settings)


def worker_environment(index: int, num_gpus: int) -> dict[str, str]:
  """The variables of a worker's process, such as which GPU is its."""
  quiet = {"TF_CPP_MIN_LOG_LEVEL": "3"}  # Else each complains while it imports TFF.
  if not num_gpus:
    return quiet
  seen = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(num_gpus)))
  return {**quiet, "CUDA_VISIBLE_DEVICES": seen.split(",")[index % num_gpus]}


def notice_of(client: distributed.Client) -> str:
  """One line that says what was opened, or is used."""
  address = client.scheduler.address
  workers = client.nthreads()
  there = f"{len(workers)} workers with {sum(workers.values())} threads"
  if client.cluster is not None and client.cluster.name == _NAME:
    return (
      f"dask: {there} on this machine, listening on 127.0.0.1 for those alone who have "
      "this run's certificate"
    )
  return f"dask: the scheduler {address}, now {there}"
