"""What rows of several papers are made of.

Data sets and networks are imported when they are loaded: the table of tasks is read by
programs that have not imported TensorFlow.
"""

from __future__ import annotations

import importlib
import os
import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Optional

if TYPE_CHECKING:
  from tasks.datasets.dataset import Dataset


def tfds(name: str) -> Callable[[Optional[str], str], Dataset]:
  """A loader of what TensorFlow Datasets calls `name`."""

  def load(data_dir: Optional[str], cache_dir: str) -> Dataset:
    from tasks.datasets import tfds_images

    del cache_dir
    return tfds_images.load(name, data_dir)

  return load


def cifar10(data_dir: Optional[str], cache_dir: str) -> Dataset:
  """Loads CIFAR-10 from a folder of pictures, if `data_dir` is one, or else by TFDS."""
  from tasks.datasets import picture_folder, tfds_images

  folder = None if data_dir is None else pathlib.Path(data_dir).expanduser()
  is_tfds = folder is None or (folder / "cifar10").is_dir()
  # A folder with the pictures' archive gets the loader's word on how to unpack it.
  has_archive = folder is not None and not is_tfds and any(folder.glob("*.tar"))
  if folder is None or not ((folder / "train").is_dir() or has_archive):
    return tfds_images.load("cifar10", data_dir)
  is_jpeg = any((folder / "train").glob("*/*.jp*g"))
  return picture_folder.load(
    folder,
    num_classes=10,
    note="JPEG CIFAR-10" if is_jpeg else "CIFAR-10 from a folder of pictures",
    cache_dir=os.path.join(cache_dir, "pictures"),
  )


def network(
  module: str, function: str, **options: Any
) -> Callable[[tuple[int, ...], int], Any]:
  """A builder that calls a function of `tasks.models.<module>`."""

  def build(shape: tuple[int, ...], num_classes: int) -> Any:
    models = importlib.import_module(f"tasks.models.{module}")
    return getattr(models, function)(shape, num_classes, **options)

  return build


def local_sgd(
  epochs: int, batch_size: int, learning_rate: float, momentum: float = 0.0
) -> dict[str, Any]:
  """A task's defaults for local training, `Task.hparams`."""
  return dict(
    epochs=epochs,
    batch_size=batch_size,
    learning_rate=learning_rate,
    momentum=momentum,
  )
