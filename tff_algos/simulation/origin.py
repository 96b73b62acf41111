"""What a run has begun with, and one that goes on from its checkpoints must have too."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Optional

from tff_algos.client_data import ClientDirectory
from tff_algos.errors import InputError
from tff_algos.templates.stateful_process import StatefulProcess

if TYPE_CHECKING:
  from tff_algos.simulation.loop import Settings

# Names to values as texts, which of floats tell each from every other.
Origin = Mapping[str, str]


def of(
  process: StatefulProcess, state: Any, clients: ClientDirectory, settings: Settings
) -> Origin:
  """Who takes part, the seed, and the hyper-parameters, by the initial state if tunable.

  Clients' states go by the clients' places, and who is held out has never trained.
  """
  hparams = process.composed_of.get("hparams")
  names = [f.name for f in dataclasses.fields(hparams)] if hparams is not None else []
  given = {
    "seed": settings.seed,
    "held_out_clients": settings.held_out_clients,
    "clients": f"{len(clients)} of digest {clients.digest()}",
    **{name: getattr(hparams, name) for name in names},
    **process.get_hparams(state),
  }
  return {name: str(value) for name, value in given.items()}


def check(origin: Origin, found: Optional[Origin], folder: str) -> None:
  """Compares a run with the one in its folder; older versions kept less, or None.

  Raises:
    InputError: They began with another seed, other clients or other hyper-parameters.
  """
  kept = found or {}
  other = [n for n, value in origin.items() if kept.get(n, value) != value]
  if other:
    was, now = (", ".join(f"{n}={o[n]}" for n in other) for o in (kept, origin))
    raise InputError(
      f"The run in {folder} began with {was}, but this one has {now}: resume with what "
      "it began with, or choose another folder."
    )
