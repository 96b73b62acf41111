"""Pictures in folders, one folder per class, such as CIFAR-10 as JPEG files."""

from __future__ import annotations

import hashlib
import os
import pathlib
import shlex
import tarfile

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

from tasks.datasets import dataset, picture_files
from tff_algos.errors import InputError, first_line

_SPLITS = ("train", "test")
# Those that `tfds.ImageFolder` reads.
_SUFFIXES = (".jpg", ".jpeg", ".png")
# Which it would leave out without a word.
_OTHER_PICTURES = (".bmp", ".gif", ".tif", ".tiff", ".webp")
# Part of every cache key: count it up when what is cached changes.
_CACHE_FORMAT = 1


def load(
  folder: str | os.PathLike[str],
  *,
  num_classes: int | None = None,
  note: str = "",
  cache_dir: str | os.PathLike[str] | None = None,
) -> dataset.Dataset:
  """Loads `folder/{train,test}/<class>/*.{jpg,jpeg,png}`.

  Args:
    folder: the folder that holds train/ and test/.
    num_classes: the number of class folders that there must be; None takes what is
      there.
    note: the data set's note.
    cache_dir: where the decoded arrays are kept (uncompressed), to be read instead of
      the pictures until a file's name, size or time changes; None keeps nothing.

  Returns:
    Pictures (N, height, width, 3) uint8 in `tfds.ImageFolder`'s order, which is
    shuffled but depends on the file names only. Labels count the class folders in
    alphabetical order.

  Raises:
    dataset.DataMissingError: train/ or test/ is missing.
    InputError: the class folders are not as said above, a split has no picture or one
      of another format, a name is not UTF-8, the pictures differ in size, one cannot be
      decoded, or `cache_dir` cannot be written.
  """
  folder = pathlib.Path(folder).expanduser().absolute()
  classes = _list_classes(folder)
  if num_classes is not None and len(classes) != num_classes:
    raise InputError(
      f"{folder / 'train'} holds {len(classes)} class folders: {num_classes} are "
      "expected."
    )
  fingerprint = _fingerprint(folder)
  if cache_dir is None:
    arrays = _decode(folder, classes)
  else:
    cache = pathlib.Path(cache_dir).expanduser() / f"{fingerprint}.npz"
    cached = picture_files.read_cache(cache)
    arrays = cached or _decode(folder, classes)
    if cached is None:
      picture_files.write_cache(cache, arrays)
  train_x, train_y, test_x, test_y = arrays
  return dataset.Dataset(train_x, train_y, test_x, test_y, len(classes), note)


def _list_classes(folder: pathlib.Path) -> list[str]:
  """The class names, the same for both splits, in alphabetical order."""
  if not all((folder / split).is_dir() for split in _SPLITS):
    raise dataset.DataMissingError(_how_to_get(folder))
  train, test = (
    sorted(entry.name for entry in os.scandir(folder / split) if entry.is_dir())
    for split in _SPLITS
  )
  for here, there, name in ((train, test, "train"), (test, train, "test")):
    alone = sorted(set(here) - set(there))
    if alone:
      raise InputError(
        f"{folder / name} holds the class folder {alone[0]} that the other split "
        "lacks: train/ and test/ must have the same ones."
      )
  return train


def _how_to_get(folder: pathlib.Path) -> str:
  start = f"{folder} does not hold train/ and test/ with one folder per class"
  candidates = [folder] if folder.is_file() else sorted(folder.glob("*.tar"))
  for archive in candidates:
    depth = _depth_of_splits(archive)
    if depth is None:
      continue
    target, make = archive.parent, ""
    if not os.access(target, os.W_OK):
      target = pathlib.Path.cwd() / archive.stem
      make = f"mkdir {shlex.quote(str(target))} && "
    unpack = ["tar", "-xf", str(archive), "-C", str(target)]
    if depth:
      unpack.append(f"--strip-components={depth}")
    return (
      f"{start} but there is {archive}: run `{make}{shlex.join(unpack)}` and name "
      f"{target} as the folder."
    )
  return f"{start}: name a folder that does."


