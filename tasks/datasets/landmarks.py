"""Landmarks-User-160k: photographs of landmarks by the user who took them.

Hsu, Qi, Brown: "Federated Visual Classification with Real-World Data Distribution", 2020,
on pictures of the Google Landmarks Dataset v2 (Weyand et al., 2020).
"""

from __future__ import annotations

import csv
import os
import pathlib

import numpy as np

from tasks.datasets import dataset, picture_files
from tff_algos import client_arrays
from tff_algos.errors import InputError

#: The landmarks; FedReg, B.2, prints these numbers.
NUM_CLASSES = 2028

_PICTURES = (164_172, 19_526)
_SPLITS = ("federated_train.csv", "test.csv")
_SPLIT_HOME = (
  "https://github.com/google-research/google-research/tree/master/"
  "federated_vision_datasets"
)
_PICTURE_HOME = "https://github.com/cvdfoundation/google-landmark"
# Part of every cache key: count it up when what is cached changes.
_CACHE_FORMAT = 1


def load(
  data_dir: str | os.PathLike[str] | None,
  *,
  size: int = 64,
  cache_dir: str | os.PathLike[str] | None = None,
) -> dataset.Dataset:
  """Loads the pictures that the split names, and from which user each is.

  Args:
    data_dir: the folder with federated_train.csv and test.csv, or with their folder
      landmarks-user-160k, and beside them the pictures as Google packs them:
      train/0/1/2/0123456789abcdef.jpg.
    size: height and width in pixels. The papers do not say theirs; at 64 [convention]
      all pictures together have 2.3 GB, at the usual 224 they would have 28.
    cache_dir: where the decoded arrays are kept, to be read instead of the pictures as
      long as the two lists stay the same; None keeps nothing.

  Returns:
    uint8 (N, size, size, 3), labels 0..2027 and the users in the order of the list.

  Raises:
    dataset.DataMissingError: a list or a picture is missing.
    InputError: a list is not as published, a picture cannot be decoded, or `cache_dir`
      cannot be written.
  """
  if data_dir is None:
    raise dataset.DataMissingError(
      f"Landmarks-User-160k is not on this machine: get the lists from {_SPLIT_HOME}, "
      f"the pictures from {_PICTURE_HOME}, and name the folder that holds both."
    )
  folder = pathlib.Path(data_dir).expanduser().absolute()
  train, test = (_read_list(_find(folder, name)) for name in _SPLITS)
  users = [row.get("user_id") for row in train]
  if not all(users):  # Those without a name would be one user.
    raise InputError(
      f"{_find(folder, _SPLITS[0])} has no user_id in a line: get it again."
    )
  number = {user: i for i, user in enumerate(dict.fromkeys(users))}
  arrays = None
  if cache_dir is not None:
    key = client_arrays.fingerprint((_CACHE_FORMAT, size, str(folder), train, test))
    cache = pathlib.Path(cache_dir).expanduser() / f"landmarks-{key}.npz"
    arrays = picture_files.read_cache(cache)
  if arrays is None:
    arrays = [*_decode(folder, train, size), *_decode(folder, test, size)]
    if cache_dir is not None:
      picture_files.write_cache(cache, arrays)
  train_x, train_y, test_x, test_y = arrays
  note = f"{size}x{size} pictures"
  if (len(train), len(test)) != _PICTURES:
    note = f"{len(train):,} + {len(test):,} {note}, not Landmarks-User-160k's"
  return dataset.Dataset(
    train_x,
    train_y,
    test_x,
    test_y,
    NUM_CLASSES,
    note,
    np.array([number[user] for user in users], np.int32),
  )


def _find(folder: pathlib.Path, name: str) -> pathlib.Path:
  for path in (folder / name, folder / "landmarks-user-160k" / name):
    if path.is_file():
      return path
  raise dataset.DataMissingError(
    f"{folder} lacks {name}: get it from {_SPLIT_HOME} and name the folder that holds it."
  )


def _read_list(path: pathlib.Path) -> list[dict[str, str]]:
  try:
    with path.open(newline="", encoding="utf-8-sig") as file:
      reader = csv.DictReader(file)
      rows = [(reader.line_num, row) for row in reader]
  except (UnicodeDecodeError, csv.Error) as error:
    raise InputError(
      f"{path} cannot be read ({error}): get it again from {_SPLIT_HOME}."
    ) from error
  for line, row in rows:
    label = row.get("class") or ""
    picture = row.get("image_id") or "\0"
    if "\0" in picture or not label.isdecimal():
      raise InputError(
        f"{path} has no image_id or no class in line {line}: get it again from "
        f"{_SPLIT_HOME}."
      )
    # Not later: as an int32, a number of many digits is another class.
    if len(label) > 9 or int(label) >= NUM_CLASSES:
      raise InputError(
        f"{path} has the class {label[:20]} in line {line}, but they are "
        f"0..{NUM_CLASSES - 1}: get it again from {_SPLIT_HOME}."
      )
  return [row for _, row in rows]


def _decode(
  folder: pathlib.Path, rows: list[dict[str, str]], size: int
) -> tuple[np.ndarray, np.ndarray]:
  def read(name: str) -> bytes:
    try:
      return folder.joinpath("train", *name[:3], f"{name}.jpg").read_bytes()
    except FileNotFoundError as error:
      raise dataset.DataMissingError(
        f"The picture {error.filename} is missing: get it from {_PICTURE_HOME} and "
        f"unpack it in {folder}."
      ) from error

  x = picture_files.load([row["image_id"] for row in rows], read, size)
  return x, np.array([row["class"] for row in rows], np.int32)
