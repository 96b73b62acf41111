"""A runtime as a `tff.program.FederatedContext`, for TFF's federated programs."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow_federated as tff

_Result = concurrent.futures.Future[list[Any]]


class ValueReference(tff.program.MaterializableValueReference):
  """A leaf of a computation's result, which may not be there yet.

  Of a client-placed result, which TFF's programs do not have, the whole list is one leaf;
  its type is a sequence.
  """

  def __init__(self, result: _Result, place: int, type_signature: tff.Type):
    self._result, self._place, self._type = result, place, type_signature

  @property
  def type_signature(self) -> tff.Type:
    """The type of the value."""
    return self._type

  async def get_value(self) -> Any:
    """The value; waits until it is there.

    Raises:
      Exception: Whatever the computation raised.
    """
    # Whoever no longer waits for this leaf must not cancel the others.
    leaves = await asyncio.shield(asyncio.wrap_future(self._result))
    return leaves[self._place]


class FederatedContext(tff.program.FederatedContext):
  """Runs what federated programs invoke, in a thread beside the event loop."""

  def __init__(self, invoke: Callable[[tff.Computation, Any], Any]):
    """Makes the context.

    Args:
      invoke: Runs a computation; `tff.framework.SyncContext.invoke`.
    """
    self._invoke = invoke
    # The loop itself holds its tasks weakly.
    self._tasks: set[asyncio.Task[None]] = set()

  def invoke(self, comp: tff.Computation, arg: Any) -> Any:
    """Starts a computation and returns references to the leaves of its result.

    Arguments may hold references; those for clients are lists with a value for each.
    Outside of an event loop it ends before this returns.
    """
    result: _Result = concurrent.futures.Future()
    run = self._run(comp, arg, result)
    try:
      asyncio.get_running_loop()
    except RuntimeError:
      asyncio.run(run)
    else:
      task = asyncio.create_task(run)
      self._tasks.add(task)
      task.add_done_callback(self._tasks.discard)
    result_type = comp.type_signature.result
    types = list(_leaf_types(result_type))
    references = (ValueReference(result, i, t) for i, t in enumerate(types))
    return tff.types.type_to_py_container(
      _packed(result_type, references), _unplaced(result_type)
    )

  async def _run(self, comp: tff.Computation, arg: Any, result: _Result) -> None:
    try:
      value = await asyncio.to_thread(self._invoke, comp, await _materialized(arg))
      result.set_result(list(_leaves(comp.type_signature.result, value)))
    except BaseException as error:
      result.set_exception(error)
      if not isinstance(error, Exception):
        raise


async def _materialized(arg: Any) -> Any:
  if isinstance(arg, tff.structure.Struct):
    elements = tff.structure.iter_elements(arg)
    return tff.structure.Struct([(n, await _materialized(v)) for n, v in elements])
  return await tff.program.materialize_value(arg)


def _leaf_types(t: tff.Type) -> Iterator[tff.Type]:
  if isinstance(t, tff.StructType):
    for _, element in tff.structure.iter_elements(t):
      yield from _leaf_types(element)
  elif isinstance(t, tff.FederatedType) and t.placement is tff.SERVER:
    yield from _leaf_types(t.member)
  elif isinstance(t, tff.FederatedType):
    yield tff.SequenceType(t.member)
  else:
    yield t


def _leaves(t: tff.Type, value: Any) -> Iterator[Any]:
  if isinstance(t, tff.StructType):
    elements = tff.structure.from_container(value)
    for part, element in zip(elements, t):
      yield from _leaves(element, part)
  elif isinstance(t, tff.FederatedType) and t.placement is tff.SERVER:
    yield from _leaves(t.member, value)
  else:
    yield value


def _packed(t: tff.Type, leaves: Iterator[Any]) -> Any:
  if isinstance(t, tff.StructType):
    elements = tff.structure.iter_elements(t)
    return tff.structure.Struct([(n, _packed(e, leaves)) for n, e in elements])
  if isinstance(t, tff.FederatedType) and t.placement is tff.SERVER:
    return _packed(t.member, leaves)
  return next(leaves)


def _unplaced(t: tff.Type) -> tff.Type:
  """The type whose Python containers hold the references to a result."""
  if isinstance(t, tff.StructType):
    elements = [(n, _unplaced(e)) for n, e in tff.structure.iter_elements(t)]
    if t.python_container is None:
      return tff.StructType(elements)
    return tff.StructWithPythonType(elements, t.python_container)
  if isinstance(t, tff.FederatedType) and t.placement is tff.SERVER:
    return _unplaced(t.member)
  return tff.SequenceType(t.member) if isinstance(t, tff.FederatedType) else t
