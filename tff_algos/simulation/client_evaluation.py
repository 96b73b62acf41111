"""Evaluation on each client's own examples, of the global model or of the client's own.

Its own is the global one after a few local steps, or what a process's `personal_model`
makes of half of its examples.
"""

from __future__ import annotations

import dataclasses
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from typing import Any, Optional

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tff_algos import client_arrays, client_data
from tff_algos.client_data import ClientDirectory, Examples
from tff_algos.client_work import gradients, local_training, step_seeds, tree_math
from tff_algos.errors import (
  InputError,
  check_is,
  check_whole_number,
  set_number,
  set_whole_number,
)
from tff_algos.models import batch_totals
from tff_algos.models.functional import Model, Weights, check_model, check_weights
from tff_algos.runtimes import private_apis
from tff_algos.simulation import evaluation, seeds
from tff_algos.templates.stateful_process import PersonalModel

# Name to one number of each client, in the order that was asked for.
ClientValues = OrderedDict[str, NDArray[Any]]
EvaluateClients = Callable[[Weights, ClientDirectory, Sequence[str]], ClientValues]

_PERSONALIZED = "personalized_"


@dataclasses.dataclass(frozen=True)
class Personalization:
  """Steps of plain SGD that each client takes from the global model, for itself.

  Its examples are shuffled by a seed of its own; the first half, rounded down, is for the
  steps, the others are evaluated. A client with one example takes no step.

  Attributes:
    steps: How many, >= 1; the half is gone through again and again in its order.
    learning_rate: > 0.
    batch_size: Examples of a step, at most all of the half; None: all of it.
    seed: >= 0, of the shuffles and the model's random layers.

  Raises:
    InputError: A value is of another kind or out of range.
  """

  steps: int
  learning_rate: float
  batch_size: Optional[int] = None
  seed: int = 0

  def __post_init__(self) -> None:
    for name, low in (("steps", 1), ("batch_size", 1), ("seed", 0)):
      value = getattr(self, name)
      if value is not None or name != "batch_size":
        set_whole_number(self, name, low)
    set_number(self, "learning_rate", of_float32=True)
    if not 0 < self.learning_rate < float("inf"):
      raise InputError(f"learning_rate must be > 0; found {self.learning_rate}.")


def build_client_evaluation(
  model: Model,
  personalization: Optional[Personalization] = None,
  *,
  personal_model: Optional[PersonalModel] = None,
  seed: int = 0,
) -> EvaluateClients:
  """Makes a function that evaluates weights on some clients' own examples.

  Args:
    model: The model, at work in inference mode but for the steps of `personalization`.
    personalization: If given, evaluation is of the half of a client's examples that is
      not for its steps, and there are values of the global model and of its own.
    personal_model: Of a process that has one. It is given the half that steps would be
      taken on, and the others are evaluated; a client with one example has no values.
    seed: >= 0, of the shuffles for `personal_model`.

  Returns:
    `(weights, clients, ids) -> values`, each an array (len(ids),): `loss` in nats and the
    model's metrics, means over a client's examples, NaN where a metric counts none of
    them; `num_examples`, how many these were; and, with `personalization`,
    `personalized_loss` and so on, after its steps.

  Raises:
    InputError: What is given is of another kind, or there is a `personal_model` and steps
      are to be taken too.
  """
  check_model(model)
  seed = check_whole_number("seed", seed, 0)
  if personalization is not None:
    check_is("personalization", personalization, Personalization)
  if personal_model is not None and personalization is not None:
    raise InputError(
      "The clients have models of their own already: leave personalization out."
    )
  shuffled_by = personalization.seed if personalization else seed

  @tf.function(
    input_signature=[
      model.weight_specs,
      tf.TensorSpec([], tf.string),
      tf.TensorSpec([2], tf.int32),
    ],
    autograph=False,
  )
  def totals(weights: Weights, path: tf.Tensor, seed: tf.Tensor) -> dict[str, tf.Tensor]:
    examples = client_data.read(path, model.example_spec)
    if personal_model is not None:
      known, others = _halves(examples, seed)
      # Of no example there is no model: an only one is known, and none is evaluated.
      is_only = tf.cast(tf.equal(tf.shape(examples.y)[0], 1), tf.int32)
      known = Examples(*(tf.concat([k, o[:is_only]], 0) for k, o in zip(known, others)))
      others = Examples(*(o[is_only:] for o in others))
      return _totals(personal_model(weights, known), weights, others)
    if personalization is None:
      return _totals(model, weights, examples)
    known, others = _halves(examples, seed)
    own = _personalize(model, weights, known, personalization, seed)
    found = _totals(model, weights, others)
    for name, value in _totals(model, own, others).items():
      if name != "num_examples":
        found[_PERSONALIZED + name] = value
    return found

  totals.get_concrete_function()  # Traced before several threads ask for it.

  def evaluate(
    weights: Weights, clients: ClientDirectory, ids: Sequence[str]
  ) -> ClientValues:
    takes = client_arrays.dtypes_and_shapes(model.example_spec)
    client_arrays.check_example(clients, takes)
    tensors = tuple(map(tf.constant, check_weights(model, weights)))

    def totals_of(client: str) -> dict[str, NDArray[np.float64]]:
      words = seeds.sequence(shuffled_by, "personalization", clients.place(client))
      key = words.generate_state(2, np.uint32).view(np.int32)
      with private_apis.safe_for_threads():
        parts = totals(tensors, clients.path(client), key)
      return {name: value.numpy() for name, value in parts.items()}

    # Operations may have one core each: clients use the others.
    with futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
      found = list(pool.map(totals_of, ids))
    names = _names(model, personalization)
    pairs = {name: np.array([f[name] for f in found]).reshape(-1, 2) for name in names}
    counts = pairs.pop("num_examples")[:, 0].astype(np.int64)
    with np.errstate(invalid="ignore"):
      values = OrderedDict((name, t[:, 0] / t[:, 1]) for name, t in pairs.items())
    return OrderedDict(values, num_examples=counts)

  return evaluate


