"""TWAFL: temporally weighted aggregation and layerwise asynchronous model update.

Chen, Sun, Jin: "Communication-Efficient Federated Deep Learning with Layerwise
Asynchronous Model Update and Temporally Weighted Aggregation", IEEE TNNLS 2020,
Algorithms 2 and 3; with its two parts by themselves, TEFL (also called TWFL) and AFL.
"""

from __future__ import annotations

import dataclasses
import math
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Optional

import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.algorithms import fed_avg
from tff_algos.client_data import Examples
from tff_algos.client_work import local_training, tree_math
from tff_algos.client_work.model_update import ClientResult, model_update
from tff_algos.distributors.partial_broadcast import PartialBroadcast
from tff_algos.errors import InputError, check_whole_number
from tff_algos.hyper_parameters import HyperParameters, hparam
from tff_algos.models.functional import Model, Weights
from tff_algos.templates import composer, rounds
from tff_algos.templates.algorithm import Algorithm

if TYPE_CHECKING:
  from tff_algos.aggregators.temporal_weighting import TemporalWeightingFactory
  from tff_algos.templates.stateful_process import StatefulProcess

# The parts of the message, and the kinds of rounds.
_SHALLOW, _DEEP, _FULL = "shallow", "deep", "full"


@dataclasses.dataclass(frozen=True)
class _Schedule(HyperParameters):
  rounds_in_loop: int = hparam(
    15,
    "Rounds in a loop of the schedule.",
    source="paper, Section IV (15)",
    low=1,
    high=1000,
  )
  freq: int = hparam(
    5,
    "In how many rounds, the last ones of a loop, the deep layers travel too.",
    source="paper, Section IV (5 of 3, 5, 7)",
    low=1,
    high=1000,
  )
  deep_from: str = hparam(
    "",
    "The first deep layer: what its weights' names start with, such as dense; empty: the "
    "one after the last convolution, recurrent layer or embedding, by their weights' "
    "names; without any, the second half of the arrays.",
    source="paper, Fig. 1; convention (by names, and the half)",
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.freq > self.rounds_in_loop:
      raise InputError(
        f"freq must be <= rounds_in_loop; found {self.freq} and {self.rounds_in_loop}."
      )


@dataclasses.dataclass(frozen=True)
class _Temporal(HyperParameters):
  base: float = hparam(
    math.e / 2,
    "a: an upload that is one round older counts a times less.",
    source="paper, Section IV (e/2 of e/2, e)",
    low=1,
  )
  normalization: str = hparam(
    "weights",
    "What the weighted sum of models is divided by: the sum of the weights; or, as "
    "printed, the number of examples, by which the model shrinks each round.",
    source="paper, Eq. (1) (examples); code, public implementations (weights)",
    choices=("weights", "examples"),
  )


@dataclasses.dataclass(frozen=True)
class TwaflHparams(_Temporal, _Schedule, fed_avg.FedAvgHparams):
  """Hyper-parameters of TWAFL."""


@dataclasses.dataclass(frozen=True)
class TeflHparams(_Temporal, fed_avg.FedAvgHparams):
  """Hyper-parameters of TEFL."""


@dataclasses.dataclass(frozen=True)
class AflHparams(_Schedule, fed_avg.FedAvgHparams):
  """Hyper-parameters of AFL."""


def build_twafl(
  model: Model,
  hparams: TwaflHparams = TwaflHparams(),
  *,
  num_clients: int,
  num_examples: int,
  sum_factory: Optional[tff.aggregators.UnweightedAggregationFactory] = None,
) -> StatefulProcess:
  """Builds TWAFL [paper].

  The server's layers are the `TemporalWeightingFactory` average of all clients' last
  uploads, shallow and deep ones with times of their own. In the last `freq` rounds of a
  loop all layers travel. In the other rounds a client receives the shallow layers only,
  trains them with its own deep layers as its last training left them, and sends the
  shallow ones; the process has two kinds of rounds.

  Args:
    model: The model to train.
    hparams: The hyper-parameters.
    num_clients: The number of all clients that train, whether in a round or not.
    num_examples: The examples of these together.
    sum_factory: Replaces the sum of what the round's clients add to the averages, of each
      part, by another way to sum, such as `tff.aggregators.SecureSumFactory`. There is no
      `model_aggregator`: of the server's sums over all clients' last uploads a client
      takes its own again, which must be what it added, neither averaged nor clipped.

  Raises:
    InputError: The model's layers cannot be divided, a number is not positive, or
      `sum_factory` is one that `TemporalWeightingFactory` refuses.
  """
  factory = _factory(model, hparams, num_clients, num_examples, sum_factory)
  process = _build_layerwise(model, hparams, factory)
  return process.with_population(num_clients, num_examples)


def build_tefl(
  model: Model,
  hparams: TeflHparams = TeflHparams(),
  *,
  num_clients: int,
  num_examples: int,
  sum_factory: Optional[tff.aggregators.UnweightedAggregationFactory] = None,
) -> StatefulProcess:
  """Builds TEFL: TWAFL where all layers travel in every round; see `build_twafl`."""
  factory = _factory(model, hparams, num_clients, num_examples, sum_factory)
  process = fed_avg.build_fed_avg(
    model, hparams, model_aggregator=factory(model.initial_weights)
  )
  return process.with_population(num_clients, num_examples)


def build_afl(
  model: Model,
  hparams: AflHparams = AflHparams(),
  *,
  num_clients: int,
  num_examples: int,
  sum_factory: Optional[tff.aggregators.UnweightedAggregationFactory] = None,
) -> StatefulProcess:
  """Builds AFL: TWAFL where all last uploads count alike, a = 1; see `build_twafl`."""
  factory = _factory(model, hparams, num_clients, num_examples, sum_factory, base=1.0)
  process = _build_layerwise(model, hparams, factory)
  return process.with_population(num_clients, num_examples)


def _factory(
  model: Model,
  hparams: fed_avg.FedAvgHparams,
  num_clients: int,
  num_examples: int,
  sum_factory: Optional[tff.aggregators.UnweightedAggregationFactory],
  **changed: Any,
) -> Callable[[Weights], TemporalWeightingFactory]:
  """`(initial values) -> TemporalWeightingFactory`."""
  # Here, as a class of TFF is its base, without which algorithms can be listed.
  from tff_algos.aggregators.temporal_weighting import TemporalWeightingFactory

  composer.check_given(model, hparams)
  num_clients = check_whole_number("num_clients", num_clients, 1)
  num_examples = check_whole_number("num_examples", num_examples, 1)
  by_examples = hparams.client_weighting == "examples"
  if not changed:
    changed = dict(base=hparams.base, normalize=hparams.normalization == "weights")

  def make(initial: Weights) -> TemporalWeightingFactory:
    total = num_examples if by_examples else num_clients
    return TemporalWeightingFactory(
      initial, total_weight=total, sum_factory=sum_factory, **changed
    )

  return make


def _build_layerwise(
  model: Model,
  hparams: TwaflHparams | AflHparams,
  factory: Callable[[Weights], TemporalWeightingFactory],
) -> StatefulProcess:
  layers = PartialBroadcast(model.weight_names, hparams.deep_from)
  cut = {_SHALLOW: layers.shallow, _DEEP: layers.deep}

  def build_round(travelling: list[str]) -> rounds.Round:
    def distribute(variables: rounds.ServerVariables) -> rounds.Parts:
      return OrderedDict((part, cut[part](variables.model)) for part in travelling)

    def client_update(
      received: rounds.Parts,
      own_deep: Weights,
      examples: Examples,
      seed: tf.Tensor,
      h: fed_avg.FedAvgHparams,
    ) -> ClientResult:
      start = (*received[_SHALLOW], *received.get(_DEEP, own_deep))
      result = local_training.train_client(model, start, examples, h, seed)
      deep = layers.deep(result.weights)
      update = model_update(h.client_weighting, start, result, examples, deep)
      change, weight = update.message["model"], update.weight["model"]
      return update._replace(
        message=OrderedDict((part, cut[part](change)) for part in travelling),
        weight=OrderedDict((part, weight) for part in travelling),
      )

    def server_update(
      variables: rounds.ServerVariables,
      aggregate: rounds.Parts,
      num_clients: tf.Tensor,
      h: fed_avg.FedAvgHparams,
    ) -> rounds.ServerVariables:
      change = [
        *aggregate[_SHALLOW],
        *aggregate.get(_DEEP, tree_math.zeros_like(layers.deep(variables.model))),
      ]
      aggregate = OrderedDict(model=tuple(change))
      return fed_avg.move_by_mean(variables, aggregate, num_clients, h)

    return rounds.Round(client_update, server_update, distribute)

  num_shallow = hparams.rounds_in_loop - hparams.freq
  return composer.compose_process(
    model,
    hparams,
    rounds={_SHALLOW: build_round([_SHALLOW]), _FULL: build_round([_SHALLOW, _DEEP])},
    aggregators={part: factory(cut[part](model.initial_weights)) for part in cut},
    init_client=lambda: tuple(map(tf.constant, layers.deep(model.initial_weights))),
    schedule=[_SHALLOW] * num_shallow + [_FULL] * hparams.freq,
  )


ALGORITHMS = (
  Algorithm(
    "twafl",
    build_twafl,
    TwaflHparams,
    "Newer models count more; deep layers travel in some rounds only.",
    "Chen et al., TNNLS 2020",
  ),
  Algorithm(
    "tefl",
    build_tefl,
    TeflHparams,
    "TWAFL's temporal weights, with all layers in every round.",
    "Chen et al., TNNLS 2020",
  ),
  Algorithm(
    "afl",
    build_afl,
    AflHparams,
    "TWAFL's exchange of layers, without temporal weights.",
    "Chen et al., TNNLS 2020",
  ),
)
