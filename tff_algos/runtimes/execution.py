"""Runs a planned computation: steps at the server and at the clients in turn."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.errors import UnsupportedComputationError
from tff_algos.runtimes import accumulation, blocks, compiler, planning, tracing, values
from tff_algos.runtimes.planning import Node, Step
from tff_algos.runtimes.values import Struct

# For each node the leaves of its value, and those of each client's value of it.
Leaves = dict[Node, list[tf.Tensor]]
ClientLeaves = dict[Node, list[list[Any]]]


class PartResult(NamedTuple):
  """What the clients of a part have made, or of parts that have been joined.

  Attributes:
    totals: The accumulators after its last client; they began with its first.
    kept: For each node that clients keep the leaves of each client's value.
    num_parts: How many parts have been joined, as `accumulation.subtrees` says.
  """

  totals: Sequence[Any]
  kept: ClientLeaves
  num_parts: int = 1


class Cohort(NamedTuple):
  """The clients of a round between two exchanges, and what they work with.

  Attributes:
    level: Which of the plan's levels this is.
    work: What a client does, or a block of clients.
    sums: What accumulates the results.
    broadcast: The leaves of what was broadcast.
    own: The leaves of the work's other inputs, for each client.
    num_clients: How many clients there are.
    parts: The clients of each part, in order.
  """

  level: int
  work: Step | blocks.Blocks
  sums: accumulation.Accumulation
  broadcast: Leaves
  own: ClientLeaves
  num_clients: int
  parts: list[range]


class Level:
  """What is done after one exchange, and until the next: at the server, at the clients.

  The clients' work is planned when it is first needed.
  """

  def __init__(
    self,
    at_server: list[Node],
    at_clients: list[Node],
    aggregates: list[Node],
    is_given: Callable[[Node], bool],
  ):
    self.server = Step(at_server, is_given)
    self.sums = accumulation.Accumulation(aggregates)
    self.at_clients, self._is_given = at_clients, is_given
    self._planning = threading.Lock()
    self._in_blocks: dict[bool, Optional[blocks.Blocks]] = {}

  def work_of(self, num_clients: int, *, on_gpu: bool) -> Step | blocks.Blocks:
    """How so many clients work: one by one or in blocks."""
    limits = blocks.ON_GPU if on_gpu else blocks.ON_CPU
    with self._planning:
      if num_clients < limits.fewest_clients:
        return self._one_by_one
      if on_gpu not in self._in_blocks:
        self._in_blocks[on_gpu] = blocks.plan(
          self._one_by_one, self._is_given, on_gpu=on_gpu
        )
      return self._in_blocks[on_gpu] or self._one_by_one

  @functools.cached_property
  def _one_by_one(self) -> Step:
    return Step(self.at_clients, self._is_given)


class Plan:
  """A computation as alternating steps at the server and at the clients."""

  def __init__(self, comp: tff.Computation, *, is_compiled: bool = False):
    """Plans it.

    Args:
      comp: The computation.
      is_compiled: Whether it is what `serialized` gave for another.

    Raises:
      UnsupportedComputationError: It uses something that these plans have not.
    """
    if tff.types.contains(
      comp.type_signature.result, lambda t: isinstance(t, tff.SequenceType)
    ):
      raise UnsupportedComputationError(
        "The in_process runtime returns no data sets, and this computation gives "
        f"{comp.type_signature.result}: return tensors, or use another runtime."
      )
    block = comp.to_building_block() if is_compiled else compiler.to_call_dominant(comp)
    compiler.refuse_repeated_draws(block)
    self._block = block
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

  @functools.cached_property
  def serialized(self) -> bytes:
    """The compiled computation, to be planned in the same way in another process."""
    comp = tff.framework.ConcreteComputation.from_building_block(self._block)
    content: bytes = tff.framework.serialize_computation(comp).SerializeToString()
    return content

  def _plan_local(self, block: tff.framework.Lambda) -> None:
    def trace(*leaves: tf.Tensor) -> list[tf.Tensor]:
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

    self.levels: list[Level] = []
    for level in range(max((n.level for n in nodes), default=0) + 1):
      here = [n for n in wanted if n.level == level and (n in summed or not n.is_source)]
      sums = [n for n in nodes if n.kind == "aggregate" and n.level == level + 1]
      at_server = [n for n in here if n.at_server]
      at_clients = [n for n in here if not n.at_server]
      self.levels.append(Level(at_server, at_clients, sums, is_given_at(level)))

  def run(
    self,
    argument: Any,
    run_cohort: Callable[[Cohort], Iterator[PartResult]],
    clients_per_part: Optional[int] = None,
    *,
    on_gpu: bool = False,
  ) -> Any:
    """The result for an argument.

    Args:
      argument: The argument.
      run_cohort: Has clients work; gives each part's results, in the parts' order.
      clients_per_part: How many clients have their results accumulated one after the
        other before these parts are joined; None: what `parts_of` has as its default.
      on_gpu: Whether all clients work on GPUs.
    """
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
    for index, level in enumerate(self.levels):
      at_server.update(level.server.run(at_server))
      if not level.at_clients:  # Nothing is left for them to do.
        continue
      work = level.work_of(num_clients, on_gpu=on_gpu)
      cohort = self._cohort(
        index, work, at_server, at_clients, num_clients, clients_per_part
      )
      for node in self.kept_of(cohort.work):
        at_clients[node] = []
      tree = accumulation.Tree(level.sums)
      for part in run_cohort(cohort):
        tree.add(part.totals, part.num_parts)
        for node, of_clients in part.kept.items():
          at_clients[node].extend(of_clients)
      at_server.update(level.sums.split(tree.total()))
    return self._egest(at_server, at_clients, num_clients)

  def _cohort(
    self,
    index: int,
    work: Step | blocks.Blocks,
    at_server: Leaves,
    at_clients: ClientLeaves,
    num_clients: int,
    clients_per_part: Optional[int],
  ) -> Cohort:
    block_size = None
    if isinstance(work, blocks.Blocks):
      block_size = work.block_size(num_clients)
    return Cohort(
      level=index,
      work=work,
      sums=self.levels[index].sums,
      broadcast={n: at_server[n.inputs[0]] for n in work.inputs if n.kind == "broadcast"},
      own={n: at_clients[n] for n in work.inputs if n.kind != "broadcast"},
      num_clients=num_clients,
      parts=accumulation.parts_of(num_clients, clients_per_part, block_size),
    )

  def kept_of(self, work: Step | blocks.Blocks) -> list[Node]:
    """What clients keep of their work's results, for later or as the result."""
    return [n for n in work.requested if n in self._kept]

  def run_parts(
    self,
    cohort: Cohort,
    devices: Sequence[str],
    in_order: Callable[..., Iterator[Any]],
  ) -> Iterator[PartResult]:
    """Has the clients of this level work, by `in_order` on the devices."""
    work = cohort.work
    work.prepare()
    shared = {device: _copied(cohort.broadcast, device) for device in devices}

    def run(device: str, clients: range) -> Leaves:
      if isinstance(work, blocks.Blocks):
        leaves = {
          n: blocks.stack(n, each[clients.start : clients.stop]) for n, each in own
        }
        return work.run(shared[device], leaves)
      [client] = clients
      leaves = {n: values.as_tensors(specs[n], each[client]) for n, each in own}
      return work.run({**shared[device], **leaves})

    own = list(cohort.own.items())
    specs = {n: values.specs_of(n.type) for n in cohort.own}
    many = cohort.num_clients
    at_once = work.block_size(many) if isinstance(work, blocks.Blocks) else 1
    portions = [
      [part[i : i + at_once] for i in range(0, len(part), at_once)]
      for part in cohort.parts
    ]
    results = in_order(run, itertools.chain.from_iterable(portions))
    zero = cohort.sums.zero()
    for portion in portions:
      own_results = zip(portion, itertools.islice(results, len(portion)))
      yield self._accumulate(cohort, zero, own_results, is_copied=len(devices) > 1)

  def _accumulate(
    self,
    cohort: Cohort,
    totals: Sequence[tf.Tensor],
    results: Iterable[tuple[range, Leaves]],
    is_copied: bool,
  ) -> PartResult:
    """The result of a part, from those of its clients in order, or of its blocks."""
    sums, kept_nodes = cohort.sums, self.kept_of(cohort.work)
    kept: ClientLeaves = {n: [] for n in kept_nodes}
    waiting: list[Leaves] = []
    for clients, result in results:
      if isinstance(cohort.work, blocks.Blocks):
        totals = sums.add_all(totals, result)
        for node in kept_nodes:
          stacked = [np.asarray(leaf) for leaf in result[node]]
          kept[node] += ([_own(v[i]) for v in stacked] for i in range(len(clients)))
        continue
      waiting.append(sums.copied(result) if is_copied else result)
      if len(waiting) == accumulation.ADDED_AT_ONCE:
        totals, waiting = sums.add(totals, waiting), []
      for node in kept_nodes:
        kept[node].append(result[node])
    return PartResult(sums.add(totals, waiting), kept)

  def _ingest(self, argument: Any) -> tuple[Leaves, ClientLeaves]:
    at_server: Leaves = {}
    at_clients: ClientLeaves = {}
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
        at_clients[node] = list(map(values.flattener(node.type), each))
    return at_server, at_clients

  def _egest(self, at_server: Leaves, at_clients: ClientLeaves, num_clients: int) -> Any:
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


def _own(value: Any) -> Any:
  # A view would keep the whole block in memory; of bytes NumPy would cut the last zeros.
  return value if isinstance(value, bytes) else np.array(value)


def _copied(values: Leaves, device: str) -> Leaves:
  with tf.device(device):
    return {n: [tf.identity(v) for v in leaves] for n, leaves in values.items()}
