"""Runs TFF computations in this Python process, by the TensorFlow that is installed here.

No worker process is started and no port is opened. A computation is compiled by TFF and
then *planned* once: all that happens at the server between two exchanges becomes one
`tf.function`, and all that happens at a client another, whatever number of federated
operators the computation has. A round then costs one call for each client and one to
accumulate its result. Results are accumulated in the order of the clients, so they do not
depend on the number of threads.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import hashlib
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow.python.eager import context as tf_context
from tensorflow_federated.python.core.impl.types import type_conversions

from tff_algos.runtimes import compiler

_blocks = tff.framework
_Struct = tff.structure.Struct

_SERVER_URIS = ("federated_value_at_server", "federated_eval_at_server")
_CLIENT_URIS = ("federated_value_at_clients", "federated_eval_at_clients")
_MAP_URIS = ("federated_apply", "federated_map", "federated_map_all_equal")
_ZIP_URIS = ("federated_zip_at_server", "federated_zip_at_clients")


class UnsupportedComputationError(NotImplementedError):
  """The computation uses something that this runtime does not run."""


class InProcessContext(tff.framework.SyncContext):
  """A TFF execution context that interprets computations in this process."""

  def __init__(self, num_threads: Optional[int] = None):
    """Makes the context.

    Args:
      num_threads: How many clients are worked on at once; default: one for each core.
    """
    self._num_threads = num_threads or len(os.sched_getaffinity(0))
    self._pool = concurrent.futures.ThreadPoolExecutor(
      self._num_threads, thread_name_prefix="client"
    )
    # By identity: TFF's computations hash by their content, which would serialise the
    # whole graph in every round. An entry goes when its computation does.
    self._plans: dict[int, _Plan] = {}
    self._planning = threading.Lock()

  def invoke(self, comp: tff.Computation, arg: Any) -> Any:
    """Runs `comp`; see `tff.framework.SyncContext.invoke`.

    Raises:
      UnsupportedComputationError: `comp` holds TensorFlow variables, secure sums or
        other things this runtime lacks.
    """
    with self._planning:
      plan = self._plans.get(id(comp))
      if plan is None:
        plan = self._plans[id(comp)] = _Plan(comp)
        weakref.finalize(comp, self._plans.pop, id(comp), None)
    with _safe_for_threads():
      result = plan.run(arg, self._in_order)
    return type_conversions.type_to_py_container(result, comp.type_signature.result)

  def close(self) -> None:
    """Ends the client threads and forgets all compiled computations."""
    self._pool.shutdown(wait=True)
    self._plans.clear()

  def _in_order(self, function: Callable, arguments: Iterable) -> Iterator:
    """Maps on the threads, in order, at most a few results ahead of the caller."""
    waiting: collections.deque[concurrent.futures.Future] = collections.deque()
    try:
      for argument in arguments:
        waiting.append(self._pool.submit(_run_safely, function, argument))
        if len(waiting) > 2 * self._num_threads:
          yield waiting.popleft().result()
      while waiting:
        yield waiting.popleft().result()
    finally:
      for future in waiting:
        future.cancel()
      concurrent.futures.wait(waiting)


@contextlib.contextmanager
def _safe_for_threads() -> Iterator[None]:
  """Makes the functions that this thread calls safe to be called by several at once.

  TensorFlow's memory optimizer turns a large sum into one with a temporary variable,
  whose name clashes with that of another thread's call of the same function.
  """
  context = tf_context.context()
  before = context.function_call_options
  config = context.config
  rewrites = config.graph_options.rewrite_options
  rewrites.memory_optimization = rewrites.NO_MEM_OPT
  context.function_call_options = tf_context.FunctionCallOptions(config_proto=config)
  try:
    yield
  finally:
    context.function_call_options = before


def _run_safely(function: Callable, argument: Any) -> Any:
  with _safe_for_threads():
    return function(argument)


# --- Values as flat lists of tensors ---------------------------------------------------


def _specs(t: tff.Type) -> list[tf.TensorSpec]:
  if isinstance(t, tff.TensorType):
    return [tf.TensorSpec(t.shape, t.dtype)]
  if isinstance(t, tff.SequenceType):
    return [tf.TensorSpec([], tf.variant)]
  if isinstance(t, tff.StructType):
    return [s for _, e in tff.structure.iter_elements(t) for s in _specs(e)]
  raise UnsupportedComputationError(f"The in_process runtime has no values of type {t}.")


def _pack(t: tff.Type, leaves: Iterator) -> Any:
  if isinstance(t, tff.StructType):
    return _Struct([(n, _pack(e, leaves)) for n, e in tff.structure.iter_elements(t)])
  return next(leaves)


def _flatten(t: tff.Type, value: Any) -> list:
  """The leaves of a value from outside or from a trace, in the order of its type."""
  if isinstance(t, tff.StructType):
    elements = list(tff.structure.iter_elements(t))
    return [
      leaf
      for (_, e), v in zip(elements, _elements(value, [n for n, _ in elements], t))
      for leaf in _flatten(e, v)
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


def _tensors(specs: list[tf.TensorSpec], leaves: list) -> list[tf.Tensor]:
  return [tf.convert_to_tensor(v, s.dtype) for s, v in zip(specs, leaves)]


def _to_numpy(tensor: tf.Tensor) -> Any:
  # `numpy()` would copy an array that nothing else can change.
  return np.asarray(tensor) if tensor.shape.rank else tensor.numpy()


# --- Evaluation of unplaced building blocks inside a trace ------------------------------


class _Lazy:
  """An unplaced expression, evaluated in whichever trace needs its value."""

  def __init__(self, block, env):
    self.block, self.env = block, env


def _evaluate(block, env: Mapping[str, Any]) -> Any:
  """The value of a block without federated parts: tensors, structs, functions."""
  if isinstance(block, _blocks.Reference):
    value = env[block.name]
    return _evaluate(value.block, value.env) if isinstance(value, _Lazy) else value
  if isinstance(block, _blocks.Lambda):
    name, result = block.parameter_name, block.result
    return lambda a=None: _evaluate(result, {**env, name: a} if name else env)
  if isinstance(block, _blocks.CompiledComputation):
    return lambda a=None: _call_tensorflow(block, a)
  if isinstance(block, _blocks.Call):
    function = _evaluate(block.function, env)
    argument = block.argument
    return function(None if argument is None else _evaluate(argument, env))
  if isinstance(block, _blocks.Block):
    env = dict(env)
    for name, value in block.locals:
      env[name] = _evaluate(value, env)
    return _evaluate(block.result, env)
  if isinstance(block, _blocks.Selection):
    source = _evaluate(block.source, env)
    return source[block.index] if block.index is not None else getattr(source, block.name)
  if isinstance(block, _blocks.Struct):
    return _Struct(
      [(n, _evaluate(b, env)) for n, b in tff.structure.iter_elements(block)]
    )
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
  _register_functions(graph_def)
  inputs: dict[str, tf.Tensor] = {}
  if signature.parameter is not None:
    names = _tensor_names(proto.parameter)
    leaves = _flatten(signature.parameter, argument)
    specs = _specs(signature.parameter)
    inputs.update(zip(names, _tensors(specs, leaves)))
  if proto.session_token_tensor_name:
    inputs[proto.session_token_tensor_name] = tf.constant("")
  names = _tensor_names(proto.result)
  outputs = tf.graph_util.import_graph_def(
    graph_def, input_map=inputs, return_elements=names
  )
  for tensor, spec in zip(outputs, _specs(signature.result)):
    if tensor.dtype != tf.variant:
      tensor.set_shape(spec.shape)
  return _pack(signature.result, iter(outputs))


def _register_functions(graph_def: tf.compat.v1.GraphDef) -> None:
  """Makes the functions of a graph known to TensorFlow, under names of their own.

  `import_graph_def` leaves that to the caller, and two computations from different
  processes may use one name for two functions.
  """
  library = graph_def.library
  suffix = "_" + hashlib.sha256(library.SerializeToString(deterministic=True)).hexdigest()
  names = {f.signature.name: f.signature.name + suffix for f in library.function}
  nodes = list(graph_def.node)
  for function in library.function:
    function.signature.name = names[function.signature.name]
    nodes.extend(function.node_def)
  for gradient in library.gradient:
    gradient.function_name = names[gradient.function_name]
    gradient.gradient_func = names[gradient.gradient_func]
  for node in nodes:
    node.op = names.get(node.op, node.op)
    for attribute in node.attr.values():
      references = list(attribute.list.func) if attribute.HasField("list") else []
      if attribute.HasField("func"):
        references.append(attribute.func)
      for reference in references:
        reference.name = names.get(reference.name, reference.name)
  context = tf_context.context()
  context.ensure_initialized()
  for function in library.function:
    if not context.has_function(function.signature.name):
      context.add_function_def(function)


def _tensor_names(binding) -> list[str]:
  kind = binding.WhichOneof("binding")
  if kind == "struct":
    return [name for element in binding.struct.element for name in _tensor_names(element)]
  if kind == "sequence":
    return [binding.sequence.variant_tensor_name]
  return [binding.tensor.tensor_name]


# --- Planning --------------------------------------------------------------------------


class _Node:
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


def _plan_block(block, env: Mapping[str, Any]) -> Any:
  """The symbolic value of a block: `_Node`s, structs of them, or `_Lazy` expressions."""
  if not tff.types.contains(
    block.type_signature, lambda t: isinstance(t, tff.FederatedType)
  ):
    return _Lazy(block, env)
  if isinstance(block, _blocks.Reference):
    return env[block.name]
  if isinstance(block, _blocks.Block):
    env = dict(env)
    for name, value in block.locals:
      env[name] = _plan_block(value, env)
    return _plan_block(block.result, env)
  if isinstance(block, _blocks.Struct):
    elements = tff.structure.iter_elements(block)
    return _Struct([(n, _plan_block(b, env)) for n, b in elements])
  if isinstance(block, _blocks.Selection):
    source = _plan_block(block.source, env)
    return source[block.index] if block.index is not None else getattr(source, block.name)
  if isinstance(block, _blocks.Call) and isinstance(block.function, _blocks.Intrinsic):
    return _plan_intrinsic(block.function.uri, block.argument, block.type_signature, env)
  if isinstance(block, _blocks.Call):
    function = block.function
    if isinstance(function, _blocks.Lambda):
      argument = _plan_block(block.argument, env)
      return _plan_block(function.result, {**env, function.parameter_name: argument})
  raise UnsupportedComputationError(
    "The in_process runtime cannot plan this federated expression: "
    f"{block.compact_representation()[:200]}"
  )


def _plan_intrinsic(uri: str, argument, result_type, env) -> _Node:
  if uri in _SERVER_URIS + _CLIENT_URIS:
    return _Node(uri, result_type, detail=_Lazy(argument, env))
  if uri == "federated_broadcast":
    return _Node("broadcast", result_type, [_plan_block(argument, env)])
  if uri in _MAP_URIS:
    function, value = argument[0], _plan_block(argument[1], env)
    return _Node("map", result_type, [value], _Lazy(function, env))
  if uri in _ZIP_URIS:
    value = _plan_block(argument, env)
    return _Node("zip", result_type, _nodes(value), value)
  if uri == "federated_aggregate":
    zero, accumulate, _, report = (_Lazy(argument[i], env) for i in range(1, 5))
    value = _plan_block(argument[0], env)
    return _Node("aggregate", result_type, [value], (zero, accumulate, report))
  raise UnsupportedComputationError(
    f"The in_process runtime does not run {uri}; use another runtime for it."
  )


def _nodes(value: Any) -> list[_Node]:
  if isinstance(value, _Node):
    return [value]
  return [n for v in value for n in _nodes(v)] if isinstance(value, _Struct) else []


def _map_struct(function: Callable, value: Any) -> Any:
  if isinstance(value, _Struct):
    elements = tff.structure.iter_elements(value)
    return _Struct([(n, _map_struct(function, v)) for n, v in elements])
  return function(value)


def _value_of(node: _Node, known: dict[_Node, Any]) -> Any:
  """The value of a node inside a trace that was given the values of some."""
  if node not in known:
    if node.kind == "map":
      function = _evaluate(node.detail.block, node.detail.env)
      known[node] = function(_value_of(node.inputs[0], known))
    elif node.kind == "zip":
      known[node] = _map_struct(lambda n: _value_of(n, known), node.detail)
    else:
      value = _evaluate(node.detail.block, node.detail.env)
      known[node] = value() if node.kind.startswith("federated_eval") else value
  return known[node]


def _accumulator_type(node: _Node) -> tff.Type:
  return node.detail[1].block.type_signature.result


def _traced(function: Callable, specs: list[tf.TensorSpec]):
  traced = tf.function(function, input_signature=specs, autograph=False)
  return traced.get_concrete_function()


class _Step:
  """One traced function from the leaves of some nodes to the leaves of others."""

  def __init__(self, requested: list[_Node], is_given: Callable[[_Node], bool]):
    self.requested = requested
    self.inputs = self._find_inputs(is_given)
    flat = [s for n in self.inputs for s in _given_specs(n)]
    self.function = _traced(self._trace, flat)

  def _find_inputs(self, is_given) -> list[_Node]:
    found: dict[_Node, None] = {}
    waiting = list(self.requested)
    while waiting:
      node = waiting.pop()
      if is_given(node):
        found[node] = None
      else:
        waiting.extend(node.inputs)
    return list(found)

  def _trace(self, *flat):
    leaves = iter(flat)
    known: dict[_Node, Any] = {}
    for node in self.inputs:
      if node.kind == "aggregate":
        total = _pack(_accumulator_type(node), leaves)
        report = node.detail[2]
        known[node] = _evaluate(report.block, report.env)(total)
      else:
        known[node] = _pack(node.type, leaves)
    return [_flatten_tensors(n.type, _value_of(n, known)) for n in self.requested]

  def run(self, leaves_of: Mapping[_Node, list]) -> dict[_Node, list]:
    if not self.requested:
      return {}
    results = self.function(*[v for n in self.inputs for v in leaves_of[n]])
    return dict(zip(self.requested, results))


def _given_specs(node: _Node) -> list[tf.TensorSpec]:
  return _specs(_accumulator_type(node) if node.kind == "aggregate" else node.type)


def _flatten_tensors(t: tff.Type, value: Any) -> list[tf.Tensor]:
  return _tensors(_specs(t), _flatten(t, value))


class _Accumulation:
  """The accumulators of all aggregates of one level, updated by one call a client."""

  def __init__(self, aggregates: list[_Node]):
    self.aggregates = aggregates
    self._types = [_accumulator_type(n) for n in aggregates]
    self._counts = [len(_specs(t)) for t in self._types]
    if aggregates:
      self.zero = _traced(self._trace_zero, [])
      totals = [s for t in self._types for s in _specs(t)]
      values = [s for n in aggregates for s in _specs(n.inputs[0].type)]
      self.add = _traced(self._trace_add, totals + values)

  def _trace_zero(self):
    return [
      leaf
      for node, t in zip(self.aggregates, self._types)
      for leaf in _flatten_tensors(t, _evaluate(node.detail[0].block, node.detail[0].env))
    ]

  def _trace_add(self, *flat):
    leaves = iter(flat)
    totals = [_pack(t, leaves) for t in self._types]
    results = []
    for node, t, total in zip(self.aggregates, self._types, totals):
      value = _pack(node.inputs[0].type, leaves)
      add = _evaluate(node.detail[1].block, node.detail[1].env)
      results += _flatten_tensors(t, add(_Struct([(None, total), (None, value)])))
    return results

  def split(self, totals: list) -> dict[_Node, list]:
    leaves = iter(totals)
    return {
      n: [next(leaves) for _ in range(count)]
      for n, count in zip(self.aggregates, self._counts)
    }


class _Plan:
  """A computation as alternating steps at the server and at the clients."""

  def __init__(self, comp: tff.Computation):
    block = compiler.to_call_dominant(comp)
    self._parameter = comp.type_signature.parameter
    self._result = comp.type_signature.result
    self._is_federated = tff.types.contains(
      comp.type_signature, lambda t: isinstance(t, tff.FederatedType)
    )
    if not self._is_federated:
      self._plan_local(block)
      return
    self._arguments: list[_Node] = []
    env = {}
    if block.parameter_name is not None:
      env[block.parameter_name] = self._argument_nodes(self._parameter)
    self._results = _plan_block(block.result, env)
    self._plan_steps()

  def _plan_local(self, block) -> None:
    def trace(*leaves):
      argument = None
      if self._parameter is not None:
        argument = _pack(self._parameter, iter(leaves))
      return _flatten_tensors(self._result, _evaluate(block, {})(argument))

    specs = [] if self._parameter is None else _specs(self._parameter)
    self._local = _traced(trace, specs)

  def _argument_nodes(self, t: tff.Type) -> Any:
    if isinstance(t, tff.FederatedType):
      self._arguments.append(_Node("argument", t))
      return self._arguments[-1]
    if isinstance(t, tff.StructType):
      elements = tff.structure.iter_elements(t)
      return _Struct([(n, self._argument_nodes(e)) for n, e in elements])
    raise UnsupportedComputationError(
      f"The in_process runtime takes placed arguments only; found {t}."
    )

  def _plan_steps(self) -> None:
    nodes = _reachable(_nodes(self._results))
    # What a step hands on: results, and what another step takes. An aggregate takes its
    # client values as they come, so they are not kept.
    kept = dict.fromkeys(_nodes(self._results))
    summed: dict[_Node, None] = {}
    for node in nodes:
      for source in node.inputs:
        if node.kind == "aggregate":
          summed[source] = None
        elif node.kind == "broadcast" or source.level < node.level:
          kept[source] = None
    wanted = {**kept, **summed}
    self._kept = {n for n in kept if not n.is_source}

    def is_given(node: _Node) -> bool:
      return node.is_source or (node in wanted and node.level < level)

    self._levels = []
    for level in range(max((n.level for n in nodes), default=0) + 1):
      here = [n for n in wanted if n.level == level and (n in summed or not n.is_source)]
      server = _Step([n for n in here if n.at_server], is_given)
      clients = _Step([n for n in here if not n.at_server], is_given)
      sums = [n for n in nodes if n.kind == "aggregate" and n.level == level + 1]
      self._levels.append((server, clients, _Accumulation(sums)))

  def run(self, argument: Any, in_order: Callable) -> Any:
    if not self._is_federated:
      leaves = []
      if self._parameter is not None:
        specs = _specs(self._parameter)
        leaves = _tensors(specs, _flatten(self._parameter, argument))
      results = self._local(*leaves)
      return _pack(self._result, map(_to_numpy, results))
    at_server, at_clients = self._ingest(argument)
    counts = {len(v) for v in at_clients.values()}
    if len(counts) > 1:
      raise ValueError(
        "The arguments are for different numbers of clients: "
        f"{', '.join(map(str, sorted(counts)))}; give one value for each client."
      )
    num_clients = counts.pop() if counts else 0
    for server, clients, accumulation in self._levels:
      at_server.update(server.run(at_server))
      self._run_clients(
        clients, accumulation, at_server, at_clients, num_clients, in_order
      )
    return self._egest(at_server, at_clients, num_clients)

  def _run_clients(
    self, step, accumulation, at_server, at_clients, num_clients, in_order
  ) -> None:
    kept = [n for n in step.requested if n in self._kept]
    shared = {n: at_server[n.inputs[0]] for n in step.inputs if n.kind == "broadcast"}
    own = [n for n in step.inputs if n.kind != "broadcast"]
    for node in kept:
      at_clients[node] = []

    def work(client: int) -> dict[_Node, list]:
      given = dict(shared)
      for node in own:
        given[node] = _tensors(_specs(node.type), at_clients[node][client])
      return step.run(given)

    totals = accumulation.zero() if accumulation.aggregates else []
    for results in in_order(work, range(num_clients)):
      values = [v for n in accumulation.aggregates for v in results[n.inputs[0]]]
      if accumulation.aggregates:
        totals = accumulation.add(*totals, *values)
      for node in kept:
        at_clients[node].append(results[node])
    at_server.update(accumulation.split(totals))

  def _ingest(self, argument: Any) -> tuple[dict, dict]:
    at_server: dict[_Node, list] = {}
    at_clients: dict[_Node, list[list]] = {}
    values = []
    if self._arguments:
      values = _leaf_values(self._parameter, argument)
    for node, value in zip(self._arguments, values):
      if node.at_server:
        at_server[node] = _tensors(_specs(node.type), _flatten(node.type, value))
      else:
        at_clients[node] = [_flatten(node.type, v) for v in value]
    return at_server, at_clients

  def _egest(self, at_server, at_clients, num_clients) -> Any:
    def out(node: _Node) -> Any:
      if node.kind == "broadcast":
        node = node.inputs[0]
      if node.at_server:
        return _pack(node.type, map(_to_numpy, at_server[node]))
      specs = _specs(node.type)
      each = [
        _pack(node.type, map(_to_numpy, _tensors(specs, at_clients[node][i])))
        for i in range(num_clients)
      ]
      return each[0] if node.all_equal else each

    if isinstance(self._results, _Node):
      return out(self._results)
    return _map_struct(out, self._results)


def _leaf_values(t: tff.Type, value: Any) -> list:
  """The placed values of an argument, in the order of the placed types."""
  if isinstance(t, tff.FederatedType):
    return [value]
  elements = list(tff.structure.iter_elements(t))
  values = _elements(value, [n for n, _ in elements], t)
  return [v for (_, e), x in zip(elements, values) for v in _leaf_values(e, x)]


def _reachable(nodes: list[_Node]) -> list[_Node]:
  found: dict[_Node, None] = {}
  waiting = list(nodes)
  while waiting:
    node = waiting.pop()
    if node not in found:
      found[node] = None
      waiting.extend(node.inputs)
  return list(found)
