"""Loops with a pooling's gradient in them, as TensorFlow's optimizer has them fast.

On a CPU TensorFlow replaces a max pooling and its gradient by oneDNN's, which take a
tenth of the time: the gradient only where it has met the pooling before. In a function it
meets operations in the order of their inputs, but a loop's body becomes part of the graph
around it, a circle which it enters anywhere, by chance. So such a body becomes a call.
After an upgrade: whether `test_rounds_pool_by_one_dnn` still fails without this.
"""

from __future__ import annotations

import tensorflow as tf

# By which operation each kind of loop calls a function.
_CALLS = {"While": "StatefulPartitionedCall", "StatelessWhile": "PartitionedCall"}
_GRADIENT = "MaxPoolGrad"


def set_apart(graph_def: tf.compat.v1.GraphDef) -> None:
  """Turns each loop body that has the gradient of a max pooling into a call of itself.

  Not where there are GPUs, which have operations of their own.

  Args:
    graph_def: A graph with its functions; it is changed.
  """
  if tf.config.list_physical_devices("GPU"):
    return
  functions = {f.signature.name: f for f in graph_def.library.function}
  nodes = [*graph_def.node, *(n for f in functions.values() for n in f.node_def)]
  loops = {n.attr["body"].func.name: n.op for n in nodes if n.op in _CALLS}
  for name, loop in sorted(loops.items()):
    body = functions[name]
    if any(node.op == _GRADIENT for node in body.node_def):
      work = graph_def.library.function.add()
      work.CopyFrom(body)
      work.signature.name = f"{name}_set_apart"
      work.attr["_noinline"].b = True
      _make_call(body, _CALLS[loop], work.signature.name)


def _make_call(body: tf.compat.v1.FunctionDef, operation: str, function: str) -> None:
  """Leaves of a function its signature, and a call of another of the same one."""
  for field in ("node_def", "ret", "control_ret", "resource_arg_unique_id"):
    body.ClearField(field)
  signature = body.signature
  signature.ClearField("control_output")
  call = body.node_def.add(name="call", op=operation)
  call.input.extend(argument.name for argument in signature.input_arg)
  call.attr["Tin"].list.type.extend(a.type for a in signature.input_arg)
  call.attr["Tout"].list.type.extend(a.type for a in signature.output_arg)
  call.attr["f"].func.name = function
  for place, result in enumerate(signature.output_arg):
    body.ret[result.name] = f"call:output:{place}"
