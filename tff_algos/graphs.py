"""What the operations of a TensorFlow graph do."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
  import tensorflow as tf

_DRAWING = re.compile(r"(?!Stateless).*(Random|TruncatedNormal|Multinomial|PyFunc)")
#: Operations whose results are probabilities.
NOT_LOGITS = ("Softmax", "Sigmoid")
# These keep the values of their input.
_KEEP_VALUES = ("Identity", "Reshape", "Cast")


def drawing_operations(graph: tf.compat.v1.GraphDef) -> list[str]:
  """Names of a graph's operations, sorted, that may give other values each time."""
  operations = {node.op for node in graph.node}
  for function in graph.library.function:
    operations.update(node.op for node in function.node_def)
  return sorted(filter(_DRAWING.match, operations))


def last_operation(output: tf.Tensor) -> str:
  """The type of the operation that makes an output's values, such as "MatMul"."""
  operation = output.op
  while operation.type in _KEEP_VALUES:
    operation = operation.inputs[0].op
  return str(operation.type)
