"""UCI HAR, six activities from a telephone's sensors, as its publisher packs it.

Anguita, Ghio, Oneto, Parra, Reyes-Ortiz: "A Public Domain Dataset for Human Activity
Recognition Using Smartphones", ESANN 2013. Not for commercial use.
"""

from __future__ import annotations

import contextlib
import io
import os
import pathlib
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from tasks.datasets import dataset
from tff_algos.errors import InputError

#: The channels of a window, in their order: acceleration without gravity, angular
#: velocity and acceleration, in units of g, rad/s and g.
CHANNELS = tuple(
  f"{signal}_{axis}"
  for signal in ("body_acc", "body_gyro", "total_acc")
  for axis in "xyz"
)
#: Readings in a window: 2.56 s at 50 Hz.
STEPS = 128
#: What the labels 0..5 stand for.
ACTIVITIES = (
  "walking",
  "walking upstairs",
  "walking downstairs",
  "sitting",
  "standing",
  "laying",
)

_HOME = "https://archive.ics.uci.edu/dataset/240"
_SPLITS = ("train", "test")
# Windows for training and for testing. HAPT are the same volunteers' whole recordings,
# published later; windows cut from these are not quite UCI HAR's.
_NOTES = {(7352, 2947): "", (7415, 2996): "HAPT windows"}
# What reading a damaged archive raises, encrypted and unknown formats included.
_UNREADABLE = (
  zipfile.BadZipFile,
  zlib.error,
  OSError,
  EOFError,
  RuntimeError,
  NotImplementedError,
  UnicodeDecodeError,
)


class Split(NamedTuple):
  """The windows of one split, in the archive's order.

  Attributes:
    x: float32 (N, STEPS, 9), channels in the order of `CHANNELS`.
    y: int32 (N,), labels 0..5 as `ACTIVITIES` names them.
    subjects: int32 (N,), the numbers of the volunteers, 1..30.
  """

  x: np.ndarray
  y: np.ndarray
  subjects: np.ndarray


def load(data_dir: str | os.PathLike[str] | None) -> dataset.Dataset:
  """Loads the windows of `read` as a `Dataset`.

  Its note is empty for UCI HAR's 7,352 and 2,947 windows; it names what else they are.

  Args:
    data_dir: as for `read`.

  Raises:
    dataset.DataMissingError, InputError: as `read` does.
  """
  train, test = read(data_dir)
  counts = len(train.y), len(test.y)
  note = _NOTES.get(counts, f"{counts[0]:,} + {counts[1]:,} windows, not UCI HAR's")
  return dataset.Dataset(train.x, train.y, test.x, test.y, len(ACTIVITIES), note)


def read(data_dir: str | os.PathLike[str] | None) -> tuple[Split, Split]:
  """Reads the train and the test split.

  Args:
    data_dir: 'UCI HAR Dataset', the folder that holds it or its zip archive, or that
      archive.

  Raises:
    dataset.DataMissingError: there are no such data, or a file is missing among them.
    InputError: a file is damaged, files disagree on the number of windows, or a folder
      holds several such archives.
  """
  if data_dir is None:
    raise dataset.DataMissingError(
      f"UCI HAR is not on this machine: get it from {_HOME} and name the folder that "
      "holds its archive."
    )
  with _open(pathlib.Path(data_dir).expanduser().absolute()) as source:
    absent = [name for name in _FILES if name not in source.names]
    if absent:
      more = f" and {len(absent) - 1} other files" if len(absent) > 1 else ""
      raise dataset.DataMissingError(
        f"{source.place} lacks {absent[0]}{more}: get it again from {_HOME}."
      )
    train, test = (_read_split(source, split) for split in _SPLITS)
  return train, test


def _signal_file(channel: str, split: str) -> str:
  return f"{split}/Inertial Signals/{channel}_{split}.txt"


_FILES = tuple(
  name
  for split in _SPLITS
  for name in (
    f"{split}/y_{split}.txt",
    f"{split}/subject_{split}.txt",
    *(_signal_file(channel, split) for channel in CHANNELS),
  )
)


class _Source(NamedTuple):
  """Where the files are: the folder 'UCI HAR Dataset', unpacked or not."""

  place: str
  names: frozenset[str]
  read: Callable[[str], bytes]


