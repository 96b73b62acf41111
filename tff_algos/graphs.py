"""What the operations of a TensorFlow graph do."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  import tensorflow as tf

_DRAWING = re.compile(r"(?!Stateless).*(Random|TruncatedNormal|Multinomial|PyFunc)")
#: Operations whose results are probabilities.
NOT_LOGITS = ("Softmax", "Sigmoid")
_LIBRARY = re.compile(r"[/\\](tensorflow|keras)[/\\]")
# These keep the values of their input.
_KEEP_VALUES = ("Identity", "Reshape", "Cast")


def drawing_operations(graph: tf.compat.v1.GraphDef) -> list[str]:
  """Names of a graph's operations, sorted, that may give other values each time."""
  operations = {node.op for node in graph.node}
  for function in graph.library.function:
    operations.update(node.op for node in function.node_def)
  return sorted(filter(_DRAWING.match, operations))


def comparison_by_operator(traced: Any) -> str:
  """Where a function that was traced as in eager mode compares tensors by `==` or `!=`.

  There these compare values; in a graph as TFF's they ask for the same Python object.

  Args:
    traced: The concrete function.

  Returns:
    The file and the line, such as "/home/me/own.py, line 12"; "" where it does not, or
    inside of a loop or a branch only.
  """
  for operation in traced.graph.get_operations():
    by_operator = False
    for frame in reversed(operation.traceback):
      if not _LIBRARY.search(frame.filename):
        if by_operator:
          return f"{frame.filename}, line {frame.lineno}"
        break
      by_operator |= frame.name in ("tensor_equals", "tensor_not_equals")
  return ""


def last_operation(output: tf.Tensor) -> str:
  """The type of the operation that makes an output's values, such as "MatMul"."""
  operation = output.op
  while operation.type in _KEEP_VALUES:
    operation = operation.inputs[0].op
  return str(operation.type)
