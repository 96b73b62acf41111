"""What every loader gives: a train and a test split as NumPy arrays."""

from __future__ import annotations

from typing import NamedTuple, Optional

import numpy as np

from tff_algos import client_arrays
from tff_algos.errors import InputError
from tff_algos.partitions import arguments


class DataMissingError(InputError):
  """Data are not on this machine; the message is one sentence on how to get them."""


class Dataset(NamedTuple):
  """A labelled data set in memory.

  Attributes:
    train_x: (N, ...) uint8 (pictures, 0..255), float32, or int32 (symbols).
    train_y: (N,) int32, labels in 0..num_classes-1; for sequences (N, T), a label for
      each step, -1 where there is none.
    test_x: (M, ...), the same example shape and dtype as `train_x`.
    test_y: (M,) or (M, T), as `train_y`.
    num_classes: number of classes, whether or not each has an example.
    note: what a reader must know beside every number made from these data, such as
      'JPEG CIFAR-10'; '' for the original.
    train_groups: (N,) int32, from whom each training example is: a role, a user, a
      hospital, numbered 0..G-1 without gaps; None where nobody knows.
  """

  train_x: np.ndarray
  train_y: np.ndarray
  test_x: np.ndarray
  test_y: np.ndarray
  num_classes: int
  note: str = ""
  train_groups: Optional[np.ndarray] = None


def check(dataset: Dataset) -> Dataset:
  """Returns `dataset` if it is what `Dataset` promises.

  Numbers of other dtypes are cast, such as pandas' float64 and int64: float inputs to
  float32, whole ones, labels and groups to int32.

  Raises:
    InputError: it is something else, examples, labels or groups are no array,
      num_classes is no integer, a split is empty, examples and labels differ in number, a
      shape is wrong, a number is none of the dtype, an input is not finite, a label lies
      outside its range, a sequence has no label, or the groups are not as promised.
  """
  if not isinstance(dataset, Dataset):
    raise InputError(
      "load_data must give a tasks.datasets.dataset.Dataset; found a "
      f"{type(dataset).__name__}."
    )
  for name in ("train_x", "train_y", "test_x", "test_y", "train_groups"):
    value = getattr(dataset, name)
    is_array = isinstance(value, np.ndarray) and value.ndim > 0
    if not is_array and (name != "train_groups" or value is not None):
      raise InputError(
        f"{name} is no array of examples but of type {type(value).__name__}: give a "
        "NumPy array."
      )
  dataset = dataset._replace(
    train_x=_cast("train_x", dataset.train_x),
    test_x=_cast("test_x", dataset.test_x),
    train_y=_cast("train_y", dataset.train_y),
    test_y=_cast("test_y", dataset.test_y),
  )
  if dataset.train_groups is not None:
    dataset = dataset._replace(train_groups=_cast("train_groups", dataset.train_groups))
  num_classes = dataset.num_classes
  if not isinstance(num_classes, (int, np.integer)) or num_classes < 1:
    raise InputError(
      f"num_classes is {num_classes!r}: it must be the number of classes, an integer of "
      "at least 1."
    )
  for split in ("train", "test"):
    x = getattr(dataset, f"{split}_x")
    y = getattr(dataset, f"{split}_y")
    if len(x) != len(y):
      raise InputError(
        f"{split}_x holds {len(x):,} examples but {split}_y {len(y):,} labels: "
        "there must be one label for each example."
      )
    if len(x) == 0:
      raise InputError(f"the {split} split is empty: it needs at least one example.")
    client_arrays.check_finite(f"the {split} split", x)
    if y.ndim not in (1, 2):
      raise InputError(
        f"{split}_y has shape {y.shape}: it must have one axis, or two for sequences."
      )
    if y.ndim == 2 and not (y >= 0).any(axis=1).all():
      raise InputError(
        f"{split}_y holds a sequence without a label: leave that example out."
      )
    for label in (y.min(), y.max()):
      if not 1 - y.ndim <= label < num_classes:
        raise InputError(
          f"{split}_y holds the label {label}: with {num_classes} classes "
          f"labels lie in {1 - y.ndim}..{num_classes - 1}."
        )
  train, test = dataset.train_x, dataset.test_x
  if train.shape[1:] != test.shape[1:] or train.dtype != test.dtype:
    raise InputError(
      f"a train example is {train.dtype} of shape {train.shape[1:]} but a test "
      f"example {test.dtype} of shape {test.shape[1:]}: they must be alike."
    )
  if dataset.train_y.shape[1:] != dataset.test_y.shape[1:]:
    raise InputError(
      f"train_y holds labels of shape {dataset.train_y.shape[1:]} but test_y of shape "
      f"{dataset.test_y.shape[1:]}: they must be alike."
    )
  if dataset.train_groups is not None:
    arguments.check_groups("train_groups", dataset.train_groups, len(train))
  return dataset


def _cast(name: str, array: np.ndarray) -> np.ndarray:
  """An array of numbers in the dtype that is promised for its kind."""
  is_input = name.endswith("_x")
  if array.dtype in (np.int32, *(np.uint8, np.float32) * is_input):
    return array
  kinds = "iuf" if is_input else "iu"
  if array.dtype.kind not in kinds:
    wanted = "numbers" if is_input else "whole numbers, those of classes or groups from 0"
    also = "" if is_input else "; labels of other kinds are for training from Python"
    raise InputError(f"{name} has dtype {array.dtype}: give {wanted}{also}.")
  dtype = np.float32 if array.dtype.kind == "f" else np.int32
  with np.errstate(over="ignore"):
    cast = array.astype(dtype)
  is_held = (
    np.isfinite(cast) | ~np.isfinite(array) if dtype is np.float32 else cast == array
  )
  if not is_held.all():
    raise InputError(
      f"{name} holds {array[~is_held][0]}, which is no {np.dtype(dtype)}: change such "
      "values."
    )
  return cast
