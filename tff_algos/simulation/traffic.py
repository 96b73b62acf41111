"""A run's columns of bytes that cross between server and clients."""

from __future__ import annotations

from tff_algos.templates.ledger import RoundTraffic
from tff_algos.templates.stateful_process import StatefulProcess


def record(traffic: RoundTraffic, num_clients: int) -> dict[str, int]:
  """For a round's record: all clients' bytes, in all and by direction and part."""
  columns = {}
  for direction, parts in traffic._asdict().items():
    columns[f"bytes_{direction}"] = num_clients * sum(parts.values())
  for direction, parts in traffic._asdict().items():
    for part, count in parts.items():
      columns[f"bytes_{direction}_{part}"] = num_clients * count
  return columns


def record_columns(process: StatefulProcess) -> list[str]:
  """The names that `record` gives in rounds of any kind."""
  return sorted({name for kind in process.traffic.values() for name in record(kind, 1)})
