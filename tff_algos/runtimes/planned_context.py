"""What in_process and dask share: a context that plans computations and runs these."""

from __future__ import annotations

import abc
import math
import threading
import weakref
from collections.abc import Iterator
from typing import Any, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.errors import check_whole_number
from tff_algos.runtimes import execution, private_apis

_LARGE_BYTES = 1 << 20


class PlannedContext(tff.framework.SyncContext, abc.ABC):
  """A TFF execution context; what is at the server is done in this process."""

  def __init__(
    self, server_device: str, clients_per_part: Optional[int], *, on_gpu: bool = False
  ):
    """Makes the context.

    Args:
      server_device: The name of the device for what is done at the server.
      clients_per_part: How many clients make a part; None: as in `accumulation.parts_of`.
      on_gpu: Whether all clients work on GPUs.

    Raises:
      InputError: `clients_per_part` is no whole number of at least 1.
    """
    if clients_per_part is not None:
      check_whole_number("clients_per_part", clients_per_part, 1)
    self._server_device, self._clients_per_part = server_device, clients_per_part
    self._on_gpu = on_gpu
    self._is_closed = False

  def invoke(self, comp: tff.Computation, arg: Any) -> Any:
    """Runs `comp`; see `tff.framework.SyncContext.invoke`.

    Raises:
      UnsupportedComputationError: `comp` holds TensorFlow variables or other things that
        these runtimes lack.
      RuntimeError: The context was closed.
    """
    if self._is_closed:
      raise RuntimeError("This runtime was closed: install it again, or another one.")
    with _PLANNING:
      plan = _PLANS.get(id(comp))
      if plan is None:
        plan = execution.Plan(comp)
        if not _makes_large_constants(comp.type_signature):
          _PLANS[id(comp)] = plan
          weakref.finalize(comp, _PLANS.pop, id(comp), None)
    with private_apis.safe_for_threads(), tf.device(self._server_device):
      result = plan.run(
        arg,
        lambda cohort: self._run_cohort(plan, cohort),
        self._clients_per_part,
        on_gpu=self._on_gpu,
      )
    return tff.types.type_to_py_container(result, comp.type_signature.result)

  @abc.abstractmethod
  def _run_cohort(
    self, plan: execution.Plan, cohort: execution.Cohort
  ) -> Iterator[execution.PartResult]:
    """Each part's results, in the parts' order."""

  def close(self) -> None:
    """Ends what works for it; what was traced is kept for the next runtime."""
    self._is_closed = True


def _makes_large_constants(t: tff.FunctionType) -> bool:
  """Whether a computation may hold large constants, such as a model's initial weights.

  What is traced has ten copies of them and more, and such a computation is run once.
  """
  return t.parameter is None and _is_large(t.result)


def _is_large(t: tff.Type) -> bool:
  if isinstance(t, tff.FederatedType):
    return _is_large(t.member)
  if isinstance(t, tff.StructType):
    return any(_is_large(element) for _, element in tff.structure.iter_elements(t))
  if not isinstance(t, tff.TensorType):
    return False
  num_values = math.prod(size or 0 for size in t.shape or ())
  num_bytes: int = num_values * np.dtype(t.dtype).itemsize
  return num_bytes > _LARGE_BYTES


# By identity: TFF's computations hash by their content, which would serialise the whole
# graph in every round. An entry goes when its computation does.
_PLANS: dict[int, execution.Plan] = {}
_PLANNING = threading.Lock()
