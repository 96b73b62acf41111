"""COVID-CT: slices of computed tomographies of the lungs, with COVID-19 or without.

He et al.: "Sample-Efficient Deep Learning for COVID-19 Diagnosis Based on CT Scans",
2020.
"""

from __future__ import annotations

import collections
import os
import pathlib
import re
import zipfile
import zlib
from collections.abc import Callable, Sequence

import numpy as np

from tasks.datasets import dataset, picture_files
from tff_algos.errors import InputError
from tff_algos.partitions.proportions import round_columns

#: What the labels 0 and 1 stand for [code, the publishers'].
CLASSES = ("COVID", "NonCOVID")

_HOME = "https://github.com/UCSD-AI4H/COVID-CT"
_PUBLISHED_SOURCES = 32
# Of both labels, for training and for testing [code, the publishers' lists; with the 60
# and 58 pictures for validation they are the published 349 and 397].
_PUBLISHED_PICTURES = ((191, 234), (98, 105))
# Where the name of the publication ends in a picture's name: before its page, figure or
# part, or else before the ending.
_SOURCE_END = re.compile(r"-p\d+-|[-_](?:gr?|f|fig)\d|%\d|\.[^.]*$", re.IGNORECASE)


def load(data_dir: str | os.PathLike[str] | None, *, size: int = 224) -> dataset.Dataset:
  """Loads the publishers' training and test split; their validation split is left out.

  FedReg's authors test on both, 321 pictures, and hold out 46 of those for training
  [derived: the denominators of the accuracies in their logs].

  A group holds the COVID pictures of one source [paper, FedReg 4.1], and of the others,
  whose sources are not known, a share in proportion [paper], drawn at random with a fixed
  seed [convention]. The source is taken from the picture's name, which begins with the
  publication's: '2020.02.10.20021584-p6-52%0.png' is of '2020.02.10.20021584'
  [convention; on the publishers' lists it gives FedReg's 32 sources]. The note says so
  where there are not 32, or where the lists have other numbers of pictures than theirs.

  Args:
    data_dir: the publishers' repository, with Data-split/COVID/trainCT_COVID.txt and so
      on, and in Images-processed/ the archives CT_COVID.zip and CT_NonCOVID.zip or
      folders of these names.
    size: height and width in pixels [code, the publishers'].

  Returns:
    uint8 (N, size, size, 3) and labels 0 and 1.

  Raises:
    dataset.DataMissingError: there are no such data, or a file is missing among them.
    InputError: a file is damaged, or a picture is named twice.
  """
  if data_dir is None:
    raise dataset.DataMissingError(
      f"COVID-CT is not on this machine: get it from {_HOME} and name its folder."
    )
  folder = pathlib.Path(data_dir).expanduser()
  train = [_names(folder, "train", label) for label in CLASSES]
  test = [_names(folder, "test", label) for label in CLASSES]
  for label, *lists in zip(CLASSES, train, test):
    _check_once(folder, label, [name for names in lists for name in names])
  readers = [_reader(folder / "Images-processed", f"CT_{label}") for label in CLASSES]
  groups = _groups(*train)
  num_sources = int(groups.max()) + 1
  notes = []
  if num_sources != _PUBLISHED_SOURCES:
    notes += [f"{num_sources} sources by file name, FedReg's are {_PUBLISHED_SOURCES}"]
  sizes = tuple(tuple(map(len, names)) for names in (train, test))
  if sizes != _PUBLISHED_PICTURES:
    here, published = (
      "{} + {} for training, {} + {} for testing".format(*pair[0], *pair[1])
      for pair in (sizes, _PUBLISHED_PICTURES)
    )
    notes += [f"pictures: {here}; published are {published}"]
  return dataset.Dataset(
    *_pictures(train, readers, size),
    *_pictures(test, readers, size),
    len(CLASSES),
    "; ".join(notes),
    groups,
  )


def source(name: str) -> str:
  """The publication that a picture is from, as its file name tells it."""
  return _SOURCE_END.split(name, maxsplit=1)[0]


def _names(folder: pathlib.Path, split: str, label: str) -> list[str]:
  path = folder / "Data-split" / label / f"{split}CT_{label}.txt"
  if not path.is_file():
    raise dataset.DataMissingError(
      f"{folder} lacks {path.relative_to(folder)}: get COVID-CT from {_HOME} and name "
      "its folder."
    )
  try:
    text = path.read_text("utf-8-sig")
  except UnicodeDecodeError as error:
    raise InputError(
      f"{path} is no text ({error.reason}): get it again from {_HOME}."
    ) from error
  names = list(filter(None, map(str.strip, text.splitlines())))
  if not names or "\0" in text:
    raise InputError(f"{path} names no picture: get it again from {_HOME}.")
  return names


def _check_once(folder: pathlib.Path, label: str, names: list[str]) -> None:
  """Raises `InputError` if two of a label's pictures are the same one."""
  for name, count in collections.Counter(names).items():
    if count > 1:
      raise InputError(
        f"{folder / 'Data-split' / label} names {name} {count} times, for training or "
        f"for testing: get the lists again from {_HOME}."
      )


def _groups(with_covid: Sequence[str], without: Sequence[str]) -> np.ndarray:
  _, first, source_of, sizes = np.unique(
    [source(name) for name in with_covid],
    return_index=True,
    return_inverse=True,
    return_counts=True,
  )
  place = np.argsort(np.argsort(first))  # Sources in the order of the list.
  shares = len(without) * sizes[np.argsort(first), np.newaxis] / len(with_covid)
  counts = round_columns(shares, len(without))[:, 0]
  others = np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), counts))
  return np.concatenate([place[source_of], others]).astype(np.int32)


def _reader(folder: pathlib.Path, name: str) -> Callable[[str], bytes]:
  """A function from a picture's name to its content."""
  unpacked, packed = folder / name, folder / f"{name}.zip"
  if unpacked.is_dir():
    return _checked(unpacked, lambda picture: (unpacked / picture).read_bytes())
  if not packed.is_file():
    raise dataset.DataMissingError(
      f"{folder} holds neither {name} nor {name}.zip: get it from {_HOME}."
    )
  try:
    archive = zipfile.ZipFile(packed)
  except (OSError, RuntimeError, UnicodeDecodeError, zipfile.BadZipFile) as error:
    raise InputError(
      f"{packed} cannot be read ({error}): get it again from {_HOME}."
    ) from error
  members = {
    pathlib.PurePosixPath(member).name: member
    for member in archive.namelist()
    if not member.startswith("__MACOSX/")
  }
  return _checked(packed, lambda picture: archive.read(members[picture]))


def _checked(place: pathlib.Path, read: Callable[[str], bytes]) -> Callable[[str], bytes]:
  def checked(picture: str) -> bytes:
    try:
      return read(picture)
    except (KeyError, FileNotFoundError) as error:
      raise dataset.DataMissingError(
        f"{place} lacks {picture}: get it again from {_HOME}."
      ) from error
    except (OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
      raise InputError(
        f"{picture} in {place} cannot be read ({error}): get it again from {_HOME}."
      ) from error

  return checked


def _pictures(
  names: Sequence[Sequence[str]], readers: Sequence[Callable[[str], bytes]], size: int
) -> tuple[np.ndarray, np.ndarray]:
  x = [picture_files.load(*pair, size) for pair in zip(names, readers)]
  y = np.repeat(np.arange(len(names)), [len(part) for part in names])
  return np.concatenate(x), y.astype(np.int32)
