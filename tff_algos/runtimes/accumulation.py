"""What aggregations accumulate, client by client or several at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional

import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.runtimes import tracing, values
from tff_algos.runtimes.planning import Node
from tff_algos.runtimes.values import Struct

# Of sums: one pass over memory for so many clients' values instead of one for each.
ADDED_AT_ONCE = 4

# At most so many parts by default, as each has to be joined.
MOST_PARTS = 16


class Accumulation:
  """The accumulators of all aggregates of one level, updated by the clients in order."""

  def __init__(self, aggregates: list[Node]):
    self.aggregates = aggregates
    self._types = [n.type for n in aggregates]
    self._counts = [len(values.specs_of(t)) for t in self._types]
    self._totals = [s for t in self._types for s in values.specs_of(t)]
    added = [s for n in aggregates for s in values.specs_of(n.inputs[0].type)]
    many = [tf.TensorSpec([None, *s.shape], s.dtype) for s in added]
    self._is_sum = bool(self._totals) and all(map(_is_sum, aggregates))
    self._zero = tracing.Function(self._trace_zero, [])
    self._add = tracing.Function(self._trace_add, self._totals + added)
    self._add_all = tracing.Function(self._trace_add_all, self._totals + many)
    self._merge = tracing.Function(self._trace_merge, 2 * self._totals)

  def zero(self) -> Sequence[tf.Tensor]:
    """The accumulators before any client."""
    return self._zero() if self._totals else []

  def copied(
    self, results: Mapping[Node, list[tf.Tensor]]
  ) -> dict[Node, list[tf.Tensor]]:
    """What is added of a client's results, on the device in force.

    TensorFlow would copy what comes from another device itself, and a sum may take over
    such a copy's buffer and begin with it: kept copies are added in their order.
    """
    return {
      n.inputs[0]: [tf.identity(v) for v in results[n.inputs[0]]] for n in self.aggregates
    }

  def add(
    self, totals: Sequence[tf.Tensor], results: Sequence[Mapping[Node, list[tf.Tensor]]]
  ) -> Sequence[tf.Tensor]:
    """The accumulators after some more clients."""
    if len(results) == ADDED_AT_ONCE and self._is_sum:
      # Not in a graph, where TensorFlow sorts the terms by name.
      terms = zip(totals, *map(self._leaves, results))
      return [tf.add_n(leaves) for leaves in terms]
    for result in results if self._totals else []:
      totals = self._add(*totals, *self._leaves(result))
    return totals

  def add_all(
    self, totals: Sequence[tf.Tensor], results: Mapping[Node, list[tf.Tensor]]
  ) -> Sequence[tf.Tensor]:
    """The accumulators after several more clients, whose leaves are stacked."""
    return self._add_all(*totals, *self._leaves(results)) if self._totals else []

  def merge(
    self, before: Sequence[tf.Tensor], after: Sequence[tf.Tensor]
  ) -> Sequence[tf.Tensor]:
    """The accumulators of two groups of clients together, the first group's first."""
    return self._merge(*before, *after) if self._totals else []

  def _leaves(self, results: Mapping[Node, list[tf.Tensor]]) -> list[tf.Tensor]:
    return [v for n in self.aggregates for v in results[n.inputs[0]]]

  def _trace_zero(self) -> list[tf.Tensor]:
    return [
      leaf
      for node in self.aggregates
      for leaf in values.flatten_tensors(node.type, node.detail[0].evaluate())
    ]

  def _trace_add(self, *flat: tf.Tensor) -> list[tf.Tensor]:
    leaves = iter(flat)
    totals = [values.pack(t, leaves) for t in self._types]
    results = []
    for node, total in zip(self.aggregates, totals):
      value = values.pack(node.inputs[0].type, leaves)
      added = node.detail[1].evaluate()(Struct([(None, total), (None, value)]))
      results += values.flatten_tensors(node.type, added)
    return results

  def _trace_add_all(self, *flat: tf.Tensor) -> Any:
    count = len(self._totals)
    totals, stacked = flat[:count], flat[count:]
    if self._is_sum:
      return [t + tf.reduce_sum(v, axis=0) for t, v in zip(totals, stacked)]

    def add(client: tf.Tensor, *totals: tf.Tensor) -> tuple[tf.Tensor, ...]:
      return client + 1, *self._trace_add(*totals, *(v[client] for v in stacked))

    num_clients = tf.shape(stacked[0])[0]
    return tf.while_loop(
      lambda client, *_: client < num_clients,
      add,
      (tf.constant(0), *totals),
      parallel_iterations=1,
    )[1:]

  def _trace_merge(self, *flat: tf.Tensor) -> list[tf.Tensor]:
    leaves = iter(flat)
    before, after = ([values.pack(t, leaves) for t in self._types] for _ in range(2))
    return [
      leaf
      for node, *both in zip(self.aggregates, before, after)
      for leaf in values.flatten_tensors(
        node.type, node.detail[2].evaluate()(Struct([(None, v) for v in both]))
      )
    ]

  def split(self, totals: Sequence[tf.Tensor]) -> dict[Node, list[tf.Tensor]]:
    """Each aggregate's accumulator."""
    leaves = iter(totals)
    return {
      n: [next(leaves) for _ in range(count)]
      for n, count in zip(self.aggregates, self._counts)
    }


