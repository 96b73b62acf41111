"""What every loader gives: a train and a test split as NumPy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Optional

import numpy as np

from tff_algos import client_arrays
from tff_algos.errors import InputError
from tff_algos.partitions import arguments


class DataMissingError(InputError):
  """Data are not on this machine; the message is one sentence on how to get them."""


class Dataset(NamedTuple):
  """A labelled data set in memory: labels are classes, or numbers to be predicted.

  Attributes:
    train_x: (N, ...) uint8 (pictures, 0..255), float32, or int32 (symbols).
    train_y: (N,) int32, labels in 0..num_classes-1; for sequences (N, T), a label for
      each step, -1 where there is none. Without classes (N, ...), float32 or int32.
    test_x: (M, ...), the same example shape and dtype as `train_x`.
    test_y: (M, ...), as `train_y`.
    num_classes: number of classes, whether or not each has an example; None: labels are
      no classes, as in a regression or where an example has several.
    note: what a reader must know beside every number made from these data, such as
      'JPEG CIFAR-10'; '' for the original.
    train_groups: (N,) int32, from whom each training example is: a role, a user, a
      hospital, numbered 0..G-1 without gaps; None where nobody knows.
  """

  train_x: np.ndarray
  train_y: np.ndarray
  test_x: np.ndarray
  test_y: np.ndarray
  num_classes: Optional[int]
  note: str = ""
  train_groups: Optional[np.ndarray] = None


def check(dataset: Dataset) -> Dataset:
  """Returns `dataset` if it is what `Dataset` promises.

  Numbers of other dtypes are cast, such as pandas' float64 and int64: floats to float32,
  whole ones to int32.

  Raises:
    InputError: it is something else, examples, labels or groups are no array,
      num_classes is no integer, a split is empty, examples and labels differ in number, a
      shape is wrong, a number is none of the dtype, an input is not finite, a class lies
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
  num_classes = dataset.num_classes
  is_number = isinstance(num_classes, (int, np.integer))
  if num_classes is not None and (not is_number or num_classes < 1):
    raise InputError(
      f"num_classes is {num_classes!r}: it must be the number of classes, an integer of "
      "at least 1, or None where labels are no classes."
    )
  of_labels = _NUMBERS if num_classes is None else _CLASSES
  dataset = dataset._replace(
    train_x=_cast("train_x", dataset.train_x, _INPUTS),
    test_x=_cast("test_x", dataset.test_x, _INPUTS),
    train_y=_cast("train_y", dataset.train_y, of_labels),
    test_y=_cast("test_y", dataset.test_y, of_labels),
  )
  if dataset.train_groups is not None:
    groups = _cast("train_groups", dataset.train_groups, _CLASSES)
    dataset = dataset._replace(train_groups=groups)
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
    if num_classes is not None:
      _check_classes(f"{split}_y", y, num_classes)
  for what, part in (("example", "x"), ("label", "y")):
    train, test = (getattr(dataset, f"{split}_{part}") for split in ("train", "test"))
    if train.shape[1:] != test.shape[1:] or train.dtype != test.dtype:
      raise InputError(
        f"a train {what} is {train.dtype} of shape {train.shape[1:]} but a test {what} "
        f"{test.dtype} of shape {test.shape[1:]}: they must be alike."
      )
  if dataset.train_groups is not None:
    arguments.check_groups("train_groups", dataset.train_groups, len(dataset.train_x))
  return dataset


def _check_classes(name: str, y: np.ndarray, num_classes: int) -> None:
  """Raises `InputError` unless all are classes, or for sequences -1 in places."""
  if y.ndim not in (1, 2):
    raise InputError(
      f"{name} has shape {y.shape}: it must have one axis, or two for sequences; "
      "labels that are no classes may have more, with num_classes=None."
    )
  if y.ndim == 2 and not (y >= 0).any(axis=1).all():
    raise InputError(f"{name} holds a sequence without a label: leave that example out.")
  for label in (y.min(), y.max()):
    if not 1 - y.ndim <= label < num_classes:
      raise InputError(
        f"{name} holds the label {label}: with {num_classes} classes labels lie in "
        f"{1 - y.ndim}..{num_classes - 1}."
      )


# The dtypes of numbers that stay as they are.
_INPUTS = (np.uint8, np.int32, np.float32)
_NUMBERS = (np.int32, np.float32)
_CLASSES = (np.int32,)


def _cast(name: str, array: np.ndarray, dtypes: Sequence[type]) -> np.ndarray:
  """An array of numbers in one of the dtypes."""
  if array.dtype in dtypes:
    return array
  may_be_float = np.float32 in dtypes
  if array.dtype.kind not in ("iuf" if may_be_float else "iu"):
    wanted = (
      "numbers" if may_be_float else "whole numbers, those of classes or groups from 0"
    )
    also = "; where labels are no classes, num_classes is None" * name.endswith("_y")
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
