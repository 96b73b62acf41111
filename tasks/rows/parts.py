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


_SPLITS = ("train", "test")
# For training and for testing, of CIFAR-10 and of CIFAR-100.
_CIFAR_PICTURES = (50_000, 10_000)


def tfds(name: str) -> Callable[[Optional[str], str], Dataset]:
  """A loader of what TensorFlow Datasets calls `name`."""

  def load(data_dir: Optional[str], cache_dir: str) -> Dataset:
    from tasks.datasets import tfds_images

    del cache_dir
    return tfds_images.load(name, data_dir)

  return load


def cifar(num_classes: int) -> Callable[[Optional[str], str], Dataset]:
  """A loader of CIFAR-10 or -100: of a folder of pictures, if `data_dir` is one, or TFDS.

  Args:
    num_classes: 10 or 100.
  """
  name = f"CIFAR-{num_classes}"

  def load(data_dir: Optional[str], cache_dir: str) -> Dataset:
    from tasks.datasets import picture_folder, tfds_images

    tfds_name = f"cifar{num_classes}"
    folder = None if data_dir is None else pathlib.Path(data_dir).expanduser()
    is_tfds = folder is None or (folder / tfds_name).is_dir()
    if folder is None or is_tfds or not _may_hold_pictures(folder):
      return tfds_images.load(tfds_name, data_dir)
    files = (path for split in _SPLITS for path in (folder / split).glob("*/*"))
    is_jpeg = any(path.suffix.lower() in (".jpg", ".jpeg") for path in files)
    found = picture_folder.load(
      folder,
      num_classes=num_classes,
      note=f"JPEG {name}" if is_jpeg else f"{name} from a folder of pictures",
      cache_dir=os.path.join(cache_dir, "pictures"),
    )
    counts = len(found.train_y), len(found.test_y)
    if counts == _CIFAR_PICTURES:
      return found
    here, all_of_them = ("{:,} + {:,}".format(*c) for c in (counts, _CIFAR_PICTURES))
    return found._replace(note=f"{found.note}, {here} pictures of {all_of_them}")

  return load


def _may_hold_pictures(folder: pathlib.Path) -> bool:
  """Or their archive, of which the loader of pictures says how to unpack it."""
  has_split = any((folder / split).is_dir() for split in _SPLITS)
  return has_split or folder.is_file() or any(folder.glob("*.tar"))


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
