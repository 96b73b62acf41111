"""FedDyn: dynamic regularization, which lines up local and global optima.

Acar, Zhao, Navarro, Mattina, Whatmough, Saligrama: "Federated Learning Based on Dynamic
Regularization", ICLR 2021, in the form of its authors' code.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Optional

import tensorflow as tf

from tff_algos.client_data import Examples
from tff_algos.client_work import local_training, tree_math
from tff_algos.client_work.local_sgd import LocalSgd
from tff_algos.client_work.model_update import ClientResult, model_update
from tff_algos.errors import check_whole_number
from tff_algos.hyper_parameters import hparam
from tff_algos.models.functional import Model, Weights
from tff_algos.templates import composer, rounds
from tff_algos.templates.algorithm import Algorithm

if TYPE_CHECKING:
  from tff_algos.templates.stateful_process import StatefulProcess


@dataclasses.dataclass(frozen=True)
class FedDynHparams(LocalSgd):
  """Hyper-parameters of FedDyn."""

  alpha: float = hparam(
    0.01,
    "Strength of the dynamic regularizer.",
    source="paper, FedAgg Section VII (0.01)",
    low=0,
    tunable=True,
  )
  max_gradient_norm: float = hparam(
    0.0,
    "Largest norm of a local step's gradient, all of the regularizer included; 0 for no "
    "limit. The authors' code limits it before a_i w, its weight decay, is added.",
    source="convention; the authors' code uses 10",
    low=0,
  )
  server_dual: str = hparam(
    "mean",
    "What the server adds to the clients' mean: the mean of all clients' duals; or "
    "nothing: none, which for a small alpha is FedAvg.",
    source="convention; the authors' code adds it (mean)",
    choices=("mean", "none"),
  )


def build_fed_dyn(
  model: Model,
  hparams: FedDynHparams = FedDynHparams(),
  *,
  num_clients: int,
  num_examples: int,
  model_aggregator: Optional[rounds.AggregationFactory] = None,
) -> StatefulProcess:
  """Builds FedDyn [code, the authors'].

  Client i keeps l_i, 0 at first, and steps along g(w) + a_i (l_i + w - x), where
  a_i = alpha / (n_i N / n); then l_i += w_i - x. The server takes
  x <- mean_S(w_i) + h, with h = mean over all N clients of l_i. As l_i changes by what
  the client sends, w_i - x, the server keeps h up by |S|/N mean_S(w_i - x) [derived].
  `server_dual` may leave h away.

  Args:
    model: The model to train.
    hparams: The hyper-parameters.
    num_clients: N, the number of all clients that train, whether in a round or not.
    num_examples: n, the examples of these together.
    model_aggregator: Replaces the mean of the updates. h is kept up by what it gives, so
      that by one that clips, leaves out or adds noise h is no longer the mean of l_i.

  Raises:
    InputError: `num_clients` or `num_examples` is no whole number of at least 1, or the
      aggregator's clients remember their uploads.
  """
  composer.check_given(model, hparams)
  num_clients = check_whole_number("num_clients", num_clients, 1)
  num_examples = check_whole_number("num_examples", num_examples, 1)

  def zeros() -> Weights:
    return tree_math.zeros_like(model.initial_weights)

  def client_update(
    received: rounds.Parts,
    dual: Weights,
    examples: Examples,
    seed: tf.Tensor,
    h: FedDynHparams,
  ) -> ClientResult:
    start = received["model"]
    share = tf.cast(tf.shape(examples.y)[0], tf.float32) * num_clients / num_examples
    strength = h.alpha / share
    target = tree_math.subtract(start, dual)

    def shorten(gradient: Weights, weights: Weights, carry: Any) -> tuple[Weights, Any]:
      del weights
      return tree_math.clip(gradient, h.max_gradient_norm), carry

    result = local_training.train_client(
      model,
      start,
      examples,
      h,
      seed,
      pull=local_training.Pull(tuple(strength * t for t in target), strength),
      adjust_gradient=shorten if h.max_gradient_norm else None,
    )
    renewed = tree_math.add(dual, tree_math.subtract(result.weights, start))
    return model_update("uniform", start, result, examples, renewed)

  adds_dual = hparams.server_dual == "mean"

  def server_update(
    variables: rounds.ServerVariables,
    aggregate: rounds.Parts,
    num_accepted: tf.Tensor,
    h: FedDynHparams,
  ) -> rounds.ServerVariables:
    del h
    change = aggregate["model"]
    mean_model = tree_math.add(variables.model, change)
    if not adds_dual:
      return rounds.ServerVariables(mean_model, ())
    mean_dual = tree_math.add_scaled(variables.extra, num_accepted / num_clients, change)
    model = tree_math.add_scaled(mean_model, 1.0, mean_dual)  # Of sums: see tree_math.
    return rounds.ServerVariables(model, mean_dual)

  process = composer.compose_process(
    model,
    hparams,
    rounds=rounds.Round(client_update, server_update, takes_memories=False),
    aggregators=OrderedDict(model=model_aggregator),
    init_server=zeros if adds_dual else (lambda: ()),
    init_client=zeros,
  )
  return process.with_population(num_clients, num_examples)


ALGORITHMS = (
  Algorithm(
    "feddyn",
    build_fed_dyn,
    FedDynHparams,
    "A dynamic regularizer lines up local and global optima.",
    "Acar et al., ICLR 2021",
  ),
)
