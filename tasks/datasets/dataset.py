"""What every loader gives: a train and a test split as NumPy arrays."""

from __future__ import annotations

from typing import NamedTuple, Optional

import numpy as np

from tff_algos.errors import InputError


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

  Raises:
    InputError: it is something else, examples, labels or groups are no array,
      num_classes is no integer, a split is empty, examples and labels differ in number, a
      shape or dtype is wrong, an input is not finite, a label lies outside its range, a
      sequence has no label, or the groups are not as promised.
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
    if x.dtype not in (np.uint8, np.float32, np.int32):
      raise InputError(
        f"{split}_x has dtype {x.dtype}: it must be uint8, float32 or int32."
      )
    if x.dtype == np.float32:
      _check_finite(x, split)
    if y.dtype != np.int32 or y.ndim not in (1, 2):
      raise InputError(
        f"{split}_y has dtype {y.dtype} and shape {y.shape}: it must be int32 with "
        "one axis, or two for sequences."
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
    _check_groups(dataset.train_groups, len(train))
  return dataset


def _check_finite(x: np.ndarray, split: str) -> None:
  # Of the sums, for one pass and no array of the size of all data: a sum of finite
  # numbers may overflow too, so those examples are looked at closely.
  suspects = np.flatnonzero(~np.isfinite(x.sum(axis=tuple(range(1, x.ndim)))))
  bad = [i for i in suspects if not np.isfinite(x[i]).all()]
  if bad:
    raise InputError(
      f"{split}_x has NaN or infinite numbers in {len(bad):,} of {len(x):,} examples, "
      f"number {bad[0]} the first: leave these out, or give them other values."
    )


def _check_groups(groups: np.ndarray, num_examples: int) -> None:
  if groups.dtype != np.int32 or groups.shape != (num_examples,):
    raise InputError(
      f"train_groups has dtype {groups.dtype} and shape {groups.shape}: it must be "
      f"int32 with one number for each of the {num_examples:,} training examples."
    )
  # Not to count up to what may be an identifier of many digits.
  is_outside = groups.min() < 0 or groups.max() >= num_examples
  if is_outside or not np.bincount(groups).all():
    raise InputError(
      "train_groups must number the groups 0..G-1 without gaps, but goes from "
      f"{groups.min()} to {groups.max()} with {len(np.unique(groups))} different numbers."
    )
