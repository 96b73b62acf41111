"""Checkpoints of a run: server state, client states and records, all or nothing.

The client states go first, into a file that several checkpoints share, in the place of
those that only the last but one has; then the checkpoint's own folder is written under
another name, synced and renamed, which is what makes it count; then older folders are
removed. A crash or power cut at any point leaves the newest checkpoint whole. Each lists
the digests of its files: a damaged one is passed over for the one before.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import warnings
from collections.abc import Callable
from typing import IO, Any, NamedTuple, Optional

import numpy as np

from tff_algos import durable_files
from tff_algos.errors import DamagedError, InputWarning
from tff_algos.models.functional import Model
from tff_algos.simulation.array_files import load_structure, save_structure
from tff_algos.simulation.best_round import Best
from tff_algos.simulation.client_state_store import ClientStateStore
from tff_algos.simulation.origin import Origin

_NAME = re.compile(r"round_(\d{7})$")
_OURS = re.compile(r"round_\d{7}(\.unfinished)?$")
_KEPT = 2
_CLIENTS = "client_states.sqlite"
_SERVER, _BEST, _RECORDS, _MANIFEST = (
  "server.npz",
  "best.npz",
  "records.json",
  "manifest.json",
)


class Restored(NamedTuple):
  """What a checkpoint held.

  Attributes:
    state: The server state.
    round_num: The number of rounds done.
    records: One dictionary for each of them.
    best: The best of them; None where it was not kept.
    origin: What the run began with; None where it was not kept.
  """

  state: Any
  round_num: int
  records: list[dict[str, Any]]
  best: Optional[Best]
  origin: Optional[Origin]


def exists(folder: str) -> bool:
  """Whether the folder holds a checkpoint, damaged or not."""
  return bool(_names(folder))


def rounds_done(folder: str) -> Optional[int]:
  """The rounds of the newest checkpoint, damaged or not; None where there is none."""
  names = _names(folder)
  return int(names[0].removeprefix("round_")) if names else None


def client_file(folder: str) -> str:
  """Where the states of clients are, for a `ClientStateStore`."""
  return os.path.join(folder, _CLIENTS)


def _names(folder: str) -> list[str]:
  """The checkpoints, the newest first."""
  names = os.listdir(folder) if os.path.isdir(folder) else []
  return sorted(filter(_NAME.match, names), reverse=True)


def save(
  folder: str,
  state: Any,
  store: ClientStateStore,
  round_num: int,
  records: list[dict[str, Any]],
  *,
  model: Optional[Model] = None,
  best: Optional[Best] = None,
  origin: Optional[Origin] = None,
) -> None:
  """Writes a checkpoint and removes all but the one before it.

  Args:
    folder: The folder of the run's checkpoints; made if it does not exist.
    state: The server state.
    store: The client states, whose file is `client_file(folder)`.
    round_num: The number of rounds done.
    records: One dictionary for each of them, of what JSON can hold.
    model: The model that is trained, whose weights' names the arrays have.
    best: The best of the rounds, to be kept too.
    origin: What the run began with.

  Raises:
    OSError: The disk is full, or fails; the newest checkpoint is as it was, and of one
      before it the clients' states may be gone.
  """
  target = os.path.join(folder, f"round_{round_num:07d}")
  unfinished = target + durable_files.UNFINISHED
  shutil.rmtree(unfinished, ignore_errors=True)
  os.makedirs(unfinished)
  try:
    _write(unfinished, state, store, round_num, records, model, best, origin)
  except Exception:
    shutil.rmtree(unfinished, ignore_errors=True)
    raise
  if os.path.isdir(target):  # A damaged one: the run went on from that before.
    shutil.rmtree(target)
  durable_files.replace(unfinished, target)
  # A later one is damaged: the run went on from one before it.
  kept = [name for name in _names(folder) if name <= os.path.basename(target)][:_KEPT]
  for name in os.listdir(folder):
    if _OURS.match(name) and name not in kept:
      shutil.rmtree(os.path.join(folder, name), ignore_errors=True)


def _write(
  folder: str,
  state: Any,
  store: ClientStateStore,
  round_num: int,
  records: list[dict[str, Any]],
  model: Optional[Model],
  best: Optional[Best],
  origin: Optional[Origin],
) -> None:
  digests: dict[str, str] = {}

  def write(name: str, write_to: Callable[[IO[bytes]], object]) -> None:
    content = io.BytesIO()
    write_to(content)
    digests[name] = hashlib.sha256(content.getbuffer()).hexdigest()
    path = os.path.join(folder, name)
    named = os.path.join(folder.removesuffix(durable_files.UNFINISHED), name)
    with durable_files.writing(named), open(path, "wb") as file:
      file.write(content.getbuffer())
      durable_files.sync_file(file)

  content: dict[str, Any] = dict(round_num=round_num, records=records)
  content["clients"] = store.save(round_num)
  write(_SERVER, lambda file: save_structure(file, state, model))
  if best is not None and best.weights is not None:
    weights = best.weights
    write(_BEST, lambda file: save_structure(file, weights, model))
    content["best"] = dict(round_num=best.round_num, value=best.value)
  if origin is not None:
    content["origin"] = dict(origin)
  write(_RECORDS, lambda file: file.write(json.dumps(content).encode()))
  write(_MANIFEST, lambda file: file.write(json.dumps(digests).encode()))
  durable_files.sync_folder(folder)


def restore(
  folder: str,
  like: Any,
  store: Optional[ClientStateStore] = None,
  *,
  types: Optional[Any] = None,
) -> Restored:
  """Reads the newest checkpoint that is whole; warns of damaged ones.

  Args:
    folder: The folder of the run's checkpoints.
    like: A server state of the same structure, such as the initial one.
    store: An empty store, to be filled; None: the client states are not looked at.
    types: The types of `like`'s arrays, where some may change their lengths; as of
      `array_files.load_structure`.

  Raises:
    FileNotFoundError: There is no checkpoint.
    DamagedError: All are damaged.
    InputError: They belong to another model or algorithm.
  """
  names = _names(folder)
  if not names:
    raise FileNotFoundError(f"There is no checkpoint in {folder} to go on from.")
  for older, name in zip([*names[1:], None], names):
    path = os.path.join(folder, name)
    try:
      found, clients = _read(path, like, types)
      if store is not None:
        store.restore(found.round_num, clients)
      return found
    except DamagedError as error:
      if older is None:
        raise DamagedError(
          f"{error} It is the last checkpoint in {folder}: begin anew, in another folder."
        ) from error
      warnings.warn(
        f"{error} The checkpoint before is taken, {older}.", InputWarning, stacklevel=2
      )
  raise AssertionError("a loop that ends with a return or an error")


def _read(path: str, like: Any, types: Optional[Any]) -> tuple[Restored, Optional[str]]:
  """The checkpoint in a folder, and the digest of its client states."""
  digests = None
  try:
    digests = dict(json.loads(_content(path, _MANIFEST)))
    content = json.loads(_content(path, _RECORDS, digests))
    round_num, records, clients = (
      content[name] for name in ("round_num", "records", "clients")
    )
    of_best = content.get("best")
    server = _content(path, _SERVER, digests)
    weights = _content(path, _BEST, digests) if of_best else b""
  except (OSError, ValueError, KeyError, TypeError) as error:
    if isinstance(error, DamagedError):
      raise
    raise DamagedError(f"{path} is damaged: {_MANIFEST} or {_RECORDS}.") from error
  state = load_structure(io.BytesIO(server), like, os.path.join(path, _SERVER), types)
  best = None
  if of_best:
    with np.load(io.BytesIO(weights)) as file:
      best = Best(**of_best, weights=tuple(file[array] for array in file.files))
  return Restored(state, round_num, records, best, content.get("origin")), clients


def _content(path: str, name: str, digests: Optional[dict[str, str]] = None) -> bytes:
  """A file's bytes, which have their digest where these are known."""
  file = os.path.join(path, name)
  content = b""
  with contextlib.suppress(OSError), open(file, "rb") as f:
    content = f.read()
  if digests is not None and hashlib.sha256(content).hexdigest() != digests.get(name):
    raise DamagedError(f"{file} is damaged: it does not hold what was written to it.")
  return content
