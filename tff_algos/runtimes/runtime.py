"""What runs a TFF computation: `create_runtime(name)` and the runtimes behind it."""

from __future__ import annotations

import atexit
import contextlib
import gc
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import tensorflow_federated as tff

from tff_algos.errors import InputError, check_whole_number
from tff_algos.runtimes import DESCRIPTIONS, in_process, local_worker, private_apis
from tff_algos.runtimes.federated_context import FederatedContext
from tff_algos.runtimes.tls_files import TlsFiles

if TYPE_CHECKING:
  import distributed


class Running(NamedTuple):
  """What a runtime has started.

  Attributes:
    context: The `tff.framework.SyncContext`.
    close: Stops it.
    notice: One line that says what it opens to others; "" for nothing.
    worker_peak_memory: The most memory that its worker processes held, in bytes.
  """

  context: tff.framework.SyncContext
  close: Callable[[], None]
  notice: str = ""
  worker_peak_memory: Callable[[], int] = lambda: 0


class Runtime:
  """A TFF execution context and what has to be stopped when it is done with.

  Use it as a context manager, or `install()` it for the rest of the program. Installed
  runtimes may be nested and closed in any order: in the end TFF's default context is
  again the one before the first of them. As that is one for each thread, so is what is
  installed; but threads that have none use the one that was installed last, in whichever
  thread.

  Attributes:
    name: One of `DESCRIPTIONS`.
  """

  def __init__(self, name: str, start: Callable[[], Running]):
    """Starts it.

    Args:
      name: One of `DESCRIPTIONS`.
      start: Starts what runs computations, again when the runtime was closed.
    """
    self.name, self._start = name, start
    self._running = start()
    self._is_open = True
    self._installations: list[_Installation] = []

  @property
  def context(self) -> tff.framework.SyncContext:
    """The TFF context; another one after the runtime was closed and installed again."""
    return self._running.context

  @property
  def notice(self) -> str:
    """One line that says what the runtime opens to others; "" for nothing."""
    return self._running.notice

  def install(self) -> Runtime:
    """Makes this the default context of TFF until `close()` or the end of the program.

    It is started again if it was closed.

    Raises:
      RuntimeError: Another context is in force here, which a default one does not change.
    """
    before = private_apis.default_context()
    if not self._is_open:
      self._running = self._start()
      self._is_open = True
    if not self._installations:
      atexit.register(self.close)
    self._installations.append(_Installation(before, self.context))
    _HERE.installations.append(self._installations[-1])
    tff.framework.set_default_context(self.context)
    _serve(self._installations[-1])
    return self

  def federated_context(self) -> tff.program.FederatedContext:
    """The runtime for federated programs: `tff.learning.programs` and `tff.program`.

    Install it as TFF's context, such as by `tff.framework.set_default_context`, and run
    the program there; what it invokes runs on this runtime until that is closed.

    Unlike TFF's `NativeFederatedContext` it takes the list of a round's clients whole,
    and gives back what clients keep.
    """
    return FederatedContext(lambda comp, arg: self.context.invoke(comp, arg))

  def close(self) -> None:
    """Stops what was started; the default context before it is back."""
    while self._installations:
      self._leave(self._installations[-1])
    _put_back_here()
    if self._is_open:
      self._is_open = False
      self._running.close()
      gc.collect()

  def worker_peak_memory(self) -> int:
    """The most memory that worker processes of this runtime held, in bytes."""
    return self._running.worker_peak_memory()

  def _leave(self, installation: _Installation) -> None:
    self._installations.remove(installation)
    installation.is_over = True
    _serve_no_more(installation)
    if not self._installations:
      atexit.unregister(self.close)

  def __enter__(self) -> Runtime:
    try:
      return self.install()
    except BaseException:  # What leaves no block is closed here.
      if not self._installations:
        self.close()
      raise

  def __exit__(self, *_: object) -> None:
    # Another thread may have installed it too, or have closed it.
    own = [i for i in _HERE.installations if i in self._installations]
    if own:
      self._leave(own[-1])
    _put_back_here()
    if not self._installations:
      self.close()


class _Installation:
  """That a runtime is installed; one that is over waits for those installed after it."""

  def __init__(self, before: Any, context: tff.framework.SyncContext):
    self.before, self.context, self.is_over = before, context, False


class _Here(threading.local):
  """What this thread has installed, the last one last."""

  def __init__(self) -> None:
    self.installations: list[_Installation] = []


_HERE = _Here()


def _put_back_here() -> None:
  """Puts back the default context of this thread before what is over in it."""
  here = _HERE.installations
  while here and here[-1].is_over:
    tff.framework.set_default_context(here.pop().before)


# Of all threads, the last one last.
_EVERYWHERE: list[_Installation] = []
_SERVING = threading.Lock()


def _serve(installation: _Installation) -> None:
  with _SERVING:
    _EVERYWHERE.append(installation)
    private_apis.serve_other_threads(installation.context)


def _serve_no_more(installation: _Installation) -> None:
  with _SERVING:
    _EVERYWHERE.remove(installation)
    last = _EVERYWHERE[-1].context if _EVERYWHERE else None
    private_apis.serve_other_threads(last)


#: The settings of `create_runtime` that a runtime takes.
SETTINGS = {
  "in_process": ("num_threads", "devices", "clients_per_part"),
  "local_worker": ("worker_log",),
  "dask": ("clients_per_part", "workers", "scheduler", "tls", "client"),
}


