"""FedProx: a proximal term that holds the local weights near the global ones.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: "Federated Optimization in Heterogeneous
Networks", MLSys 2020, Algorithm 2.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from typing import TYPE_CHECKING, Optional

from tff_algos.algorithms import fed_avg
from tff_algos.client_work import local_training
from tff_algos.hyper_parameters import hparam
from tff_algos.models.functional import Model, Weights
from tff_algos.templates import composer, rounds
from tff_algos.templates.algorithm import Algorithm

if TYPE_CHECKING:
  from tff_algos.templates.stateful_process import StatefulProcess


@dataclasses.dataclass(frozen=True)
class FedProxHparams(fed_avg.FedAvgHparams):
  """Hyper-parameters of FedProx."""

  mu: float = hparam(
    0.01,
    "Weight of the proximal term mu/2 |w - x|^2 in the local objective.",
    source="paper, FedGG Section 4.2 (0.01)",
    low=0,
    tunable=True,
  )


def build_fed_prox(
  model: Model,
  hparams: FedProxHparams = FedProxHparams(),
  *,
  model_aggregator: Optional[rounds.AggregationFactory] = None,
  local_gradient: Optional[local_training.LocalGradient] = None,
) -> StatefulProcess:
  """Builds FedProx: FedAvg with the local gradient g(w) + mu (w - x) [paper].

  Args:
    model: The model to train.
    hparams: The hyper-parameters.
    model_aggregator: Replaces the weighted mean of the updates.
    local_gradient: `(model, h, weights, Batch) -> (gradient, sum of losses)` of a local
      step; default: that of the batch's mean loss.
  """

  def pull_of(start: Weights, h: FedProxHparams) -> local_training.Pull:
    return local_training.Pull(tuple(h.mu * x for x in start), strength=h.mu)

  client_update = fed_avg.train_from_model(model, local_gradient, pull_of)
  return composer.compose_process(
    model,
    hparams,
    rounds=rounds.Round(client_update, fed_avg.move_by_mean),
    aggregators=OrderedDict(model=model_aggregator),
  )


ALGORITHMS = (
  Algorithm(
    "fedprox",
    build_fed_prox,
    FedProxHparams,
    "FedAvg with a proximal term against client drift.",
    "Li et al., MLSys 2020",
  ),
)
