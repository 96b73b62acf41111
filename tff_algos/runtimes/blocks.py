"""Works on a block of clients by one batched computation, where that is faster.

A step of a small dense model takes microseconds, and TensorFlow as long again to start
each of its operations. So the clients' work is vectorised over a client axis, in which
every operation is started once for all clients of a block.

The rule, which looks at the computation, and at whether clients work on GPUs:

- The clients' work begins with a map to values of unknown sizes: a file's content, or
  tensors whose first dimensions are unknown. All of it that follows is vectorised; only
  clients whose values have the same sizes share a batch, so nothing is padded.
- Every operation of the work is one that is as fast for many clients at once, and whose
  vectorised form gives each client what it has alone. On a CPU
  this leaves out convolutions, whose weights differ within a batch (`convolutions`).
- The broadcast, which is copied for every client, is not too large, and the round has
  clients enough: `ON_CPU` and `ON_GPU` say how many.
"""

from __future__ import annotations

import logging
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tff_algos.runtimes import (
  convolutions,
  planning,
  private_apis,
  random_draws,
  tracing,
  values,
  vectorised_forms,
)
from tff_algos.runtimes.planning import Node

_LOG = logging.getLogger(__name__)

# Of a block. More gain nothing where all have as many examples; fewer leave too few that
# have.
MOST_CLIENTS = 128
_FEWEST_OF_A_BLOCK = 16


