"""FedCurv: elastic weight consolidation towards the other clients' last models.

Shoham, Avidor, Keren, Israel, Benditkis, Mor-Yosef, Zeitak: "Overcoming Forgetting in
Federated Learning on Non-IID Data", NeurIPS workshop 2019, Eqs. (3) to (6).
"""

from __future__ import annotations

import dataclasses
import functools
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.algorithms import fed_avg
from tff_algos.client_data import Examples
from tff_algos.client_work import gradients, local_training, step_seeds, tree_math
from tff_algos.client_work.model_update import ClientResult, model_update
from tff_algos.hyper_parameters import hparam
from tff_algos.models.functional import Model, Weights
from tff_algos.templates import composer, rounds
from tff_algos.templates.algorithm import Algorithm

if TYPE_CHECKING:
  from tff_algos.templates.stateful_process import StatefulProcess

# What a round's seed is folded with for the Fisher information.
_FISHER = 6


@dataclasses.dataclass(frozen=True)
class FedCurvHparams(fed_avg.FedAvgHparams):
  """Hyper-parameters of FedCurv."""

  curvature: float = hparam(
    1e-4,
    "Weight lambda of the penalty for leaving the other clients' models.",
    source="paper, FedReg Appendix B.2 (1e-4 on MNIST)",
    low=0,
    tunable=True,
  )


class _Curvature(NamedTuple):
  """Of one client or summed over a round's: F, F * w, and the round it is of.

  Rounds without an accepted message are not counted; 0 stands for none yet.
  """

  fisher: Weights
  fisher_model: Weights
  round_num: Any


def fisher_information(
  model: Model, h: FedCurvHparams, weights: Weights, examples: Examples, seed: tf.Tensor
) -> Weights:
  """The mean over the examples of the squared gradient of the label's log-likelihood."""
  del h, seed
  total = gradients.sum_of_squares(model, weights, examples)
  share = 1 / tf.cast(tf.shape(examples.y)[0], tf.float32)
  return tuple(share * t for t in total)


def build_fed_curv(
  model: Model,
  hparams: FedCurvHparams = FedCurvHparams(),
  *,
  model_aggregator: Optional[rounds.AggregationFactory] = None,
  local_gradient: Optional[local_training.LocalGradient] = None,
  fisher_of: Callable[..., Weights] = fisher_information,
) -> StatefulProcess:
  """Builds FedCurv [paper].

  The local penalty is lambda sum_j (w - w_j)^T diag(F_j) (w - w_j) over the clients j of
  the round before, but the client itself; its gradient 2 lambda (u * w - v) needs only
  the sums u of F_j and v of F_j * w_j, from which a client subtracts its own share.
  F_j is the diagonal of the empirical Fisher information at w_j, its local model.

  Args:
    model: The model to train.
    hparams: The hyper-parameters.
    model_aggregator: Replaces the weighted mean of the updates; the other parts keep
      their plain sums, from which clients take their own share.
    local_gradient: `(model, h, weights, Batch) -> (gradient, sum of losses)` of a local
      step; default: that of the batch's mean loss.
    fisher_of: `(model, h, weights, examples, seed) -> Weights`, F_j.
  """

  def no_curvature() -> _Curvature:
    zeros = tree_math.zeros_like(model.initial_weights)
    return _Curvature(zeros, zeros, tf.constant(0))

  def distribute(variables: rounds.ServerVariables) -> rounds.Parts:
    summed = variables.extra
    return OrderedDict(
      model=variables.model,
      fisher=summed.fisher,
      fisher_model=summed.fisher_model,
      fisher_round=summed.round_num,
    )

  def client_update(
    received: rounds.Parts,
    own: _Curvature,
    examples: Examples,
    seed: tf.Tensor,
    h: FedCurvHparams,
  ) -> ClientResult:
    start, round_num = received["model"], received["fisher_round"]
    took_part = tf.logical_and(round_num > 0, tf.equal(own.round_num, round_num))
    share = tf.where(took_part, 1.0, 0.0)
    fisher = tree_math.add_scaled(received["fisher"], -share, own.fisher)
    fisher_model = tree_math.add_scaled(
      received["fisher_model"], -share, own.fisher_model
    )

    def consolidate(
      gradient: Weights, weights: Weights, carry: Any
    ) -> tuple[Weights, Any]:
      pull = (f * w - v for f, w, v in zip(fisher, weights, fisher_model))
      return tree_math.add_scaled(gradient, 2 * h.curvature, tuple(pull)), carry

    result = local_training.train_client(
      model,
      start,
      examples,
      h,
      seed,
      gradient_of=local_gradient and functools.partial(local_gradient, model, h),
      adjust_gradient=consolidate,
    )
    fisher_seed = step_seeds.fold_in(seed, _FISHER)
    fisher_here = fisher_of(model, h, result.weights, examples, fisher_seed)
    weighted = tuple(f * w for f, w in zip(fisher_here, result.weights))
    renewed = _Curvature(fisher_here, weighted, round_num + 1)
    update = model_update(h.client_weighting, start, result, examples, renewed)
    one = tf.constant(1.0)
    return update._replace(
      message=OrderedDict(update.message, fisher=fisher_here, fisher_model=weighted),
      weight=OrderedDict(update.weight, fisher=one, fisher_model=one),
    )

  def server_update(
    variables: rounds.ServerVariables,
    aggregate: rounds.Parts,
    num_clients: tf.Tensor,
    h: FedCurvHparams,
  ) -> rounds.ServerVariables:
    moved = fed_avg.move_by_mean(variables, aggregate, num_clients, h)
    return moved._replace(
      extra=_Curvature(
        aggregate["fisher"], aggregate["fisher_model"], variables.extra.round_num + 1
      )
    )

  return composer.compose_process(
    model,
    hparams,
    rounds=rounds.Round(client_update, server_update, distribute),
    aggregators=OrderedDict(
      model=model_aggregator,
      fisher=tff.aggregators.SumFactory(),
      fisher_model=tff.aggregators.SumFactory(),
    ),
    init_server=no_curvature,
    init_client=no_curvature,
  )


ALGORITHMS = (
  Algorithm(
    "fedcurv",
    build_fed_curv,
    FedCurvHparams,
    "Weights that matter to other clients are held by a penalty.",
    "Shoham et al., 2019",
  ),
)
