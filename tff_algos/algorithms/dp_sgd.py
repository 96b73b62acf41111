"""Baselines whose local gradients are private: SGD, FedAvg, FedProx, FedCurv by DP-SGD.

Xu et al. (FedReg), ICLR 2022, Table 4. They are the algorithms themselves with
`privacy.dp_sgd_step` for their local gradient; a term that depends on no example, such as
FedProx's, is added after the noise. `privacy.accounting` gives epsilon; what a
`model_aggregator` does with the messages leaves it as it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Optional

from tff_algos.algorithms import fed_avg, fed_curv, fed_prox, fed_sgd
from tff_algos.models.functional import Model
from tff_algos.privacy.accounting import GaussianMechanism
from tff_algos.privacy.dp_sgd_step import (
  DpSgd,
  private_fisher_information,
  private_gradient,
)
from tff_algos.templates import composer, rounds
from tff_algos.templates.algorithm import Algorithm

if TYPE_CHECKING:
  from tff_algos.templates.stateful_process import StatefulProcess


@dataclasses.dataclass(frozen=True)
class DpSgdHparams(fed_sgd.SgdHparams, DpSgd):
  """Hyper-parameters of SGD on all of a client's examples, by DP-SGD."""


@dataclasses.dataclass(frozen=True)
class FedAvgDpSgdHparams(fed_avg.FedAvgHparams, DpSgd):
  """Hyper-parameters of FedAvg by DP-SGD."""


@dataclasses.dataclass(frozen=True)
class FedProxDpSgdHparams(fed_prox.FedProxHparams, DpSgd):
  """Hyper-parameters of FedProx by DP-SGD."""


@dataclasses.dataclass(frozen=True)
class FedCurvDpSgdHparams(fed_curv.FedCurvHparams, DpSgd):
  """Hyper-parameters of FedCurv by DP-SGD; the Fisher information is private too."""


def build_dp_sgd(
  model: Model,
  hparams: DpSgdHparams = DpSgdHparams(),
  *,
  model_aggregator: Optional[rounds.AggregationFactory] = None,
) -> StatefulProcess:
  """Builds FedSGD with a private gradient of each client [paper, FedReg Table 4].

  Arguments, less `local_gradient`, and errors are `build_fed_sgd`'s.
  """
  return _private(
    fed_sgd.build_fed_sgd, model, hparams, lambda: 1, model_aggregator=model_aggregator
  )


def build_fed_avg_dp_sgd(
  model: Model,
  hparams: FedAvgDpSgdHparams = FedAvgDpSgdHparams(),
  *,
  model_aggregator: Optional[rounds.AggregationFactory] = None,
) -> StatefulProcess:
  """Builds FedAvg with private gradients in its local steps [paper, FedReg Table 4].

  Arguments, less `local_gradient`, and errors are `build_fed_avg`'s.
  """
  return _private(
    fed_avg.build_fed_avg,
    model,
    hparams,
    lambda: hparams.epochs,
    model_aggregator=model_aggregator,
  )


def build_fed_prox_dp_sgd(
  model: Model,
  hparams: FedProxDpSgdHparams = FedProxDpSgdHparams(),
  *,
  model_aggregator: Optional[rounds.AggregationFactory] = None,
) -> StatefulProcess:
  """Builds FedProx with private gradients in its local steps [paper, FedReg Table 4].

  Arguments, less `local_gradient`, and errors are `build_fed_prox`'s.
  """
  return _private(
    fed_prox.build_fed_prox,
    model,
    hparams,
    lambda: hparams.epochs,
    model_aggregator=model_aggregator,
  )


def build_fed_curv_dp_sgd(
  model: Model,
  hparams: FedCurvDpSgdHparams = FedCurvDpSgdHparams(),
  *,
  model_aggregator: Optional[rounds.AggregationFactory] = None,
) -> StatefulProcess:
  """Builds FedCurv with private gradients [paper, FedReg Table 4] and Fisher information.

  Arguments, less `local_gradient`, and errors are `build_fed_curv`'s.
  """
  return _private(
    fed_curv.build_fed_curv,
    model,
    hparams,
    lambda: hparams.epochs + 1,
    model_aggregator=model_aggregator,
    fisher_of=private_fisher_information,
  )


def _private(
  build: Callable[..., StatefulProcess],
  model: Model,
  hparams: DpSgd,
  releases_per_round: Callable[[], int],
  **options: Any,
) -> StatefulProcess:
  """The process with private gradients, which says how private clients' examples are.

  In an epoch an example is in one mini-batch, and so takes part in one release.
  """
  composer.check_given(model, hparams)
  mechanism = GaussianMechanism(
    hparams.noise_multiplier, releases_per_round(), hparams.delta
  )
  process = build(model, hparams, local_gradient=private_gradient, **options)
  return process.with_privacy(mechanism)


ALGORITHMS = (
  Algorithm(
    "dpsgd",
    build_dp_sgd,
    DpSgdHparams,
    "SGD by DP-SGD: clipped and noisy gradients of the examples.",
    "Abadi et al., CCS 2016",
  ),
  Algorithm(
    "fedavg_dpsgd",
    build_fed_avg_dp_sgd,
    FedAvgDpSgdHparams,
    "FedAvg by DP-SGD.",
    "Xu et al., ICLR 2022",
  ),
  Algorithm(
    "fedprox_dpsgd",
    build_fed_prox_dp_sgd,
    FedProxDpSgdHparams,
    "FedProx by DP-SGD.",
    "Xu et al., ICLR 2022",
  ),
  Algorithm(
    "fedcurv_dpsgd",
    build_fed_curv_dp_sgd,
    FedCurvDpSgdHparams,
    "FedCurv by DP-SGD, its Fisher information too.",
    "Xu et al., ICLR 2022",
  ),
)