@contextlib.contextmanager
def _open(place: pathlib.Path) -> Iterator[_Source]:
  for source in map(_in_folder, (place, place / "UCI HAR Dataset")):
    if source.names:
      yield source
      return
  paths = [place] if place.is_file() else sorted(place.glob("*.zip"))
  with contextlib.ExitStack() as stack:
    found, damaged = [], []
    for path in paths:
      try:
        archive = stack.enter_context(zipfile.ZipFile(path))
        found += _in_archive(archive, str(path), stack)
      except _UNREADABLE as error:
        damaged.append(f"{path} cannot be read ({error}): get it again from {_HOME}.")
    if len(found) > 1:
      raise InputError(
        f"{place} holds several archives of UCI HAR, {found[0].place} and "
        f"{found[1].place}: name one of them."
      )
    if damaged and not found:
      raise InputError(damaged[0])
    if not found:
      raise dataset.DataMissingError(
        f"{place} holds neither the folder 'UCI HAR Dataset' nor an archive of it: get "
        f"it from {_HOME} and name the folder that holds the archive."
      )
    yield found[0]


def _in_folder(folder: pathlib.Path) -> _Source:
  names = frozenset(name for name in _FILES if (folder / name).is_file())
  return _Source(str(folder), names, lambda name: (folder / name).read_bytes())


def _in_archive(
  archive: zipfile.ZipFile, place: str, stack: contextlib.ExitStack
) -> list[_Source]:
  """The data in an archive; none or one."""
  names = [name for name in archive.namelist() if not name.startswith("__MACOSX/")]
  tops = [
    name[: -len(wanted)]
    for name in names
    for wanted in _FILES
    if f"/{name}".endswith(f"/{wanted}")
  ]
  if tops:
    top = tops[0]
    held = frozenset(name[len(top) :] for name in names if name.startswith(top))
    return [_Source(place, held, lambda name: archive.read(top + name))]
  for name in names:
    # What the publisher's site gives today: the archive in an archive.
    if name.endswith("UCI HAR Dataset.zip"):
      inner = stack.enter_context(zipfile.ZipFile(io.BytesIO(archive.read(name))))
      return _in_archive(inner, f"{place}/{name}", stack)
  return []


def _read_split(source: _Source, split: str) -> Split:
  y = _column(source, f"{split}/y_{split}.txt")
  odd = y[(y < 1) | (y > len(ACTIVITIES))]
  if len(odd):
    raise InputError(
      f"{source.place}: {split}/y_{split}.txt holds the activity {odd[0]}, but they are "
      f"1..{len(ACTIVITIES)}: get the data again from {_HOME}."
    )
  subjects = _column(source, f"{split}/subject_{split}.txt", len(y))
  x = np.empty((len(y), STEPS, len(CHANNELS)), np.float32)
  for k, channel in enumerate(CHANNELS):
    x[..., k] = _table(source, _signal_file(channel, split), STEPS, len(y))
  return Split(x, y - np.int32(1), subjects)


def _column(source: _Source, name: str, rows: int | None = None) -> np.ndarray:
  return _table(source, name, 1, rows, whole=True)[:, 0].astype(np.int32)


def _table(
  source: _Source, name: str, columns: int, rows: int | None, *, whole: bool = False
) -> np.ndarray:
  """The numbers in a file: float32, finite, of just this shape and perhaps whole."""
  try:
    content = source.read(name)
    if not content.strip():
      raise InputError("it is empty")
    # Fast since NumPy 1.23: a second for all files, so nothing is cached.
    table = np.loadtxt(io.BytesIO(content), np.float32, comments=None, ndmin=2)
    if table.shape[1] != columns:
      raise InputError(f"{table.shape[1]} numbers in a line instead of {columns}")
    if rows is not None and len(table) != rows:
      raise InputError(f"{len(table):,} lines, but there are {rows:,} labels")
    if not np.isfinite(table).all():
      raise InputError("a number that is not finite")
    if whole and (table != np.rint(table)).any():
      raise InputError("a number that is not whole")
  except (*_UNREADABLE, ValueError) as error:
    reason = str(error).partition(";")[0]  # NumPy goes on with advice on its arguments.
    raise InputError(
      f"{source.place}: {name} is damaged ({reason}): get the data again from {_HOME}."
    ) from error
  return table
