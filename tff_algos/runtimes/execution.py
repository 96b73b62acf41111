"""Runs a planned computation: steps at the server and at the clients in turn."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.errors import UnsupportedComputationError
from tff_algos.runtimes import (
  accumulation,
  blocks,
  compiler,
  planning,
  tracing,
  values,
)
from tff_algos.runtimes.planning import Node, Step
from tff_algos.runtimes.values import Struct

# For each node the leaves of its value, and those of each client's value of it.
_Leaves = dict[Node, list[tf.Tensor]]
_ClientLeaves = dict[Node, list[list[Any]]]


class _ClientWork:
  """What the clients do between two exchanges, planned when it is first needed."""

  def __init__(self, requested: list[Node], is_given: Callable[[Node], bool]):
    self.requested, self._is_given = requested, is_given
    self._planning = threading.Lock()

  def for_clients(self, num_clients: int) -> Step | blocks.Blocks:
    """How that many clients work, traced: one by one or in blocks."""
    with self._planning:
      in_blocks = self._in_blocks if num_clients >= blocks.FEWEST_CLIENTS else None
      work = in_blocks or self._one_by_one
      work.prepare()
      return work

  @functools.cached_property
  def _one_by_one(self) -> Step:
    return Step(self.requested, self._is_given)

  @functools.cached_property
  def _in_blocks(self) -> Optional[blocks.Blocks]:
    return blocks.plan(self.requested, self._is_given)


class Plan:
  """A computation as alternating steps at the server and at the clients."""

  def __init__(self, comp: tff.Computation):
    if tff.types.contains(
      comp.type_signature.result, lambda t: isinstance(t, tff.SequenceType)
    ):
      raise UnsupportedComputationError(
        "The in_process runtime returns no data sets, and this computation gives "
        f"{comp.type_signature.result}: return tensors, or use another runtime."
      )
    block = compiler.to_call_dominant(comp)
    self._parameter = comp.type_signature.parameter
    self._result = comp.type_signature.result
    self._is_federated = tff.types.contains(
      comp.type_signature, lambda t: isinstance(t, tff.FederatedType)
    )
    if not self._is_federated:
      self._plan_local(block)
      return
    self._arguments: list[Node] = []
    env = {}
    if block.parameter_name is not None:
      env[block.parameter_name] = self._argument_nodes(self._parameter)
    self._results = planning.result_of(planning.plan_block(block.result, env))
    self._plan_steps()

  def _plan_local(self, block: tff.framework.Lambda) -> None:
    def trace(*leaves):
      argument = None
      if self._parameter is not None:
        argument = values.pack(self._parameter, iter(leaves))
      return values.flatten_tensors(self._result, tracing.evaluate(block, {})(argument))

    specs = [] if self._parameter is None else values.specs_of(self._parameter)
    self._local = tracing.Function(trace, specs)

  def _argument_nodes(self, t: tff.Type) -> Any:
    if isinstance(t, tff.FederatedType):
      node = planning.argument_of(t)
      self._arguments.append(node.inputs[0] if node.inputs else node)
      return node
    if isinstance(t, tff.StructType):
      elements = tff.structure.iter_elements(t)
      return Struct([(n, self._argument_nodes(e)) for n, e in elements])
    raise UnsupportedComputationError(
      f"The in_process runtime takes placed arguments only; found {t}."
    )

  def _plan_steps(self) -> None:
    nodes = planning.reachable(planning.nodes_in(self._results))
    # What a step hands on: results, and what another step takes. An aggregate takes its
    # client values as they come, so they are not kept.
    kept = dict.fromkeys(planning.nodes_in(self._results))
    summed: dict[Node, None] = {}
    for node in nodes:
      for source in node.inputs:
        if node.kind == "aggregate":
          summed[source] = None
        elif node.kind == "broadcast" or source.level < node.level:
          kept[source] = None
    wanted = {**kept, **summed}
    self._kept = {n for n in kept if not n.is_source}

    def is_given_at(level: int) -> Callable[[Node], bool]:
      return lambda node: node.is_source or (node in wanted and node.level < level)

    self._levels: list[tuple[Step, _ClientWork, accumulation.Accumulation]] = []
    for level in range(max((n.level for n in nodes), default=0) + 1):
      here = [n for n in wanted if n.level == level and (n in summed or not n.is_source)]
      server = Step([n for n in here if n.at_server], is_given_at(level))
      at_clients = [n for n in here if not n.at_server]
      clients = _ClientWork(at_clients, is_given_at(level))
      sums = [n for n in nodes if n.kind == "aggregate" and n.level == level + 1]
      self._levels.append((server, clients, accumulation.Accumulation(sums)))

  def run(
    self,
    argument: Any,
    devices: Sequence[str],
    in_order: Callable[..., Iterator[Any]],
  ) -> Any:
    """The result for an argument; clients are mapped by `in_order` on the devices."""
    if not self._is_federated:
      leaves = []
      if self._parameter is not None:
        specs = values.specs_of(self._parameter)
        leaves = values.as_tensors(specs, values.flatten(self._parameter, argument))
      results = self._local(*leaves)
      return values.pack(self._result, map(values.to_numpy, results))
    at_server, at_clients = self._ingest(argument)
    counts = {len(v) for v in at_clients.values()}
    if len(counts) > 1:
      raise ValueError(
        "The arguments are for different numbers of clients: "
        f"{', '.join(map(str, sorted(counts)))}; give one value for each client."
      )
    num_clients = counts.pop() if counts else 0
    for server, clients, sums in self._levels:
      at_server.update(server.run(at_server))
      if not clients.requested:  # Nothing is left for them to do.
        continue
      work = clients.for_clients(num_clients)
      broadcast = {
        n: at_server[n.inputs[0]] for n in work.inputs if n.kind == "broadcast"
      }
      shared = {device: _copied(broadcast, device) for device in devices}
      for node in self._kept.intersection(work.requested):
        at_clients[node] = []
      rest = sums, shared, at_clients, num_clients, in_order
      if isinstance(work, blocks.Blocks):
        totals = self._run_blocks(work, *rest)
      else:
        totals = self._run_clients(work, *rest)
      at_server.update(sums.split(totals))
    return self._egest(at_server, at_clients, num_clients)

  def _run_clients(
    self,
    step: Step,
    sums: accumulation.Accumulation,
    shared: Mapping[str, _Leaves],
    at_clients: _ClientLeaves,
    num_clients: int,
    in_order: Callable[..., Iterator[Any]],
  ) -> Sequence[tf.Tensor]:
    """Works on one client at a time; the accumulators after the last."""
    own = [n for n in step.inputs if n.kind != "broadcast"]

    def work(device: str, client: int) -> _Leaves:
      given = dict(shared[device])
      for node in own:
        specs = values.specs_of(node.type)
        given[node] = values.as_tensors(specs, at_clients[node][client])
      return step.run(given)

    totals, waiting = sums.zero(), []
    for results in in_order(work, range(num_clients)):
      waiting.append(sums.copied(results) if len(shared) > 1 else results)
      if len(waiting) == accumulation.ADDED_AT_ONCE:
        totals, waiting = sums.add(totals, waiting), []
      for node in self._kept.intersection(step.requested):
        at_clients[node].append(results[node])
    return sums.add(totals, waiting)

  def _run_blocks(
    self,
    work: blocks.Blocks,
    sums: accumulation.Accumulation,
    shared: Mapping[str, _Leaves],
    at_clients: _ClientLeaves,
    num_clients: int,
    in_order: Callable[..., Iterator[Any]],
  ) -> Sequence[tf.Tensor]:
    """Works on blocks of clients; the accumulators after the last."""
    own = [n for n in work.inputs if n.kind != "broadcast"]

    def run(device: str, clients: range) -> _Leaves:
      stacked = {n: _stacked(n, [at_clients[n][c] for c in clients]) for n in own}
      return work.run(shared[device], stacked)

    every = range(0, num_clients, blocks.MOST_CLIENTS)
    parts = [range(num_clients)[i : i + blocks.MOST_CLIENTS] for i in every]
    totals = sums.zero()
    for clients, results in zip(parts, in_order(run, parts)):
      totals = sums.add_all(totals, results)
      for node in self._kept.intersection(work.requested):
        leaves = [np.asarray(leaf) for leaf in results[node]]
        # Copies: a view would keep the whole block in memory.
        each = ([np.array(leaf[i]) for leaf in leaves] for i in range(len(clients)))
        at_clients[node].extend(each)
    return totals

  def _ingest(self, argument: Any) -> tuple[_Leaves, _ClientLeaves]:
    at_server: _Leaves = {}
    at_clients: _ClientLeaves = {}
    given = []
    if self._arguments:
      given = values.leaf_values(self._parameter, argument)
    for node, value in zip(self._arguments, given):
      if node.at_server:
        at_server[node] = values.as_tensors(
          values.specs_of(node.type), values.flatten(node.type, value)
        )
      else:
        each = values.of_clients(value, tff.FederatedType(node.type, tff.CLIENTS))
        at_clients[node] = [values.flatten(node.type, v) for v in each]
    return at_server, at_clients

  def _egest(
    self, at_server: _Leaves, at_clients: _ClientLeaves, num_clients: int
  ) -> Any:
    def out(node: Node, t: tff.Type) -> Any:
      if node.at_server:
        return values.pack(node.type, map(values.to_numpy, at_server[node]))
      specs = values.specs_of(node.type)
      if not specs:  # One empty value is as good as many, and much faster.
        empty = values.pack(node.type, iter(()))
        return [tff.types.type_to_py_container(empty, t.member)] * num_clients
      return [
        values.pack(
          node.type,
          map(values.to_numpy, values.as_tensors(specs, at_clients[node][i])),
        )
        for i in range(num_clients)
      ]

    return _map_results(out, self._results, self._result)


def _map_results(function: Callable[..., Any], results: Any, t: tff.Type) -> Any:
  """A structure of the same names with `function` of each node and its type."""
  if isinstance(results, Node):
    return function(results, t)
  elements = zip(tff.structure.iter_elements(results), t)
  return Struct([(n, _map_results(function, v, e)) for (n, v), e in elements])


def _copied(values: _Leaves, device: str) -> _Leaves:
  with tf.device(device):
    return {n: [tf.identity(v) for v in leaves] for n, leaves in values.items()}


def _stacked(node: Node, of_clients: list[list[Any]]) -> list[tf.Tensor]:
  """The leaves of a node's values of several clients, stacked."""
  return [
    tf.constant(leaves, spec.dtype)
    if spec.dtype == tf.string
    else tf.constant(np.stack([np.asarray(v, spec.dtype.as_numpy_dtype) for v in leaves]))
    for spec, leaves in zip(values.specs_of(node.type), zip(*of_clients))
  ]
