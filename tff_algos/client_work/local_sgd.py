"""Hyper-parameters of local training by mini-batch SGD."""

from __future__ import annotations

import dataclasses
from typing import Optional

from tff_algos.hyper_parameters import HyperParameters, hparam

# Counts of steps and examples are int32 in the computation.
_MOST = 1_000_000


@dataclasses.dataclass(frozen=True)
class PlainSgd(HyperParameters):
  """Local training by mini-batch SGD, shared by every algorithm that has it."""

  epochs: int = hparam(
    1,
    "Passes over the client's examples in one round (E).",
    source="paper, McMahan et al. 2017",
    low=1,
    high=_MOST,
  )
  batch_size: Optional[int] = hparam(
    10,
    "Examples in one local step (B); inf takes all of a client's examples at once.",
    source="paper, McMahan et al. 2017",
    low=1,
    high=_MOST,
    optional=True,
  )
  learning_rate: float = hparam(
    0.1,
    "Step size of a local step (eta_l).",
    source="convention",
    low=0,
    open_low=True,
    tunable=True,
  )


@dataclasses.dataclass(frozen=True)
class LocalSgd(PlainSgd):
  """`PlainSgd` with momentum."""

  momentum: float = hparam(
    0.0,
    "Momentum of the local steps; the buffer starts at zero in every round.",
    source="paper, FedGG Section 4.1 uses 0.9",
    low=0,
    high=0.999,
  )


@dataclasses.dataclass(frozen=True)
class WeightedLocalSgd(LocalSgd):
  """`LocalSgd` with a choice of how the server weighs the clients."""

  client_weighting: str = hparam(
    "examples",
    "What a client's update counts for: its number of examples, or the same for all.",
    source="paper, McMahan et al. 2017 (examples)",
    choices=("examples", "uniform"),
  )
