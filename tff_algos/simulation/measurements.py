"""A run's columns of what aggregators measure, such as how many updates were clipped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow_federated as tff

from tff_algos.templates.stateful_process import StatefulProcess


def record(metrics: Mapping[str, Any]) -> dict[str, Any]:
  """For a round's record: the scalars among its aggregators' measurements."""
  return {
    name: np.asarray(value).item()
    for name, value in _leaves(metrics.get("aggregator", ()), "aggregator")
    if np.ndim(value) == 0
  }


def record_columns(process: StatefulProcess) -> list[str]:
  """The names that `record` gives in rounds of any kind."""
  names: dict[str, None] = {}
  for next_fn in process.next_fns.values():
    metrics = dict(
      tff.structure.iter_elements(next_fn.type_signature.result.metrics.member)
    )
    for name, leaf in _leaves(metrics.get("aggregator", ()), "aggregator"):
      if leaf.shape == ():
        names[name] = None
  return list(names)


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
  if isinstance(value, tff.StructType):
    elements = list(tff.structure.iter_elements(value))
  elif isinstance(value, Mapping):
    elements = list(value.items())
  elif isinstance(value, (tuple, list)):
    names = getattr(value, "_fields", [None] * len(value))
    elements = list(zip(names, value))
  else:
    yield name, value
    return
  for place, (key, element) in enumerate(elements):
    yield from _leaves(element, f"{name}_{place if key is None else key}")
