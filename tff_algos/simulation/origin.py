"""What a run has begun with, and one that goes on from its checkpoints must have too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Optional

import numpy as np
import tree

from tff_algos import client_arrays
from tff_algos.client_data import ClientDirectory
from tff_algos.errors import InputError
from tff_algos.templates.stateful_process import StatefulProcess

if TYPE_CHECKING:
  from tff_algos.simulation.loop import Settings

# Names to values as texts, which of floats tell each from every other.
Origin = Mapping[str, str]


def of(
  process: StatefulProcess,
  state: Any,
  client_state: Any,
  clients: ClientDirectory,
  settings: Settings,
) -> Origin:
  """Who takes part, the seed, and what `of_process` says.

  Clients' states go by the clients' places, and who is held out has never trained.
  """
  given = {
    "seed": settings.seed,
    "held_out_clients": settings.held_out_clients,
    "clients": f"{len(clients)} of digest {clients.digest()}",
  }
  return of_process(process, process.get_hparams(state), client_state, given)


def of_process(
  process: StatefulProcess,
  tunable: Mapping[str, Any],
  client_state: Any,
  given: Optional[Mapping[str, Any]] = None,
) -> Origin:
  """What a process is of, and its hyper-parameters.

  Args:
    process: The process.
    tunable: Those that its initial state holds.
    client_state: That of a client never seen before: a run that goes on has it of the
      process that it goes on with.
    given: What else a run has begun with, by name.
  """
  parts = {**process.identity.parts, **(given or {})}
  if arrays := [np.asarray(leaf) for leaf in tree.flatten(client_state)]:
    parts["what clients begin with"] = client_arrays.fingerprint(*arrays)
  values = {**process.identity.hparams, **tunable}
  # One of a user's own may be called as what is there already.
  parts.update((f"hparams.{n}" if n in parts else n, v) for n, v in values.items())
  return {name: str(value) for name, value in parts.items()}


def check(origin: Origin, found: Optional[Origin], what: str) -> None:
  """Compares a run with the one that it goes on with.

  Args:
    origin: What this one begins with.
    found: What that one began with; older versions kept less, or None.
    what: Which that is, for the message: "The run in FOLDER".

  Raises:
    InputError: They began with another seed, other clients or other hyper-parameters.
  """
  kept = found or {}
  other = [n for n, value in origin.items() if kept.get(n, value) != value]
  if other:
    was, now = (", ".join(f"{n}={o[n]}" for n in other) for o in (kept, origin))
    raise InputError(
      f"{what} began with {was}, but this one has {now}: resume with what "
      "it began with, or choose another folder."
    )
