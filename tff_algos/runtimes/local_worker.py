"""Runs TFF computations on TFF's own C++ worker, started and stopped properly.

Stock TFF waits without end for a worker that cannot start, hands it the terminal, and
leaves it running when Python ends. Here its output goes to a log file, every wait is
bounded, values are freed as soon as they are used, and the worker dies with this process.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Mapping
from typing import Any, Optional

import grpc
import portpicker
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.errors import InputError, WorkerLostError
from tff_algos.runtimes import child_process, compiler, values

_BINARY = child_process.worker_binary()
CHANNEL_OPTIONS = [
  (f"grpc.max_{kind}message_length", 2**31 - 1) for kind in ("", "receive_", "send_")
]
# A worker is on this machine or in this network: no proxy is to be asked for it.
CHANNEL_OPTIONS.append(("grpc.enable_http_proxy", 0))
# Else a worker that has nothing to do for half an hour or an hour seems to be lost.
CHANNEL_OPTIONS.append(("grpc.client_idle_timeout_ms", 2**31 - 1))
_POLL_SECONDS = 0.02


class Worker:
  """One `worker_binary` process of this machine and the channel to it."""

  def __init__(self, log_path: str, start_seconds: float):
    self._log_path, self._start_seconds = log_path, start_seconds
    self.port = portpicker.pick_unused_port()
    self._process = child_process.start([_BINARY, f"--port={self.port}"], log_path)
    channel = grpc.insecure_channel(f"localhost:{self.port}", CHANNEL_OPTIONS)
    self.stub = tff.framework.RemoteExecutorGrpcStub(channel)

  @property
  def is_alive(self) -> bool:
    """Whether the process runs."""
    return self._process.poll() is None

  @property
  def process_id(self) -> int:
    """The id of the worker's process."""
    return self._process.pid

  def wait_until_ready(self) -> None:
    """Waits for the worker to answer.

    Raises:
      WorkerLostError: It ended, or did not answer in time.
    """
    deadline = time.monotonic() + self._start_seconds
    while not self.stub.is_ready:
      if not self.is_alive:
        raise WorkerLostError(
          f"TFF's worker ended at once with status {self._process.returncode}; its "
          f"output is in {self._log_path}."
        )
      if time.monotonic() > deadline:
        raise WorkerLostError(
          f"TFF's worker did not answer on port {self.port} within "
          f"{self._start_seconds:g} seconds; its output is in {self._log_path}."
        )
      time.sleep(_POLL_SECONDS)

  def stop(self) -> None:
    """Ends the process; waits for it."""
    # The channel is left to the garbage collector: closing it under gRPC's own thread,
    # which watches it, makes that thread print a traceback.
    child_process.stop(self._process)


def _transform_args(args: Any) -> Any:
  """As TFF's, which reads each data set to its end."""
  for value in tf.nest.flatten(args):
    if isinstance(value, tf.data.Dataset):
      values.check_ends(value)
  return tff.tensorflow.transform_args(args)


class LocalWorker:
  """Keeps one worker alive, restarting it a bounded number of times."""

  def __init__(
    self,
    log_path: Optional[str] = None,
    *,
    start_seconds: float = 30.0,
    max_restarts: int = 3,
  ):
    """Starts the worker.

    Args:
      log_path: File for the worker's output; default: one in the temporary folder,
        which `close` removes if the worker said nothing.
      start_seconds: How long a start may take.
      max_restarts: How often a worker that died is replaced.

    Raises:
      InputError: The file cannot be written.
      WorkerLostError: The worker does not start.
    """
    if threading.current_thread() is not threading.main_thread():
      raise RuntimeError(
        "Start the local_worker runtime in the main thread: its worker would end with "
        "the thread that started it."
      )
    self._log_is_own = log_path is None
    if log_path is None:
      handle, log_path = tempfile.mkstemp(prefix="tff_algos_worker_", suffix=".log")
      os.close(handle)
    try:
      with open(log_path, "ab"):
        pass
    except OSError as error:
      raise InputError(
        f"worker_log {log_path} cannot be written ({error.strerror}): choose another "
        "file."
      ) from error
    self.log_path = log_path
    self._start_seconds, self._restarts_left = start_seconds, max_restarts
    self._max_restarts, self._is_closed = max_restarts, False
    self.worker = self._start()
    factory = tff.framework.ResourceManagingExecutorFactory(self._make_executor)
    self.context = tff.framework.SyncExecutionContext(
      executor_fn=factory,
      compiler_fn=compiler.to_native,
      transform_args=_transform_args,
      transform_result=tff.tensorflow.transform_result,
    )

  def _start(self) -> Worker:
    worker = Worker(self.log_path, self._start_seconds)
    try:
      worker.wait_until_ready()
    except WorkerLostError:
      worker.stop()
      raise
    return worker

  def _make_executor(self, cardinalities: Mapping[Any, int]) -> Any:
    if self._is_closed:
      raise RuntimeError("This runtime was closed: install it again, or another one.")
    cardinalities = {tff.CLIENTS: 0, **cardinalities}
    if not self.worker.is_alive or not self.worker.stub.is_ready:
      self.worker.stop()
      if not self._restarts_left:
        raise WorkerLostError(
          f"TFF's worker died {self._max_restarts + 1} times; its output is in "
          f"{self.log_path}."
        )
      self._restarts_left -= 1
      self.worker = self._start()
    # Larger batches would keep the client states of several rounds in the worker.
    executor = tff.framework.RemoteExecutor(self.worker.stub, dispose_batch_size=1)
    executor.set_cardinalities(cardinalities)
    return executor

  def peak_memory(self) -> int:
    """The most memory that the worker that runs now has held, in bytes."""
    try:
      with open(f"/proc/{self.worker.process_id}/status", encoding="utf-8") as f:
        lines = [line for line in f if line.startswith("VmHWM")]
    except OSError:
      return 0
    return int(lines[0].split()[1]) * 1024 if lines else 0

  def close(self) -> None:
    """Ends the worker."""
    self._is_closed = True
    self.worker.stop()
    if self._log_is_own:
      with contextlib.suppress(FileNotFoundError):
        if not os.path.getsize(self.log_path):
          os.remove(self.log_path)
