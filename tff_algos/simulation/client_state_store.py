"""Keeps the states of clients between the rounds they take part in.

In memory up to a limit; beyond it, and at each checkpoint, in one SQLite file, where
every state has the number of the round that it is of, so that the two last checkpoints
have each its own. What is written between checkpoints is one transaction with the next
one.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import io
import numbers
import os
import sqlite3
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np
import tree

from tff_algos import durable_files
from tff_algos.errors import DamagedError, InputError
from tff_algos.models.functional import Model
from tff_algos.simulation.array_files import load_structure, save_structure

# Of all states together; those used last are kept.
MEMORY_BYTES = 2**29

# Of SQLite, for one value.
_MOST_BYTES = 10**9
# SQLite's default, and its largest: large states are written and read twice as fast, but
# each change of a small one would write a whole page.
_PAGE_BYTES, _LARGE_PAGE_BYTES = 2**12, 2**16

_TABLES = """
  CREATE TABLE IF NOT EXISTS states (id INTEGER PRIMARY KEY, value BLOB NOT NULL);
  CREATE TABLE IF NOT EXISTS versions (
    place INTEGER, round INTEGER, digest BLOB NOT NULL, id INTEGER NOT NULL,
    PRIMARY KEY (place, round)
  ) WITHOUT ROWID;
"""


class _Version(NamedTuple):
  """Where a client's state is in the file; `digest` is of its place and content."""

  place: int
  round_num: int
  digest: bytes
  id: int


