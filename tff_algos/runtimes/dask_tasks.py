"""What Dask's workers are asked, and what they answer.

Free of TensorFlow: a scheduler reads these too.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple, Optional

# Leaves of TFF values as NumPy has them: arrays, scalars, bytes.
Leaves = list[Any]


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
  """The work of a part's clients between two exchanges.

  Attributes:
    level: After which exchange of the computation.
    num_clients: The cohort's size.
    first: The place of the part's first client in the cohort.
    size: How many clients the part has.
    own: For each input that clients have their own values of, each client's leaves.
    machine: What the worker has to be like.
  """

  level: int
  num_clients: int
  first: int
  size: int
  own: list[list[Leaves]]
  machine: Machine


class Done(NamedTuple):
  """A part's results.

  Attributes:
    totals: The leaves of its accumulators.
    kept: For each value that clients keep, each client's leaves.
  """

  totals: Leaves
  kept: list[list[Leaves]]


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


def machine() -> Machine:
  """What this worker is like."""
  from tff_algos.runtimes import dask_worker

  return dask_worker.machine()


def peak_memory() -> int:
  """The most memory that this process held, in bytes."""
  import resource

  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
    1024 if sys.platform == "linux" else 1
  )


def run_part(
  computation: bytes, broadcast: list[Leaves], job: Job
) -> Done | Refused | Failed:
  """Has a part's clients work.

  Args:
    computation: The compiled computation, as `dask_worker.plan_of` takes it.
    broadcast: The leaves of each broadcast value.
    job: The work.
  """
  from tff_algos.runtimes import dask_worker

  return dask_worker.run_part(computation, broadcast, job)
