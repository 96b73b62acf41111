"""FedAdam, FedYogi and FedAdagrad: an adaptive optimizer at the server.

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan: "Adaptive Federated
Optimization", ICLR 2021, Algorithm 2. As printed there: no bias correction, tau outside
the root, and v starts at tau^2. TFF's `build_adam` and `build_yogi` correct the bias and
its `build_adagrad` divides by sqrt(v + epsilon), so they are other algorithms.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Optional

import tensorflow as tf

from tff_algos.algorithms.fed_avg import train_from_model
from tff_algos.client_work import tree_math
from tff_algos.client_work.local_sgd import WeightedLocalSgd
from tff_algos.hyper_parameters import hparam
from tff_algos.models.functional import Model, Weights
from tff_algos.templates import composer, rounds
from tff_algos.templates.algorithm import Algorithm

if TYPE_CHECKING:
  from tff_algos.templates.stateful_process import StatefulProcess


@dataclasses.dataclass(frozen=True)
class _AdaptiveHparams(WeightedLocalSgd):
  server_learning_rate: float = hparam(
    0.01,
    "Step size of the server's adaptive optimizer (eta).",
    source="convention; FedAgg, Section VII, may mean 0.001 for FedAdam",
    low=0,
    open_low=True,
    tunable=True,
  )
  tau: float = hparam(
    1e-3,
    "Degree of adaptivity, added to the root of the second moment.",
    source="paper, Reddi et al. 2021, Section 5",
    low=0,
    high=1e19,  # v starts at its square.
    open_low=True,
    tunable=True,
  )
  beta1: float = hparam(
    0.9,
    "Decay of the first moment.",
    source="paper, Reddi et al. 2021, Section 5",
    low=0,
    high=1,
    tunable=True,
  )


@dataclasses.dataclass(frozen=True)
class FedAdamHparams(_AdaptiveHparams):
  """Hyper-parameters of FedAdam."""

  beta2: float = hparam(
    0.99,
    "Decay of the second moment.",
    source="paper, Reddi et al. 2021, Section 5",
    low=0,
    high=1,
    tunable=True,
  )


@dataclasses.dataclass(frozen=True)
class FedYogiHparams(FedAdamHparams):
  """Hyper-parameters of FedYogi."""


@dataclasses.dataclass(frozen=True)
class FedAdagradHparams(_AdaptiveHparams):
  """Hyper-parameters of FedAdagrad."""

  beta1: float = hparam(
    0.0,
    "Decay of the first moment.",
    source="paper, Reddi et al. 2021, Section 5",
    low=0,
    high=1,
    tunable=True,
  )


def build_fed_adam(
  model: Model,
  hparams: FedAdamHparams = FedAdamHparams(),
  *,
  model_aggregator: Optional[rounds.AggregationFactory] = None,
) -> StatefulProcess:
  """Builds FedAdam: v <- b2 v + (1 - b2) Delta^2, Delta = mean(w_i - x) [paper].

  As all three: m <- b1 m + (1 - b1) Delta, x <- x + eta m / (sqrt(v) + tau). Arguments,
  less `local_gradient`, and errors are `build_fed_avg`'s.
  """

  def second_moment(v: tf.Tensor, squared: tf.Tensor, h: FedAdamHparams) -> tf.Tensor:
    return h.beta2 * v + (1 - h.beta2) * squared

  return build_adaptive(model, hparams, second_moment, model_aggregator)


def build_fed_yogi(
  model: Model,
  hparams: FedYogiHparams = FedYogiHparams(),
  *,
  model_aggregator: Optional[rounds.AggregationFactory] = None,
) -> StatefulProcess:
  """Builds FedYogi: v <- v - (1 - b2) Delta^2 sign(v - Delta^2) [paper].

  Else it is `build_fed_adam`, whose arguments and errors it has.
  """

  def second_moment(v: tf.Tensor, squared: tf.Tensor, h: FedYogiHparams) -> tf.Tensor:
    return v - (1 - h.beta2) * squared * tf.sign(v - squared)

  return build_adaptive(model, hparams, second_moment, model_aggregator)


def build_fed_adagrad(
  model: Model,
  hparams: FedAdagradHparams = FedAdagradHparams(),
  *,
  model_aggregator: Optional[rounds.AggregationFactory] = None,
) -> StatefulProcess:
  """Builds FedAdagrad: v <- v + Delta^2 [paper].

  Else it is `build_fed_adam`, whose arguments and errors it has.
  """

  def second_moment(v: tf.Tensor, squared: tf.Tensor, h: FedAdagradHparams) -> tf.Tensor:
    del h
    return v + squared

  return build_adaptive(model, hparams, second_moment, model_aggregator)


def build_adaptive(
  model: Model,
  hparams: _AdaptiveHparams,
  second_moment: Callable[..., tf.Tensor],
  model_aggregator: Optional[rounds.AggregationFactory] = None,
) -> StatefulProcess:
  """FedAvg's clients with the server update of Algorithm 2 [paper].

  With Delta = mean(w_i - x): m <- b1 m + (1 - b1) Delta, v <- `second_moment`,
  x <- x + eta m / (sqrt(v) + tau); m starts at 0 and v at tau^2.

  Args:
    model: The model to train.
    hparams: The hyper-parameters.
    second_moment: `(v, Delta^2, h) -> v`, for each array of weights.
    model_aggregator: Replaces the weighted mean of the updates.
  """

  def init_server() -> OrderedDict[str, Weights]:
    first = tree_math.zeros_like(model.initial_weights)
    second = tuple(tf.fill(w.shape, hparams.tau**2) for w in model.initial_weights)
    return OrderedDict(first_moment=first, second_moment=second)

  def server_update(
    variables: rounds.ServerVariables,
    aggregate: rounds.Parts,
    num_clients: tf.Tensor,
    h: _AdaptiveHparams,
  ) -> rounds.ServerVariables:
    del num_clients
    delta = aggregate["model"]
    first = tuple(
      h.beta1 * m + (1 - h.beta1) * d
      for m, d in zip(variables.extra["first_moment"], delta)
    )
    second = tuple(
      second_moment(v, tf.square(d), h)
      for v, d in zip(variables.extra["second_moment"], delta)
    )
    direction = tuple(m / (tf.sqrt(v) + h.tau) for m, v in zip(first, second))
    return rounds.ServerVariables(
      model=tree_math.add_scaled(variables.model, h.server_learning_rate, direction),
      extra=OrderedDict(first_moment=first, second_moment=second),
    )

  return composer.compose_process(
    model,
    hparams,
    rounds=rounds.Round(train_from_model(model), server_update),
    aggregators=OrderedDict(model=model_aggregator),
    init_server=init_server,
  )


ALGORITHMS = (
  Algorithm(
    "fedadam",
    build_fed_adam,
    FedAdamHparams,
    "FedAvg's clients, Adam at the server.",
    "Reddi et al., ICLR 2021",
  ),
  Algorithm(
    "fedyogi",
    build_fed_yogi,
    FedYogiHparams,
    "FedAvg's clients, Yogi at the server.",
    "Reddi et al., ICLR 2021",
  ),
  Algorithm(
    "fedadagrad",
    build_fed_adagrad,
    FedAdagradHparams,
    "FedAvg's clients, Adagrad at the server.",
    "Reddi et al., ICLR 2021",
  ),
)
