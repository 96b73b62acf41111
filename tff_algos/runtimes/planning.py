"""Plans a computation as steps: traced functions between federated values.

A compiled computation is first turned into a graph of `Node`s, one for each federated
value, then cut into `Step`s, each one `tf.function` from the values that it is given to
those that are asked of it.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow.core.protobuf import saved_object_graph_pb2
from tensorflow.python.saved_model import (
  function_deserialization,
  nested_structure_coder,
)

from tff_algos.runtimes.compiler import UnsupportedComputationError

_blocks = tff.framework
_Struct = tff.structure.Struct

_SERVER_URIS = ("federated_value_at_server", "federated_eval_at_server")
_CLIENT_URIS = ("federated_value_at_clients", "federated_eval_at_clients")
_MAP_URIS = ("federated_apply", "federated_map", "federated_map_all_equal")
_ZIP_URIS = ("federated_zip_at_server", "federated_zip_at_clients")


# --- Values as flat lists of tensors ---------------------------------------------------


def specs_of(t: tff.Type) -> list[tf.TensorSpec]:
  """What the leaves of a type are as tensors."""
  if isinstance(t, tff.TensorType):
    return [tf.TensorSpec(t.shape, t.dtype)]
  if isinstance(t, tff.SequenceType):
    return [tf.TensorSpec([], tf.variant)]
  if isinstance(t, tff.StructType):
    return [s for _, e in tff.structure.iter_elements(t) for s in specs_of(e)]
  raise UnsupportedComputationError(f"The in_process runtime has no values of type {t}.")


def pack(t: tff.Type, leaves: Iterator) -> Any:
  """The value of a type, made of its leaves."""
  if isinstance(t, tff.StructType):
    return _Struct([(n, pack(e, leaves)) for n, e in tff.structure.iter_elements(t)])
  return next(leaves)


def flatten(t: tff.Type, value: Any) -> list:
  """The leaves of a value from outside or from a trace, in the order of its type."""
  if isinstance(t, tff.StructType):
    elements = list(tff.structure.iter_elements(t))
    return [
      leaf
      for (_, e), v in zip(elements, _elements(value, [n for n, _ in elements], t))
      for leaf in flatten(e, v)
    ]
  if isinstance(t, tff.SequenceType) and isinstance(value, tf.data.Dataset):
    return [tf.data.experimental.to_variant(value)]
  return [value]


def _elements(value: Any, names: list, t: tff.Type) -> list:
  if isinstance(value, Mapping):
    values = [value[n] for n in names] if all(names) else list(value.values())
  elif hasattr(value, "__attrs_attrs__"):
    values = [getattr(value, n) for n in names]
  else:
    values = list(value)
  if len(values) != len(names):
    raise TypeError(f"Expected a value of type {t}; found {len(values)} elements.")
  return values


def as_tensors(specs: list[tf.TensorSpec], leaves: list) -> list[tf.Tensor]:
  """Leaves as tensors of their dtypes."""
  return [tf.convert_to_tensor(v, s.dtype) for s, v in zip(specs, leaves)]


def to_numpy(tensor: tf.Tensor) -> Any:
  """An array, or a NumPy scalar."""
  # `numpy()` would copy an array that nothing else can change.
  return np.asarray(tensor) if tensor.shape.rank else tensor.numpy()


# --- Evaluation of unplaced building blocks inside a trace ------------------------------


class _Lazy:
  """An unplaced expression, evaluated in whichever trace needs its value."""

  def __init__(self, block, env):
    self.block, self.env = block, env


def evaluate(block, env: Mapping[str, Any]) -> Any:
  """The value of a block without federated parts: tensors, structs, functions."""
  if isinstance(block, _blocks.Reference):
    value = env[block.name]
    return evaluate(value.block, value.env) if isinstance(value, _Lazy) else value
  if isinstance(block, _blocks.Lambda):
    name, result = block.parameter_name, block.result
    return lambda a=None: evaluate(result, {**env, name: a} if name else env)
  if isinstance(block, _blocks.CompiledComputation):
    return lambda a=None: _call_tensorflow(block, a)
  if isinstance(block, _blocks.Call):
    function = evaluate(block.function, env)
    argument = block.argument
    return function(None if argument is None else evaluate(argument, env))
  if isinstance(block, _blocks.Block):
    env = dict(env)
    for name, value in block.locals:
      env[name] = evaluate(value, env)
    return evaluate(block.result, env)
  if isinstance(block, _blocks.Selection):
    source = evaluate(block.source, env)
    return source[block.index] if block.index is not None else getattr(source, block.name)
  if isinstance(block, _blocks.Struct):
    return _Struct([(n, evaluate(b, env)) for n, b in tff.structure.iter_elements(block)])
  if isinstance(block, _blocks.Literal):
    return tf.constant(block.value)
  raise UnsupportedComputationError(
    f"The in_process runtime cannot run {type(block).__name__} blocks: "
    f"{block.compact_representation()[:200]}"
  )


def _call_tensorflow(block, argument: Any) -> Any:
  """Puts a TensorFlow computation's graph into the function that is being traced."""
  signature = block.type_signature
  proto = block.proto.tensorflow
  if proto.initialize_op:
    raise UnsupportedComputationError(
      "The in_process runtime runs pure TensorFlow only, and this computation holds "
      "variables: build it from a functional model, or use the local_worker runtime."
    )
  graph_def = tf.compat.v1.GraphDef.FromString(proto.graph_def.value)
  _take_functions(graph_def)
  inputs: dict[str, tf.Tensor] = {}
  if signature.parameter is not None:
    names = _tensor_names(proto.parameter)
    leaves = flatten(signature.parameter, argument)
    specs = specs_of(signature.parameter)
    inputs.update(zip(names, as_tensors(specs, leaves)))
  if proto.session_token_tensor_name:
    inputs[proto.session_token_tensor_name] = tf.constant("")
  names = _tensor_names(proto.result)
  outputs = tf.graph_util.import_graph_def(
    graph_def, input_map=inputs, return_elements=names
  )
  for tensor, spec in zip(outputs, specs_of(signature.result)):
    if tensor.dtype != tf.variant:
      tensor.set_shape(spec.shape)
  return pack(signature.result, iter(outputs))


