"""Federated-learning algorithms as TensorFlow Federated processes.

Names are imported when they are first used: `import tff_algos` alone loads neither
TensorFlow nor TFF, so that `tff_algos.preflight` can run before them.
"""

from __future__ import annotations

import importlib
from typing import Any

_PUBLIC = {
  # Algorithms and their hyper-parameters.
  "AflHparams": "tff_algos.algorithms.twafl",
  "DpSgdHparams": "tff_algos.algorithms.dp_sgd",
  "FedAdagradHparams": "tff_algos.algorithms.fed_opt",
  "FedAdamHparams": "tff_algos.algorithms.fed_opt",
  "FedAggHparams": "tff_algos.algorithms.fed_agg",
  "FedAvgDpSgdHparams": "tff_algos.algorithms.dp_sgd",
  "FedAvgHparams": "tff_algos.algorithms.fed_avg",
  "FedCurvDpSgdHparams": "tff_algos.algorithms.dp_sgd",
  "FedCurvHparams": "tff_algos.algorithms.fed_curv",
  "FedDynHparams": "tff_algos.algorithms.fed_dyn",
  "FedGGHparams": "tff_algos.algorithms.fed_gg",
  "FedProxDpSgdHparams": "tff_algos.algorithms.dp_sgd",
  "FedProxHparams": "tff_algos.algorithms.fed_prox",
  "FedRegHparams": "tff_algos.algorithms.fed_reg",
  "FedRegMgHparams": "tff_algos.algorithms.fed_reg",
  "FedSgdHparams": "tff_algos.algorithms.fed_sgd",
  "FedYogiHparams": "tff_algos.algorithms.fed_opt",
  "ScaffoldHparams": "tff_algos.algorithms.scaffold",
  "SgdHparams": "tff_algos.algorithms.fed_sgd",
  "TeflHparams": "tff_algos.algorithms.twafl",
  "TwaflHparams": "tff_algos.algorithms.twafl",
  "build_afl": "tff_algos.algorithms.twafl",
  "build_dp_sgd": "tff_algos.algorithms.dp_sgd",
  "build_fed_adagrad": "tff_algos.algorithms.fed_opt",
  "build_fed_adam": "tff_algos.algorithms.fed_opt",
  "build_fed_agg": "tff_algos.algorithms.fed_agg",
  "build_fed_avg": "tff_algos.algorithms.fed_avg",
  "build_fed_avg_dp_sgd": "tff_algos.algorithms.dp_sgd",
  "build_fed_curv": "tff_algos.algorithms.fed_curv",
  "build_fed_curv_dp_sgd": "tff_algos.algorithms.dp_sgd",
  "build_fed_dyn": "tff_algos.algorithms.fed_dyn",
  "build_fed_gg": "tff_algos.algorithms.fed_gg",
  "build_fed_prox": "tff_algos.algorithms.fed_prox",
  "build_fed_prox_dp_sgd": "tff_algos.algorithms.dp_sgd",
  "build_fed_reg": "tff_algos.algorithms.fed_reg",
  "build_fed_reg_mg": "tff_algos.algorithms.fed_reg",
  "build_fed_sgd": "tff_algos.algorithms.fed_sgd",
  "build_fed_yogi": "tff_algos.algorithms.fed_opt",
  "build_scaffold": "tff_algos.algorithms.scaffold",
  "build_tefl": "tff_algos.algorithms.twafl",
  "build_twafl": "tff_algos.algorithms.twafl",
  # Composing an algorithm of one's own.
  "ClientMemoryFactory": "tff_algos.aggregators.client_memory",
  "ClientResult": "tff_algos.client_work.model_update",
  "Estimation": "tff_algos.templates.composer",
  "PartialBroadcast": "tff_algos.distributors.partial_broadcast",
  "Round": "tff_algos.templates.composer",
  "ServerState": "tff_algos.templates.composer",
  "ServerVariables": "tff_algos.templates.composer",
  "StatefulProcess": "tff_algos.templates.stateful_process",
  "TemporalWeightingFactory": "tff_algos.aggregators.temporal_weighting",
  "compose_process": "tff_algos.templates.composer",
  "train": "tff_algos.client_work.local_training",
  # Models.
  "ExampleSpec": "tff_algos.models.functional",
  "Model": "tff_algos.models.functional",
  "SoftTargets": "tff_algos.models.functional",
  "from_keras": "tff_algos.models.keras",
  "reinitialize": "tff_algos.models.keras",
  # Client data.
  "ClientDirectory": "tff_algos.client_data",
  "ClientInput": "tff_algos.client_data",
  "write_clients": "tff_algos.client_data",
  # Privacy.
  "InversionHparams": "tff_algos.privacy.gradient_inversion",
  "build_inversion": "tff_algos.privacy.gradient_inversion",
  "epsilon": "tff_algos.privacy.accounting",
  "psnr": "tff_algos.privacy.gradient_inversion",
  "ssim": "tff_algos.privacy.gradient_inversion",
  "upload_of": "tff_algos.privacy.gradient_inversion",
  # Diagnostics.
  "Forgetting": "tff_algos.diagnostics.forgetting",
  "build_fisher": "tff_algos.diagnostics.fisher",
  "build_forgetting": "tff_algos.diagnostics.forgetting",
  "build_local_models": "tff_algos.diagnostics.forgetting",
  "build_pseudo_fisher": "tff_algos.diagnostics.fisher",
  "draw_columns": "tff_algos.diagnostics.heterogeneity",
  "draw_heat_map": "tff_algos.diagnostics.heterogeneity",
  "mean_wasserstein_distance": "tff_algos.diagnostics.heterogeneity",
  # Running.
  "RoundStart": "tff_algos.simulation.loop",
  "Settings": "tff_algos.simulation.loop",
  "TlsFiles": "tff_algos.runtimes.tunnel",
  "build_evaluation": "tff_algos.simulation.evaluation",
  "client_seed": "tff_algos.simulation.seeds",
  "create_runtime": "tff_algos.runtimes.runtime",
  "run": "tff_algos.simulation.loop",
}

__all__ = sorted(_PUBLIC)


def __getattr__(name: str) -> Any:
  if name not in _PUBLIC:
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
  value = getattr(importlib.import_module(_PUBLIC[name]), name)
  globals()[name] = value
  return value


def __dir__() -> list[str]:
  return __all__
