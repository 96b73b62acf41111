"""Dirichlet draws: dirichlet, dirichlet_by_class, dirichlet_equal."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tff_algos.errors import InputError, check_number
from tff_algos.partitions import arguments, proportions
from tff_algos.partitions.assignment import Partition, from_counts

# Beyond these the split is its own limit (one class per client, equal shares), and
# the logarithms below stay far from overflow.
_BETA_RANGE = (1e-6, 1e6)
# A draw takes well under a millisecond for the papers' splits.
_MAX_DRAWS = 1000


def dirichlet(
  labels: NDArray[Any],
  num_clients: int,
  *,
  seed: int,
  beta: float,
  min_size: int = 1,
) -> Partition:
  """Draws class shares p_i ~ Dirichlet(beta) per client; nothing is left over.

  Class j is divided among the clients in proportion to p_ij, so that client i gets
  n_j * p_ij / sum_k p_kj of its n_j examples, rounded by largest remainders.

  Source: paper (FedGG, section 4.1: the vector p_i over the classes, one per client);
  the division of a class by the normalised column is derived from "all examples are
  used"; min_size and the new draw are a convention. Many public repositories draw one
  vector over the *clients* per class instead, which gives other, more unequal sizes:
  `dirichlet_by_class`.

  Args:
    labels: integers, shape [examples].
    num_clients: from 1 to the number of examples.
    seed: integer >= 0.
    beta: concentration, 1e-6 to 1e6; smaller is more unequal. The paper uses 0.5 and
      0.1.
    min_size: at least 1; all shares are drawn again, up to 1000 times, until every
      client holds this many examples.

  Returns:
    A `Partition` with an empty left_over.

  Raises:
    InputError: an argument is outside its range, or no draw reached min_size.
  """
  labels = arguments.check_disjoint("dirichlet", labels, num_clients, min_size)
  beta = _checked_beta("dirichlet", beta)
  rng = arguments.generator("dirichlet", seed)
  class_of, class_sizes = arguments.classes(labels)
  for _ in range(_MAX_DRAWS):
    log_p = _log_dirichlet(rng, beta, (num_clients, len(class_sizes)))
    shares = class_sizes * proportions.softmax(log_p, axis=0)
    counts = proportions.round_columns(shares, class_sizes)
    if counts.sum(axis=1).min() >= min_size:
      return from_counts(counts, class_of, rng)
  raise _out_of_reach("dirichlet", beta, num_clients, min_size, len(labels))


def dirichlet_by_class(
  labels: NDArray[Any],
  num_clients: int,
  *,
  seed: int,
  beta: float,
  min_size: int = 10,
) -> Partition:
  """Draws client shares q_j ~ Dirichlet(beta) per class; nothing is left over.

  Class by class, in the order of their numbers, client i gets n_j * q_ij of the n_j
  examples, rounded by largest remainders. A client that by then holds examples /
  num_clients or more gets none, and the others' shares are scaled to sum to 1.

  Source: code (`noniid-labeldir` of NIID-Bench: Li et al., Federated Learning on Non-IID
  Data Silos, 2022: the draw, the full clients, min_size 10 and the new draw); rounding
  by largest remainders is a convention, where that code rounds the shares' running sum
  down.

  Args:
    labels: integers, shape [examples].
    num_clients: at least 1; num_clients * min_size is at most the number of examples.
    seed: integer >= 0.
    beta: concentration, 1e-6 to 1e6; smaller is more unequal. That paper uses 0.5.
    min_size: at least 1; all shares are drawn again, up to 1000 times, until every
      client holds this many examples.

  Returns:
    A `Partition` with an empty left_over.

  Raises:
    InputError: an argument is outside its range, or no draw reached min_size.
  """
  name = "dirichlet_by_class"
  labels = arguments.check_disjoint(name, labels, num_clients, min_size)
  beta = _checked_beta(name, beta)
  rng = arguments.generator(name, seed)
  class_of, class_sizes = arguments.classes(labels)
  for _ in range(_MAX_DRAWS):
    log_q = _log_dirichlet(rng, beta, (len(class_sizes), num_clients))
    counts = np.zeros((num_clients, len(class_sizes)), np.int64)
    for j, size in enumerate(class_sizes):
      is_full = counts.sum(axis=1) * num_clients >= len(labels)
      shares = proportions.softmax(np.where(is_full, -np.inf, log_q[j]), axis=0)
      counts[:, j] = proportions.round_columns(size * shares, size)
    if counts.sum(axis=1).min() >= min_size:
      return from_counts(counts, class_of, rng)
  raise _out_of_reach(name, beta, num_clients, min_size, len(labels))


def dirichlet_equal(
  labels: NDArray[Any], num_clients: int, *, seed: int, beta: float
) -> Partition:
  """Gives every client the same size and a class mix p_i ~ Dirichlet(beta).

  Every place of every client draws its class from p_i. Where a class is asked for more
  often than it has examples, chance decides who gets them, and the others draw again
  from their own p_i among the classes that remain. All clients draw at the same time,
  so that none is served last.

  Source: paper (FedAgg, section VII-A3, for a Dirichlet parameter of 0.6 and 1.0; it is
  silent on the rest); recalled (FedDyn's public code, with which it compares) for equal
  sizes and the draw that goes on when a class runs out; convention for drawing all
  clients at the same time.

  Args:
    labels: integers, shape [examples].
    num_clients: from 1 to the number of examples.
    seed: integer >= 0.
    beta: concentration, 1e-6 to 1e6. The paper uses 0.6 and 1.0.

  Returns:
    A `Partition` whose clients hold floor(examples / num_clients) each.

  Raises:
    InputError: an argument is outside its range.
  """
  labels = arguments.check_disjoint("dirichlet_equal", labels, num_clients)
  beta = _checked_beta("dirichlet_equal", beta)
  rng = arguments.generator("dirichlet_equal", seed)
  class_of, stock = arguments.classes(labels)
  log_p = _log_dirichlet(rng, beta, (num_clients, len(stock)))
  counts = np.zeros((num_clients, len(stock)), np.int64)
  need = np.full(num_clients, len(labels) // num_clients)
  # Every pass fills all places or empties a class: at most one pass per class.
  while need.any():
    open_classes = np.flatnonzero(stock)
    # Again a softmax: all classes that a client favours may have run out, and its
    # chances for the others be too small for a float.
    wanted = rng.multinomial(need, proportions.softmax(log_p[:, open_classes], axis=1))
    for j, asked in zip(open_classes, wanted.T):
      if asked.sum() > stock[j]:
        asked = rng.multivariate_hypergeometric(asked, stock[j])
      counts[:, j] += asked
      need -= asked
      stock[j] -= asked.sum()
  return from_counts(counts, class_of, rng)


def _checked_beta(name: str, beta: float) -> float:
  beta = check_number(f"{name}: beta", beta)
  low, high = _BETA_RANGE
  if not low <= beta <= high:
    raise InputError(
      f"{name}: beta must be from {low:g} to {high:g} but is {beta}: give a small "
      "value such as 0.1 for unequal clients, a large one for equal clients."
    )
  return beta


def _out_of_reach(
  name: str, beta: float, num_clients: int, min_size: int, num_examples: int
) -> InputError:
  return InputError(
    f"{name}: none of {_MAX_DRAWS} draws with beta={beta:g} gave each of "
    f"{num_clients} clients min_size={min_size} of the {num_examples} examples: raise "
    "beta, or lower min_size or num_clients."
  )


def _log_dirichlet(
  rng: np.random.Generator, beta: float, shape: tuple[int, int]
) -> NDArray[np.float64]:
  """Logarithms of rows drawn from the symmetric Dirichlet distribution.

  For small beta most entries are too small for a float: a whole column can come out as
  0, and that class would be lost. In logarithms nothing underflows:
  Gamma(beta) = Gamma(beta + 1) * U^(1 / beta) in distribution, and -log U is
  exponential.
  """
  log_gamma = (
    np.log(rng.standard_gamma(beta + 1, shape)) - rng.standard_exponential(shape) / beta
  )
  top = log_gamma.max(axis=1, keepdims=True)
  log_sum = top + np.log(np.exp(log_gamma - top).sum(axis=1, keepdims=True))
  log_p: NDArray[np.float64] = log_gamma - log_sum
  return log_p
