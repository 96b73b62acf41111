"""FedAvgM: momentum at the server.

Hsu, Qi, Brown: "Measuring the Effects of Non-Identical Data Distribution for Federated
Visual Classification", 2019.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
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
  composer.check_given(model, hparams)
  looks_ahead = hparams.server_momentum_form == "nesterov"

  def init_server() -> Weights:
    return tree_math.zeros_like(model.initial_weights)

  def distribute(variables: rounds.ServerVariables) -> rounds.Parts:
    start = variables.model
    return OrderedDict(
      model=tree_math.add(start, variables.extra) if looks_ahead else start
    )

  def server_update(
    variables: rounds.ServerVariables,
    aggregate: rounds.Parts,
    num_clients: tf.Tensor,
    h: FedAvgMHparams,
  ) -> rounds.ServerVariables:
    del num_clients
    move = tree_math.add_scaled(
      variables.extra, h.server_learning_rate, aggregate["model"]
    )
    moved = tree_math.add_scaled(variables.model, 1.0, move)  # Of sums: see tree_math.
    return rounds.ServerVariables(moved, tuple(h.server_momentum * m for m in move))

  return composer.compose_process(
    model,
    hparams,
    rounds=rounds.Round(train_from_model(model), server_update, distribute),
    aggregators=OrderedDict(model=model_aggregator),
    init_server=init_server,
  )


ALGORITHMS = (
  Algorithm(
    "fedavgm",
    build_fed_avg_m,
    FedAvgMHparams,
    "FedAvg's clients, momentum at the server.",
    "Hsu et al., 2019",
  ),
)
