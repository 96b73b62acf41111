"""Federated SGD: one full-batch gradient for each client and round.

McMahan et al.: "Communication-Efficient Learning of Deep Networks from Decentralized
Data", AISTATS 2017, Section 2. Equal to FedAvg with E=1, B=inf [derived]. With all
clients counting the same it is the baseline "SGD" of Xu et al. (FedReg), ICLR 2022.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Optional

import tensorflow as tf

from tff_algos.client_data import Examples
from tff_algos.client_work import gradients, local_training, tree_math
from tff_algos.client_work.model_update import ClientResult, client_weight
from tff_algos.hyper_parameters import HyperParameters, hparam
from tff_algos.models.functional import Model
from tff_algos.templates import composer, rounds
from tff_algos.templates.algorithm import Algorithm

if TYPE_CHECKING:
  from tff_algos.templates.stateful_process import StatefulProcess


@dataclasses.dataclass(frozen=True)
class FedSgdHparams(HyperParameters):
  """Hyper-parameters of FedSGD."""

  learning_rate: float = hparam(
    0.1,
    "Step size of the server along the mean gradient (eta).",
    source="convention",
    low=0,
    open_low=True,
    tunable=True,
  )
  client_weighting: str = hparam(
    "examples",
    "What a client's gradient counts for: its number of examples, or the same for all.",
    source="paper, McMahan et al. 2017 (examples)",
    choices=("examples", "uniform"),
  )


@dataclasses.dataclass(frozen=True)
class SgdHparams(FedSgdHparams):
  """Hyper-parameters of the FedReg paper's SGD: FedSGD, all clients counting the same."""

  client_weighting: str = hparam(
    "uniform",
    "What a client's gradient counts for: the same for all, or its number of examples.",
    source="paper, FedReg Appendix D (uniform)",
    choices=("uniform", "examples"),
  )


def build_fed_sgd(
  model: Model,
  hparams: FedSgdHparams = FedSgdHparams(),
  *,
  model_aggregator: Optional[rounds.AggregationFactory] = None,
  local_gradient: Optional[local_training.LocalGradient] = None,
) -> StatefulProcess:
  """Builds FedSGD: x <- x - eta * sum_i n_i/n_S grad F_i(x) [paper, erratum form].

  Args:
    model: The model to train.
    hparams: The hyper-parameters.
    model_aggregator: Replaces the weighted mean of the gradients.
    local_gradient: `(model, h, weights, Batch) -> (gradient, sum of losses)` of all of a
      client's examples; default: that of their mean loss.

  Raises:
    InputError: The aggregator's clients remember their uploads.
  """

  def client_update(
    received: rounds.Parts,
    client_state: Any,
    examples: Examples,
    seed: tf.Tensor,
    h: FedSgdHparams,
  ) -> ClientResult:
    weights, n = received["model"], tf.shape(examples.y)[0]
    if local_gradient is None:
      gradient, loss = gradients.full_gradient(model, weights, examples, seed)
    else:
      whole = local_training.Batch(tf.range(n), examples.x, examples.y, seed)
      gradient, loss = local_gradient(model, h, weights, whole)
    return ClientResult(
      message=OrderedDict(model=gradient),
      weight=OrderedDict(model=client_weight(h.client_weighting, examples)),
      client_state=client_state,
      metrics=OrderedDict(loss=(loss, tf.cast(n, tf.float32))),
    )

  def server_update(
    variables: rounds.ServerVariables,
    aggregate: rounds.Parts,
    num_clients: tf.Tensor,
    h: FedSgdHparams,
  ) -> rounds.ServerVariables:
    del num_clients
    moved = tree_math.add_scaled(variables.model, -h.learning_rate, aggregate["model"])
    return variables._replace(model=moved)

  return composer.compose_process(
    model,
    hparams,
    rounds=rounds.Round(client_update, server_update, takes_memories=False),
    aggregators=OrderedDict(model=model_aggregator),
  )


ALGORITHMS = (
  Algorithm(
    "fedsgd",
    build_fed_sgd,
    FedSgdHparams,
    "One full-batch gradient for each client and round.",
    "McMahan et al., AISTATS 2017",
  ),
  Algorithm(
    "sgd",
    build_fed_sgd,
    SgdHparams,
    "FedSGD with all clients counting the same, FedReg's baseline.",
    "Xu et al., ICLR 2022",
  ),
)
