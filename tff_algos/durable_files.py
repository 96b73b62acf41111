"""Files that are whole or not there, after a power cut too.

What was written is in the machine's memory only until it is synced, and a name may reach
the disk before what it names. So content is synced under another name, the name changed,
and the folder synced.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import IO, Any

UNFINISHED = ".unfinished"


@contextlib.contextmanager
def new_file(path: str, mode: str = "wb", **options: Any) -> Iterator[IO[Any]]:
  """A file that takes the place of `path` when all of it was written.

  Args:
    path: The file, of a local file system.
    mode: How `open` opens it, for writing.
    **options: Others of `open`.
  """
  unfinished = path + UNFINISHED
  try:
    with open(unfinished, mode, **options) as file:
      yield file
      sync_file(file)
  except BaseException:
    with contextlib.suppress(OSError):
      os.remove(unfinished)
    raise
  replace(unfinished, path)


def sync_file(file: IO[Any]) -> None:
  """Has what was written to a file reach the disk."""
  file.flush()
  os.fsync(file.fileno())


def sync_folder(folder: str) -> None:
  """Has the names in a folder reach the disk."""
  handle = os.open(folder or ".", os.O_RDONLY)
  try:
    os.fsync(handle)
  except OSError:
    pass  # A file system that does not sync folders.
  finally:
    os.close(handle)


def sync_tree(path: str) -> None:
  """Has a file, or a folder with all that it holds, reach the disk."""
  for folder, _, names in os.walk(path):
    for name in names:
      _sync_path(os.path.join(folder, name))
    sync_folder(folder)
  if os.path.isfile(path):
    _sync_path(path)


def _sync_path(path: str) -> None:
  with open(path, "rb") as file:
    os.fsync(file.fileno())


def replace(source: str, target: str) -> None:
  """Gives a file or folder, which is synced, the name of another; durably."""
  os.replace(source, target)
  sync_folder(os.path.dirname(os.path.abspath(target)))
