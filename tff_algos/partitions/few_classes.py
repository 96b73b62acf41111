"""Splits with few classes per client and uneven sizes: power_law, twafl."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tff_algos.errors import InputError, check_number, check_whole_number
from tff_algos.partitions import arguments, proportions
from tff_algos.partitions.assignment import Partition, from_counts


def power_law(
  labels: NDArray[Any],
  num_clients: int,
  *,
  seed: int,
  classes_per_client: int = 1,
  sigma: float = 2.0,
  min_size: int = 1,
) -> Partition:
  """Gives few classes to every client and long-tailed sizes, lognormal(0, sigma).

  The classes are dealt so that every client has exactly classes_per_client different
  ones and a class with more examples has more clients. Then each class is divided
  completely among its clients: ceil(min_size / classes_per_client) for each, and the
  rest in proportion to the clients' lognormal weights, rounded by largest remainders.

  Source: paper (FedReg, section 4.1: 5,000 clients of MNIST with images from one class
  or from two, sizes by a power law after Li et al. 2018; appendix B.2: ten clients in
  each of 500 rounds use all training data once on average, so none is left over); code
  (Li et al.'s public generator: a fixed base for everyone plus a share of the rest by
  lognormal(0, 2), normalised per class). Convention: the base, one weight per client
  for all its classes, and classes drawn at random (Li et al. give client u the classes
  u and u + 1 modulo 10).

  Args:
    labels: integers, shape [examples].
    num_clients: from 1 to the number of examples.
    seed: integer >= 0.
    classes_per_client: from 1 to the number of classes.
    sigma: standard deviation of the weights' logarithm, >= 0; 0 gives sizes that are
      equal within a class.
    min_size: at least 1. No client is smaller than classes_per_client either, so that
      it can hold all its classes.

  Returns:
    A `Partition`. Left over are only classes too small to serve one client, and the
    smallest classes if the clients have room for fewer classes than there are.

  Raises:
    InputError: an argument is outside its range, or the classes are too few or too
      small for that many clients.
  """
  labels = arguments.check_disjoint("power_law", labels, num_clients, min_size)
  check_whole_number("power_law: classes_per_client", classes_per_client, 1)
  sigma = check_number("power_law: sigma", sigma)
  if not 0 <= sigma < math.inf:
    raise InputError(
      f"power_law: sigma must be finite and at least 0 but is {sigma}: give the "
      "standard deviation of the logarithm of the sizes, such as 2."
    )
  class_of, class_sizes = arguments.classes(labels)
  if classes_per_client > len(class_sizes):
    raise InputError(
      f"power_law: classes_per_client={classes_per_client} but the labels have "
      f"{len(class_sizes)} classes: lower classes_per_client."
    )
  # NumPy's small integers overflow, and those without a sign have no negative.
  num_clients, classes_per_client = int(num_clients), int(classes_per_client)
  base = -(-int(min_size) // classes_per_client)
  capacity = np.minimum(class_sizes // base, num_clients)
  if capacity.sum() < num_clients * classes_per_client:
    raise InputError(
      f"power_law: {num_clients} clients with {classes_per_client} classes each and "
      f"{base} examples per class do not fit the classes' sizes: lower num_clients, "
      "classes_per_client or min_size."
    )
  rng = arguments.generator("power_law", seed)
  places = _apportion_places(class_sizes, capacity, num_clients * classes_per_client)
  holds = _deal_classes(places, num_clients, rng)
  log_weights = rng.normal(0.0, sigma, num_clients)
  counts = np.zeros(holds.shape, np.int64)
  for j in np.flatnonzero(places):
    holders = np.flatnonzero(holds[:, j])
    rest = class_sizes[j] - base * len(holders)
    shares = rest * proportions.softmax(log_weights[holders, np.newaxis], axis=0)
    counts[holders, j] = base + proportions.round_columns(shares, rest)[:, 0]
  return from_counts(counts, class_of, rng)


def twafl(
  labels: NDArray[Any],
  num_clients: int,
  *,
  seed: int,
  min_size: int = 1000,
  max_size: int = 1600,
  min_classes: int = 2,
  max_classes: int = 3,
) -> Partition:
  """TWAFL's client data generator; clients may overlap, but repeat nothing inside.

  Each client draws how many classes it has, which, a weight U(0, 1) for each, and its
  size; the size is divided among its classes in proportion to the weights, at least
  one example each, and the examples are drawn without replacement.

  Source: paper (TWAFL, section IV-B and Algorithm 4; its data sets 1@MNIST to 5@MNIST
  are seeds 1 to 5 here, though not the same draws) for the four parameters; code for
  their values and the weights: 2 or 3 classes, MNIST 1000..1600, HAR 250..500.
  Convention: every count is drawn uniformly with both ends included, and a size that
  the smallest class could not fill alone is refused rather than cut.

  Args:
    labels: integers, shape [examples].
    num_clients: at least 1.
    seed: integer >= 0.
    min_size, max_size: bounds of a client's size;
      max_classes <= min_size <= max_size <= size of the smallest class.
    min_classes, max_classes: bounds of a client's number of classes;
      1 <= min_classes <= max_classes <= number of classes.

  Returns:
    A `Partition`; left_over are the examples that no client drew.

  Raises:
    InputError: an argument is outside its range.
  """
  labels = arguments.check_labels("twafl", labels)
  for parameter, value in (
    ("num_clients", num_clients),
    ("min_size", min_size),
    ("max_size", max_size),
    ("min_classes", min_classes),
    ("max_classes", max_classes),
  ):
    check_whole_number(f"twafl: {parameter}", value, 1)
  class_of, class_sizes = arguments.classes(labels)
  if not min_classes <= max_classes <= len(class_sizes):
    raise InputError(
      f"twafl: min_classes={min_classes} and max_classes={max_classes} must be in this "
      f"order between 1 and the {len(class_sizes)} classes of the labels: change them."
    )
  if not max_classes <= min_size <= max_size <= class_sizes.min():
    raise InputError(
      f"twafl: min_size={min_size} and max_size={max_size} must be in this order "
      f"between max_classes={max_classes} and the {class_sizes.min()} examples of the "
      "smallest class: change them."
    )
  rng = arguments.generator("twafl", seed)
  members = [np.flatnonzero(class_of == j) for j in range(len(class_sizes))]
  clients = []
  for _ in range(num_clients):
    num_classes = rng.integers(min_classes, max_classes, endpoint=True)
    chosen = rng.choice(len(members), num_classes, replace=False)
    weights = 1.0 - rng.random(num_classes)  # In (0, 1], so that the sum is not 0.
    rest = rng.integers(min_size, max_size, endpoint=True) - num_classes
    shares = rest * weights[:, np.newaxis] / weights.sum()
    counts = 1 + proportions.round_columns(shares, rest)[:, 0]
    drawn = [
      rng.choice(members[j], count, replace=False) for j, count in zip(chosen, counts)
    ]
    clients.append(rng.permutation(np.concatenate(drawn)))
  unused = np.ones(len(labels), bool)
  unused[np.concatenate(clients)] = False
  return Partition(tuple(clients), np.flatnonzero(unused))


def _apportion_places(
  class_sizes: NDArray[np.int64], capacity: NDArray[np.int64], num_places: int
) -> NDArray[np.int64]:
  """How many clients each class serves, for the most even sizes per client.

  One after the other goes to the class with the most examples per client so far. All
  classes get their first client before one gets a second, the largest first.
  """
  places = np.zeros(len(class_sizes), np.int64)
  for _ in range(num_places):
    per_client = class_sizes / np.maximum(places, 1e-9)
    places[np.argmax(np.where(places < capacity, per_client, -1.0))] += 1
  return places


def _deal_classes(
  places: NDArray[np.int64], num_clients: int, rng: np.random.Generator
) -> NDArray[np.bool_]:
  """Deals all places to clients at random, to each equally many of different classes.

  Systematic sampling: the places that remain lie on a line, in a random order of the
  classes, and every m-th is taken, m being the clients that remain. No class has more
  than m places, so that none is met twice; one that has exactly m is met for certain,
  so that this stays true for the next client.

  Args:
    places: int64, shape [classes], at most num_clients each; the sum is a multiple of
      num_clients.
    num_clients: at least 1.
    rng: what draws.

  Returns:
    bool, shape [num_clients, classes], whose column sums are places.
  """
  holds = np.zeros((num_clients, len(places)), bool)
  places = places.copy()
  for client in range(num_clients):
    remaining = num_clients - client
    order = rng.permutation(len(places))
    ends = np.cumsum(places[order])
    points = np.arange(rng.integers(remaining), ends[-1], remaining)
    chosen = order[np.searchsorted(ends, points, side="right")]
    holds[client, chosen] = True
    places[chosen] -= 1
  return holds