class Tree:
  """Joins parts' accumulators two by two, in an order that their number alone gives.

  Of n parts, taken in order, the first 2^k (the greatest such number below n) are joined
  to one, the others to another, by the same rule, and these two in the end.
  """

  def __init__(self, accumulation: Accumulation):
    self._accumulation = accumulation
    # Of so many parts each, a power of two that falls: those that wait for their other
    # half.
    self._joined: list[tuple[int, Sequence[tf.Tensor]]] = []

  def add(self, totals: Sequence[tf.Tensor], count: int = 1) -> None:
    """Takes the next part's accumulators, or those of a range that `subtrees` gives."""
    while self._joined and self._joined[-1][0] == count:
      totals = self._accumulation.merge(self._joined.pop()[1], totals)
      count *= 2
    self._joined.append((count, totals))

  def total(self) -> Sequence[tf.Tensor]:
    """The accumulators of all parts; of none they are those before any client."""
    if not self._joined:
      return self._accumulation.zero()
    *earlier, (_, totals) = self._joined
    for _, before in reversed(earlier):
      totals = self._accumulation.merge(before, totals)
    return totals


def parts_of(
  num_clients: int, clients_per_part: Optional[int], block_size: Optional[int]
) -> list[range]:
  """The clients of each part of a cohort.

  It says in which order results are added, so it must not depend on what there is to
  work with, but for GPUs, which `block_size` depends on and which round otherwise.

  Args:
    num_clients: The cohort's size.
    clients_per_part: How many clients make a part, the last one but for what is left.
      None: as many as give at most `MOST_PARTS`, so many as are added at once or a
      multiple of that, and a block at least.
    block_size: How many clients a block has; None: they work one by one.
  """
  if clients_per_part is None:
    together = 1 if num_clients <= MOST_PARTS else ADDED_AT_ONCE
    size = together * -(-num_clients // (MOST_PARTS * together))
    clients_per_part = max(size, block_size or 1)
  every = range(0, num_clients, clients_per_part)
  return [range(num_clients)[i : i + clients_per_part] for i in every]


def subtrees(num_parts: int, num_workers: int) -> list[range]:
  """Ranges of parts that `Tree` joins among themselves before it joins them to others.

  Whoever does the clients of such a range can join its parts, and the result is the same.
  Each is at most a worker's share of what is left, so that workers end at about the same
  time: they begin with much and end with little.
  """
  found: list[range] = []
  start = 0
  while start < num_parts:
    share = max((num_parts - start) // num_workers, 1)
    # The greatest power of two: as these fall, each begins at a multiple of its own size.
    size = 1 << (share.bit_length() - 1)
    found.append(range(start, start + size))
    start += size
  return found


def _is_sum(aggregate: Node) -> bool:
  """Whether all that is done to accumulate values is to add them, leaf by leaf."""
  block = aggregate.detail[1].block
  if not isinstance(block, tff.framework.CompiledComputation):
    return False
  totals = values.specs_of(aggregate.type)
  if totals != values.specs_of(aggregate.inputs[0].type) or not all(
    s.shape.is_fully_defined() and s.dtype != tf.string for s in totals
  ):
    return False
  tensorflow = block.proto.tensorflow
  given = [name.split(":")[0] for name in tracing.tensor_names(tensorflow.parameter)]
  graph_def = tf.compat.v1.GraphDef.FromString(tensorflow.graph_def.value)
  functions = {f.signature.name: f for f in graph_def.library.function}
  arguments = {name: [name] for name in given}
  sums = zip(given, given[len(totals) :], tracing.tensor_names(tensorflow.result))
  return all(
    sorted(_terms(result, graph_def.node, arguments, functions) or []) == sorted(pair)
    for *pair, result in sums
  )


def _terms(
  tensor_name: str,
  nodes: Iterable[tf.compat.v1.NodeDef],
  arguments: Mapping[str, list[str]],
  functions: Mapping[str, Any],
) -> Optional[list[str]]:
  """The arguments that a tensor is the sum of; None where it is not one of a few."""
  name, *place = tensor_name.split(":")
  if name in arguments:
    return arguments[name]
  node = next(n for n in nodes if n.name == name)
  inputs = [i for i in node.input if not i.startswith("^")]
  found = [_terms(i, nodes, arguments, functions) for i in inputs]
  terms = [t for t in found if t is not None]
  if len(terms) < len(found):
    return None
  if node.op == "Identity":
    return terms[0]
  if node.op in ("Add", "AddV2"):
    added = terms[0] + terms[1]
    return added if len(added) == 2 else None
  called = functions.get(node.attr["f"].func.name if "f" in node.attr else node.op)
  if called is None:
    return None
  of_function = dict(zip((a.name for a in called.signature.input_arg), terms))
  output = called.signature.output_arg[int(place[-1]) if place else 0].name
  return _terms(called.ret[output], called.node_def, of_function, functions)
