"""What runs a TFF computation: `create_runtime(name)` and the runtimes behind it."""

from __future__ import annotations

import atexit
import gc
from collections.abc import Callable, Sequence
from typing import Optional

import tensorflow_federated as tff

from tff_algos.runtimes import DESCRIPTIONS, in_process, local_worker, remote_workers
from tff_algos.runtimes.tunnel import TlsFiles


class Runtime:
  """A TFF execution context and what has to be stopped when it is done with.

  Use it as a context manager, or `install()` it for the rest of the program.

  Attributes:
    name: One of `DESCRIPTIONS`.
    context: The `tff.framework.SyncContext`.
    notice: One line that says what the runtime opens to others; "" for nothing.
  """

  def __init__(
    self,
    name: str,
    context: tff.framework.SyncContext,
    *,
    close: Callable[[], None],
    notice: str = "",
    worker_peak_memory: Callable[[], int] = lambda: 0,
  ):
    self.name, self.context, self.notice = name, context, notice
    self._close, self._worker_peak_memory = close, worker_peak_memory
    self._is_open = True

  def install(self) -> Runtime:
    """Makes this the default context of TFF until `close()` or the end of the program.

    Raises:
      RuntimeError: It was closed.
    """
    if not self._is_open:
      raise RuntimeError("This runtime was closed: create another one.")
    if self in _INSTALLED:
      _INSTALLED.remove(self)
    _INSTALLED.append(self)
    tff.framework.set_default_context(self.context)
    atexit.register(self.close)
    return self

  def close(self) -> None:
    """Stops what was started; the runtime installed before it, if any, is back."""
    if not self._is_open:
      return
    self._is_open = False
    if self in _INSTALLED:
      _INSTALLED.remove(self)
    # Not TFF's own default: it prints a traceback when Python ends with it installed.
    left = _INSTALLED[-1].context if _INSTALLED else _NoRuntime()
    tff.framework.set_default_context(left)
    self._close()
    atexit.unregister(self.close)
    gc.collect()

  def worker_peak_memory(self) -> int:
    """The most memory that worker processes of this runtime held, in bytes."""
    return self._worker_peak_memory()

  def __enter__(self) -> Runtime:
    return self.install()

  def __exit__(self, *_) -> None:
    self.close()


_INSTALLED: list[Runtime] = []


class _NoRuntime(tff.framework.SyncContext):
  def invoke(self, comp, arg):
    raise RuntimeError(
      "No runtime is installed: call tff_algos.create_runtime().install()."
    )


@atexit.register
def _end_tffs_own_runtime() -> None:
  # TFF leaves that to the garbage collector, which comes too late: it prints a traceback,
  # and a worker outlives the program.
  tff.framework.set_default_context(_NoRuntime())
  gc.collect()


def create_runtime(
  name: str = "in_process",
  *,
  num_threads: Optional[int] = None,
  devices: Optional[Sequence[str]] = None,
  worker_log: Optional[str] = None,
  workers: Sequence[str] = (),
  tls: Optional[TlsFiles] = None,
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
    worker_log: For local_worker: the file for the worker's output; for remote_workers
      with tls: for the tunnel's.
    workers: For remote_workers: the address of each, as host:port.
    tls: For remote_workers: this program's certificate, its key and the authority of the
      workers'; None where they have no tunnel, on a trusted network.

  Raises:
    ValueError: There is no such runtime or device, or workers or tls are not right.
    FileNotFoundError: tls is given, and stunnel is not installed.
    WorkerLostError: The worker does not start, or no worker answers.
  """
  if name == "in_process":
    context = in_process.InProcessContext(num_threads, devices)
    return Runtime(name, context, close=context.close)
  if name == "local_worker":
    worker = local_worker.LocalWorker(worker_log)
    notice = (
      f"local_worker: TFF's worker listens on port {worker.worker.port} of every network "
      "interface, without a password, until this program ends; its log is "
      f"{worker.log_path}."
    )
    return Runtime(
      name,
      worker.context,
      close=worker.close,
      notice=notice,
      worker_peak_memory=worker.peak_memory,
    )
  if name == "remote_workers":
    remote = remote_workers.RemoteWorkers(workers, tls, worker_log)
    return Runtime(name, remote.context, close=remote.close, notice=remote.notice)
  raise ValueError(
    f"There is no runtime {name!r}: choose one of {', '.join(DESCRIPTIONS)}."
  )
