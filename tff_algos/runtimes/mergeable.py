"""A computation as parts that several workers do, and what joins the parts.

TFF's own mergeable form has every client's work done twice, once for what is aggregated
and once for what the clients get back. Here a part gives both at once, which is possible
where no client's result depends on an aggregate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Optional

import tensorflow_federated as tff

from tff_algos.errors import InputError, UnsupportedComputationError
from tff_algos.runtimes import compiler, values

_blocks = tff.framework
_Struct = tff.structure.Struct
_AGGREGATE = "federated_aggregate"

# What a block binds to names: the value of each.
_Calls = Mapping[str, tff.framework.ComputationBuildingBlock]


class Mergeable(NamedTuple):
  """A computation that was split.

  Attributes:
    part: From the argument with some of the clients to `<sums, clients' results>`: what
      each aggregation has accumulated, at the server, and each client-placed result.
    build_join: `(number of parts) -> computation` from `<argument without clients, the
      parts' sums>` to the server-placed results; None where there is none.
    type_signature: That of the whole computation.
  """

  part: tff.Computation
  build_join: Optional[Callable[[int], tff.Computation]]
  type_signature: tff.FunctionType


def takes_clients(parameter: Optional[tff.Type]) -> bool:
  """Whether an argument of this type has a value for each client."""
  return parameter is not None and tff.types.contains(parameter, _is_per_client)


def split(comp: tff.Computation) -> Mergeable:
  """Splits a computation that takes clients' values.

  Args:
    comp: The computation.

  Raises:
    UnsupportedComputationError: What clients do or get depends on an aggregate, or
      something else than `federated_aggregate` moves values to the server.
  """
  whole = compiler.to_call_dominant(comp)
  body = whole.result
  calls = dict(body.locals) if isinstance(body, _blocks.Block) else {}
  result = body.result if isinstance(body, _blocks.Block) else body
  aggregates = [name for name, call in calls.items() if _moves_to_server(call)]
  _check(calls, aggregates)
  leaves = _placed_blocks(result)
  at_server = [b for b in leaves if b.type_signature.placement is tff.SERVER]
  at_clients = [b for b in leaves if b.type_signature.placement is tff.CLIENTS]
  # The compiler forgets Python's containers; these types still have them.
  types = list(_leaf_types(comp.type_signature.result))
  server_types = [t for t in types if t.placement is tff.SERVER]
  client_types = [t for t in types if t.placement is tff.CLIENTS]
  if _needed(at_clients, calls) & set(aggregates):
    raise UnsupportedComputationError(
      "What this computation gives back to its clients depends on an aggregate, so "
      "several workers cannot share it: use one worker, or the in_process runtime."
    )
  cut = {name: calls[name] for name in aggregates if name in _needed(at_server, calls)}
  sums = {name: _without_report(call) for name, call in cut.items()}
  references = [_blocks.Reference(n, c.type_signature) for n, c in sums.items()]
  part = _blocks.Lambda(
    whole.parameter_name,
    whole.parameter_type,
    _block(
      {**calls, **sums},
      _blocks.Struct([_blocks.Struct(references), _blocks.Struct(at_clients)]),
    ),
  )
  return Mergeable(
    part=_returning(
      _computation(part), [[c.type_signature for c in sums.values()], client_types]
    ),
    build_join=(
      _join_builder(whole, calls, cut, at_server, server_types) if at_server else None
    ),
    type_signature=comp.type_signature,
  )


def _is_per_client(t: tff.Type) -> bool:
  is_federated = isinstance(t, tff.FederatedType)
  return is_federated and t.placement is tff.CLIENTS and not t.all_equal


def _moves_to_server(call: tff.framework.ComputationBuildingBlock) -> bool:
  if call.argument is None or not isinstance(call.type_signature, tff.FederatedType):
    return False
  return call.type_signature.placement is tff.SERVER and tff.types.contains(
    call.argument.type_signature,
    lambda t: isinstance(t, tff.FederatedType) and t.placement is tff.CLIENTS,
  )


def _check(calls: _Calls, aggregates: list[str]) -> None:
  for name in aggregates:
    uri = calls[name].function.uri
    if uri != _AGGREGATE:
      raise UnsupportedComputationError(
        f"Several workers cannot share a computation that uses {uri}: use one worker."
      )
    if _needed([calls[name]], calls) & set(aggregates):
      raise UnsupportedComputationError(
        "This computation aggregates more than once in a row (what its clients do "
        "depends on an aggregate, as with FedAgg's estimates), so several workers "
        "cannot share it: use one worker, or the in_process runtime."
      )


def _without_report(call: tff.framework.Call) -> tff.framework.Call:
  """The aggregation that gives what it has accumulated."""
  value, zero, accumulate, merge, _ = (call.argument[i] for i in range(5))
  sum_type = merge.type_signature.result
  argument = _blocks.Struct(
    [value, zero, accumulate, merge, _blocks.Lambda("x", sum_type, _reference(sum_type))]
  )
  signature = tff.FunctionType(
    argument.type_signature, tff.FederatedType(sum_type, tff.SERVER)
  )
  return _blocks.Call(_blocks.Intrinsic(_AGGREGATE, signature), argument)


def _reference(t: tff.Type) -> tff.framework.Reference:
  return _blocks.Reference("x", t)


def _join_builder(
  whole: tff.framework.Lambda,
  calls: _Calls,
  cut: _Calls,
  at_server: list[tff.framework.ComputationBuildingBlock],
  server_types: list[tff.Type],
) -> Callable[[int], tff.Computation]:
  merges = [_computation(call.argument[3]) for call in cut.values()]
  reports = [_computation(call.argument[4]) for call in cut.values()]
  rest = _rest(whole, calls, cut, at_server)
  sums_type = tff.StructType(
    [tff.FederatedType(merge.type_signature.result, tff.SERVER) for merge in merges]
  )

  def build_join(num_parts: int) -> tff.Computation:
    @tff.federated_computation(whole.parameter_type, [sums_type] * num_parts)
    def join(argument, parts):
      aggregates = []
      for k, (merge, report) in enumerate(zip(merges, reports)):
        total = parts[0][k]
        for i in range(1, num_parts):
          total = tff.federated_map(merge, (total, parts[i][k]))
        aggregates.append(tff.federated_map(report, total))
      return rest(argument, aggregates)

    return _returning(join, server_types)

  return build_join


def _rest(
  whole: tff.framework.Lambda,
  calls: _Calls,
  cut: _Calls,
  at_server: list[tff.framework.ComputationBuildingBlock],
) -> tff.Computation:
  """From the argument and the aggregates to what is at the server in the end."""
  name = next(_blocks.unique_name_generator(whole))
  types = [call.type_signature for call in cut.values()]
  given = _blocks.Reference(name, tff.StructType([whole.parameter_type, types]))
  known = {whole.parameter_name: _blocks.Selection(given, index=0)}
  for k, aggregate in enumerate(cut):
    known[aggregate] = _blocks.Selection(_blocks.Selection(given, index=1), index=k)
  others = {name: call for name, call in calls.items() if name not in cut}
  block = _block({**known, **others}, _blocks.Struct(at_server))
  return _computation(_blocks.Lambda(name, given.type_signature, block))


def _block(
  calls: _Calls, result: tff.framework.ComputationBuildingBlock
) -> tff.framework.Block:
  """The result, after those of the calls that it needs."""
  needed = _needed([result], calls)
  return _blocks.Block([(n, c) for n, c in calls.items() if n in needed], result)


def _needed(
  blocks: Iterable[tff.framework.ComputationBuildingBlock], calls: _Calls
) -> set[str]:
  """The names of the calls that some blocks depend on."""
  found: set[str] = set()
  waiting = list(blocks)
  while waiting:
    for name in _names(waiting.pop()):
      if name in calls and name not in found:
        found.add(name)
        waiting.append(calls[name])
  return found


def _names(block: tff.framework.ComputationBuildingBlock) -> set[str]:
  """All references; in the call-dominant form no name stands for two things."""
  found: set[str] = set()

  def visit(inner):
    if isinstance(inner, _blocks.Reference):
      found.add(inner.name)
    return inner, False

  _blocks.transform_postorder(block, visit)
  return found


def _placed_blocks(
  block: tff.framework.ComputationBuildingBlock,
) -> list[tff.framework.ComputationBuildingBlock]:
  t = block.type_signature
  if isinstance(t, tff.FederatedType):
    return [block]
  if not isinstance(t, tff.StructType):
    raise UnsupportedComputationError(
      f"Several workers cannot share a computation with a result of type {t}, which is "
      "neither at the server nor at the clients: use one worker."
    )
  is_struct = isinstance(block, _blocks.Struct)
  elements = [
    block[i] if is_struct else _blocks.Selection(block, index=i) for i in range(len(t))
  ]
  return [leaf for element in elements for leaf in _placed_blocks(element)]


def _computation(block: tff.framework.ComputationBuildingBlock) -> tff.Computation:
  return tff.framework.ConcreteComputation.from_building_block(block)


def _returning(comp: tff.Computation, result_type: Any) -> tff.Computation:
  """The computation with a result type that has Python's containers."""
  signature = tff.FunctionType(comp.type_signature.parameter, result_type)
  return tff.framework.ConcreteComputation.with_type(comp, signature)