def _take_functions(graph_def: tf.compat.v1.GraphDef) -> None:
  """Makes a graph's functions known to the graph being traced, under new names.

  `import_graph_def` would keep their names, of which two computations from different
  processes may have the same, and no Python objects of them, which vectorising needs.
  """
  signatures = saved_object_graph_pb2.SavedObjectGraph()
  for definition in graph_def.library.function:
    signature = signatures.concrete_functions[definition.signature.name]
    inputs, outputs = (
      tuple(tf.TensorSpec(None, argument.type) for argument in arguments)
      for arguments in (definition.signature.input_arg, definition.signature.output_arg)
    )
    encode = nested_structure_coder.encode_structure
    signature.canonicalized_input_signature.CopyFrom(encode((inputs, {})))
    signature.output_signature.CopyFrom(encode(outputs))
  functions = function_deserialization.load_function_def_library(
    graph_def.library, signatures
  )
  names = {}
  for name, function in functions.items():
    function.add_to_graph(tf.compat.v1.get_default_graph())
    names[name] = function.name
  for node in graph_def.node:
    node.op = names.get(node.op, node.op)
    for attribute in node.attr.values():
      references = list(attribute.list.func) if attribute.HasField("list") else []
      if attribute.HasField("func"):
        references.append(attribute.func)
      for reference in references:
        reference.name = names.get(reference.name, reference.name)
  graph_def.ClearField("library")


