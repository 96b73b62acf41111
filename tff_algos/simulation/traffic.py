"""Bytes that cross between server and clients, counted in the compiled computation."""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import tensorflow_federated as tff

from tff_algos.runtimes import compiler
from tff_algos.templates.stateful_process import StatefulProcess

# What the fields of a composed process's exchanges are called in the ledger. Anything
# without a name is what an aggregator sends for itself, such as the weights of a mean.
_UNNAMED = "aggregation"
_NAMES = {"averages": "metrics", "counts": "metrics", "weight": _UNNAMED}


class RoundTraffic(NamedTuple):
  """Bytes for each client of a round, without any encoding or compression.

  Attributes:
    down: Part name to bytes from the server to one client.
    up: Part name to bytes from one client to the server.
  """

  down: Mapping[str, int]
  up: Mapping[str, int]

  def record(self, num_clients: int) -> dict[str, int]:
    """For a round's record: all clients' bytes, in all and by direction and part."""
    record = {}
    for direction, parts in self._asdict().items():
      record[f"bytes_{direction}"] = num_clients * sum(parts.values())
    for direction, parts in self._asdict().items():
      for part, count in parts.items():
        record[f"bytes_{direction}_{part}"] = num_clients * count
    return record


def bytes_per_client(next_computation: tff.Computation) -> RoundTraffic:
  """Counts what is broadcast and aggregated: exact, and the same on every runtime.

  Parts have the names that the algorithm gave them, and "hparams", "round_num",
  "metrics" for what a composed process adds, "aggregation" for what aggregators add.
  """
  block = compiler.to_call_dominant(next_computation)
  down: collections.Counter[str] = collections.Counter()
  up: collections.Counter[str] = collections.Counter()

  def visit(node):
    if isinstance(node, tff.framework.Call) and isinstance(
      node.function, tff.framework.Intrinsic
    ):
      if node.function.uri == "federated_broadcast":
        down.update(_parts(node.argument.type_signature.member))
      elif node.function.uri == "federated_aggregate":
        up.update(_parts(node.argument.type_signature[0].member))
    return node, False

  tff.framework.transform_postorder(block, visit)
  return RoundTraffic(dict(down), dict(up))


def record_columns(process: StatefulProcess) -> list[str]:
  """The names that `RoundTraffic.record` gives in rounds of any kind."""
  names = [bytes_per_client(next_fn).record(1) for next_fn in process.next_fns.values()]
  return sorted({name for record in names for name in record})


def _parts(t: tff.Type) -> dict[str, int]:
  """Bytes of a value by the names of its fields; those in "parts" by their own."""
  parts: collections.Counter[str] = collections.Counter()
  if isinstance(t, tff.StructType):
    for name, element in tff.structure.iter_elements(t):
      if name == "parts":
        parts.update(_parts(element))
      else:
        parts[_NAMES.get(name, name) or _UNNAMED] += _bytes_of(element)
  else:
    parts[_UNNAMED] += _bytes_of(t)
  return parts


def _bytes_of(t: tff.Type) -> int:
  if isinstance(t, tff.StructType):
    return sum(_bytes_of(e) for _, e in tff.structure.iter_elements(t))
  return int(np.prod(t.shape, dtype=np.int64)) * np.dtype(t.dtype).itemsize
