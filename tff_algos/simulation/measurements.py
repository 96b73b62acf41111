"""What a round's record has of its metrics: of training, and of the aggregators."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow_federated as tff

from tff_algos.templates.stateful_process import StatefulProcess


def of_training(metrics: Mapping[str, Any]) -> dict[str, Any]:
  """Averages over the training examples, by train_ and their name, and counts."""
  train = metrics["client_work"]["train"]
  plain = {name: np.asarray(value).item() for name, value in train.items()}
  # Of no example there is no average, and a guarded division's 0 would look like one.
  is_empty = plain.get("num_examples") == 0
  averages = {
    f"train_{name}": math.nan if is_empty else value
    for name, value in plain.items()
    if isinstance(value, float)
  }
  return dict(
    averages, **{name: value for name, value in plain.items() if isinstance(value, int)}
  )


def training_columns(process: StatefulProcess) -> list[str]:
  """The names that `of_training` gives in rounds of any kind."""
  names: dict[str, None] = {}
  for next_fn in process.next_fns.values():
    metrics = next_fn.type_signature.result.metrics.member
    for name, t in tff.structure.iter_elements(metrics.client_work.train):
      is_average = isinstance(t, tff.TensorType) and np.issubdtype(t.dtype, np.floating)
      names[f"train_{name}" if is_average else name] = None
  return list(names)


def of_aggregators(metrics: Mapping[str, Any]) -> dict[str, Any]:
  """The scalars that aggregators measure, such as how many updates were clipped."""
  return {
    name: np.asarray(value).item()
    for name, value in _leaves(metrics.get("aggregator", ()), "aggregator")
    if np.ndim(value) == 0
  }


def aggregators_columns(process: StatefulProcess) -> list[str]:
  """The names that `of_aggregators` gives in rounds of any kind."""
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