def _tensor_names(binding) -> list[str]:
  kind = binding.WhichOneof("binding")
  if kind == "struct":
    return [name for element in binding.struct.element for name in _tensor_names(element)]
  if kind == "sequence":
    return [binding.sequence.variant_tensor_name]
  return [binding.tensor.tensor_name]


# --- Planning --------------------------------------------------------------------------


class Node:
  """A federated value of the computation.

  `level` counts the exchanges from clients to server that it depends on.
  """

  def __init__(self, kind: str, t: tff.FederatedType, inputs=(), detail: Any = None):
    self.kind, self.type, self.inputs, self.detail = kind, t.member, tuple(inputs), detail
    self.at_server = t.placement is tff.SERVER
    self.all_equal = t.all_equal
    below = max((n.level for n in self.inputs), default=0)
    self.level = below + 1 if kind == "aggregate" else below

  @property
  def is_source(self) -> bool:
    """Whether it is given to a step rather than computed in one."""
    return self.kind in ("argument", "broadcast", "aggregate")


def plan_block(block, env: Mapping[str, Any]) -> Any:
  """The symbolic value of a block: `Node`s, structs of them, or `_Lazy` expressions."""
  if not tff.types.contains(
    block.type_signature, lambda t: isinstance(t, tff.FederatedType)
  ):
    return _Lazy(block, env)
  if isinstance(block, _blocks.Reference):
    return env[block.name]
  if isinstance(block, _blocks.Block):
    env = dict(env)
    for name, value in block.locals:
      env[name] = plan_block(value, env)
    return plan_block(block.result, env)
  if isinstance(block, _blocks.Struct):
    elements = tff.structure.iter_elements(block)
    return _Struct([(n, plan_block(b, env)) for n, b in elements])
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


def _plan_intrinsic(uri: str, argument, result_type, env) -> Node:
  if uri in _SERVER_URIS + _CLIENT_URIS:
    return Node(uri, result_type, detail=_Lazy(argument, env))
  if uri == "federated_broadcast":
    return Node("broadcast", result_type, [plan_block(argument, env)])
  if uri in _MAP_URIS:
    function, value = argument[0], plan_block(argument[1], env)
    return Node("map", result_type, [value], _Lazy(function, env))
  if uri in _ZIP_URIS:
    value = plan_block(argument, env)
    return Node("zip", result_type, nodes_in(value), value)
  if uri == "federated_aggregate":
    zero, accumulate, _, report = (_Lazy(argument[i], env) for i in range(1, 5))
    value = plan_block(argument[0], env)
    return Node("aggregate", result_type, [value], (zero, accumulate, report))
  raise UnsupportedComputationError(
    f"The in_process runtime does not run {uri}; use another runtime for it."
  )


def nodes_in(value: Any) -> list[Node]:
  """The nodes of a planned value."""
  if isinstance(value, Node):
    return [value]
  return [n for v in value for n in nodes_in(v)] if isinstance(value, _Struct) else []


def map_struct(function: Callable, value: Any) -> Any:
  """A structure of the same names with `function` of each leaf."""
  if isinstance(value, _Struct):
    elements = tff.structure.iter_elements(value)
    return _Struct([(n, map_struct(function, v)) for n, v in elements])
  return function(value)


def _value_of(node: Node, known: dict[Node, Any]) -> Any:
  """The value of a node inside a trace that was given the values of some."""
  if node not in known:
    if node.kind == "map":
      function = evaluate(node.detail.block, node.detail.env)
      known[node] = function(_value_of(node.inputs[0], known))
    elif node.kind == "zip":
      known[node] = map_struct(lambda n: _value_of(n, known), node.detail)
    else:
      value = evaluate(node.detail.block, node.detail.env)
      known[node] = value() if node.kind.startswith("federated_eval") else value
  return known[node]


def _accumulator_type(node: Node) -> tff.Type:
  return node.detail[1].block.type_signature.result


