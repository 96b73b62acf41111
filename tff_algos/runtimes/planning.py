"""Plans a computation as steps: traced functions between federated values.

A compiled computation is first turned into a graph of `Node`s, one for each federated
value, then cut into `Step`s, each one function from the values that it is given to those
that are asked of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.errors import UnsupportedComputationError
from tff_algos.runtimes import tracing, values
from tff_algos.runtimes.tracing import Lazy
from tff_algos.runtimes.values import Struct

_blocks = tff.framework

_VALUE = "federated_value_at_server"
_EVAL_URIS = ("federated_eval_at_server", "federated_eval_at_clients")
_MAP_URIS = ("federated_apply", "federated_map", "federated_map_all_equal")
_ZIP_URIS = ("federated_zip_at_server", "federated_zip_at_clients")


class Node:
  """A federated value of the computation; an aggregate is what was accumulated.

  `level` counts the exchanges from clients to server that it depends on.
  """

  def __init__(
    self,
    kind: str,
    t: tff.FederatedType,
    inputs: Iterable[Node] = (),
    detail: Any = None,
  ):
    self.kind, self.type, self.inputs, self.detail = kind, t.member, tuple(inputs), detail
    self.at_server = t.placement is tff.SERVER
    self.all_equal = t.all_equal
    below = max((n.level for n in self.inputs), default=0)
    self.level: int = below + 1 if kind == "aggregate" else below

  @property
  def is_source(self) -> bool:
    """Whether it is given to a step rather than computed in one."""
    return self.kind in ("argument", "broadcast", "aggregate")


def plan_block(
  block: tff.framework.ComputationBuildingBlock, env: Mapping[str, Any]
) -> Any:
  """The symbolic value of a block: `Node`s, structs of them, or `Lazy` expressions."""
  t = block.type_signature
  if tff.types.contains_only(t, lambda part: isinstance(part, tff.StructType)):
    return values.pack(t, iter(()))  # It may stand among federated values.
  if not tff.types.contains(t, lambda part: isinstance(part, tff.FederatedType)):
    return Lazy(block, env)
  if isinstance(block, _blocks.Reference):
    return env[block.name]
  if isinstance(block, _blocks.Block):
    env = dict(env)
    for name, value in block.locals:
      env[name] = plan_block(value, env)
    return plan_block(block.result, env)
  if isinstance(block, _blocks.Struct):
    elements = tff.structure.iter_elements(block)
    return Struct([(n, plan_block(b, env)) for n, b in elements])
  if isinstance(block, _blocks.Selection):
    source = plan_block(block.source, env)
    return source[block.index] if block.index is not None else getattr(source, block.name)
  if isinstance(block, _blocks.Call) and isinstance(block.function, _blocks.Intrinsic):
    return _plan_intrinsic(block.function.uri, block.argument, block.type_signature, env)
  if isinstance(block, _blocks.Call):
    function = block.function
    if isinstance(function, _blocks.Lambda):
      argument = plan_block(block.argument, env)
      return plan_block(function.result, {**env, function.parameter_name: argument})
  raise UnsupportedComputationError(
    "The in_process runtime cannot plan this federated expression: "
    f"{block.compact_representation()[:200]}"
  )


def _plan_intrinsic(
  uri: str,
  argument: tff.framework.ComputationBuildingBlock,
  result_type: tff.FederatedType,
  env: Mapping[str, Any],
) -> Node:
  if uri == _VALUE or uri in _EVAL_URIS:
    return Node(uri, result_type, detail=Lazy(argument, env))
  if uri == "federated_value_at_clients":
    # What is drawn in it is drawn once.
    return Node("broadcast", result_type, [_value_at_server(Lazy(argument, env))])
  if uri == "federated_broadcast":
    return Node("broadcast", result_type, [plan_block(argument, env)])
  if uri in _MAP_URIS:
    function, value = argument[0], plan_block(argument[1], env)
    return Node("map", result_type, [value], Lazy(function, env))
  if uri in _ZIP_URIS:
    value = plan_block(argument, env)
    return Node("zip", result_type, nodes_in(value), value)
  if uri == "federated_aggregate":
    zero, accumulate, merge, report = (Lazy(argument[i], env) for i in range(1, 5))
    total_type = accumulate.block.type_signature.result
    total = Node(
      "aggregate",
      tff.FederatedType(total_type, tff.SERVER),
      [plan_block(argument[0], env)],
      (zero, accumulate, merge),
    )
    return Node("map", result_type, [total], report)
  raise UnsupportedComputationError(
    f"The in_process runtime does not run {uri}; use another runtime for it."
  )


def argument_of(t: tff.FederatedType) -> Node:
  """The node of an argument; of a broadcast, its input is what is given."""
  if t.placement is tff.SERVER or not t.all_equal:
    return Node("argument", t)
  return Node("broadcast", t, [Node("argument", tff.FederatedType(t.member, tff.SERVER))])


def result_of(value: Any) -> Any:
  """The planned value with its parts where there is one of each: at the server.

  All but what clients have each their own of: unplaced values, and client-placed ones
  that are equal for all, which are there even if there is no client.
  """
  return values.map_struct(
    lambda v: _value_at_server(v) if isinstance(v, Lazy) else _at_server_if_equal(v),
    value,
  )


def _value_at_server(value: Lazy) -> Node:
  t = tff.FederatedType(value.block.type_signature, tff.SERVER)
  return Node(_VALUE, t, detail=value)


def _at_server_if_equal(node: Node) -> Node:
  if node.at_server or not node.all_equal:
    return node
  if node.kind == "broadcast":
    return node.inputs[0]
  t = tff.FederatedType(node.type, tff.SERVER)
  if node.kind == "zip":
    parts = values.map_struct(_at_server_if_equal, node.detail)
    return Node("zip", t, nodes_in(parts), parts)
  return Node("map", t, map(_at_server_if_equal, node.inputs), node.detail)


def nodes_in(value: Any) -> list[Node]:
  """The nodes of a planned value."""
  if isinstance(value, Node):
    return [value]
  return [n for v in value for n in nodes_in(v)] if isinstance(value, Struct) else []


def _value_of(node: Node, known: dict[Node, Any]) -> Any:
  """The value of a node inside a trace that was given the values of some."""
  if node not in known:
    if node.kind == "map":
      function = node.detail.evaluate()
      known[node] = function(_value_of(node.inputs[0], known))
    elif node.kind == "zip":
      known[node] = values.map_struct(lambda n: _value_of(n, known), node.detail)
    else:
      value = node.detail.evaluate()
      known[node] = value() if node.kind in _EVAL_URIS else value
  return known[node]


class Step:
  """One function from the leaves of some nodes to the leaves of others."""

  def __init__(self, requested: list[Node], is_given: Callable[[Node], bool]):
    self.requested = requested
    self.inputs = [n for n in reachable(requested, is_given) if is_given(n)]
    specs = [s for n in self.inputs for s in values.specs_of(n.type)]
    self.function = tracing.Function(self.trace, specs)

  def prepare(self) -> None:
    """Has TensorFlow trace what `run` needs, before threads call it."""
    if self.requested:
      self.function.trace()

  def trace(self, *flat: tf.Tensor) -> list[list[tf.Tensor]]:
    """The requested leaves, by those of the given nodes, inside a trace."""
    leaves = iter(flat)
    known = {node: values.pack(node.type, leaves) for node in self.inputs}
    return [values.flatten_tensors(n.type, _value_of(n, known)) for n in self.requested]

  def run(self, leaves_of: Mapping[Node, list[tf.Tensor]]) -> dict[Node, list[tf.Tensor]]:
    """The requested values, by the leaves of the given ones."""
    if not self.requested:
      return {}
    results = self.function(*[v for n in self.inputs for v in leaves_of[n]])
    return dict(zip(self.requested, results))


def readings_of(nodes: list[Node]) -> list[Node]:
  """The first maps to values whose sizes, and only these, are unknown beforehand.

  A first dimension is, and a string's length. What is made of such a value is no reading.
  """
  found = [n for n in nodes if n.kind == "map" and _is_of_unknown_size(n.type)]
  return [n for n in found if not any(other in found for other in reachable(n.inputs))]


def _is_of_unknown_size(t: tff.Type) -> bool:
  specs = values.specs_of(t)
  strings = [s for s in specs if s.dtype == tf.string]
  shapes = [s.shape for s in specs if s.dtype != tf.string]
  rest_is_known = all(s.rank is not None and None not in s[1:].as_list() for s in shapes)
  are_scalars = all(s.shape.rank == 0 for s in strings)
  is_unknown = bool(strings) or any(map(values.is_ragged_shape, shapes))
  return rest_is_known and are_scalars and is_unknown


def reachable(
  nodes: Iterable[Node], is_given: Callable[[Node], bool] = lambda node: False
) -> list[Node]:
  """The nodes that some depend on, and these themselves; none beyond those given."""
  found: dict[Node, None] = {}
  waiting = list(nodes)
  while waiting:
    node = waiting.pop()
    if node not in found:
      found[node] = None
      if not is_given(node):
        waiting.extend(node.inputs)
  return list(found)