class ClientStateStore:
  """The clients' states, of which only those that took part hold one of their own."""

  def __init__(
    self,
    initial_state: Any,
    model: Optional[Model] = None,
    *,
    types: Optional[Any] = None,
    path: Optional[str] = None,
    memory_bytes: int = MEMORY_BYTES,
  ):
    """Makes a store in which every client has the initial state.

    Args:
      initial_state: What `process.initialize_client()` returned.
      model: The model that is trained, whose weights' names saved states have.
      types: `process.client_state_types`, by which states may differ in length; None: all
        are as long as the initial one.
      path: The file; made when it is first needed, in place of one that is there. None:
        a temporary one.
      memory_bytes: The most that states may take in memory.
    """
    self._initial, self._model, self._types = initial_state, model, types
    self._is_empty = not tree.flatten(initial_state)
    self._path, self._memory_bytes = path, memory_bytes
    shapes = [] if types is None else [leaf.shape for leaf in tree.flatten(types)]
    self._varies = any(None in shape for shape in shapes)
    # Of the largest state so far.
    self._size = _size_of(initial_state)
    # The states in memory, those used last at the end; and whose are not in the file.
    self._kept: collections.OrderedDict[int, Any] = collections.OrderedDict()
    self._changed: set[int] = set()
    self._file: Optional[sqlite3.Connection] = None
    # By place: the states in the file, of the checkpoint and written since.
    self._saved: dict[int, _Version] = {}
    self._since: dict[int, _Version] = {}
    # Versions that no checkpoint needs from the next one on.
    self._old: list[_Version] = []
    # Of the disk: the file has what it had at the last save.
    self._error: Optional[OSError] = None

  def get(self, places: Sequence[int]) -> list[Any]:
    """The states of some clients, by their places.

    Raises:
      InputError: A place is none, as a client's name is.
      DamagedError: The file does not hold what was written to it.
    """
    for place in places:
      if not isinstance(place, numbers.Integral) or place < 0:
        raise InputError(
          "A client's state is found by its place, as ClientDirectory.place gives it of "
          f"a name; found {place!r}."
        )
    return [self._get(place) for place in places]

  def _get(self, place: int) -> Any:
    if place in self._kept:
      self._kept.move_to_end(place)
      return self._kept[place]
    version = self._since.get(place) or self._saved.get(place)
    if version is None:
      return self._initial
    self._keep(place, self._read(version))
    self._make_room()
    return self._kept[place]

  def put(self, places: Sequence[int], states: Sequence[Any]) -> None:
    """Replaces the states of some clients, in the order of `places`.

    Raises:
      OSError: There was no room in memory, and the disk is full, or fails.
    """
    if self._is_empty:
      return
    for place, state in zip(places, states):
      self._keep(place, state)
      self._kept.move_to_end(place)
      self._changed.add(place)
    self._make_room()

  def _keep(self, place: int, state: Any) -> None:
    self._kept[place] = state
    if self._varies:
      self._size = max(self._size, _size_of(state))

  @property
  def _most_kept(self) -> int:
    return max(1, self._memory_bytes // max(1, self._size))

  def _make_room(self) -> None:
    while len(self._kept) > self._most_kept:
      place, state = next(iter(self._kept.items()))
      if place in self._changed:
        self._write(place, state)
      del self._kept[place]

  # --- The file ------------------------------------------------------------------------

  def save(self, round_num: int) -> Optional[str]:
    """Writes the states that changed since the last save, durably.

    Those of the save before stay; older ones go.

    Args:
      round_num: The number of rounds done; grows from save to save.

    Returns:
      A digest of all states, for `restore`; None where no client has one.

    Raises:
      InputError: A state is too large for a file.
      OSError: The disk is full, or fails; also at every save after that.
    """
    for place in sorted(self._changed):
      self._write(place, self._kept[place])
    if self._file is None:
      return None
    file, gone = self._file, self._old
    new = [v._replace(round_num=round_num) for v in self._since.values()]
    with self._writing():
      file.executemany(
        "DELETE FROM versions WHERE place = ? AND round = ?",
        [(v.place, v.round_num) for v in gone],
      )
      file.executemany("DELETE FROM states WHERE id = ?", [(v.id,) for v in gone])
      file.executemany("INSERT OR REPLACE INTO versions VALUES (?, ?, ?, ?)", new)
      file.commit()
    self._old = [self._saved[v.place] for v in new if v.place in self._saved]
    self._saved.update((v.place, v) for v in new)
    self._since = {}
    return self._digest()

  def restore(self, round_num: int, digest: Optional[str]) -> None:
    """Takes over the states of a save.

    They are checked at once where all have room in memory, else when they are read.

    Args:
      round_num: The number of rounds done.
      digest: What `save` returned.

    Raises:
      DamagedError: The file does not hold them.
      InputError: They are of another model or algorithm.
    """
    self._kept.clear()
    self._changed.clear()
    self._saved, self._since, self._old = {}, {}, []
    if self._file is not None:  # Of a newer save, which was damaged.
      self._file.close()
      self._file = None
    if digest is None:
      return
    if self._path is None or not os.path.exists(self._path):
      raise DamagedError(f"{self._path} is not there, which has the clients' states.")
    try:
      self._file = self._open(self._path)
      every = self._file.execute("SELECT place, round, digest, id FROM versions")
      versions = sorted((_Version(*row) for row in every), key=lambda v: v.round_num)
    except (sqlite3.Error, TypeError, ValueError) as error:
      raise self._damaged() from error
    for version in versions:
      if version.round_num <= round_num:
        self._saved[version.place] = version
    current = {v.id for v in self._saved.values()}
    self._old = [v for v in versions if v.id not in current]
    if self._digest() != digest:
      raise self._damaged()
    if len(self._saved) <= self._most_kept:
      for place, version in self._saved.items():
        self._keep(place, self._read(version))
        self._make_room()

  def _digest(self) -> str:
    total = hashlib.sha256()
    for place in sorted(self._saved):
      total.update(b"%d:" % place + self._saved[place].digest)
    return total.hexdigest()

  def _write(self, place: int, state: Any) -> None:
    content = io.BytesIO()
    save_structure(content, state, self._model)
    value = content.getvalue()
    if len(value) > _MOST_BYTES:
      raise InputError(
        f"The state of a client has {len(value):,} bytes, but a file takes no more than "
        f"{_MOST_BYTES:,}: train without checkpoints, or a smaller model."
      )
    before = self._since.get(place)
    with self._writing():
      if self._file is None:
        self._file = self._new_file()
      if before is not None:
        self._file.execute("DELETE FROM states WHERE id = ?", (before.id,))
      row = self._file.execute("INSERT INTO states (value) VALUES (?)", (value,))
    assert row.lastrowid is not None
    self._since[place] = _Version(place, -1, _digest_of(place, value), row.lastrowid)
    self._changed.discard(place)

  @contextlib.contextmanager
  def _writing(self) -> Iterator[None]:
    """Of the file; what an error has undone must not be taken for written later."""
    if self._error is not None:
      raise self._error
    try:
      with durable_files.writing(self._path or tempfile.gettempdir()):
        yield
    except OSError as error:
      self._error = error
      if self._file is not None:
        with contextlib.suppress(sqlite3.Error):
          self._file.rollback()
      raise

  def _new_file(self) -> sqlite3.Connection:
    if self._path is None:
      folder = tempfile.TemporaryDirectory(prefix="tff_algos_states_")
      weakref.finalize(self, folder.cleanup)
      self._path = os.path.join(folder.name, "states.sqlite")
    for name in (self._path, f"{self._path}-journal"):  # Of a run without a checkpoint.
      if os.path.exists(name):
        os.remove(name)
    os.makedirs(os.path.dirname(os.path.abspath(self._path)), exist_ok=True)
    file = self._open(self._path)
    large = self._size >= _LARGE_PAGE_BYTES
    file.execute(f"PRAGMA page_size = {_LARGE_PAGE_BYTES if large else _PAGE_BYTES}")
    file.executescript(_TABLES)
    return file

  def _open(self, path: str) -> sqlite3.Connection:
    file = sqlite3.connect(path, check_same_thread=False)
    # It holds itself, and so would keep others out for long after this store is gone.
    weakref.finalize(self, file.close)
    # EXTRA: also the folder is synced, once the journal is removed.
    file.execute("PRAGMA synchronous = EXTRA")
    # Some systems' SQLite writes zeros over all that is deleted.
    file.execute("PRAGMA secure_delete = OFF")
    return file

  def _read(self, version: _Version) -> Any:
    assert self._file is not None
    try:
      [(value,)] = list(
        self._file.execute("SELECT value FROM states WHERE id = ?", (version.id,))
      )
      is_whole = _digest_of(version.place, value) == version.digest
    except (sqlite3.Error, TypeError, ValueError) as error:
      raise self._damaged() from error
    if not is_whole:
      raise self._damaged()
    what = f"{self._path}, client {version.place},"
    return load_structure(io.BytesIO(value), self._initial, what, self._types)

  def _damaged(self) -> DamagedError:
    return DamagedError(
      f"{self._path} is damaged: it does not hold what was written to it."
    )


def _size_of(state: Any) -> int:
  return sum(np.asarray(leaf).nbytes for leaf in tree.flatten(state))


def _digest_of(place: int, value: bytes) -> bytes:
  digest = hashlib.sha256(b"%d:" % place)
  digest.update(value)
  return digest.digest()
