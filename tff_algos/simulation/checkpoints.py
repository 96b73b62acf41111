"""Checkpoints of a run: server state, client states and records, all or nothing.

Client states are written first, one file for each that changed; then the checkpoint's own
folder is written under another name and renamed, which is what makes it count; then
whatever it does not refer to is removed. A crash at any point leaves a whole checkpoint.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from typing import Any, NamedTuple, Optional

import numpy as np

from tff_algos.models.functional import Model
from tff_algos.simulation.array_files import load_structure, save_structure
from tff_algos.simulation.best_round import Best
from tff_algos.simulation.client_state_store import ClientStateStore

_NAME = re.compile(r"round_(\d{7})$")
_CLIENTS = "client_states"
_SERVER, _BEST = "server.npz", "best.npz"


class Restored(NamedTuple):
  """What a checkpoint held.

  Attributes:
    state: The server state.
    round_num: The number of rounds done.
    records: One dictionary for each of them.
    best: The best of them; None where it was not kept.
  """

  state: Any
  round_num: int
  records: list[dict[str, Any]]
  best: Optional[Best]


def _newest(folder: str) -> Optional[str]:
  names = os.listdir(folder) if os.path.isdir(folder) else []
  return max(filter(_NAME.match, names), default=None)


def exists(folder: str) -> bool:
  """Whether the folder holds a whole checkpoint."""
  return _newest(folder) is not None


def save(
  folder: str,
  state: Any,
  store: ClientStateStore,
  round_num: int,
  records: list[dict[str, Any]],
  *,
  model: Optional[Model] = None,
  best: Optional[Best] = None,
) -> None:
  """Writes a checkpoint and removes the one before it.

  Args:
    folder: The folder of the run's checkpoints; made if it does not exist.
    state: The server state.
    store: The client states.
    round_num: The number of rounds done.
    records: One dictionary for each of them, of what JSON can hold.
    model: The model that is trained, whose weights' names the arrays have.
    best: The best of the rounds, to be kept too.
  """
  os.makedirs(folder, exist_ok=True)
  name = f"round_{round_num:07d}"
  if _newest(folder) == name:
    return
  files = store.save(os.path.join(folder, _CLIENTS), name)
  unfinished = os.path.join(folder, name + ".unfinished")
  shutil.rmtree(unfinished, ignore_errors=True)
  os.makedirs(unfinished)
  save_structure(os.path.join(unfinished, _SERVER), state, model)
  content = dict(round_num=round_num, records=records, client_files=files)
  if best is not None and best.weights is not None:
    save_structure(os.path.join(unfinished, _BEST), best.weights, model)
    content["best"] = dict(round_num=best.round_num, value=best.value)
  with open(os.path.join(unfinished, "records.json"), "w") as f:
    json.dump(content, f)
  os.replace(unfinished, os.path.join(folder, name))
  _remove_all_but(folder, name, set(files.values()))


def restore(folder: str, like: Any, store: ClientStateStore) -> Restored:
  """Reads the newest whole checkpoint; fills the store.

  Args:
    folder: The folder of the run's checkpoints.
    like: A server state of the same structure, such as the initial one.
    store: An empty store.

  Raises:
    FileNotFoundError: There is no checkpoint.
    ValueError: It belongs to another model or algorithm.
  """
  name = _newest(folder)
  if name is None:
    raise FileNotFoundError(f"There is no checkpoint in {folder} to go on from.")
  with open(os.path.join(folder, name, "records.json")) as f:
    content = json.load(f)
  state = load_structure(os.path.join(folder, name, _SERVER), like)
  files = {int(place): file for place, file in content["client_files"].items()}
  store.restore(os.path.join(folder, _CLIENTS), files)
  best = None
  if "best" in content:
    with np.load(os.path.join(folder, name, _BEST)) as file:
      weights = tuple(file[array] for array in file.files)
    best = Best(**content["best"], weights=weights)
  return Restored(state, content["round_num"], content["records"], best)


def _remove_all_but(folder: str, name: str, client_files: set[str]) -> None:
  for other in os.listdir(folder):
    if other not in (name, _CLIENTS):
      shutil.rmtree(os.path.join(folder, other), ignore_errors=True)
  clients = os.path.join(folder, _CLIENTS)
  for file in os.listdir(clients):
    if file not in client_files:
      os.remove(os.path.join(clients, file))