# --- Values ----------------------------------------------------------------------------


def split_argument(value: Any, t: tff.Type, num_parts: int) -> list[Any]:
  """The argument with each part's clients: contiguous, the first parts one more.

  Args:
    value: The whole argument.
    t: Its type.
    num_parts: How many parts; no more than there are clients, except that no clients
      are one part.

  Raises:
    InputError: The values are for different numbers of clients.
    TypeError: What is to have a value for each client is no list.
  """
  counts = {
    len(values.of_clients(v, u)) for v, u in _placed_values(value, t) if _is_per_client(u)
  }
  if len(counts) > 1:
    raise InputError(
      "The arguments are for different numbers of clients: "
      f"{', '.join(map(str, sorted(counts)))}; give one value for each client."
    )
  num_clients = counts.pop()
  num_parts = max(1, min(num_parts, num_clients))
  size, more = divmod(num_clients, num_parts)
  ends = [k * size + min(k, more) for k in range(num_parts + 1)]
  return [with_clients(value, t, slice(start, end)) for start, end in zip(ends, ends[1:])]


def with_clients(value: Any, t: tff.Type, which: slice) -> Any:
  """The argument with some of its clients."""
  if isinstance(t, tff.FederatedType):
    return list(value)[which] if _is_per_client(t) else value
  if not isinstance(t, tff.StructType):
    return value
  return _Struct(
    [(name, with_clients(v, u, which)) for name, v, u in _elements(value, t)]
  )


