"""SCAFFOLD: control variates that correct the client drift.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: "SCAFFOLD: Stochastic Controlled Averaging
for Federated Learning", ICML 2020, Algorithm 1.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from typing import TYPE_CHECKING, Optional

import tensorflow as tf

from tff_algos.algorithms import fed_avg
from tff_algos.client_data import Examples
from tff_algos.client_work import gradients, local_training, tree_math
from tff_algos.client_work.model_update import ClientResult, model_update
from tff_algos.errors import check_whole_number
from tff_algos.hyper_parameters import hparam
from tff_algos.models.functional import Model, Weights
from tff_algos.templates import composer, rounds
from tff_algos.templates.algorithm import Algorithm

if TYPE_CHECKING:
  from tff_algos.templates.stateful_process import StatefulProcess


@dataclasses.dataclass(frozen=True)
class ScaffoldHparams(fed_avg.FedAvgHparams):
  """Hyper-parameters of SCAFFOLD."""

  client_weighting: str = hparam(
    "uniform",
    "What a client's model counts for: the same for all, or its number of examples.",
    source="paper, Karimireddy et al. 2020 (uniform)",
    choices=("uniform", "examples"),
  )
  option: str = hparam(
    "II",
    "How a client renews its control variate: I, its full gradient at the received "
    "model; II, from the way its weights went.",
    source="paper, Karimireddy et al. 2020, Eq. (4)",
    choices=("I", "II"),
  )


def build_scaffold(
  model: Model,
  hparams: ScaffoldHparams = ScaffoldHparams(),
  *,
  num_clients: int,
  model_aggregator: Optional[rounds.AggregationFactory] = None,
) -> StatefulProcess:
  """Builds SCAFFOLD [paper].

  Local step y <- y - eta_l (g(y) - c_i + c). Then option I: c_i+ = grad F_i(x), option
  II: c_i+ = c_i - c + (x - y) / (K eta_l). Server: x += eta_g mean(y - x) and
  c += |S|/N mean(c_i+ - c_i). All control variates start at 0.

  With momentum, K in option II is the effective number of steps
  (`local_training.effective_steps`) [derived].

  Args:
    model: The model to train.
    hparams: The hyper-parameters.
    num_clients: N, the number of all clients that train, whether in a round or not.
    model_aggregator: Replaces the weighted mean of the models' updates; the control
      variates keep their mean, of which they are defined.

  Raises:
    InputError: `num_clients` is no whole number of at least 1, or the aggregator's
      clients remember their uploads.
  """
  num_clients = check_whole_number("num_clients", num_clients, 1)

  def zeros() -> Weights:
    return tree_math.zeros_like(model.initial_weights)

  def distribute(variables: rounds.ServerVariables) -> rounds.Parts:
    return OrderedDict(model=variables.model, control_variate=variables.extra)

  def client_update(
    received: rounds.Parts,
    own_variate: Weights,
    examples: Examples,
    seed: tf.Tensor,
    h: ScaffoldHparams,
  ) -> ClientResult:
    start, server_variate = received["model"], received["control_variate"]
    target = tree_math.subtract(own_variate, server_variate)

    result = local_training.train_client(
      model, start, examples, h, seed, pull=local_training.Pull(target)
    )
    if h.option == "I":
      renewed, _ = gradients.full_gradient(model, start, examples, seed)
    else:
      steps = local_training.effective_steps(result.num_steps, h.momentum)
      way = tree_math.subtract(start, result.weights)
      renewed = tree_math.add_scaled(target, 1 / (steps * h.learning_rate), way)
    update = model_update(h.client_weighting, start, result, examples, renewed)
    change = tree_math.subtract(renewed, own_variate)
    return update._replace(
      message=OrderedDict(update.message, control_variate=change),
      weight=OrderedDict(update.weight, control_variate=tf.constant(1.0)),
    )

  def server_update(
    variables: rounds.ServerVariables,
    aggregate: rounds.Parts,
    num_accepted: tf.Tensor,
    h: ScaffoldHparams,
  ) -> rounds.ServerVariables:
    moved = fed_avg.move_by_mean(variables, aggregate, num_accepted, h)
    return moved._replace(
      extra=tree_math.add_scaled(
        variables.extra, num_accepted / num_clients, aggregate["control_variate"]
      )
    )

  process = composer.compose_process(
    model,
    hparams,
    rounds=rounds.Round(client_update, server_update, distribute, takes_memories=False),
    aggregators=OrderedDict(model=model_aggregator, control_variate=rounds.mean()),
    init_server=zeros,
    init_client=zeros,
  )
  return process.with_population(num_clients)


ALGORITHMS = (
  Algorithm(
    "scaffold",
    build_scaffold,
    ScaffoldHparams,
    "Control variates correct client drift (options I and II).",
    "Karimireddy et al., ICML 2020",
  ),
)
