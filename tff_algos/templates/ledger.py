"""Bytes that cross between server and clients, by what the algorithm calls them."""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import tensorflow_federated as tff

# What has no name of the algorithm's: what aggregators send for themselves, such as the
# weights of a mean, and all that a process sends which our composer has not made.
_AGGREGATION = "aggregation"


class RoundTraffic(NamedTuple):
  """Bytes for each client of a round, without any encoding or compression of our own.

  Attributes:
    down: Part name to bytes from the server to one client.
    up: Part name to bytes from one client to the server.
  """

  down: Mapping[str, int]
  up: Mapping[str, int]


def bytes_per_client(next_computation: tff.Computation) -> RoundTraffic:
  """Counts all that is broadcast and aggregated in a compiled computation.

  Exact for numbers, and the same on every runtime; all of it is called "aggregation".
  Secure sums count as their numbers alone, and text for nothing.
  """
  # Here, as it imports TFF's compiler, and without that algorithms can be listed.
  from tff_algos.runtimes import compiler

  block = compiler.to_call_dominant(next_computation)
  down: collections.Counter[str] = collections.Counter()
  up: collections.Counter[str] = collections.Counter()

  def visit(
    node: tff.framework.ComputationBuildingBlock,
  ) -> tuple[tff.framework.ComputationBuildingBlock, bool]:
    if isinstance(node, tff.framework.Call) and isinstance(
      node.function, tff.framework.Intrinsic
    ):
      if node.function.uri == "federated_broadcast":
        down[_AGGREGATION] += _bytes_of(node.argument.type_signature.member)
      elif node.function.uri == "federated_aggregate":
        up[_AGGREGATION] += _bytes_of(node.argument.type_signature[0].member)
    return node, False

  tff.framework.transform_postorder(block, visit)
  return RoundTraffic(dict(down), dict(up))


class Ledger:
  """Adds up what the composer has cross in a round."""

  def __init__(self) -> None:
    self._down: collections.Counter[str] = collections.Counter()
    self._up: collections.Counter[str] = collections.Counter()

  def broadcast(self, part: str, value_type: tff.Type) -> None:
    """The server sends a value to each client."""
    self._down[part] += _bytes_of(value_type)

  def upload(self, part: str, value_type: tff.Type) -> None:
    """Each client sends a value, which is summed."""
    self._up[part] += _bytes_of(value_type)

  def aggregate(
    self, part: str, value_type: tff.Type, process: tff.templates.AggregationProcess
  ) -> None:
    """Each client sends a value by an aggregation process, in whatever form.

    Of what the process uploads, the part itself counts at most what its value takes; the
    rest and all that the process broadcasts is its own.
    """
    crossing = bytes_per_client(process.next)
    sent, received = (sum(parts.values()) for parts in (crossing.up, crossing.down))
    own = min(sent, _bytes_of(value_type))
    self._up[part] += own
    if sent > own:
      self._up[_AGGREGATION] += sent - own
    if received:
      self._down[_AGGREGATION] += received

  def total(self) -> RoundTraffic:
    """What crosses in the round."""
    return RoundTraffic(dict(self._down), dict(self._up))


def _bytes_of(t: tff.Type) -> int:
  if isinstance(t, tff.StructType):
    return sum(_bytes_of(element) for _, element in tff.structure.iter_elements(t))
  return int(np.prod(t.shape, dtype=np.int64)) * np.dtype(t.dtype).itemsize