def concrete_function(function: Callable, specs: list[tf.TensorSpec]):
  """Traces a function of flat lists of tensors."""
  traced = tf.function(function, input_signature=specs, autograph=False)
  return traced.get_concrete_function()


class Step:
  """One function from the leaves of some nodes to the leaves of others."""

  def __init__(self, requested: list[Node], is_given: Callable[[Node], bool]):
    self.requested = requested
    self.inputs = [n for n in reachable(requested, is_given) if is_given(n)]

  @functools.cached_property
  def function(self):
    """The function, traced."""
    return concrete_function(self.trace, self.specs)

  @property
  def specs(self) -> list[tf.TensorSpec]:
    """Its arguments."""
    return [s for n in self.inputs for s in _given_specs(n)]

  def trace(self, *flat):
    """The requested leaves, by those of the given nodes, inside a trace."""
    leaves = iter(flat)
    known: dict[Node, Any] = {}
    for node in self.inputs:
      if node.kind == "aggregate":
        total = pack(_accumulator_type(node), leaves)
        report = node.detail[2]
        known[node] = evaluate(report.block, report.env)(total)
      else:
        known[node] = pack(node.type, leaves)
    return [flatten_tensors(n.type, _value_of(n, known)) for n in self.requested]

  def run(self, leaves_of: Mapping[Node, list]) -> dict[Node, list]:
    """The requested values, by the leaves of the given ones."""
    if not self.requested:
      return {}
    results = self.function(*[v for n in self.inputs for v in leaves_of[n]])
    return dict(zip(self.requested, results))


def readings_of(nodes: list[Node]) -> list[Node]:
  """Maps to values whose first dimensions, and only these, are unknown beforehand."""
  return [n for n in nodes if n.kind == "map" and _is_ragged(n.type)]


def _is_ragged(t: tff.Type) -> bool:
  shapes = [s.shape for s in specs_of(t)]
  rest_is_known = all(s.rank is not None and None not in s[1:].as_list() for s in shapes)
  return rest_is_known and any(map(is_ragged_shape, shapes))


def is_ragged_shape(shape: tf.TensorShape) -> bool:
  """Whether the first dimension is unknown."""
  return bool(shape.rank) and shape[0] is None


def _given_specs(node: Node) -> list[tf.TensorSpec]:
  return specs_of(_accumulator_type(node) if node.kind == "aggregate" else node.type)


def flatten_tensors(t: tff.Type, value: Any) -> list[tf.Tensor]:
  """The leaves of a value as tensors."""
  return as_tensors(specs_of(t), flatten(t, value))


# Of sums: one pass over memory for so many clients' values instead of one for each.
ADDED_AT_ONCE = 4


