"""Runs TFF computations in this Python process, by the TensorFlow that is installed here.

No worker process is started and no port is opened. A computation is compiled by TFF and
then *planned* once: all that happens at the server between two exchanges becomes one
`tf.function`, and all that happens at a client another, whatever number of federated
operators the computation has. A round then costs one call for each client, or for a block
of clients (`blocks`), and one to accumulate a few results. Results are accumulated in the
order of the clients, so they do not depend on the number of threads or devices.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import functools
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow.python.eager import context as tf_context
from tensorflow_federated.python.core.impl.types import type_conversions

from tff_algos.runtimes import blocks, compiler, planning

_Struct = tff.structure.Struct


def prepare(devices: Optional[Sequence[str]] = None) -> list[str]:
  """Sets TensorFlow's threads for clients that take one core each; finds the devices.

  Two clients, each on a core of its own, are a quarter faster than both sharing every
  operation's cores. And no sum depends on how many cores a machine has. TensorFlow takes
  this before it has done anything only; later, or where its threads were set already,
  nothing changes. Making a context does this too.

  Args:
    devices: As `InProcessContext` takes them.

  Returns:
    The names of the devices that clients are placed on.

  Raises:
    ValueError: TensorFlow has no such device.
  """
  threads = tf.config.threading
  if not threads.get_intra_op_parallelism_threads():
    with contextlib.suppress(RuntimeError):
      threads.set_intra_op_parallelism_threads(1)
      threads.set_inter_op_parallelism_threads(len(os.sched_getaffinity(0)))
  return _find_devices(devices)


class InProcessContext(tff.framework.SyncContext):
  """A TFF execution context that interprets computations in this process."""

  def __init__(
    self,
    num_threads: Optional[int] = None,
    devices: Optional[Sequence[str]] = None,
  ):
    """Makes the context.

    Args:
      num_threads: How many clients are worked on at once on each device; default: one
        on a GPU; on CPUs one for each core, shared out over the devices.
      devices: Logical devices for the clients, such as ("GPU:0", "GPU:1"), which take
        them in turn; the first is the server's too. Default: all GPUs that TensorFlow
        sees, else its CPU.

    Raises:
      ValueError: TensorFlow has no such device.
    """
    found = prepare(devices)
    self._queues = [
      _Queue(device, num_threads or _default_threads(device, len(found)))
      for device in found
    ]

  def invoke(self, comp: tff.Computation, arg: Any) -> Any:
    """Runs `comp`; see `tff.framework.SyncContext.invoke`.

    Raises:
      UnsupportedComputationError: `comp` holds TensorFlow variables, secure sums or
        other things this runtime lacks.
    """
    with _PLANNING:
      plan = _PLANS.get(id(comp))
      if plan is None:
        plan = _PLANS[id(comp)] = _Plan(comp)
        weakref.finalize(comp, _PLANS.pop, id(comp), None)
    with _safe_for_threads(), tf.device(self.devices[0]):
      result = plan.run(arg, self.devices, self._in_order)
    return type_conversions.type_to_py_container(result, comp.type_signature.result)

  @property
  def devices(self) -> tuple[str, ...]:
    """The names of the devices that clients are placed on."""
    return tuple(queue.device for queue in self._queues)

  def close(self) -> None:
    """Ends the client threads; what was traced is kept for the next runtime."""
    for queue in self._queues:
      queue.pool.shutdown(wait=True)

  def _in_order(self, function: Callable, arguments: Iterable) -> Iterator:
    """Maps on the devices in turn; in order, at most a few results ahead of the caller.

    `function` takes the device's name and an argument.
    """
    waiting: collections.deque[concurrent.futures.Future] = collections.deque()
    most = 2 * sum(queue.num_threads for queue in self._queues)
    try:
      for i, argument in enumerate(arguments):
        queue = self._queues[i % len(self._queues)]
        waiting.append(queue.pool.submit(_run_safely, function, queue.device, argument))
        if len(waiting) > most:
          yield waiting.popleft().result()
      while waiting:
        yield waiting.popleft().result()
    finally:
      for future in waiting:
        future.cancel()
      concurrent.futures.wait(waiting)


class _Queue:
  """The threads that work on the clients of one device."""

  def __init__(self, device: str, num_threads: int):
    self.device, self.num_threads = device, num_threads
    self.pool = concurrent.futures.ThreadPoolExecutor(
      num_threads, thread_name_prefix=f"clients of {device}"
    )


def _default_threads(device: str, num_devices: int) -> int:
  if "GPU" in device:
    return 1
  return max(1, len(os.sched_getaffinity(0)) // num_devices)


def _find_devices(names: Optional[Sequence[str]]) -> list[str]:
  there = [d.name.replace("/device:", "") for d in tf.config.list_logical_devices()]
  if names is None:
    return [d for d in there if d.startswith("GPU")] or ["CPU:0"]
  wanted = [name.upper() for name in names]
  if not wanted:
    raise ValueError("Give at least one device, or none to take all GPUs.")
  for name in wanted:
    if name not in there:
      raise ValueError(
        f"TensorFlow has no device {name!r} here: choose of {', '.join(there)}."
      )
  if len(set(wanted)) < len(wanted):
    raise ValueError(f"A device is named twice: {', '.join(wanted)}.")
  return wanted


# By identity: TFF's computations hash by their content, which would serialise the whole
# graph in every round. An entry goes when its computation does.
_PLANS: dict[int, _Plan] = {}
_PLANNING = threading.Lock()


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


def _run_safely(function: Callable, device: str, argument: Any) -> Any:
  with _safe_for_threads(), tf.device(device):
    return function(device, argument)


class _ClientWork:
  """What the clients do between two exchanges, traced when it is first needed."""

  def __init__(
    self,
    requested: list[planning.Node],
    is_given: Callable[[planning.Node], bool],
  ):
    self.requested, self._is_given = requested, is_given

  def for_clients(self, num_clients: int) -> planning.Step | blocks.Blocks:
    """How that many clients work: one by one or in blocks."""
    in_blocks = self._blocks if num_clients >= blocks.FEWEST_CLIENTS else None
    return in_blocks or self._step

  @functools.cached_property
  def _step(self) -> planning.Step:
    return planning.Step(self.requested, self._is_given)

  @functools.cached_property
  def _blocks(self) -> Optional[blocks.Blocks]:
    return blocks.plan(self.requested, self._is_given)


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
    self._arguments: list[planning.Node] = []
    env = {}
    if block.parameter_name is not None:
      env[block.parameter_name] = self._argument_nodes(self._parameter)
    self._results = planning.plan_block(block.result, env)
    self._plan_steps()

  def _plan_local(self, block) -> None:
    def trace(*leaves):
      argument = None
      if self._parameter is not None:
        argument = planning.pack(self._parameter, iter(leaves))
      return planning.flatten_tensors(
        self._result, planning.evaluate(block, {})(argument)
      )

    specs = [] if self._parameter is None else planning.specs_of(self._parameter)
    self._local = planning.concrete_function(trace, specs)

  def _argument_nodes(self, t: tff.Type) -> Any:
    if isinstance(t, tff.FederatedType):
      self._arguments.append(planning.Node("argument", t))
      return self._arguments[-1]
    if isinstance(t, tff.StructType):
      elements = tff.structure.iter_elements(t)
      return _Struct([(n, self._argument_nodes(e)) for n, e in elements])
    raise compiler.UnsupportedComputationError(
      f"The in_process runtime takes placed arguments only; found {t}."
    )

  def _plan_steps(self) -> None:
    nodes = planning.reachable(planning.nodes_in(self._results))
    # What a step hands on: results, and what another step takes. An aggregate takes its
    # client values as they come, so they are not kept.
    kept = dict.fromkeys(planning.nodes_in(self._results))
    summed: dict[planning.Node, None] = {}
    for node in nodes:
      for source in node.inputs:
        if node.kind == "aggregate":
          summed[source] = None
        elif node.kind == "broadcast" or source.level < node.level:
          kept[source] = None
    wanted = {**kept, **summed}
    self._kept = {n for n in kept if not n.is_source}

    def is_given_at(level: int) -> Callable[[planning.Node], bool]:
      return lambda node: node.is_source or (node in wanted and node.level < level)

    self._levels: list[tuple[planning.Step, _ClientWork, planning.Accumulation]] = []
    for level in range(max((n.level for n in nodes), default=0) + 1):
      here = [n for n in wanted if n.level == level and (n in summed or not n.is_source)]
      server = planning.Step([n for n in here if n.at_server], is_given_at(level))
      at_clients = [n for n in here if not n.at_server]
      clients = _ClientWork(at_clients, is_given_at(level))
      sums = [n for n in nodes if n.kind == "aggregate" and n.level == level + 1]
      self._levels.append((server, clients, planning.Accumulation(sums)))

  def run(self, argument: Any, devices: Sequence[str], in_order: Callable) -> Any:
    if not self._is_federated:
      leaves = []
      if self._parameter is not None:
        specs = planning.specs_of(self._parameter)
        leaves = planning.as_tensors(specs, planning.flatten(self._parameter, argument))
      results = self._local(*leaves)
      return planning.pack(self._result, map(planning.to_numpy, results))
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
      if not clients.requested:  # Nothing is left for them to do.
        continue
      work = clients.for_clients(num_clients)
      broadcast = {
        n: at_server[n.inputs[0]] for n in work.inputs if n.kind == "broadcast"
      }
      shared = {device: _copied(broadcast, device) for device in devices}
      run = self._run_blocks if isinstance(work, blocks.Blocks) else self._run_clients
      for node in self._kept.intersection(work.requested):
        at_clients[node] = []
      totals = run(work, accumulation, shared, at_clients, num_clients, in_order)
      at_server.update(accumulation.split(totals))
    return self._egest(at_server, at_clients, num_clients)

  def _run_clients(
    self, step, accumulation, shared, at_clients, num_clients, in_order
  ) -> list:
    """Works on one client at a time; the accumulators after the last."""
    own = [n for n in step.inputs if n.kind != "broadcast"]

    def work(device: str, client: int) -> dict[planning.Node, list]:
      given = dict(shared[device])
      for node in own:
        specs = planning.specs_of(node.type)
        given[node] = planning.as_tensors(specs, at_clients[node][client])
      return step.run(given)

    totals, waiting = accumulation.zero(), []
    for results in in_order(work, range(num_clients)):
      waiting.append(results)
      if len(waiting) == planning.ADDED_AT_ONCE:
        totals, waiting = accumulation.add(totals, waiting), []
      for node in self._kept.intersection(step.requested):
        at_clients[node].append(results[node])
    return accumulation.add(totals, waiting)

  def _run_blocks(
    self, work, accumulation, shared, at_clients, num_clients, in_order
  ) -> list:
    """Works on blocks of clients; the accumulators after the last."""
    own = [n for n in work.inputs if n.kind != "broadcast"]

    def run(device: str, clients: range) -> dict[planning.Node, list]:
      stacked = {n: _stacked(n, [at_clients[n][c] for c in clients]) for n in own}
      return work.run(shared[device], stacked)

    every = range(0, num_clients, blocks.MOST_CLIENTS)
    parts = [range(num_clients)[i : i + blocks.MOST_CLIENTS] for i in every]
    totals = accumulation.zero()
    for clients, results in zip(parts, in_order(run, parts)):
      totals = accumulation.add_all(totals, results)
      for node in self._kept.intersection(work.requested):
        leaves = [np.asarray(leaf) for leaf in results[node]]
        # Copies: a view would keep the whole block in memory.
        each = ([np.array(leaf[i]) for leaf in leaves] for i in range(len(clients)))
        at_clients[node].extend(each)
    return totals

  def _ingest(self, argument: Any) -> tuple[dict, dict]:
    at_server: dict[planning.Node, list] = {}
    at_clients: dict[planning.Node, list[list]] = {}
    values = []
    if self._arguments:
      values = planning.leaf_values(self._parameter, argument)
    for node, value in zip(self._arguments, values):
      if node.at_server:
        at_server[node] = planning.as_tensors(
          planning.specs_of(node.type), planning.flatten(node.type, value)
        )
      else:
        at_clients[node] = [planning.flatten(node.type, v) for v in value]
    return at_server, at_clients

  def _egest(self, at_server, at_clients, num_clients) -> Any:
    def out(node: planning.Node, t: tff.FederatedType) -> Any:
      if node.kind == "broadcast":
        node = node.inputs[0]
      if node.at_server:
        return planning.pack(node.type, map(planning.to_numpy, at_server[node]))
      specs = planning.specs_of(node.type)
      if not specs:  # One empty value is as good as many, and much faster.
        empty = planning.pack(node.type, iter(()))
        each = [type_conversions.type_to_py_container(empty, t.member)] * num_clients
      else:
        each = [
          planning.pack(
            node.type,
            map(planning.to_numpy, planning.as_tensors(specs, at_clients[node][i])),
          )
          for i in range(num_clients)
        ]
      return each[0] if node.all_equal else each

    return _map_results(out, self._results, self._result)


def _map_results(function: Callable, results: Any, t: tff.Type) -> Any:
  """A structure of the same names with `function` of each node and its type."""
  if isinstance(results, planning.Node):
    return function(results, t)
  elements = zip(tff.structure.iter_elements(results), t)
  return _Struct([(n, _map_results(function, v, e)) for (n, v), e in elements])


def _copied(values: dict[planning.Node, list], device: str) -> dict[planning.Node, list]:
  with tf.device(device):
    return {n: [tf.identity(v) for v in leaves] for n, leaves in values.items()}


def _stacked(node: planning.Node, values: list[list]) -> list[tf.Tensor]:
  """The leaves of a node's values of several clients, stacked."""
  return [
    tf.constant(leaves, spec.dtype)
    if spec.dtype == tf.string
    else tf.constant(np.stack([np.asarray(v, spec.dtype.as_numpy_dtype) for v in leaves]))
    for spec, leaves in zip(planning.specs_of(node.type), zip(*values))
  ]
