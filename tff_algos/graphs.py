"""What the operations of a TensorFlow graph do."""

from __future__ import annotations

import contextlib
import dis
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional

from tff_algos.errors import InputError

if TYPE_CHECKING:
  import tensorflow as tf

_DRAWING = re.compile(
  r"(?!Stateless|RandomIndexShuffle$).*(Random|TruncatedNormal|Multinomial|PyFunc"
  r"|CandidateSampler|SampleDistorted|NonDeterministic|Timestamp)"
)
_DRAWING_BY_SEED = re.compile(
  r"Stateless(Random(?!GetAlg|GetKey)|TruncatedNormal|Multinomial|Parameterized|Shuffle)"
)
#: Operations whose results are probabilities.
NOT_LOGITS = ("Softmax", "Sigmoid")
# Whose holder alone replaces tensors' comparison, which is there for all threads.
_REPLACING = threading.RLock()
# These keep the values of their input.
_KEEP_VALUES = ("Identity", "Reshape", "Cast")


def drawing_operations(graph: tf.compat.v1.GraphDef) -> list[str]:
  """Names of a graph's operations, sorted, that may give other values each time."""
  operations: set[str] = set()
  for nodes in _bodies(graph):
    named = {node.name: node for node in nodes}
    operations.update(
      node.op
      for node in nodes
      if _DRAWING.match(node.op) or _shuffles_without_seed(node, named)
    )
  return sorted(operations)


def has_own_gradients(graph: tf.compat.v1.GraphDef) -> bool:
  """Whether an operation's gradient is not TensorFlow's, as by `tf.custom_gradient`."""
  of_functions = (b"PartitionedCall", b"StatefulPartitionedCall")
  return any(
    not node.attr["_gradient_op_type"].s.startswith(of_functions)
    for nodes in _bodies(graph)
    for node in nodes
    if "_gradient_op_type" in node.attr
  )


def draws_by_seeds(graph: tf.compat.v1.GraphDef) -> bool:
  """Whether an operation draws from a seed that it is given."""
  return any(
    _DRAWING_BY_SEED.match(node.op) for nodes in _bodies(graph) for node in nodes
  )


def computes_in_float16(graph: tf.compat.v1.GraphDef) -> bool:
  """Whether something is cast to float16, as it is where weights are float32."""
  import tensorflow as tf

  return any(
    node.op == "Cast" and node.attr["DstT"].type == tf.float16.as_datatype_enum
    for nodes in _bodies(graph)
    for node in nodes
  )


def _bodies(graph: tf.compat.v1.GraphDef) -> Iterator[Sequence[tf.compat.v1.NodeDef]]:
  """The nodes of a graph, and of each of its functions."""
  yield graph.node
  for function in graph.library.function:
    yield function.node_def


def _shuffles_without_seed(
  node: tf.compat.v1.NodeDef, named: Mapping[str, tf.compat.v1.NodeDef]
) -> bool:
  """Whether a data set is shuffled by the two seeds 0, which stand for any."""
  import tensorflow as tf

  if not re.match(r"Shuffle(AndRepeat)?Dataset", node.op):
    return False
  seeds = (named.get(name.partition(":")[0]) for name in node.input[2:4])
  return all(
    seed is not None
    and seed.op == "Const"
    and not tf.make_ndarray(seed.attr["value"].tensor).any()
    for seed in seeds
  )


@contextlib.contextmanager
def refusing_equality(who: str) -> Iterator[None]:
  """Refuses what is called meanwhile, in this thread, if it compares tensors by `==`.

  In graphs as TFF's, `==` and `!=` ask for the same Python object. Comparisons by `in`,
  and TensorFlow's and Keras's own, ask for just that, and are left alone.

  Args:
    who: What is called, for messages.

  Raises:
    InputError: It compares a tensor by `==` or `!=`; the message says in which line.
  """
  import numpy as np
  import tensorflow as tf
  import tensorflow_federated as tff

  here = threading.get_ident()
  refused: list[InputError] = []
  kinds = (tf.Tensor, tf.Variable, tf.RaggedTensor)
  # Of anything else, as None, a text or (), it is asked whether a tensor is that.
  of_values = (*kinds, np.ndarray, np.generic, int, float, list)
  keras = sys.modules[tf.keras.layers.Layer.__module__.partition(".")[0]]
  theirs = tuple(os.path.dirname(str(p.__file__)) + os.sep for p in (tf, tff, keras))

  def refusing(compare: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def compare_or_refuse(tensor: tf.Tensor, other: Any) -> Any:
      asking = sys._getframe(1)
      code = asking.f_code
      by_object = dis.opname[code.co_code[asking.f_lasti]] == "CONTAINS_OP"
      is_own = not (by_object or code.co_filename.startswith(theirs))
      if not (is_own and isinstance(other, of_values)):
        return compare(tensor, other)
      if threading.get_ident() != here:
        return compare(tensor, other)
      where = f"{code.co_filename}, line {asking.f_lineno}"
      if "__autograph_generated_file" in code.co_filename:  # Its lines are no user's.
        where = f"the tf.function {code.co_name.removeprefix('tf__')}"
      error = InputError(
        f"{who} compares tensors by == or != in {where}, which in TFF's graphs asks "
        "whether they are the same object: use tf.equal or tf.not_equal."
      )
      refused.append(error)
      raise error

    return compare_or_refuse

  with _REPLACING:
    before = [(kind, kind.__eq__, kind.__ne__) for kind in kinds]
    try:
      for kind, *compare in before:
        kind.__eq__, kind.__ne__ = map(refusing, compare)
      yield
    except Exception as error:
      cause: Optional[BaseException] = error
      while cause is not None and cause not in refused:
        cause = cause.__context__
      if cause is not None:  # Without the pages that Keras and AutoGraph would add.
        raise cause from None
      raise
    finally:
      for kind, equal, unequal in before:
        kind.__eq__, kind.__ne__ = equal, unequal


def last_operation(output: tf.Tensor) -> str:
  """The type of the operation that makes an output's values, such as "MatMul"."""
  operation = output.op
  while operation.type in _KEEP_VALUES:
    operation = operation.inputs[0].op
  return str(operation.type)
