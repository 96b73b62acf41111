"""Picture classification sets of TensorFlow Datasets (TFDS) as NumPy arrays."""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import shlex
import sys
import urllib.parse

import numpy as np
import requests
import tensorflow as tf
import tensorflow_datasets as tfds
from tensorflow_datasets.core import constants
from tensorflow_datasets.core.utils import gcs_utils

from tasks.datasets import dataset, import_archives
from tff_algos.errors import InputError, first_line

# Seconds to connect and to wait for the first byte when asking whether a server is
# there. TFDS itself retries for minutes without a network.
_PROBE_TIMEOUTS = (5, 10)

# What TFDS puts before the reason why it cannot make a builder.
_CONSTRUCTION_PREFIX = re.compile(
  r'^Failed to construct dataset \S+?(, builder_kwargs ".*")?: '
)

# Where TFDS's labels are not 0..num_classes-1: (the first label, number of classes).
# It numbers the 26 letters from 1 and declares 37 classes for them.
_LABEL_RANGES = {"emnist/letters": (1, 26)}


def load(name: str, data_dir: str | None = None) -> dataset.Dataset:
  """Loads a data set, and first prepares (if need be downloads) it.

  Args:
    name: TFDS's name, such as 'mnist', 'cifar10' or 'emnist/letters'.
    data_dir: TFDS's folder; None is TFDS's default ($TFDS_DATA_DIR or
      ~/tensorflow_datasets).

  Returns:
    The splits 'train' and 'test' in TFDS's order, which is shuffled but always the
    same: pictures (N, height, width, channels) uint8 as published (EMNIST's are
    transposed), labels 0..num_classes-1.

  Raises:
    InputError: there is no such data set, or it is none of equally sized uint8 pictures
      with one label each and the splits 'train' and 'test'.
    dataset.DataMissingError: the data are not prepared, and their archives are neither
      in the download cache nor can be downloaded, or the prepared data are damaged.
  """
  builder = find_builder(name, data_dir)
  _require_pictures(builder)
  prepare(builder)
  absent = {"train", "test"} - set(builder.info.splits)
  if absent:
    raise InputError(
      f"TFDS data set {name} has the splits {', '.join(builder.info.splits)}: a task "
      "needs train and test."
    )
  first, classes = _LABEL_RANGES.get(
    builder.info.full_name.rpartition("/")[0],
    (0, builder.info.features["label"].num_classes),
  )
  arrays: list[np.ndarray] = []
  for split in ("train", "test"):
    try:
      x, y = tfds.as_numpy(
        builder.as_dataset(split=split, batch_size=-1, as_supervised=True)
      )
    except (tf.errors.OpError, OSError, AssertionError) as error:
      raise _damaged(builder.data_dir, first_line(error)) from error
    arrays += [x, (y - first).astype(np.int32)]
  train_x, train_y, test_x, test_y = arrays
  return dataset.Dataset(train_x, train_y, test_x, test_y, classes)


def find_builder(name: str, data_dir: str | None = None) -> tfds.core.DatasetBuilder:
  """The TFDS builder of any data set, made without touching the network.

  Raises:
    InputError: there is no such data set, configuration or version; the message names
      the nearest one.
    dataset.DataMissingError: the data set is prepared but damaged.
  """
  if data_dir and "://" in data_dir:
    raise InputError(f"{data_dir} cannot be the data_dir: it must be a local folder.")
  expanded = os.path.expanduser(data_dir) if data_dir else None
  try:
    with _without_bucket():
      return tfds.builder(name, data_dir=expanded)
  except tfds.core.DatasetNotFoundError as error:
    known = tfds.list_builders(with_community_datasets=False)
    near = difflib.get_close_matches(name.partition("/")[0], known, n=1)
    hint = f"did you mean {near[0]}?" if near else "tfds.list_builders() lists them."
    raise InputError(f"TFDS has no data set {name!r}: {hint}") from error
  # An unknown configuration or version; or a package that only this data set needs.
  except (ValueError, AssertionError, ImportError) as error:
    reason = _CONSTRUCTION_PREFIX.sub("", first_line(error))
    raise InputError(f"TFDS cannot open the data set {name!r}: {reason}") from error
  except OSError as error:  # The folder is there, but not what TFDS writes into it.
    folder = os.path.join(expanded or constants.DATA_DIR, name.partition(":")[0])
    raise _damaged(folder, "no dataset_info.json") from error