def join_results(comp: Mergeable, parts: list[Any], at_server: Any) -> Any:
  """The whole computation's result.

  Args:
    comp: The computation.
    parts: Each part's client-placed results.
    at_server: The server-placed results.
  """
  result_type = comp.type_signature.result
  of_server = iter(at_server)
  of_clients = iter(list(zip(*map(list, parts))))

  def build(t):
    if isinstance(t, tff.StructType):
      return _Struct([(n, build(e)) for n, e in tff.structure.iter_elements(t)])
    if t.placement is tff.SERVER:
      return next(of_server)
    values = next(of_clients)
    return values[0] if t.all_equal else [v for part in values for v in part]

  return tff.types.type_to_py_container(build(result_type), result_type)


def _leaf_types(t: tff.Type) -> Iterator[tff.Type]:
  if isinstance(t, tff.StructType):
    for _, element in tff.structure.iter_elements(t):
      yield from _leaf_types(element)
  else:
    yield t


def _placed_values(value: Any, t: tff.Type) -> Iterator[tuple[Any, tff.Type]]:
  if isinstance(t, tff.StructType):
    for _, v, u in _elements(value, t):
      yield from _placed_values(v, u)
  else:
    yield value, t


def _elements(value: Any, t: tff.StructType) -> Iterator[tuple[Any, Any, tff.Type]]:
  values = tff.structure.from_container(value)
  for (name, element_type), v in zip(tff.structure.iter_elements(t), values):
    yield name, v, element_type