def create_runtime(
  name: str = "in_process",
  *,
  num_threads: Optional[int] = None,
  devices: Optional[Sequence[str]] = None,
  clients_per_part: Optional[int] = None,
  worker_log: Optional[str] = None,
  workers: Optional[int] = None,
  scheduler: Optional[str] = None,
  tls: Optional[TlsFiles] = None,
  client: Optional[distributed.Client] = None,
) -> Runtime:
  """Makes a runtime.

  in_process has TensorFlow use one core for each operation, if it has not started yet and
  its threads were not set: clients take one core each.

  Args:
    name: One of `DESCRIPTIONS`.
    num_threads: For in_process: how many clients are worked on at once on each device;
      default: one on a GPU; on CPUs one for each core, shared out over the devices.
    devices: For in_process: TensorFlow's logical devices that take the clients in turn,
      such as ("GPU:0", "GPU:1"); default: all GPUs that it sees, else the CPU.
    clients_per_part: For in_process and dask: so many clients' results are added one
      after the other, and these sums joined in a fixed tree, so this is the one setting
      here that changes how results are rounded; a part is also what a worker of dask is
      given at once. Default: as many as give at most 16 parts, and at least a block, of
      16 to 128 on a CPU, of clients that are worked on in blocks.
    worker_log: For local_worker: the file for the worker's output.
    workers: For dask without a scheduler or client: how many processes to start on this
      machine; default: one for each GPU, else for each core.
    scheduler: For dask: the address of a scheduler that runs, such as tls://host:8786.
    tls: For dask with a scheduler: this program's certificate; default: what Dask's
      configuration says.
    client: For dask: a client of one's own, which is left open.

  Raises:
    InputError: There is no such runtime or device; or settings are not right, such as an
      address on a network without TLS, or another runtime's; or dask is not installed; or
      the worker's log cannot be written.
    WorkerLostError: The worker does not start, or no scheduler answers.
  """
  starts: dict[str, Callable[[], Running]] = {
    "in_process": lambda: _start_in_process(num_threads, devices, clients_per_part),
    "local_worker": lambda: _start_local_worker(worker_log),
    "dask": lambda: _start_dask(workers, scheduler, tls, client, clients_per_part),
  }
  if name not in starts:
    raise InputError(
      f"There is no runtime {name!r}: choose one of {', '.join(DESCRIPTIONS)}."
    )
  given = dict(
    num_threads=num_threads,
    devices=devices,
    clients_per_part=clients_per_part,
    worker_log=worker_log,
    workers=workers,
    scheduler=scheduler,
    tls=tls,
    client=client,
  )
  for setting, value in given.items():
    if value is not None and setting not in SETTINGS[name]:
      raise InputError(
        f"The runtime {name} takes {', '.join(SETTINGS[name])}, and no {setting}: leave "
        "it out, or choose another runtime."
      )
  return Runtime(name, starts[name])


def _start_in_process(
  num_threads: Optional[int],
  devices: Optional[Sequence[str]],
  clients_per_part: Optional[int],
) -> Running:
  context = in_process.InProcessContext(num_threads, devices, clients_per_part)
  return Running(context, context.close)


def _start_local_worker(log_path: Optional[str]) -> Running:
  worker = local_worker.LocalWorker(log_path)
  notice = (
    f"local_worker: TFF's worker listens on port {worker.worker.port} of every network "
    "interface, without a password, until this program ends; its log is "
    f"{worker.log_path}."
  )
  return Running(worker.context, worker.close, notice, worker.peak_memory)


def check_dask(
  *,
  workers: Optional[int] = None,
  scheduler: Optional[str] = None,
  tls: Optional[TlsFiles] = None,
  client: Optional[distributed.Client] = None,
) -> None:
  """Checks the settings of dask as far as nothing has to be started for that.

  Raises:
    InputError: They do not fit together; an address is on a network without TLS; a file
      is not what it should be; or Dask is not installed.
  """
  if sum(given is not None for given in (workers, scheduler, client)) > 1:
    raise InputError(
      "Give dask one of workers, which are started on this machine, a scheduler's "
      "address and a client."
    )
  if workers is not None:
    check_whole_number("workers", workers, 1, 1000)
  if tls is not None and not isinstance(tls, TlsFiles):
    raise InputError(f"tls must be TlsFiles of three paths; found {tls!r}.")
  if tls is not None and scheduler is None:
    raise InputError("tls is for a scheduler: give its address, or leave tls out.")
  try:
    from tff_algos.runtimes import dask_cluster
  except ModuleNotFoundError as error:
    if error.name not in ("cryptography", "dask", "distributed"):
      raise
    raise InputError(
      "The dask runtime needs the extra cluster: install tff-algos[cluster]."
    ) from error
  if scheduler is not None:
    dask_cluster.check_address(scheduler, tls)
  if client is not None:
    dask_cluster.check_client(client)


def _start_dask(
  workers: Optional[int],
  scheduler: Optional[str],
  tls: Optional[TlsFiles],
  client: Optional[distributed.Client],
  clients_per_part: Optional[int],
) -> Running:
  check_dask(workers=workers, scheduler=scheduler, tls=tls, client=client)
  from tff_algos.runtimes import dask_cluster, dask_context

  with contextlib.ExitStack() as stack:
    folder = None
    if scheduler is not None:
      client = dask_cluster.connect(stack, scheduler, tls)
    elif client is None:
      client, folder = dask_cluster.start(stack, workers)
    context = dask_context.DaskContext(client, clients_per_part, folder)
    stack.callback(context.close)
    close = stack.pop_all().close
  return Running(context, close, dask_cluster.notice_of(client), context.peak_memory)
