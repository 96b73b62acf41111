"""What Dask's workers are asked, and what they answer.

Free of TensorFlow: a scheduler reads these too.
"""

from __future__ import annotations

import os
import pickle
import uuid
from typing import Any, NamedTuple, Optional, Union

from tff_algos import durable_files


class InFile(NamedTuple):
  """What `put` has written to a file, for processes of one machine.

  Attributes:
    path: The file, which is there until `drop`.
  """

  path: str


# One string of bytes: Dask would send each of many small arrays by itself.
Packed = Union[bytes, InFile]


def put(value: Any, folder: Optional[str]) -> Packed:
  """Packs arrays, to be sent; in a folder that all share only the path is sent."""
  if folder is None:
    return pickle.dumps(value, protocol=5)
  path = os.path.join(folder, uuid.uuid4().hex)
  with durable_files.writing(path), open(path, "wb") as file:
    pickle.dump(value, file, protocol=5)
  return InFile(path)


def take(packed: Packed) -> Any:
  """What was packed."""
  if isinstance(packed, bytes):
    return pickle.loads(packed)
  with open(packed.path, "rb") as file:
    return pickle.load(file)


def drop(packed: Packed) -> None:
  """Removes the file of what was packed, if it has one and it is there."""
  if isinstance(packed, InFile) and os.path.exists(packed.path):
    os.remove(packed.path)


class Machine(NamedTuple):
  """What of a worker decides how its results are rounded.

  Attributes:
    processor: Its type.
    device: What clients are worked on by: "CPU" or a GPU's type.
    versions: Of the packages, this library's with a digest of how it runs computations.
    settings: Of TensorFlow.
  """

  processor: str
  device: str
  versions: str
  settings: str

  def differences(self, other: Machine) -> str:
    """In which words two machines differ, this one's first."""
    return "; ".join(
      f"{name} {ours!r} instead of {theirs!r}"
      for name, ours, theirs in zip(self._fields, self, other)
      if ours != theirs
    )


class Job(NamedTuple):
  """The work of some parts' clients between two exchanges.

  Attributes:
    level: After which exchange of the computation.
    num_clients: The cohort's size.
    first: The place of the first client in the cohort.
    sizes: How many clients each part has; the parts are joined.
    own: For each input that clients have their own values of, each client's leaves;
      packed.
    machine: What the worker has to be like.
    folder: Where results are put, which this machine shares with the worker; None: they
      are sent.
  """

  level: int
  num_clients: int
  first: int
  sizes: list[int]
  own: Packed
  machine: Machine
  folder: Optional[str]


class Done(NamedTuple):
  """A job's results.

  Attributes:
    content: Packed: the leaves of the accumulators of its parts together, and for each
      value that clients keep each client's leaves.
  """

  content: Packed


class Refused(NamedTuple):
  """The worker is not like the machine that was asked for.

  Attributes:
    worker: Its address.
    machine: What it is like.
  """

  worker: str
  machine: Machine


class Failed(NamedTuple):
  """The computation's own error, which another worker would meet too.

  Attributes:
    worker: The worker's address.
    kind: The error's class.
    message: What it says.
    client: The place of the client in the cohort; None: one of a block.
    given: The client's texts, such as the path of its file.
    trace: The worker's traceback.
  """

  worker: str
  kind: str
  message: str
  client: Optional[int]
  given: list[str]
  trace: str


def hold(value: Any) -> Any:
  """Keeps a value on a worker, which hands it to others, for all tasks that need it."""
  return value


def machine() -> tuple[str, Machine]:
  """This worker's address, and what it is like."""
  import distributed

  from tff_algos.runtimes import dask_worker

  return distributed.get_worker().address, dask_worker.machine()


def peak_memory() -> int:
  """The most memory that this process held, in bytes."""
  import resource

  return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def run_parts(computation: bytes, broadcast: Packed, job: Job) -> Done | Refused | Failed:
  """Has the clients of some parts work, and joins these.

  Args:
    computation: The compiled computation, as `dask_worker.plan_of` takes it.
    broadcast: The leaves of each broadcast value, packed.
    job: The work.
  """
  from tff_algos.runtimes import dask_worker

  return dask_worker.run_parts(computation, broadcast, job)