class Limits(NamedTuple):
  """What is worked on in blocks.

  Attributes:
    fewest_clients: In a round. Tracing takes a second or two more.
    most_bytes: Of the broadcast.
    block_bytes: Of all its copies in a block.
    num_blocks: In how many a small round is cut. It must not depend on how many cores or
      devices there are, as results do not.
  """

  fewest_clients: int
  most_bytes: float
  block_bytes: float = math.inf
  num_blocks: int = 1

  def block_size(self, num_clients: int, num_bytes: int) -> int:
    """Of a round of so many clients, where the broadcast has so many bytes."""
    share = max(_FEWEST_OF_A_BLOCK, -(-num_clients // self.num_blocks))
    most = self.block_bytes / max(1, num_bytes)
    return int(max(1, min(MOST_CLIENTS, share, most)))


# Dense networks of 8 thousand to 400 thousand weights took 0.2 to 1.0 of the time of one
# client after another, with 200 thousand 0.6; two cores. A round of 128 clients in four
# blocks, or in two, took 0.8 of what it took in one.
ON_CPU = Limits(fewest_clients=16, most_bytes=1e6, num_blocks=4)

# CNNs of 1.7 million weights took 0.2 and 0.25 of the time of one client after another, a
# linear model 0.07; but ten clients with as many sizes 1.6. One H200.
ON_GPU = Limits(fewest_clients=4, most_bytes=50e6, block_bytes=250e6)

_SLOW = re.compile(r"Conv|Pool|FFT|TensorList|Random(?!Uniform)|Stateless(?!If|While)")
# Whose forms give a client what is another's: a parsed list as long as the longest, rows
# of the next table, one text of all.
_MIXES_CLIENTS = re.compile(r"Parse|DecodeCSV|StringFormat|SparseSegment")
_FAST_ON_GPU = re.compile(
  r"(Conv2D|DepthwiseConv2dNative)(Backprop(Filter|Input))?|(Avg|Max)Pool(Grad)?"
)
# The third takes shapes, which are the same for all clients of a batch.
_FAST_WITHOUT_CONVERTER = {
  *("Const", "NoOp", "BroadcastGradientArgs", "Placeholder", "Range")
}
# Normal numbers, and on a CPU many of any kind, are drawn for one client after another,
# which is cheap beside what else is saved.
_DRAWS = {*random_draws.FORMS, "StatelessRandomNormalV2"}
_ALWAYS_FAST = _FAST_WITHOUT_CONVERTER.union(
  _DRAWS, vectorised_forms.FORMS_FOR_OWN_INPUTS
)

_FORMS_FOR_OWN_INPUTS = {**convolutions.FORMS, **vectorised_forms.FORMS_FOR_OWN_INPUTS}


class Blocks:
  """The vectorised form of the clients' work between two exchanges."""

  def __init__(
    self,
    readings: list[Node],
    work: planning.Step,
    alone: planning.Step,
    is_given: Callable[[Node], bool],
    block_size: Callable[[int], int],
    forms: Mapping[str, Any],
  ):
    #: How many clients are in a block of a round of so many.
    self.block_size = block_size
    # Fewer work at once where these needed too much memory. They are a block all the
    # same: what is added up together must not depend on that.
    self._most = sys.maxsize
    self._reading = planning.Step(readings, is_given)
    self._work, self._alone, self._forms = work, alone, forms
    self.requested = work.requested
    self._shapes = [s for n in readings for s in values.specs_of(n.type)]
    self.inputs = list(
      dict.fromkeys(
        [*self._reading.inputs, *(n for n in work.inputs if n not in readings)]
      )
    )
    self._read = self._function(self._trace_read, self._reading.inputs)
    self._do_work = self._function(self._trace_work, self._work.inputs)

  def prepare(self) -> None:
    """Has TensorFlow trace what `run` needs, before threads call it."""
    self._read.trace()
    self._do_work.trace()

  def run(
    self, shared: Mapping[Node, list[tf.Tensor]], own: Mapping[Node, list[tf.Tensor]]
  ) -> dict[Node, list[tf.Tensor]]:
    """The requested values of a block of clients.

    Args:
      shared: The leaves of what was broadcast.
      own: The leaves of the other inputs, stacked over the clients.

    Returns:
      The leaves of each requested node, stacked over the clients.

    Raises:
      ResourceExhaustedError: The device's memory is too small for a single client.
      InvalidArgumentError: A client's work has failed.
    """
    clients = len(next(leaf for leaves in own.values() for leaf in leaves))
    half, lacked_memory = clients // 2, False
    try:
      if clients <= self._most:
        return self._run(shared, own)
    except (tf.errors.ResourceExhaustedError, tf.errors.InvalidArgumentError) as error:
      # Of the second kind are sizes that depend on values, which differ from client to
      # client, besides what is wrong with one. That is found out anew in each block: what
      # was in those before must not matter to its results, which are rounded otherwise.
      if clients == 1:
        return self._run_alone(shared, own)
      lacked_memory = isinstance(error, tf.errors.ResourceExhaustedError)
    first, second = (
      self.run(shared, {n: [leaf[these] for leaf in own[n]] for n in own})
      for these in (slice(half), slice(half, None))
    )
    # No client's work has failed, so that it was their being together.
    if lacked_memory:
      self._most = min(self._most, clients - half)
    return {
      n: [tf.concat(leaves, 0) for leaves in zip(first[n], second[n])] for n in first
    }

  def _run(
    self, shared: Mapping[Node, list[tf.Tensor]], own: Mapping[Node, list[tf.Tensor]]
  ) -> dict[Node, list[tf.Tensor]]:
    *read, lengths = self._read(*self._arguments(self._reading.inputs, shared, own))
    lengths = np.concatenate([lengths, *_lengths_of_strings(own)], axis=1)
    groups: dict[bytes, list[int]] = {}
    for client, row in enumerate(lengths):
      groups.setdefault(row.tobytes(), []).append(client)
    batches = [
      self._run_alike(read, lengths, clients, shared, own) for clients in groups.values()
    ]
    if len(batches) == 1:
      return dict(zip(self.requested, batches[0]))
    places = np.argsort([c for clients in groups.values() for c in clients])
    return {
      node: [tf.gather(tf.concat(parts, 0), places) for parts in zip(*each)]
      for node, *each in zip(self.requested, *batches)
    }

  def _run_alone(
    self, shared: Mapping[Node, list[tf.Tensor]], own: Mapping[Node, list[tf.Tensor]]
  ) -> dict[Node, list[tf.Tensor]]:
    """The work of the one client of a block, whose vectorised form has failed."""
    leaves = {n: [leaf[0] for leaf in own[n]] for n in own}
    results = self._alone.run({**shared, **leaves})
    return {n: [leaf[tf.newaxis] for leaf in results[n]] for n in results}

  def _run_alike(
    self,
    read: list[tf.Tensor],
    lengths: npt.NDArray[np.int32],
    clients: list[int],
    shared: Mapping[Node, list[tf.Tensor]],
    own: Mapping[Node, list[tf.Tensor]],
  ) -> Sequence[list[tf.Tensor]]:
    """The work of the clients of a block whose values have the same shapes."""
    is_whole = len(clients) == len(lengths)
    ends = np.cumsum(lengths, axis=0)
    stacked = []
    for i, (value, spec) in enumerate(zip(read, self._shapes)):
      length = lengths[clients[0], i]
      if not values.is_ragged_shape(spec.shape):
        stacked.append(value if is_whole else tf.gather(value, clients))
      elif is_whole:
        stacked.append(tf.reshape(value, [len(clients), length, *spec.shape[1:]]))
      else:
        rows = (ends[clients, i] - length)[:, np.newaxis] + np.arange(length)
        stacked.append(tf.gather(value, rows))
    if not is_whole:
      own = {n: [tf.gather(v, clients) for v in leaves] for n, leaves in own.items()}
    leaves = iter(stacked)
    values_of = {
      node: [next(leaves) for _ in values.specs_of(node.type)]
      for node in self._reading.requested
    }
    own = {**own, **values_of}
    return self._do_work(*self._arguments(self._work.inputs, shared, own))

  def _arguments(
    self,
    inputs: list[Node],
    shared: Mapping[Node, list[tf.Tensor]],
    own: Mapping[Node, list[tf.Tensor]],
  ) -> list[tf.Tensor]:
    leaves_of = {**own, **shared}
    return [leaf for node in inputs for leaf in leaves_of[node]]

  def _function(self, trace: Callable[..., Any], inputs: list[Node]) -> tracing.Function:
    specs = [
      s if n.kind == "broadcast" else tf.TensorSpec([None, *s.shape], s.dtype)
      for n in inputs
      for s in values.specs_of(n.type)
    ]
    return tracing.Function(trace, specs)

  def _trace_read(self, *flat: tf.Tensor) -> list[tf.Tensor]:
    is_shared = _is_shared(self._reading.inputs)
    own = [v for v, shared in zip(flat, is_shared) if not shared]
    num_clients = tf.shape(own[0])[0]
    arrays = [
      tf.TensorArray(s.dtype, num_clients, infer_shape=False, element_shape=s.shape)
      for s in self._shapes
    ]
    # Few operations: each costs a client a microsecond.
    lengths = [
      tf.TensorArray(tf.int32, num_clients, element_shape=[])
      for s in self._shapes
      if values.is_ragged_shape(s.shape)
    ]

    def read_one(
      client: tf.Tensor, lengths: list[tf.TensorArray], arrays: list[tf.TensorArray]
    ) -> tuple[Any, ...]:
      leaves = (v if shared else v[client] for v, shared in zip(flat, is_shared))
      read = [v for node in self._reading.trace(*leaves) for v in node]
      ragged = [v for v, s in zip(read, self._shapes) if values.is_ragged_shape(s.shape)]
      return (
        client + 1,
        [length.write(client, tf.shape(v)[0]) for length, v in zip(lengths, ragged)],
        [array.write(client, v) for array, v in zip(arrays, read)],
      )

    _, lengths, arrays = tf.while_loop(
      lambda client, *_: client < num_clients,
      read_one,
      (tf.constant(0), lengths, arrays),
    )
    joined = [
      a.concat() if values.is_ragged_shape(s.shape) else a.stack()
      for a, s in zip(arrays, self._shapes)
    ]
    counts = iter(lengths)
    sizes = [
      next(counts).stack()
      if values.is_ragged_shape(s.shape)
      else tf.strings.length(v)
      if s.dtype == tf.string
      else tf.ones([num_clients], tf.int32)
      for v, s in zip(joined, self._shapes)
    ]
    return [*joined, tf.stack(sizes, axis=1)]

  def _trace_work(self, *flat: tf.Tensor) -> Any:
    is_shared = _is_shared(self._work.inputs)
    own = [v for v, shared in zip(flat, is_shared) if not shared]

    def work(own: list[tf.Tensor]) -> list[list[tf.Tensor]]:
      leaves = iter(own)
      return self._work.trace(
        *(v if shared else next(leaves) for v, shared in zip(flat, is_shared))
      )

    with private_apis.forms_for_own_inputs(self._forms):
      return tf.vectorized_map(work, own)


def plan(
  one_by_one: planning.Step, is_given: Callable[[Node], bool], *, on_gpu: bool
) -> Optional[Blocks]:
  """The vectorised form of a client's step; None where there is to be none.

  The rule may be against it, or TensorFlow's forms do not take what the work gives them.
  """
  limits, requested = ON_GPU if on_gpu else ON_CPU, one_by_one.requested
  nodes = planning.reachable(requested, is_given)
  readings = planning.readings_of(nodes)
  ends = [*requested, *(n for n in nodes if is_given(n))]
  # What comes and goes is stacked, which values of unknown shapes cannot be.
  if not readings or not all(map(_can_be_stacked, ends)):
    return None
  sent = [s for n in nodes if n.kind == "broadcast" for s in values.specs_of(n.type)]
  num_bytes = sum(s.shape.num_elements() * s.dtype.size for s in sent)
  if num_bytes > limits.most_bytes:
    return None
  # The block's size is known by what is given for each client.
  if all(_is_shared(planning.Step(readings, is_given).inputs)):
    return None
  work = planning.Step(requested, lambda n: n in readings or is_given(n))
  if not _is_fast(work.function.trace().graph.as_graph_def(), on_gpu):
    return None

  def block_size(num_clients: int) -> int:
    return limits.block_size(num_clients, num_bytes)

  forms = {**_FORMS_FOR_OWN_INPUTS, **(random_draws.FORMS_ON_GPU if on_gpu else {})}
  made = Blocks(readings, work, one_by_one, is_given, block_size, forms)
  try:
    made.prepare()
  except Exception as error:  # Of any kind: a vectorised form does not take its inputs.
    _LOG.info("Clients work one after another, as their work has no form: %s", error)
    return None
  return made


def stack(node: Node, of_clients: list[list[Any]]) -> list[tf.Tensor]:
  """The leaves of a node's values of several clients, stacked."""
  stacked = []
  for spec, leaves in zip(values.specs_of(node.type), zip(*of_clients)):
    fitting = list(map(values.fitter(spec), leaves))
    if spec.dtype != tf.string:
      fitting = np.stack(list(map(np.asarray, fitting)))
    stacked.append(tf.constant(fitting, spec.dtype))
  return stacked


def _lengths_of_strings(
  own: Mapping[Node, list[tf.Tensor]],
) -> list[npt.NDArray[np.int32]]:
  """Each (clients, n): what is made of strings may depend on their lengths too."""
  strings = (v for leaves in own.values() for v in leaves if v.dtype == tf.string)
  return [np.reshape(tf.strings.length(v), (len(v), -1)) for v in strings]


def _is_shared(inputs: list[Node]) -> list[bool]:
  return [n.kind == "broadcast" for n in inputs for _ in values.specs_of(n.type)]


def _can_be_stacked(node: Node) -> bool:
  return all(
    s.shape.is_fully_defined() and s.dtype != tf.variant
    for s in values.specs_of(node.type)
  )


def _is_fast(graph_def: tf.compat.v1.GraphDef, on_gpu: bool) -> bool:
  nodes = [*graph_def.node, *(n for f in graph_def.library.function for n in f.node_def)]
  return all(_is_fast_operation(node, on_gpu) for node in nodes)


def _is_fast_operation(node: tf.compat.v1.NodeDef, on_gpu: bool) -> bool:
  if node.op in _ALWAYS_FAST:
    return True
  if on_gpu and _FAST_ON_GPU.fullmatch(node.op):
    return node.op not in convolutions.FORMS or convolutions.is_known(node.attr)
  is_left_out = _SLOW.search(node.op) or _MIXES_CLIENTS.search(node.op)
  return private_apis.has_vectorised_form(node.op) and not is_left_out


for _name, _form in {**random_draws.FORMS, **vectorised_forms.FORMS}.items():
  private_apis.add_vectorised_form(_name, _form)
