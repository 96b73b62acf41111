"""What a round's record has of training, aggregators, evaluations and traffic."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow_federated as tff

from tff_algos.client_data import ClientDirectory
from tff_algos.errors import InputError
from tff_algos.models.functional import Weights
from tff_algos.simulation import client_evaluation, cohorts, stopping
from tff_algos.simulation.client_evaluation import EvaluateClients
from tff_algos.templates.ledger import RoundTraffic
from tff_algos.templates.stateful_process import StatefulProcess

if TYPE_CHECKING:
  from tff_algos.simulation.loop import Record, Settings


def training_metrics(metrics: Any) -> Mapping[str, Any]:
  """What a round measured of training, where TFF's processes have it; may be empty."""
  for place in ("client_work", "train"):
    metrics = metrics.get(place) if isinstance(metrics, Mapping) else None
  return metrics if isinstance(metrics, Mapping) else {}


def of_training(metrics: Mapping[str, Any]) -> dict[str, Any]:
  """Averages over the training examples, by train_ and their name, and counts.

  Arrays, such as a sample of clients' metrics, and structures are left out.
  """
  plain = {
    name: np.asarray(value).item()
    for name, value in training_metrics(metrics).items()
    if not isinstance(value, (Mapping, tuple, list)) and np.ndim(value) == 0
  }
  # Of no example there is no average; TFF's own processes give the 0 of a guarded
  # division, which would look like one.
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
    for place in ("client_work", "train"):
      metrics = getattr(metrics, place, ())
    for name, t in tff.structure.iter_elements(tff.to_type(metrics)):
      if not isinstance(t, tff.TensorType) or t.shape != ():
        continue
      is_average = np.issubdtype(t.dtype, np.floating)
      is_count = np.issubdtype(t.dtype, np.integer)
      if is_average or is_count:
        names[f"train_{name}" if is_average else name] = None
  return list(names)


def of_aggregators(metrics: Any) -> dict[str, Any]:
  """The scalars that aggregators measure, such as how many updates were clipped."""
  measured = metrics.get("aggregator", ()) if isinstance(metrics, Mapping) else ()
  return {
    name: np.asarray(value).item()
    for name, value in _leaves(measured, "aggregator")
    if np.ndim(value) == 0
  }


def aggregators_columns(process: StatefulProcess) -> list[str]:
  """The names that `of_aggregators` gives in rounds of any kind."""
  names: dict[str, None] = {}
  for next_fn in process.next_fns.values():
    metrics = next_fn.type_signature.result.metrics.member
    for name, leaf in _leaves(getattr(metrics, "aggregator", ()), "aggregator"):
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


def is_due(settings: Settings, done: int) -> bool:
  """Whether clients are evaluated after so many rounds, however the run ends."""
  return done == settings.rounds or done % settings.eval_clients_every == 0


def planned(records: Sequence[Record], settings: Settings) -> list[Record]:
  """Those of a run but for the last one if only the run's end had it evaluated."""
  is_planned = not records or records[-1]["round"] % settings.eval_every == 0
  return [*records] if is_planned else [*records[:-1]]


def as_unbroken(record: Record, settings: Settings) -> Record:
  """A run's last record without the evaluations that only its end caused."""
  extra: tuple[str, ...] = ()
  if record["round"] % settings.eval_every:
    extra += ("test_", "evaluation_")
  if record["round"] % settings.eval_clients_every:
    extra += ("client_", "held_out_")
  return {name: v for name, v in record.items() if not name.startswith(extra)}


def of_test(
  evaluate: Callable[[Weights], Mapping[str, float]],
  process: StatefulProcess,
  state: Any,
  settings: Settings,
) -> Record:
  """What evaluation gives, by test_ and its name, and the seconds that it took.

  Raises:
    InputError: It gives no mapping, lacks the metric that the run is to stop by, or
      gives no number.
  """
  start = time.perf_counter()
  values = evaluate(process.get_model_weights(state).trainable)
  if not isinstance(values, Mapping):
    raise InputError(
      "evaluate must return a mapping of metrics to numbers, such as {'accuracy': 0.9}; "
      f"found a {type(values).__name__}."
    )
  wanted = None if settings.stop is None else stopping.name_of(settings.stop.metric)
  if wanted is not None and wanted not in values:
    raise InputError(
      f"The run is to stop by {wanted}, but evaluation gives "
      f"{', '.join(values)}: choose one of them."
    )
  record: Record = {}
  for name, value in values.items():
    try:
      record[f"test_{name}"] = float(value)
    except (TypeError, ValueError):
      raise InputError(
        f"evaluate must give a number for each metric; {name} is {value!r}."
      ) from None
  return {**record, "evaluation_seconds": time.perf_counter() - start}


def of_clients(
  evaluate_clients: EvaluateClients,
  weights: Weights,
  clients: ClientDirectory,
  settings: Settings,
) -> Record:
  """The spread over the clients that train and those that never do, and the seconds."""
  start = time.perf_counter()
  split = len(clients), settings.held_out_clients, settings.seed
  groups = {"client": cohorts.training_clients(*split)}
  if settings.held_out_clients:
    groups["held_out"] = cohorts.held_out_clients(*split)
  record: Record = {}
  for group, places in groups.items():
    values = evaluate_clients(weights, clients, [clients.ids[p] for p in places])
    record.update(client_evaluation.record(group, values))
  record["client_evaluation_seconds"] = time.perf_counter() - start
  return record


def of_traffic(traffic: RoundTraffic, num_clients: int) -> dict[str, int]:
  """For a round's record: all clients' bytes, in all and by direction and part."""
  columns = {}
  for direction, parts in traffic._asdict().items():
    columns[f"bytes_{direction}"] = num_clients * sum(parts.values())
  for direction, parts in traffic._asdict().items():
    for part, count in parts.items():
      columns[f"bytes_{direction}_{part}"] = num_clients * count
  return columns


def traffic_columns(process: StatefulProcess) -> list[str]:
  """The names that `of_traffic` gives in rounds of any kind."""
  return sorted(
    {name for kind in process.traffic.values() for name in of_traffic(kind, 1)}
  )
