"""What a run has begun with, and one that goes on from its checkpoints must have too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

from tff_algos.errors import InputError
from tff_algos.templates.stateful_process import StatefulProcess

# Names to values as texts, which of floats tell each from every other.
Origin = Mapping[str, str]


def of(process: StatefulProcess, state: Any, seed: int) -> Origin:
  """The seed, and the tunable hyper-parameters of the process's initial state."""
  given = {"seed": seed, **process.get_hparams(state)}
  return {name: str(value) for name, value in given.items()}


def check(origin: Origin, found: Optional[Origin], folder: str) -> None:
  """Compares a run with the one in its folder; None: an older version kept no origin.

  Raises:
    InputError: They began with another seed or other hyper-parameters.
  """
  kept = found or {}
  other = [n for n, value in origin.items() if kept.get(n, value) != value]
  if other:
    was, now = (", ".join(f"{n}={o[n]}" for n in other) for o in (kept, origin))
    raise InputError(
      f"The run in {folder} began with {was}, but this one has {now}: resume with what "
      "it began with, or choose another folder."
    )