def prepare(builder: tfds.core.DatasetBuilder) -> None:
  """Makes the data set readable, from the download cache or else by a download.

  TFDS reports its progress on standard error.

  Raises:
    dataset.DataMissingError: archives are missing and cannot be downloaded, TFDS fails on
      them, or the data are prepared and lack a file.
  """
  if os.path.exists(builder.data_dir):
    for split in builder.info.splits.values():
      for path in split.filepaths:
        if not path.exists():
          raise _damaged(builder.data_dir, f"no {path.name}")
    return
  missing = import_archives.missing_archives(builder)
  reason = _why_unreachable([archive.url for archive in missing])
  if reason:
    raise dataset.DataMissingError(_how_to_get(builder, missing, reason))
  try:
    # Standard output belongs to the program. Google's bucket of prepared data is not
    # asked: the archives are enough, and their checksums are verified.
    with contextlib.redirect_stdout(sys.stderr):
      builder.download_and_prepare(
        download_config=tfds.download.DownloadConfig(try_download_gcs=False)
      )
  except Exception as error:  # What a builder raises is its own affair.
    if os.path.exists(builder.data_dir):  # Another process was there first.
      builder.info.read_from_directory(builder.data_dir)
      return
    raise dataset.DataMissingError(
      f"TFDS could not prepare {builder.name} in {builder.data_dir} "
      f"({first_line(error)}): check its archives in "
      f"{os.path.join(builder.data_dir_root, 'downloads')} and the free disk space."
    ) from error


@contextlib.contextmanager
def _without_bucket():
  # Making a builder asks Google's bucket for statistics that nothing here needs. Behind
  # a firewall that swallows packets that takes longer than anyone waits, and this
  # switch is the only one TFDS has.
  before = gcs_utils._is_gcs_disabled
  gcs_utils._is_gcs_disabled = True
  try:
    yield
  finally:
    gcs_utils._is_gcs_disabled = before


def _require_pictures(builder: tfds.core.DatasetBuilder) -> None:
  features = builder.info.features
  supervised = builder.info.supervised_keys
  if (
    supervised != ("image", "label")
    or not isinstance(features["image"], tfds.features.Image)
    or not isinstance(features["label"], tfds.features.ClassLabel)
  ):
    raise InputError(
      f"TFDS data set {builder.name} is no picture classification set: it needs the "
      "features image and label."
    )
  shape, dtype = features["image"].shape, features["image"].np_dtype
  if None in shape or dtype != np.uint8:
    raise InputError(
      f"TFDS data set {builder.name} has pictures of shape {shape} and dtype "
      f"{np.dtype(dtype).name}: only uint8 pictures of one size can be loaded."
    )


def _why_unreachable(urls: list[str]) -> str:
  """Why one of the servers cannot be downloaded from; '' if all can."""
  asked = set()
  for url in urls:
    host = urllib.parse.urlsplit(url).netloc
    if host in asked or not url.startswith("http"):
      continue
    asked.add(host)
    try:
      # Like TFDS: the same library, hence the same proxies and certificates.
      with requests.get(url, stream=True, timeout=_PROBE_TIMEOUTS) as response:
        if response.status_code != 200:
          return f"{host} answers with HTTP status {response.status_code}"
    except requests.RequestException as error:
      return f"{host} cannot be reached: {type(error).__name__}"
  return ""


def _how_to_get(
  builder: tfds.core.DatasetBuilder,
  missing: list[import_archives.Archive],
  reason: str,
) -> str:
  name = builder.info.full_name.rpartition("/")[0]
  data_dir = shlex.quote(str(builder.data_dir_root))
  there = all((builder.data_dir_root / archive.file_name).exists() for archive in missing)
  holder = data_dir if there else "DIR"
  where = f"they lie in {holder}, so" if there else "if you have them in a folder DIR,"
  return (
    f"{name} is not prepared in {builder.data_dir}, "
    f"{', '.join(archive.file_name for archive in missing)} not in the download cache "
    f"{missing[0].path.parent} and no download possible ({reason}): {where} "
    f"run `python binaries/import_data.py --dataset={name} --from={holder} "
    f"--data_dir={data_dir}`, or run `tfds build {name} "
    f"--data_dir=DIR` on a machine with internet and copy its folder DIR/{name} to "
    f"{os.path.dirname(builder.data_dir)}."
  )


def _damaged(folder: str, reason: str) -> dataset.DataMissingError:
  return dataset.DataMissingError(
    f"the prepared data in {folder} cannot be read ({reason}): delete that folder and "
    "run again."
  )
