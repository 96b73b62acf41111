"""Picture files of any size as arrays of one size, and arrays kept between runs."""

from __future__ import annotations

import os
import pathlib
import uuid
import zipfile
from collections.abc import Callable, Sequence
from concurrent import futures

import numpy as np
import tensorflow as tf

from tff_algos import durable_files
from tff_algos.errors import InputError

_CACHED = ("train_x", "train_y", "test_x", "test_y")


def load(names: Sequence[str], read: Callable[[str], bytes], size: int) -> np.ndarray:
  """Decodes pictures, on all cores.

  Of each the largest square in its middle is taken and resized, bilinear with
  antialiasing [convention; also what public code for COVID-CT and Landmarks tests on].

  Args:
    names: what the pictures are called.
    read: gives the content of the JPEG, PNG, GIF or BMP file of a name.
    size: height and width of the result, in pixels.

  Returns:
    uint8 (N, size, size, 3), grey pictures with three equal channels.

  Raises:
    InputError: a picture cannot be decoded. What `read` raises goes through.
  """
  pictures = np.empty((len(names), size, size, 3), np.uint8)

  def fill(place: int) -> None:
    pictures[place] = _decode(names[place], read(names[place]), size)

  with futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
    for _ in pool.map(fill, range(len(names))):
      pass
  return pictures


def _decode(name: str, content: bytes, size: int) -> np.ndarray:
  try:
    picture = tf.io.decode_image(content, channels=3, expand_animations=False)
  except tf.errors.InvalidArgumentError as error:
    raise InputError(f"The picture {name} cannot be decoded: get it again.") from error
  height, width, _ = picture.shape
  side = min(height, width)
  top, left = (height - side) // 2, (width - side) // 2
  square = picture[top : top + side, left : left + side]
  resized = tf.image.resize(square, (size, size), antialias=True)
  return np.rint(resized).astype(np.uint8)


def read_cache(path: pathlib.Path) -> list[np.ndarray] | None:
  """The arrays of `write_cache`; None if there are none or the file is damaged."""
  try:
    with zipfile.ZipFile(path) as file:
      return [_read_array(file, f"{name}.npy") for name in _CACHED]
  except Exception:  # What a damaged header of an array makes NumPy raise is any.
    return None


def _read_array(archive: zipfile.ZipFile, name: str) -> np.ndarray:
  with archive.open(name) as file:
    array: np.ndarray = np.lib.format.read_array(file)
    if file.read(1):  # At the end zipfile compares the checksum.
      raise zipfile.BadZipFile(f"{name} is longer than its header says")
  return array


def write_cache(path: pathlib.Path, arrays: Sequence[np.ndarray]) -> None:
  """Keeps train_x, train_y, test_x and test_y in a file, uncompressed.

  Raises:
    InputError: the file cannot be written; nothing is left of it.
  """
  # Renamed when complete, so that no reader ever sees half a file.
  temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
      with temporary.open("xb") as file:
        np.savez(file, **dict(zip(_CACHED, arrays)))
        durable_files.sync_file(file)
      durable_files.replace(str(temporary), str(path))
    finally:
      if temporary.is_file():
        temporary.unlink()
  except OSError as error:
    raise InputError(
      f"the pictures cannot be cached in {path.parent} ({error.strerror or error}): "
      "name another cache folder."
    ) from error
