"""What every split is given, labels, sizes and a seed: checked, and made ready.

The first argument is the name of the split, with which a message begins.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tff_algos.errors import InputError, check_whole_number


def as_array(name: str, what: str, values: Any) -> NDArray[Any]:
  """`np.asarray`; raises `InputError` if the values are no array, or hidden in places."""
  # An array would have whatever number is under the mask.
  if isinstance(values, np.ma.MaskedArray) and np.any(values.mask):
    raise InputError(
      f"{name}: the {what} are masked in places: leave these examples out, or fill them "
      "by the array's filled()."
    )
  try:
    return np.asarray(values)
  except ValueError as error:
    raise InputError(
      f"{name}: the {what} make no array: give all rows the same shape."
    ) from error


def check_examples(name: str, labels: NDArray[Any]) -> int:
  """The number of examples, of whose labels nothing else matters, if there are any."""
  labels = as_array(name, "labels", labels)
  if not labels.ndim or not labels.size:
    raise InputError(
      f"{name}: labels must be an array that is not empty but have shape {labels.shape}: "
      "give one label per example."
    )
  return len(labels)


def check_labels(name: str, labels: NDArray[Any]) -> NDArray[np.int64]:
  """Returns the labels as int64 if they are a vector of integers, and not empty."""
  labels = as_array(name, "labels", labels)
  if labels.ndim != 1 or not len(labels) or labels.dtype.kind not in "iu":
    raise InputError(
      f"{name}: labels must be a non-empty vector of integers but have shape "
      f"{labels.shape} and dtype {labels.dtype}: give one class index per example, or "
      "choose iid or natural, which go by no labels."
    )
  return labels.astype(np.int64, copy=False)


def check_groups(name: str, groups: NDArray[Any], num_examples: int) -> NDArray[np.int64]:
  """Returns the groups as int64 if each example has one, from 0 without gaps."""
  groups = as_array(name, "groups", groups)
  if groups.shape != (num_examples,) or groups.dtype.kind not in "iu":
    raise InputError(
      f"{name}: groups must be {num_examples} integers, as there are labels, but have "
      f"shape {groups.shape} and dtype {groups.dtype}: give one group per example."
    )
  groups = groups.astype(np.int64, copy=False)
  # Not to count up to what may be an identifier of many digits.
  is_too_high = groups.max() >= num_examples
  if groups.min() < 0 or is_too_high or not np.bincount(groups).all():
    raise InputError(
      f"{name}: groups go from {groups.min()} to {groups.max()} with "
      f"{len(np.unique(groups))} different numbers but must be numbered from 0 without "
      "gaps: number them so."
    )
  return groups


def check_disjoint(
  name: str, labels: NDArray[Any], num_clients: int, min_size: int = 1
) -> NDArray[np.int64]:
  """Checks what the splits by label have in common; returns the labels as int64."""
  labels = check_labels(name, labels)
  check_sizes(name, len(labels), num_clients, min_size)
  return labels


def check_sizes(
  name: str, num_examples: int, num_clients: int, min_size: int = 1
) -> None:
  """Raises `InputError` unless there can be so many clients of so many examples."""
  check_whole_number(f"{name}: num_clients", num_clients, 1)
  check_whole_number(f"{name}: min_size", min_size, 1)
  needed = int(num_clients) * int(min_size)  # NumPy's small integers overflow.
  if needed > num_examples:
    raise InputError(
      f"{name}: {num_clients} clients with at least {min_size} examples each need "
      f"{needed} but there are {num_examples}: lower num_clients"
      + (" or min_size." if min_size > 1 else ".")
    )


def classes(labels: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
  """Numbers the classes that occur from 0: (class of each example, class sizes)."""
  _, class_of, sizes = np.unique(labels, return_inverse=True, return_counts=True)
  return class_of, sizes


def generator(name: str, seed: int) -> np.random.Generator:
  """A generator of its own for each split, so that equal seeds share no draws."""
  check_whole_number(f"{name}: seed", seed, 0)
  return np.random.default_rng(
    np.random.SeedSequence([int(seed), zlib.crc32(name.encode())])
  )