def columns(
  model: Model, personalization: Optional[Personalization], *, has_held_out: bool
) -> list[str]:
  """The names that `record` gives to what is measured of a model on clients, and time."""
  nothing = OrderedDict((name, np.empty(0)) for name in _names(model, personalization))
  groups = ["client", *(["held_out"] if has_held_out else [])]
  found = [name for group in groups for name in record(group, nothing)]
  return [*found, "client_evaluation_seconds"]


def record(group: str, values: ClientValues) -> dict[str, float]:
  """The `spread` of the loss and of each metric for a round's record.

  Args:
    group: What names begin with, "client" or "held_out".
    values: What `build_client_evaluation`'s function gives.
  """
  return {
    f"{group}_{name}_{part}": value
    for name, of_clients in values.items()
    if name != "num_examples"
    for part, value in spread(name, of_clients, values["num_examples"]).items()
  }


def of_clients(record: Mapping[str, Any]) -> dict[str, float]:
  """What `record` has put into a round's record."""
  return {
    name: value
    for name, value in record.items()
    if name.startswith(("client_", "held_out_")) and not name.endswith("seconds")
  }


_WORST = {"loss": np.max, "accuracy": np.min}


def spread(
  name: str, values: NDArray[Any], num_examples: NDArray[np.int64]
) -> dict[str, float]:
  """How a measure differs between clients.

  Args:
    name: Of the measure, such as "accuracy" or "personalized_loss".
    values: One for each client; NaN where a metric counts none of its examples. A loss
      of some examples that is NaN, as of a model that has diverged, counts as infinite.
    num_examples: Of each client, how many were evaluated; of none it has no value.

  Returns:
    `p10`, `p50`, `p90`, the percentiles over clients, which all count the same, linear
    between two; and `worst`, the greatest loss or the least accuracy: of other metrics
    it is not known which is worse. NaN where no client has a value.
  """
  kind = name.removeprefix(_PERSONALIZED)
  if kind == "loss":
    values = np.where(np.isnan(values) & (num_examples > 0), np.inf, values)
  known = np.sort(values[~np.isnan(values)])
  if not len(known):
    known = np.full(1, np.nan)
  found = {f"p{percent}": _percentile(known, percent) for percent in (10, 50, 90)}
  worst = _WORST.get(kind)
  return found if worst is None else dict(found, worst=float(worst(known)))


def _percentile(ordered: NDArray[Any], percent: int) -> float:
  """NumPy's, which has no number between two that are infinite."""
  place, rest = divmod(percent * (len(ordered) - 1), 100)
  low, high = ordered[place], ordered[min(place + 1, len(ordered) - 1)]
  return float(low if not rest or low == high else low + rest / 100 * (high - low))


def _names(model: Model, personalization: Optional[Personalization]) -> list[str]:
  names = ["loss", *model.metrics]
  if personalization is not None:
    names += [_PERSONALIZED + name for name in names]
  return [*names, "num_examples"]


def _halves(examples: Examples, seed: tf.Tensor) -> tuple[Examples, Examples]:
  """Of a shuffle, what a client's own model is made of, rounded down, and the others."""
  n = tf.shape(examples.y)[0]
  order = local_training.batch_order(seed, n, 1)[0]
  return _rows(examples, order[: n // 2]), _rows(examples, order[n // 2 :])


def _rows(examples: Examples, rows: tf.Tensor) -> Examples:
  return Examples(tf.gather(examples.x, rows), tf.gather(examples.y, rows))


def _totals(model: Model, weights: Weights, examples: Examples) -> dict[str, tf.Tensor]:
  """Name to float64 (2,), total and count over the examples."""
  batch = evaluation.batch_of(model)

  def add_batch(
    start: tf.Tensor, sums: dict[str, tf.Tensor]
  ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    x, y = (part[start : start + batch] for part in examples)
    found = batch_totals.of_examples(model, weights, x, y)
    return start + batch, {name: sums[name] + found[name] for name in sums}

  n = tf.shape(examples.y)[0]
  zeros = {name: tf.zeros([2], tf.float64) for name in ("loss", *model.metrics)}
  _, sums = tf.while_loop(
    lambda start, _: start < n, add_batch, (0, zeros), parallel_iterations=1
  )
  count = tf.cast(n, tf.float64)
  return {**sums, "num_examples": tf.stack([count, count])}


def _personalize(
  model: Model,
  weights: Weights,
  examples: Examples,
  personalization: Personalization,
  seed: tf.Tensor,
) -> Weights:
  """The weights after the steps; as they are where there is no example for them."""
  n, size = tf.shape(examples.y)[0], personalization.batch_size
  size = n if size is None else tf.minimum(size, n)

  def step(number: tf.Tensor, weights: Weights) -> tuple[tf.Tensor, Weights]:
    batch = _rows(examples, (number * size + tf.range(size)) % n)
    key = step_seeds.of_step(seed, number)
    way, _ = gradients.batch_gradient(
      model, weights, batch.x, batch.y, key, scale=personalization.learning_rate
    )
    return number + 1, tree_math.subtract(weights, way)

  _, weights = tf.while_loop(
    lambda number, _: (number < personalization.steps) & (n > 0),
    step,
    (0, tuple(weights)),
    parallel_iterations=1,
  )
  return weights
