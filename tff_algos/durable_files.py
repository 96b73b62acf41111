"""Files that are whole or not there, after a power cut too.

What was written is in the machine's memory only until it is synced, and a name may reach
the disk before what it names. So content is synced under another name, the name changed,
and the folder synced.

Where a disk is full or fails, whoever writes raises an OSError that names the file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import sqlite3
import tempfile
import time
import uuid
import zipfile
import zlib
from collections.abc import Iterator
from typing import IO, Any, Optional

from tff_algos.errors import InputError

UNFINISHED = ".unfinished"

_UNFINISHED_FOLDER = re.compile("unfinished-[0-9a-f]{32}")
_YOUNG_SECONDS = 24 * 3600

#: The errors of a disk that is full, may not be written to there or fails.
DISK_ERRORS = (
  *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG),
  *(errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EIO),
)

#: What reading a damaged zip file raises; RuntimeError where it seems to be encrypted.
ZIP_DAMAGES = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError)


@contextlib.contextmanager
def new_file(path: str, mode: str = "wb", **options: Any) -> Iterator[IO[Any]]:
  """A file that takes the place of `path` when all of it was written.

  Args:
    path: The file, of a local file system. A device or pipe is only written to.
    mode: How `open` opens it, for writing.
    **options: Others of `open`; text is UTF-8, whatever the machine's language.
  """
  unfinished = path + UNFINISHED
  if "b" not in mode:
    options["encoding"] = "utf-8"
  with writing(path):
    if os.path.exists(path) and not os.path.isfile(path):
      with open(path, mode, **options) as file:
        yield file
      return
    try:
      with open(unfinished, mode, **options) as file:
        yield file
        sync_file(file)
    except BaseException:
      with contextlib.suppress(OSError):
        os.remove(unfinished)
      raise
    replace(unfinished, path)


@contextlib.contextmanager
def writing(path: str) -> Iterator[None]:
  """Has errors of the disk name the file or folder that is written.

  Args:
    path: Its name. An error that names a file of another folder is of that.

  Raises:
    OSError: The disk is full or fails; also where TensorFlow, HDF5 or SQLite, which raise
      errors of their own, wrote to it.
  """
  try:
    yield
  except Exception as error:
    number = _disk_error(error)
    named = getattr(error, "filename", None) or path
    folder = os.path.join(os.path.dirname(os.path.abspath(path)), "")
    named = os.path.join(os.path.abspath(os.fsdecode(named)), "")
    if number is None or not named.startswith(folder):
      raise
    raise OSError(number, os.strerror(number), path) from error


def _disk_error(error: Exception) -> Optional[int]:
  """The number of an error of the disk; None for any other."""
  if isinstance(error, OSError) and error.errno is not None:
    return error.errno if error.errno in DISK_ERRORS else None
  message = str(error)
  if isinstance(error, sqlite3.OperationalError):
    if "locked" in message:  # By another program.
      return None
    return errno.ENOSPC if "full" in message else errno.EIO
  if "is not a directory" in message:  # TensorFlow's own words.
    return errno.ENOTDIR
  # Its other messages, and HDF5's, have the system's in them.
  return next((n for n in DISK_ERRORS if os.strerror(n) in message), None)


@contextlib.contextmanager
def alone(folder: str, name: str) -> Iterator[None]:
  """Makes a folder, and keeps others that call this out of it meanwhile.

  Args:
    folder: The folder.
    name: What it is to a user, such as the flag that names it.

  Raises:
    InputError: It cannot be written to, or another is in it.
    OSError: The disk is full, or fails.
  """
  try:
    os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
      pass
  except OSError as error:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
      raise
    raise InputError(
      f"{folder} cannot be written to ({error.strerror}): choose another {name}."
    ) from error
  handle = os.open(folder, os.O_RDONLY)
  try:
    try:
      fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      raise InputError(
        f"{folder} is being written by another run: wait for it to end, or choose "
        f"another {name}."
      ) from None
    except OSError:
      pass  # A file system that has no locks.
    yield
  finally:
    os.close(handle)


@contextlib.contextmanager
def unfinished_folder(above: str) -> Iterator[str]:
  """A folder to write what is then given another name; gone at the end if it was not.

  Those go too that were left in `above` by processes that were killed a day ago.
  """
  for name in os.listdir(above):
    if _UNFINISHED_FOLDER.fullmatch(name):
      with contextlib.suppress(OSError), _locked(os.path.join(above, name)) as handle:
        # One just made may not be locked yet, nor is one of another machine's everywhere.
        if time.time() - os.fstat(handle).st_mtime > _YOUNG_SECONDS:
          shutil.rmtree(os.path.join(above, name), ignore_errors=True)
  path = os.path.join(above, f"unfinished-{uuid.uuid4().hex}")
  os.mkdir(path)  # Not by `tempfile`, whose folders no other user may read.
  try:
    with contextlib.ExitStack() as stack:
      with contextlib.suppress(OSError):  # A file system that has no locks.
        stack.enter_context(_locked(path))
      yield path
  finally:
    shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _locked(folder: str) -> Iterator[int]:
  """Its handle, while nobody else has it; `OSError` where somebody has."""
  handle = os.open(folder, os.O_RDONLY)
  try:
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    yield handle
  finally:
    os.close(handle)


def save_picture(figure: Any, path: str | os.PathLike[str], dpi: int = 120) -> None:
  """Writes a figure of Matplotlib's."""
  name = os.fspath(path)
  with new_file(name) as file:
    figure.savefig(file, dpi=dpi, format=os.path.splitext(name)[1][1:] or None)


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
