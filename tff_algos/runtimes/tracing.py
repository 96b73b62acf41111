"""Traced functions of flat tensors, and the unplaced expressions that they evaluate."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional

import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.errors import UnsupportedComputationError
from tff_algos.runtimes import pooling_loops, private_apis, values
from tff_algos.runtimes.values import Struct

_blocks = tff.framework


class Function:
  """A function of flat lists of tensors, traced when it is first needed, and once.

  Have it traced before it is handed to threads: they would wait for each other.
  """

  def __init__(self, function: Callable[..., Any], specs: list[tf.TensorSpec]):
    self._function, self._specs = function, specs
    self._traced: Optional[tuple[Any, Callable[..., Any]]] = None
    self._tracing = threading.Lock()

  def trace(self) -> Any:
    """The concrete function."""
    return self._trace()[0]

  def _trace(self) -> tuple[Any, Callable[..., Any]]:
    with self._tracing:
      if self._traced is None:
        traced = tf.function(self._function, input_signature=self._specs, autograph=False)
        concrete = traced.get_concrete_function()
        self._traced = concrete, private_apis.flat_call(concrete)
      return self._traced

  def __call__(self, *leaves: Any) -> Sequence[Any]:
    """The results for some leaves, also arrays, nested as the function gives them."""
    _, call = self._trace()
    tensors = (v if isinstance(v, tf.Tensor) else tf.convert_to_tensor(v) for v in leaves)
    results: Sequence[Any] = call(*tensors)
    return results


class Lazy:
  """An unplaced expression, evaluated in whichever trace needs its value."""

  def __init__(
    self, block: tff.framework.ComputationBuildingBlock, env: Mapping[str, Any]
  ):
    self.block, self.env = block, env

  def evaluate(self) -> Any:
    """Its value in this trace."""
    return evaluate(self.block, self.env)


def evaluate(
  block: tff.framework.ComputationBuildingBlock, env: Mapping[str, Any]
) -> Any:
  """The value of a block without federated parts: tensors, structs, functions."""
  if isinstance(block, _blocks.Reference):
    value = env[block.name]
    return value.evaluate() if isinstance(value, Lazy) else value
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
    return Struct([(n, evaluate(b, env)) for n, b in tff.structure.iter_elements(block)])
  if isinstance(block, _blocks.Literal):
    return tf.constant(block.value)
  raise UnsupportedComputationError(
    f"The in_process runtime cannot run {type(block).__name__} blocks: "
    f"{block.compact_representation()[:200]}"
  )


def _call_tensorflow(block: tff.framework.CompiledComputation, argument: Any) -> Any:
  """Puts a TensorFlow computation's graph into the function that is being traced."""
  signature = block.type_signature
  proto = block.proto.tensorflow
  if proto.initialize_op:
    raise UnsupportedComputationError(
      "The in_process runtime runs pure TensorFlow only, and this computation holds "
      "variables: build it from a functional model, or use the local_worker runtime."
    )
  graph_def = tf.compat.v1.GraphDef.FromString(proto.graph_def.value)
  results = tensor_names(proto.result)
  _cut_unneeded(graph_def, results)
  pooling_loops.set_apart(graph_def)
  _take_functions(graph_def)
  inputs: dict[str, tf.Tensor] = {}
  if signature.parameter is not None:
    names = tensor_names(proto.parameter)
    leaves = values.flatten(signature.parameter, argument)
    specs = values.specs_of(signature.parameter)
    inputs.update(zip(names, map(_captured, values.as_tensors(specs, leaves))))
  if proto.session_token_tensor_name:
    inputs[proto.session_token_tensor_name] = tf.constant("")
  there = {node.name for node in graph_def.node}
  outputs = tf.graph_util.import_graph_def(
    graph_def,
    input_map={n: v for n, v in inputs.items() if _node_of(n) in there},
    return_elements=results,
  )
  for tensor, spec in zip(outputs, values.specs_of(signature.result)):
    if tensor.dtype != tf.variant:
      tensor.set_shape(spec.shape)
  return values.pack(signature.result, iter(outputs))


def _cut_unneeded(graph_def: tf.compat.v1.GraphDef, results: list[str]) -> None:
  """Leaves what the results need, and no assertion or writing that TFF does not run."""
  nodes = {node.name: node for node in graph_def.node}
  needed: set[str] = set()
  waiting = list(map(_node_of, results))
  while waiting:
    name = waiting.pop()
    if name not in needed:
      needed.add(name)
      waiting.extend(map(_node_of, nodes[name].input))
  kept = [node for node in graph_def.node if node.name in needed]
  for node in kept:  # Some are to be on the device of one that is gone.
    if "_class" in node.attr:
      places = node.attr["_class"].list
      there = [s for s in places.s if s.decode().removeprefix("loc:@") in needed]
      places.s[:] = there
  del graph_def.node[:]
  graph_def.node.extend(kept)


def _node_of(tensor: str) -> str:
  """The name of the node that a tensor, or a control input, is of."""
  return tensor.removeprefix("^").partition(":")[0]


def _captured(tensor: tf.Tensor) -> tf.Tensor:
  """The tensor in the graph that is being traced, which may be the body of a loop.

  TensorFlow captures what operations of Python take, not what a graph is imported with.
  """
  is_here = getattr(tensor, "graph", None) is tf.compat.v1.get_default_graph()
  return tensor if is_here else tf.identity(tensor)


def _take_functions(graph_def: tf.compat.v1.GraphDef) -> None:
  """Makes a graph's functions known to the graph being traced, under new names."""
  names = {}
  for name, function in private_apis.load_functions(graph_def.library).items():
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


def tensor_names(binding: Any) -> list[str]:
  """The names of the leaves of a TensorFlow computation's argument or result."""
  kind = binding.WhichOneof("binding")
  if kind == "struct":
    return [name for element in binding.struct.element for name in tensor_names(element)]
  if kind == "sequence":
    return [binding.sequence.variant_tensor_name]
  return [binding.tensor.tensor_name]
