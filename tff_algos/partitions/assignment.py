"""Which client holds which examples: what every split returns, and its uses."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tff_algos.errors import InputError, check_whole_number
from tff_algos.partitions import arguments


@dataclasses.dataclass(frozen=True, eq=False)
class Partition:
  """Which client holds which examples.

  Attributes:
    clients: one int64 array per client, the indices of its examples in random order,
      none twice.
    left_over: int64, ascending, the indices that no client holds.
  """

  clients: tuple[NDArray[np.int64], ...]
  left_over: NDArray[np.int64]


def class_counts(
  partition: Partition, labels: NDArray[Any], num_classes: int
) -> NDArray[np.int64]:
  """Counts the labels of each class at each client.

  Args:
    partition: a split of these labels.
    labels: integers from 0 to num_classes - 1, shape [examples]; or [examples, steps]
      with -1 at steps without a label.
    num_classes: at least 1.

  Returns:
    int64, shape [clients, num_classes].

  Raises:
    InputError: a label is outside its range, or other labels were split.
  """
  labels = arguments.as_array("class_counts", "labels", labels)
  lowest = -1 if labels.ndim == 2 else 0
  flat = arguments.check_labels("class_counts", np.ravel(labels))
  check_whole_number("class_counts: num_classes", num_classes, 1)
  if flat.min() < lowest or flat.max() >= num_classes:
    raise InputError(
      f"class_counts: labels go from {flat.min()} to {flat.max()} but must be in "
      f"{lowest} to {num_classes - 1}: number the classes from 0 or correct num_classes."
    )
  _check_is_of("class_counts", partition, len(labels), "labels")
  num_clients = len(partition.clients)
  client = np.repeat(np.arange(num_clients), [len(c) for c in partition.clients])
  held = flat.reshape(len(labels), -1)[np.concatenate(partition.clients)]
  cells = (client[:, np.newaxis] * num_classes + held)[held >= 0]
  counts = np.bincount(cells, minlength=num_clients * num_classes)
  return counts.reshape(num_clients, num_classes).astype(np.int64, copy=False)


class _ClientExamples(Mapping[str, tuple[NDArray[Any], NDArray[Any]]]):
  """`client_examples`, which copies a client's examples when they are asked for."""

  def __init__(self, partition: Partition, x: NDArray[Any], y: NDArray[Any]):
    self._rows = {f"client_{i}": rows for i, rows in enumerate(partition.clients)}
    self._x, self._y = x, y

  def __getitem__(self, client: str) -> tuple[NDArray[Any], NDArray[Any]]:
    rows = self._rows[client]
    return self._x[rows], self._y[rows]

  def __iter__(self) -> Iterator[str]:
    return iter(self._rows)

  def __len__(self) -> int:
    return len(self._rows)


def client_examples(
  partition: Partition, x: NDArray[Any], y: NDArray[Any]
) -> Mapping[str, tuple[NDArray[Any], NDArray[Any]]]:
  """The examples of each client, as `tff_algos.write_clients` takes them.

  A client's are copied whenever they are asked for, and nowhere kept: the data need
  not fit into memory twice, nor, as a `np.memmap`, once.

  Args:
    partition: a split of these examples.
    x: inputs, shape [examples, ...].
    y: labels, shape [examples, ...].

  Returns:
    `client_0`, `client_1`, ... in the order of the partition, each with its x and y.

  Raises:
    InputError: other examples were split.
  """
  x = arguments.as_array("client_examples", "inputs", x)
  y = arguments.as_array("client_examples", "labels", y)
  _check_is_of("client_examples", partition, len(x), "inputs")
  _check_is_of("client_examples", partition, len(y), "labels")
  return _ClientExamples(partition, x, y)


def _check_is_of(name: str, partition: Partition, number: int, what: str) -> None:
  held = np.concatenate([*partition.clients, partition.left_over])
  if held.min() < 0 or held.max() + 1 != number:
    raise InputError(
      f"{name}: the split is of {held.max() + 1:,} examples but there are {number:,} "
      f"{what}: give those of the examples that were split."
    )


def from_counts(
  counts: NDArray[np.int64], class_of: NDArray[np.int64], rng: np.random.Generator
) -> Partition:
  """Gives client i counts[i, j] random examples of class j."""
  num_clients, num_classes = counts.shape
  rest = np.bincount(class_of, minlength=num_classes) - counts.sum(axis=0)
  shuffled = rng.permutation(len(class_of))
  by_class = shuffled[np.argsort(class_of[shuffled], kind="stable")]
  owners = np.tile(np.append(np.arange(num_clients), -1), num_classes)
  owner = np.empty(len(class_of), np.int64)
  owner[by_class] = np.repeat(owners, np.vstack([counts, rest]).T.ravel())
  return from_owner(owner, num_clients, rng)


def from_owner(
  owner: NDArray[np.int64], num_clients: int, rng: np.random.Generator
) -> Partition:
  """Collects each client's examples in random order; owner -1 is left over."""
  shuffled = rng.permutation(len(owner))
  by_owner = shuffled[np.argsort(owner[shuffled], kind="stable")]
  starts = np.searchsorted(owner[by_owner], np.arange(num_clients))
  left_over, *clients = np.split(by_owner, starts)
  return Partition(tuple(clients), np.sort(left_over))
