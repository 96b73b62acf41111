"""Federated Averaging.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: "Communication-Efficient Learning of Deep
Networks from Decentralized Data", AISTATS 2017, Algorithm 1.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Optional

import tensorflow as tf

from tff_algos.client_data import Examples
from tff_algos.client_work import local_training, tree_math
from tff_algos.client_work.local_sgd import WeightedLocalSgd
from tff_algos.client_work.model_update import ClientResult, model_update
from tff_algos.hyper_parameters import hparam
from tff_algos.models.functional import Model, Weights
from tff_algos.templates import composer, rounds
from tff_algos.templates.algorithm import Algorithm

if TYPE_CHECKING:
  from tff_algos.templates.stateful_process import StatefulProcess


@dataclasses.dataclass(frozen=True)
class FedAvgHparams(WeightedLocalSgd):
  """Hyper-parameters of FedAvg and of the algorithms that share its server."""

  server_learning_rate: float = hparam(
    1.0,
    "How far the server moves to the clients' mean (eta_g); 1 takes the mean itself.",
    source="paper, McMahan et al. 2017 (1)",
    low=0,
    open_low=True,
    tunable=True,
  )


def train_from_model(
  model: Model,
  local_gradient: Optional[local_training.LocalGradient] = None,
  pull_of: Callable[[Weights, Any], Optional[local_training.Pull]] = lambda x, h: None,
) -> rounds.ClientUpdate:
  """FedAvg's clients: local SGD from the model received, whose change is the message.

  Args:
    model: The model to train.
    local_gradient: As of `build_fed_avg`.
    pull_of: `(x, h) -> Pull` of the local steps from the model received; default: none.
  """

  def client_update(
    received: rounds.Parts,
    client_state: Any,
    examples: Examples,
    seed: tf.Tensor,
    h: WeightedLocalSgd,
  ) -> ClientResult:
    start = received["model"]
    gradient_of = local_gradient and functools.partial(local_gradient, model, h)
    result = local_training.train_client(
      model, start, examples, h, seed, gradient_of=gradient_of, pull=pull_of(start, h)
    )
    return model_update(h.client_weighting, start, result, examples, client_state)

  return client_update


def move_by_mean(
  variables: rounds.ServerVariables,
  aggregate: rounds.Parts,
  num_clients: tf.Tensor,
  h: Any,
) -> rounds.ServerVariables:
  """The server update x <- x + eta_g * mean(w_i - x); keeps the extra variables."""
  del num_clients
  moved = tree_math.add_scaled(
    variables.model, h.server_learning_rate, aggregate["model"]
  )
  return variables._replace(model=moved)


def build_fed_avg(
  model: Model,
  hparams: FedAvgHparams = FedAvgHparams(),
  *,
  model_aggregator: Optional[rounds.AggregationFactory] = None,
  local_gradient: Optional[local_training.LocalGradient] = None,
) -> StatefulProcess:
  """Builds FedAvg: x <- x + eta_g * sum_i n_i/n_S (w_i - x) [paper, erratum form].

  n_S is the number of examples of the clients of this round.

  Args:
    model: The model to train.
    hparams: The hyper-parameters.
    model_aggregator: Replaces the weighted mean of the updates, for example by
      `tff.learning.robust_aggregator()`.
    local_gradient: `(model, h, weights, Batch) -> (gradient, sum of losses)` of a local
      step; default: that of the batch's mean loss.
  """
  return composer.compose_process(
    model,
    hparams,
    rounds=rounds.Round(train_from_model(model, local_gradient), move_by_mean),
    aggregators=OrderedDict(model=model_aggregator),
  )


ALGORITHMS = (
  Algorithm(
    "fedavg",
    build_fed_avg,
    FedAvgHparams,
    "Averages models after local SGD.",
    "McMahan et al., AISTATS 2017",
  ),
)
