"""FedAdam, FedYogi, FedAdagrad and FedAvgM: an optimizer at the server.

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan: "Adaptive Federated
Optimization", ICLR 2021, Algorithm 2. As printed there: no bias correction, tau outside
the root, and v starts at tau^2. TFF's `build_adam` and `build_yogi` correct the bias and
its `build_adagrad` divides by sqrt(v + epsilon), so they are other algorithms.

Hsu, Qi, Brown: "Measuring the Effects of Non-Identical Data Distribution for Federated
Visual Classification", 2019, for FedAvgM, momentum at the server.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Optional

import tensorflow as tf

from tff_algos.client_work import local_training, tree_math
from tff_algos.client_work.local_sgd import WeightedLocalSgd
from tff_algos.client_work.model_update import model_update
from tff_algos.hyper_parameters import hparam
from tff_algos.models.functional import Model
from tff_algos.templates import composer, rounds
from tff_algos.templates.algorithm import Algorithm

if TYPE_CHECKING:
  from tff_algos.templates.stateful_process import StatefulProcess


@dataclasses.dataclass(frozen=True)
class _AdaptiveHparams(WeightedLocalSgd):
  server_learning_rate: float = hparam(
    0.01,
    "Step size of the server's adaptive optimizer (eta).",
    source="convention; FedAgg Section VII uses 0.001 for FedAdam",
    low=0,
    open_low=True,
    tunable=True,
  )
  tau: float = hparam(
    1e-3,
    "Degree of adaptivity, added to the root of the second moment.",
    source="paper, Reddi et al. 2021, Section 5",
    low=0,
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


@dataclasses.dataclass(frozen=True)
class FedAvgMHparams(WeightedLocalSgd):
  """Hyper-parameters of FedAvgM."""

  server_learning_rate: float = hparam(
    1.0,
    "How far the server moves along its velocity (eta_g).",
    source="paper, Hsu et al. 2019 (1)",
    low=0,
    open_low=True,
    tunable=True,
  )
  server_momentum: float = hparam(
    0.9,
    "How much of its velocity the server keeps (beta); 0 is FedAvg.",
    source="paper, Hsu et al. 2019, one of those tried",
    low=0,
    high=1,
    tunable=True,
  )
  server_momentum_form: str = hparam(
    "heavy_ball",
    "Where clients start: heavy_ball, at the server's model; or nesterov, as far ahead "
    "of it as the velocity is going to move it.",
    source="paper, Hsu et al. 2019 (heavy_ball); convention (nesterov)",
    choices=("heavy_ball", "nesterov"),
  )


def build_fed_adam(
  model: Model,
  hparams: FedAdamHparams = FedAdamHparams(),
  *,
  model_aggregator: Optional[rounds.AggregationFactory] = None,
) -> StatefulProcess:
  """Builds FedAdam: v <- b2 v + (1 - b2) Delta^2; see `build_adaptive` [paper]."""

  def second_moment(v, squared, h):
    return h.beta2 * v + (1 - h.beta2) * squared

  return build_adaptive(model, hparams, second_moment, model_aggregator)


def build_fed_yogi(
  model: Model,
  hparams: FedYogiHparams = FedYogiHparams(),
  *,
  model_aggregator: Optional[rounds.AggregationFactory] = None,
) -> StatefulProcess:
  """Builds FedYogi: v <- v - (1 - b2) Delta^2 sign(v - Delta^2) [paper]."""

  def second_moment(v, squared, h):
    return v - (1 - h.beta2) * squared * tf.sign(v - squared)

  return build_adaptive(model, hparams, second_moment, model_aggregator)


def build_fed_adagrad(
  model: Model,
  hparams: FedAdagradHparams = FedAdagradHparams(),
  *,
  model_aggregator: Optional[rounds.AggregationFactory] = None,
) -> StatefulProcess:
  """Builds FedAdagrad: v <- v + Delta^2; see `build_adaptive` [paper]."""

  def second_moment(v, squared, h):
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

  def init_server():
    first = tree_math.zeros_like(model.initial_weights)
    second = tuple(tf.fill(w.shape, hparams.tau**2) for w in model.initial_weights)
    return OrderedDict(first_moment=first, second_moment=second)

  def server_update(variables, aggregate, num_clients, h):
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

  return _compose(model, hparams, server_update, init_server, model_aggregator)


def build_fed_avg_m(
  model: Model,
  hparams: FedAvgMHparams = FedAvgMHparams(),
  *,
  model_aggregator: Optional[rounds.AggregationFactory] = None,
) -> StatefulProcess:
  """Builds FedAvgM: with Delta = mean(w_i - x), v <- beta v + Delta, x <- x + eta_g v.

  v starts at 0 [paper]. What is kept is beta eta_g v, the part of the server's move that
  comes again: the same while beta and eta_g stay as they are [derived]. Nesterov's
  clients start at x + beta eta_g v, so that their training corrects the move to there,
  and it is not added behind them [convention].

  Args:
    model: The model to train.
    hparams: The hyper-parameters.
    model_aggregator: Replaces the weighted mean of the updates.
  """
  looks_ahead = hparams.server_momentum_form == "nesterov"

  def init_server():
    return tree_math.zeros_like(model.initial_weights)

  def distribute(variables):
    start = variables.model
    return OrderedDict(
      model=tree_math.add(start, variables.extra) if looks_ahead else start
    )

  def server_update(variables, aggregate, num_clients, h):
    del num_clients
    move = tree_math.add_scaled(
      variables.extra, h.server_learning_rate, aggregate["model"]
    )
    moved = tree_math.add_scaled(variables.model, 1.0, move)
    return rounds.ServerVariables(moved, tuple(h.server_momentum * m for m in move))

  return _compose(
    model, hparams, server_update, init_server, model_aggregator, distribute
  )


def _compose(
  model: Model,
  hparams: WeightedLocalSgd,
  server_update: rounds.ServerUpdate,
  init_server: Callable[[], rounds.Parts],
  model_aggregator: Optional[rounds.AggregationFactory],
  distribute: Callable[[rounds.ServerVariables], rounds.Parts] = rounds.send_model,
) -> StatefulProcess:
  """FedAvg's clients with a server update of their mean that keeps variables."""

  def client_update(received, client_state, examples, seed, h):
    start = received["model"]
    result = local_training.train_client(model, start, examples, h, seed)
    return model_update(h.client_weighting, start, result, examples, client_state)

  return composer.compose_process(
    model,
    hparams,
    rounds=rounds.Round(client_update, server_update, distribute),
    aggregators=OrderedDict(model=model_aggregator or rounds.mean()),
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
  Algorithm(
    "fedavgm",
    build_fed_avg_m,
    FedAvgMHparams,
    "FedAvg's clients, momentum at the server.",
    "Hsu et al., 2019",
  ),
)
