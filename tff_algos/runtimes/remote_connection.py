"""The connection to one of TFF's workers on another machine, whose waits are bounded."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc
import tensorflow_federated as tff
from absl import logging
from tensorflow_federated.proto.v0 import executor_pb2, executor_pb2_grpc

from tff_algos.runtimes.local_worker import CHANNEL_OPTIONS

# How long a worker may take to answer when it is looked for, and when it is asked whether
# it still lives while it computes.
_FIND_SECONDS, _ALIVE_SECONDS = 5.0, 15.0
_ASK_EVERY_SECONDS = 5.0
# The share of the time that goes into looking for workers that are lost.
_SEARCH_SHARE = 0.1
_OPTIONS = [
  *CHANNEL_OPTIONS,
  # Else a new channel would be given the connection, or the failure, of the one before.
  ("grpc.use_local_subchannel_pool", 1),
]
# What fails in a computation is INTERNAL, not one of these.
_LOST_CODES = {
  grpc.StatusCode.UNAVAILABLE,
  grpc.StatusCode.FAILED_PRECONDITION,  # It was started again, and has lost what it had.
  grpc.StatusCode.CANCELLED,
  grpc.StatusCode.DEADLINE_EXCEEDED,
}


class LostError(Exception):
  """One worker is lost; another may do its work."""


class _Stub(tff.framework.RemoteExecutorStub):
  """The calls to a worker; a lost one is a `LostError`, which TFF does not retry."""

  def __init__(self, channel: grpc.Channel):
    self._stub = executor_pb2_grpc.ExecutorGroupStub(channel)
    # The worker has no such method, and says so: the shortest way to hear from it.
    self._ask = channel.unary_unary("/tff_algos/IsAnyoneThere")
    self._told: set[grpc.Future] = set()

  @property
  def is_ready(self) -> bool:
    return self.answers(_ALIVE_SECONDS)

  def answers(self, seconds: float) -> bool:
    """Whether the worker answers within this time."""
    try:
      self._ask(b"", timeout=seconds)
    except grpc.RpcError as error:
      return error.code() not in _LOST_CODES
    return True

  def _call(self, method, request):
    future = method.future(request)
    while True:
      try:
        return future.result(timeout=_ASK_EVERY_SECONDS)
      except grpc.FutureTimeoutError:
        if not self.answers(_ALIVE_SECONDS):
          future.cancel()
          raise LostError("it no longer answers") from None
      except grpc.FutureCancelledError:
        raise LostError("the runtime was closed") from None
      except grpc.RpcError as error:
        if error.code() in _LOST_CODES:
          raise LostError(error.details()) from error
        raise

  def _tell(self, method, request, response):
    """A call that nobody waits for: a lost worker has forgotten everything anyway."""
    try:
      future = method.future(request)
    except ValueError:  # The channel was closed.
      return response
    # gRPC cancels a call that is not referred to.
    self._told.add(future)
    future.add_done_callback(self._told.discard)
    return response

  def get_executor(self, request):
    return self._call(self._stub.GetExecutor, request)

  def create_value(self, request):
    return self._call(self._stub.CreateValue, request)

  def create_struct(self, request):
    return self._call(self._stub.CreateStruct, request)

  def create_call(self, request):
    return self._call(self._stub.CreateCall, request)

  def create_selection(self, request):
    return self._call(self._stub.CreateSelection, request)

  def compute(self, request):
    return self._call(self._stub.Compute, request)

  def dispose(self, request):
    return self._tell(self._stub.Dispose, request, executor_pb2.DisposeResponse())

  def dispose_executor(self, request):
    response = executor_pb2.DisposeExecutorResponse()
    return self._tell(self._stub.DisposeExecutor, request, response)


class RemoteWorker:
  """One worker and the channel to it."""

  def __init__(self, address: str, target: str):
    self.address, self._target = address, target
    self.is_lost, self._has_worked = True, False
    self._search_at = 0.0
    self._connect()

  def _connect(self) -> None:
    self._channel = grpc.insecure_channel(self._target, _OPTIONS)
    self._stub = stub = _Stub(self._channel)

    def make_executor(cardinalities):
      # Larger batches would keep the client states of several rounds in the worker.
      executor = tff.framework.RemoteExecutor(stub, dispose_batch_size=1)
      executor.set_cardinalities({tff.CLIENTS: 0, **cardinalities})
      return executor

    self._context = tff.framework.AsyncExecutionContext(
      executor_fn=tff.framework.ResourceManagingExecutorFactory(make_executor),
      transform_args=tff.tensorflow.transform_args,
      transform_result=tff.tensorflow.transform_result,
    )

  def search(self, must: bool) -> None:
    """Looks whether a lost worker answers again.

    Args:
      must: Whether to do so even if the last time it took long and was not long ago.
    """
    start = time.monotonic()
    if not self.is_lost or (start < self._search_at and not must):
      return
    # A connection to what is gone may hang for minutes: another one.
    self._channel.close()
    self._connect()
    self.is_lost = not self._stub.answers(_FIND_SECONDS)
    if self._has_worked and not self.is_lost:
      logging.warning("worker %s is back", self.address)
    self._has_worked |= not self.is_lost
    end = time.monotonic()
    self._search_at = end + (end - start) / _SEARCH_SHARE

  def lose(self, why: Any) -> None:
    """Remembers that it is lost."""
    logging.warning("worker %s is lost: %s", self.address, why)
    self.is_lost = True

  def invoke(self, comp: tff.Computation, arg: Any) -> Any:
    """Runs a compiled computation; raises `LostError`."""
    return asyncio.run(self._context.invoke(comp, arg))

  def close(self) -> None:
    """Ends the connection."""
    self._channel.close()
