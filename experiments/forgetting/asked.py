"""What is asked of forgetting.py; free of TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Asked(NamedTuple):
  """What the flags say, over what the folder holds that is gone on with.

  Attributes:
    driver: The algorithm whose global model all start from.
    algorithms: What is measured.
    hparams: Algorithm to its hyper-parameters that differ from the task's.
    fisher: Whether to correlate the Fisher information of FedReg's pseudo data.
    settings: Fields of `experiments.config.Config` that are given.
    held: The manifest of the folder that is gone on with; {} for a new one.
  """

  driver: str
  algorithms: Sequence[str]
  hparams: Mapping[str, Mapping[str, Any]]
  fisher: bool
  settings: Mapping[str, Any]
  held: Mapping[str, Any]