class Accumulation:
  """The accumulators of all aggregates of one level, updated by the clients in order."""

  def __init__(self, aggregates: list[Node]):
    self.aggregates = aggregates
    self._types = [_accumulator_type(n) for n in aggregates]
    self._counts = [len(specs_of(t)) for t in self._types]
    self._totals = [s for t in self._types for s in specs_of(t)]
    self._values = [s for n in aggregates for s in specs_of(n.inputs[0].type)]

  @functools.cached_property
  def _is_sum(self) -> bool:
    return bool(self._totals) and _is_sum(self.aggregates)

  def zero(self) -> list[tf.Tensor]:
    """The accumulators before any client."""
    return self._zero() if self._totals else []

  def add(self, totals: list, results: Sequence[Mapping[Node, list]]) -> list[tf.Tensor]:
    """The accumulators after some more clients."""
    if len(results) == ADDED_AT_ONCE and self._is_sum:
      return self._add_several(*totals, *(v for r in results for v in self._leaves(r)))
    for result in results if self._totals else []:
      totals = self._add(*totals, *self._leaves(result))
    return totals

  def add_all(self, totals: list, results: Mapping[Node, list]) -> list[tf.Tensor]:
    """The accumulators after several more clients, whose leaves are stacked."""
    return self._add_all(*totals, *self._leaves(results)) if self._totals else []

  def _leaves(self, results: Mapping[Node, list]) -> list:
    return [v for n in self.aggregates for v in results[n.inputs[0]]]

  @functools.cached_property
  def _zero(self):
    return concrete_function(self._trace_zero, [])

  @functools.cached_property
  def _add(self):
    return concrete_function(self._trace_add, self._totals + self._values)

  @functools.cached_property
  def _add_several(self):
    def trace(*flat):
      count = len(self._totals)
      leaves = [flat[i : i + count] for i in range(0, len(flat), count)]
      # In this order: the caller keeps the values, so that no buffer is taken over.
      return [tf.add_n(values) for values in zip(*leaves)]

    return concrete_function(trace, self._totals + ADDED_AT_ONCE * self._values)

  @functools.cached_property
  def _add_all(self):
    many = [tf.TensorSpec([None, *s.shape], s.dtype) for s in self._values]
    return concrete_function(self._trace_add_all, self._totals + many)

  def _trace_zero(self):
    return [
      leaf
      for node, t in zip(self.aggregates, self._types)
      for leaf in flatten_tensors(t, evaluate(node.detail[0].block, node.detail[0].env))
    ]

  def _trace_add(self, *flat):
    leaves = iter(flat)
    totals = [pack(t, leaves) for t in self._types]
    results = []
    for node, t, total in zip(self.aggregates, self._types, totals):
      value = pack(node.inputs[0].type, leaves)
      add = evaluate(node.detail[1].block, node.detail[1].env)
      results += flatten_tensors(t, add(_Struct([(None, total), (None, value)])))
    return results

  def _trace_add_all(self, *flat):
    count = len(self._totals)
    totals, values = flat[:count], flat[count:]
    if self._is_sum:
      return [t + tf.reduce_sum(v, axis=0) for t, v in zip(totals, values)]

    def add(client, *totals):
      return client + 1, *self._trace_add(*totals, *(v[client] for v in values))

    num_clients = tf.shape(values[0])[0]
    return tf.while_loop(
      lambda client, *_: client < num_clients,
      add,
      (tf.constant(0), *totals),
      parallel_iterations=1,
    )[1:]

  def split(self, totals: list) -> dict[Node, list]:
    """Each aggregate's accumulator."""
    leaves = iter(totals)
    return {
      n: [next(leaves) for _ in range(count)]
      for n, count in zip(self.aggregates, self._counts)
    }


def _is_sum(aggregates: list[Node]) -> bool:
  """Whether all that is done to accumulate values is to add them, leaf by leaf."""
  for node in aggregates:
    block, leaves = node.detail[1].block, len(specs_of(_accumulator_type(node)))
    if not isinstance(block, _blocks.CompiledComputation):
      return False
    operations = _operations(block)
    if operations.pop("AddV2", 0) + operations.pop("Add", 0) != leaves:
      return False
    if not operations.keys() <= {"Identity", "NoOp", "Placeholder"}:
      return False
  return True


def _operations(block) -> collections.Counter[str]:
  """How often each operation is in a TensorFlow computation, calls left out."""
  graph_def = tf.compat.v1.GraphDef.FromString(block.proto.tensorflow.graph_def.value)
  functions = graph_def.library.function
  nodes = [*graph_def.node, *(n for f in functions for n in f.node_def)]
  calls = {f.signature.name for f in functions}
  return collections.Counter(node.op for node in nodes if node.op not in calls)


def leaf_values(t: tff.Type, value: Any) -> list:
  """The placed values of an argument, in the order of the placed types."""
  if isinstance(t, tff.FederatedType):
    return [value]
  elements = list(tff.structure.iter_elements(t))
  values = _elements(value, [n for n, _ in elements], t)
  return [v for (_, e), x in zip(elements, values) for v in leaf_values(e, x)]


def reachable(
  nodes: list[Node], is_given: Callable[[Node], bool] = lambda node: False
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
