"""Bytes that cross between server and clients, counted in the compiled computation."""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import tensorflow_federated as tff

from tff_algos.runtimes import compiler
from tff_algos.templates.stateful_process import StatefulProcess

# What has no name of the algorithm's: what aggregators send for themselves, such as the
# weights of a mean, and all that a process sends which our composer has not made.
_UNNAMED = "aggregation"

_UPLOADS = (
  "federated_aggregate",
  "federated_secure_modular_sum",
  "federated_secure_sum",
  "federated_secure_sum_bitwidth",
)


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
  "metrics" for what a composed process adds, "aggregation" for all else. A part that an
  aggregator sends in another form, such as a compressed one, is among that. Secure sums
  count as their numbers alone.
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
      elif node.function.uri in _UPLOADS:
        up.update(_parts(node.argument.type_signature[0].member))
    return node, False

  tff.framework.transform_postorder(block, visit)
  return RoundTraffic(dict(down), dict(up))


def record_columns(process: StatefulProcess) -> list[str]:
  """The names that `RoundTraffic.record` gives in rounds of any kind."""
  names = [bytes_per_client(next_fn).record(1) for next_fn in process.next_fns.values()]
  return sorted({name for record in names for name in record})


def _parts(t: tff.Type) -> dict[str, int]:
  """Bytes of a value by part, as far as the composer has named them."""
  parts: collections.Counter[str] = collections.Counter()
  fields = _fields(t)
  names = [name for name, _ in fields]
  if names[:2] == ["parts", "hparams"]:  # The broadcast.
    for name, element in [*_fields(fields[0][1]), *fields[1:]]:
      parts[name] += _bytes_of(element)
  elif names == ["averages", "counts"]:
    parts["metrics"] += _bytes_of(t)
  elif len(names) == 1 and names[0] is not None:  # An aggregate.
    parts[names[0]] += _bytes_of(t)
  elif len(names) == 2 and names[1] == "weight":  # One whose clients remember it.
    parts[names[0]] += _bytes_of(fields[0][1])
    parts[_UNNAMED] += _bytes_of(fields[1][1])
  elif names and all(_names(e) == [name] for name, e in fields):  # Aggregates, sent on.
    for name, element in fields:
      parts[name] += _bytes_of(element)
  else:
    parts[_UNNAMED] += _bytes_of(t)
  return parts


def _fields(t: tff.Type) -> list[tuple]:
  return list(tff.structure.iter_elements(t)) if isinstance(t, tff.StructType) else []


def _names(t: tff.Type) -> list:
  return [name for name, _ in _fields(t)]


def _bytes_of(t: tff.Type) -> int:
  if isinstance(t, tff.StructType):
    return sum(_bytes_of(e) for _, e in _fields(t))
  return int(np.prod(t.shape, dtype=np.int64)) * np.dtype(t.dtype).itemsize