def _depth_of_splits(archive: pathlib.Path) -> int | None:
  """How many folders train/ or test/ lie deep in the archive; None if there is none."""
  try:
    with tarfile.open(archive) as tar:
      for member in tar:
        # With a leading ".", which tar counts.
        parts = list(filter(None, member.name.split("/")))
        for split in _SPLITS:
          if split in parts:
            return parts.index(split)
  except (tarfile.TarError, OSError):
    pass  # No archive, or a damaged one: nothing to offer.
  return None


def _fingerprint(folder: pathlib.Path) -> str:
  """A name for the folder's content, made without reading the pictures."""
  files = []
  for split in _SPLITS:
    for label in filter(os.DirEntry.is_dir, os.scandir(folder / split)):
      for file in os.scandir(label.path):
        _check_name(file)
        if file.name.lower().endswith(_SUFFIXES):
          stat = file.stat()
          files.append((split, label.name, file.name, stat.st_size, stat.st_mtime_ns))
  files.sort()
  for split in _SPLITS:
    if not any(file[0] == split for file in files):
      raise InputError(
        f"{folder / split} holds no picture: it needs {', '.join(_SUFFIXES)} files in "
        "one folder per class."
      )
  text = repr((_CACHE_FORMAT, str(folder), len(files), files))
  return f"{folder.name}-{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def _check_name(file: os.DirEntry[str]) -> None:
  # A Mac leaves a hidden ._x.gif beside, or after, x.gif.
  if file.name.lower().endswith(_OTHER_PICTURES) and not file.name.startswith("."):
    raise InputError(
      f"{ascii(file.path)[1:-1]} is none of the pictures that are read, "
      f"{', '.join(_SUFFIXES)}: convert it to one of them, or move it away."
    )
  try:
    file.path.encode()
  except UnicodeEncodeError:  # Which TensorFlow cannot open.
    raise InputError(
      f"{ascii(file.path)[1:-1]} has a name that is not UTF-8: rename the file, or the "
      "folder."
    ) from None


def _decode(folder: pathlib.Path, classes: list[str]) -> list[np.ndarray]:
  builder = tfds.ImageFolder(str(folder))
  # TFDS takes every folder beside train/ and test/ for a split with classes of its own.
  if builder.info.features["label"].names != classes:
    raise InputError(
      f"{folder} holds other folders beside train/ and test/, and TFDS takes theirs "
      "for classes: move them away."
    )
  arrays = []
  for split in _SPLITS:
    pictures = builder.as_dataset(split=split)
    try:
      # Not TFDS's own batches, which pad smaller pictures with black.
      whole = pictures.batch(len(pictures)).get_single_element()
      examples = tfds.as_numpy(whole)
    except tf.errors.InvalidArgumentError as error:
      raise InputError(_find_odd_picture(builder) or first_line(error)) from error
    except tf.errors.OpError as error:
      raise InputError(
        f"the pictures in {folder / split} cannot be read: {first_line(error)}"
      ) from error
    arrays += [examples["image"], examples["label"].astype(np.int32)]
  if arrays[0].shape[1:] != arrays[2].shape[1:]:
    raise InputError(_find_odd_picture(builder))
  return arrays


def _find_odd_picture(builder: tfds.ImageFolder) -> str:
  """Names the first picture that cannot be decoded or is not as large as the first."""
  first_name, first_shape = "", None
  for split in _SPLITS:
    # Undecoded, since a failure inside the pipeline does not say which file it was.
    undecoded = builder.as_dataset(
      split=split, decoders={"image": tfds.decode.SkipDecoding()}
    )
    for example in undecoded:
      name = example["image/filename"].numpy().decode()
      if example["image"].numpy().startswith(b"GIF8"):
        return f"{name} is a GIF, whatever its name: make it a PNG or a JPEG."
      try:
        picture = tf.image.decode_image(
          example["image"], channels=3, expand_animations=False
        )
      except tf.errors.InvalidArgumentError:
        return f"{name} cannot be decoded: replace or remove the file."
      if first_shape is None:
        first_name, first_shape = name, picture.shape
      elif picture.shape != first_shape:
        height, width, _ = picture.shape
        return (
          f"{name} has {height}x{width} pixels but {first_name} "
          f"{first_shape[0]}x{first_shape[1]}: all pictures must have the same size."
        )
  return ""
