"""Puts archives that are at hand where TensorFlow Datasets finds them."""

from __future__ import annotations

import os
import pathlib
import sys
from typing import Optional

import tensorflow_datasets as tfds

from tasks.datasets import import_archives, tfds_images


def run(name: str, source: str, data_dir: Optional[str], *, prepare: bool) -> None:
  """Imports a data set's archives and says what was found.

  Args:
    name: TFDS's name of the data set.
    source: The folder that holds the archives.
    data_dir: TFDS's folder; None: its own.
    prepare: Whether to prepare the data set too.

  Raises:
    InputError: The data set or an archive cannot be used.
  """
  if not sys.stderr.isatty():
    tfds.disable_progress_bar()
  builder = tfds_images.find_builder(name, data_dir)
  for archive, found in import_archives.import_archives(builder, source):
    origin = f"imported from {_shown(found)}" if found else "already in the cache"
    print(f"{archive.file_name} ({archive.size:,} bytes): {origin}")
  if prepare:
    tfds_images.prepare(builder)
    print(f"{name} is ready in {builder.data_dir}")
  else:
    print(f"{name} will be prepared, without a network, when first used")


def _shown(path: pathlib.Path) -> str:
  """As text that any terminal takes: a name may be no UTF-8."""
  return os.fsencode(path).decode("utf-8", "backslashreplace")
