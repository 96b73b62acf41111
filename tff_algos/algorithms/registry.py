"""The one table of algorithms: it drives the flags, the docs, the tests and the runs.

Rows name their module by a string, so that listing the algorithms imports none of them.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from tff_algos import hyper_parameters
from tff_algos.errors import InputError


class Algorithm(NamedTuple):
  """One row.

  Attributes:
    name: What `--algorithm` takes, and the prefix of the algorithm's own flags.
    module: Module in `tff_algos.algorithms`.
    builder: The builder's name there.
    hparams: The name there of the dataclass of its hyper-parameters.
    description: A few words for lists.
    source: The paper.
    needs: What the builder must be told of the population: "num_clients" and
      "num_examples", of all clients together.
  """

  name: str
  module: str
  builder: str
  hparams: str
  description: str
  source: str
  needs: tuple[str, ...] = ()

  @property
  def hparams_class(self) -> type[hyper_parameters.HyperParameters]:
    """The dataclass of the algorithm's hyper-parameters."""
    return getattr(self._import(), self.hparams)

  def build(
    self, model: Any, hparams: Any, *, num_clients: int, num_examples: int
  ) -> Any:
    """Builds the process.

    Args:
      model: A `tff_algos.models.Model`.
      hparams: An instance of `hparams_class()`.
      num_clients: The number of all clients; used where the algorithm needs it.
      num_examples: The examples of all clients together; used likewise.
    """
    population = {"num_clients": num_clients, "num_examples": num_examples}
    needed = {name: population[name] for name in self.needs}
    return getattr(self._import(), self.builder)(model, hparams, **needed)

  def _import(self):
    return importlib.import_module(f"tff_algos.algorithms.{self.module}")


_ROWS = (
  Algorithm(
    "fedavg",
    "fed_avg",
    "build_fed_avg",
    "FedAvgHparams",
    "Averages models after local SGD.",
    "McMahan et al., AISTATS 2017",
  ),
  Algorithm(
    "fedsgd",
    "fed_sgd",
    "build_fed_sgd",
    "FedSgdHparams",
    "One full-batch gradient for each client and round.",
    "McMahan et al., AISTATS 2017",
  ),
  Algorithm(
    "fedprox",
    "fed_prox",
    "build_fed_prox",
    "FedProxHparams",
    "FedAvg with a proximal term against client drift.",
    "Li et al., MLSys 2020",
  ),
  Algorithm(
    "scaffold",
    "scaffold",
    "build_scaffold",
    "ScaffoldHparams",
    "Control variates correct client drift (options I and II).",
    "Karimireddy et al., ICML 2020",
    needs=("num_clients",),
  ),
  Algorithm(
    "fedadam",
    "fed_opt",
    "build_fed_adam",
    "FedAdamHparams",
    "FedAvg's clients, Adam at the server.",
    "Reddi et al., ICLR 2021",
  ),
  Algorithm(
    "fedyogi",
    "fed_opt",
    "build_fed_yogi",
    "FedYogiHparams",
    "FedAvg's clients, Yogi at the server.",
    "Reddi et al., ICLR 2021",
  ),
  Algorithm(
    "fedadagrad",
    "fed_opt",
    "build_fed_adagrad",
    "FedAdagradHparams",
    "FedAvg's clients, Adagrad at the server.",
    "Reddi et al., ICLR 2021",
  ),
  Algorithm(
    "fedgg",
    "fed_gg",
    "build_fed_gg",
    "FedGGHparams",
    "Local updates guided by the last global update.",
    "Global-Update-Guided Federated Learning",
  ),
  Algorithm(
    "sgd",
    "fed_sgd",
    "build_fed_sgd",
    "SgdHparams",
    "FedSGD with all clients counting the same, FedReg's baseline.",
    "Xu et al., ICLR 2022",
  ),
  Algorithm(
    "feddyn",
    "fed_dyn",
    "build_fed_dyn",
    "FedDynHparams",
    "A dynamic regularizer lines up local and global optima.",
    "Acar et al., ICLR 2021",
    needs=("num_clients", "num_examples"),
  ),
  Algorithm(
    "fedcurv",
    "fed_curv",
    "build_fed_curv",
    "FedCurvHparams",
    "Weights that matter to other clients are held by a penalty.",
    "Shoham et al., 2019",
  ),
  Algorithm(
    "twafl",
    "twafl",
    "build_twafl",
    "TwaflHparams",
    "Newer models count more; deep layers travel in some rounds only.",
    "Chen et al., TNNLS 2020",
    needs=("num_clients", "num_examples"),
  ),
  Algorithm(
    "tefl",
    "twafl",
    "build_tefl",
    "TeflHparams",
    "TWAFL's temporal weights, with all layers in every round.",
    "Chen et al., TNNLS 2020",
    needs=("num_clients", "num_examples"),
  ),
  Algorithm(
    "afl",
    "twafl",
    "build_afl",
    "AflHparams",
    "TWAFL's exchange of layers, without temporal weights.",
    "Chen et al., TNNLS 2020",
    needs=("num_clients", "num_examples"),
  ),
  Algorithm(
    "fedagg",
    "fed_agg",
    "build_fed_agg",
    "FedAggHparams",
    "Learning rates of the epochs from mean-field estimates.",
    "FedAgg, 2023",
  ),
  Algorithm(
    "fedreg",
    "fed_reg",
    "build_fed_reg",
    "FedRegHparams",
    "Pseudo data keep the local model from forgetting.",
    "Xu et al., ICLR 2022",
  ),
  Algorithm(
    "fedreg_mg",
    "fed_reg",
    "build_fed_reg_mg",
    "FedRegMgHparams",
    "FedReg with modified gradients, which hide the examples.",
    "Xu et al., ICLR 2022",
  ),
  Algorithm(
    "dpsgd",
    "dp_sgd",
    "build_dp_sgd",
    "DpSgdHparams",
    "SGD by DP-SGD: clipped and noisy gradients of the examples.",
    "Abadi et al., CCS 2016",
  ),
  Algorithm(
    "fedavg_dpsgd",
    "dp_sgd",
    "build_fed_avg_dp_sgd",
    "FedAvgDpSgdHparams",
    "FedAvg by DP-SGD.",
    "Xu et al., ICLR 2022",
  ),
  Algorithm(
    "fedprox_dpsgd",
    "dp_sgd",
    "build_fed_prox_dp_sgd",
    "FedProxDpSgdHparams",
    "FedProx by DP-SGD.",
    "Xu et al., ICLR 2022",
  ),
  Algorithm(
    "fedcurv_dpsgd",
    "dp_sgd",
    "build_fed_curv_dp_sgd",
    "FedCurvDpSgdHparams",
    "FedCurv by DP-SGD, its Fisher information too.",
    "Xu et al., ICLR 2022",
  ),
)

ALGORITHMS: Mapping[str, Algorithm] = {row.name: row for row in _ROWS}


def get(name: str) -> Algorithm:
  """The row of an algorithm.

  Raises:
    InputError: There is none of this name; the message gives the nearest.
  """
  if name not in ALGORITHMS:
    nearest = difflib.get_close_matches(name, ALGORITHMS, n=1, cutoff=0)[0]
    raise InputError(
      f"There is no algorithm {name!r}: did you mean {nearest!r}? "
      f"The algorithms are {', '.join(ALGORITHMS)}."
    )
  return ALGORITHMS[name]
