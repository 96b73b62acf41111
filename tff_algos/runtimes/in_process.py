"""Runs TFF computations in this Python process, by the TensorFlow that is installed here.

No worker process is started and no port is opened. A computation is compiled by TFF and
then *planned* once: all that happens at the server between two exchanges becomes one
`tf.function`, and all that happens at a client another, whatever number of federated
operators the computation has. A round then costs one call for each client, or for a block
of clients (`blocks`), and one to accumulate a few results. Results are accumulated in the
order of the clients of a part, and parts joined by a fixed tree, so they do not depend on
the number of threads or devices.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Optional

import tensorflow as tf

from tff_algos.errors import InputError, check_whole_number
from tff_algos.runtimes import execution, private_apis
from tff_algos.runtimes.planned_context import PlannedContext


def prepare(devices: Optional[Sequence[str]] = None) -> list[str]:
  """Sets TensorFlow's threads for clients that take one core each; finds the devices.

  Two clients, each on a core of its own, are a quarter faster than both sharing every
  operation's cores. And no sum depends on how many cores a machine has. TensorFlow takes
  this before it has done anything only; later, or where its threads were set already,
  nothing changes. Making a context does this too.

  Args:
    devices: As `InProcessContext` takes them.

  Returns:
    The names of the devices that clients are placed on.

  Raises:
    InputError: TensorFlow has no such device.
  """
  threads = tf.config.threading
  if not threads.get_intra_op_parallelism_threads():
    with contextlib.suppress(RuntimeError):
      threads.set_intra_op_parallelism_threads(1)
      threads.set_inter_op_parallelism_threads(len(os.sched_getaffinity(0)))
  found = _find_devices(devices)
  _lose_less_memory()
  return found


def _lose_less_memory() -> None:
  """Has each eager tensor that goes leave 16 bytes behind, not up to 256.

  On Python 3.11 TensorFlow never frees where an eager tensor's own attributes would be
  (its issue 62551). That is as large as the most attributes that one of the first thirty
  has had, so these are made here. After an upgrade: whether memory still grows by a
  tensor's making and going; then this can go.
  """
  for _ in range(30):
    tf.constant(0)


class InProcessContext(PlannedContext):
  """A TFF execution context that interprets computations in this process."""

  def __init__(
    self,
    num_threads: Optional[int] = None,
    devices: Optional[Sequence[str]] = None,
    clients_per_part: Optional[int] = None,
  ):
    """Makes the context.

    Args:
      num_threads: How many clients are worked on at once on each device; default: one
        on a GPU; on CPUs one for each core, shared out over the devices.
      devices: Logical devices for the clients, such as ("GPU:0", "GPU:1"), which take
        them in turn; the first is the server's too. Default: all GPUs that TensorFlow
        sees, else its CPU.
      clients_per_part: As in `PlannedContext`.

    Raises:
      InputError: There is no such device, or a number is no whole one of at least 1.
    """
    if num_threads is not None:
      check_whole_number("num_threads", num_threads, 1)
    found = prepare(devices)
    super().__init__(found[0], clients_per_part, on_gpu=all(map(_is_gpu, found)))
    self._queues = [
      _Queue(device, num_threads or _default_threads(device, len(found)))
      for device in found
    ]

  @property
  def devices(self) -> tuple[str, ...]:
    """The names of the devices that clients are placed on."""
    return tuple(queue.device for queue in self._queues)

  def close(self) -> None:
    """Ends the client threads; what was traced is kept for the next runtime."""
    super().close()
    for queue in self._queues:
      queue.pool.shutdown(wait=True)

  def _run_cohort(
    self, plan: execution.Plan, cohort: execution.Cohort
  ) -> Iterator[execution.PartResult]:
    return plan.run_parts(cohort, self.devices, self._in_order)

  def _in_order(
    self, function: Callable[..., Any], arguments: Iterable[Any]
  ) -> Iterator[Any]:
    """Maps on the devices in turn; in order, at most a few results ahead of the caller.

    `function` takes the device's name and an argument.
    """
    waiting: collections.deque[concurrent.futures.Future[Any]] = collections.deque()
    most = 2 * sum(queue.num_threads for queue in self._queues)
    try:
      for i, argument in enumerate(arguments):
        queue = self._queues[i % len(self._queues)]
        waiting.append(queue.pool.submit(_run_safely, function, queue.device, argument))
        if len(waiting) > most:
          yield waiting.popleft().result()
      while waiting:
        yield waiting.popleft().result()
    finally:
      for future in waiting:
        future.cancel()
      concurrent.futures.wait(waiting)


class _Queue:
  """The threads that work on the clients of one device."""

  def __init__(self, device: str, num_threads: int):
    self.device, self.num_threads = device, num_threads
    self.pool = concurrent.futures.ThreadPoolExecutor(
      num_threads, thread_name_prefix=f"clients of {device}"
    )


def _is_gpu(device: str) -> bool:
  return device.startswith("GPU")


def _default_threads(device: str, num_devices: int) -> int:
  if _is_gpu(device):
    return 1
  return max(1, len(os.sched_getaffinity(0)) // num_devices)


def _find_devices(names: Optional[Sequence[str]]) -> list[str]:
  there = [d.name.replace("/device:", "") for d in tf.config.list_logical_devices()]
  if names is None:
    return list(filter(_is_gpu, there)) or ["CPU:0"]
  # A text would be taken letter by letter.
  listed: list[Any] = list(names) if isinstance(names, Iterable) else [names]
  if isinstance(names, str) or not all(isinstance(name, str) for name in listed):
    raise InputError(f"devices must be a list of names, as ['CPU:0']; found {names!r}.")
  wanted = [name.upper() for name in listed]
  if not wanted:
    raise InputError("Give at least one device, or none to take all GPUs.")
  for name in wanted:
    if name not in there:
      raise InputError(
        f"TensorFlow has no device {name!r} here: choose of {', '.join(there)}."
      )
  if len(set(wanted)) < len(wanted):
    raise InputError(f"A device is named twice: {', '.join(wanted)}.")
  return wanted


def _run_safely(function: Callable[..., Any], device: str, argument: Any) -> Any:
  with private_apis.safe_for_threads(), tf.device(device):
    return function(device, argument)
