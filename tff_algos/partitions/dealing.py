"""Splits that deal out examples, groups of them or shards: iid, natural, shards."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from tff_algos.errors import InputError, check_whole_number
from tff_algos.partitions import arguments
from tff_algos.partitions.assignment import Partition, from_owner


def iid(labels: NDArray[Any], num_clients: int, *, seed: int) -> Partition:
  """Shuffles the examples and deals them out; nothing is left over.

  Source: recalled (McMahan et al., section 3: MNIST shuffled and dealt to 100 clients
  of 600); sizes that differ by one where the division has a remainder are a convention.

  Args:
    labels: of any kind, shape [examples, ...]; only their number matters.
    num_clients: from 1 to the number of examples.
    seed: integer >= 0.

  Returns:
    A `Partition` whose client sizes differ by at most 1.

  Raises:
    InputError: an argument is outside its range.
  """
  num_examples = arguments.check_examples("iid", labels)
  arguments.check_sizes("iid", num_examples, num_clients)
  rng = arguments.generator("iid", seed)
  owner = rng.permutation(np.arange(num_examples) % num_clients)
  return from_owner(owner, num_clients, rng)


def natural(
  labels: NDArray[Any],
  num_clients: int,
  *,
  seed: int,
  groups: Optional[NDArray[Any]] = None,
) -> Partition:
  """Makes each group of the data a client: a role, a user, a source.

  Source: paper (FedReg, section 4.1: images from the same source at the same client);
  recalled (McMahan et al., section 3: a client for each speaking role). The draw among
  more groups than clients is a convention.

  Args:
    labels: of any kind, shape [examples, ...]; only their number matters.
    num_clients: from 1 to the number G of groups; where it is less, that many groups
      are drawn, and the examples of the others are left over.
    seed: integer >= 0.
    groups: integers 0..G-1 without gaps, shape [examples].

  Returns:
    A `Partition` whose clients are in the order of their groups.

  Raises:
    InputError: an argument is outside its range, or the data have no groups.
  """
  num_examples = arguments.check_examples("natural", labels)
  check_whole_number("natural: num_clients", num_clients, 1)
  if groups is None:
    raise InputError(
      "natural: these data do not say from whom each example is: give their groups (of a "
      "task, the Dataset's train_groups), or choose another split."
    )
  groups = arguments.check_groups("natural", groups, num_examples)
  num_groups = int(groups.max()) + 1
  if num_clients > num_groups:
    raise InputError(
      f"natural: {num_clients} clients but the data come from {num_groups}: lower "
      "num_clients."
    )
  rng = arguments.generator("natural", seed)
  chosen = np.sort(rng.choice(num_groups, num_clients, replace=False))
  client_of = np.full(num_groups, -1)
  client_of[chosen] = np.arange(num_clients)
  return from_owner(client_of[groups], num_clients, rng)


def shards(
  labels: NDArray[Any], num_clients: int, *, seed: int, shards_per_client: int = 2
) -> Partition:
  """Sorts by label, cuts equal shards, deals each client some of them at random.

  With MNIST, 100 clients and 2 shards each: 200 shards of 300. With one shard each,
  the splits of FedReg with equal sizes and one class: EMNIST digits over 10,000 clients
  (24 each) and CIFAR-10 over 10,000 clients (5 each).

  Source: paper (FedAgg, section VII-A3, after McMahan et al., section 3). Convention:
  the remainder of the division into shards is drawn at random from all examples, since
  the end of the sorted list would always take it from the last class.

  Args:
    labels: integers, shape [examples].
    num_clients: at least 1.
    seed: integer >= 0.
    shards_per_client: at least 1; num_clients * shards_per_client is at most the
      number of examples.

  Returns:
    A `Partition`; every client holds shards_per_client shards of
    floor(examples / (num_clients * shards_per_client)). A shard that lies across the
    end of a class holds more than one label.

  Raises:
    InputError: an argument is outside its range.
  """
  labels = arguments.check_disjoint("shards", labels, num_clients)
  check_whole_number("shards: shards_per_client", shards_per_client, 1)
  num_shards = int(num_clients) * int(shards_per_client)  # np.uint8 overflows.
  if num_shards > len(labels):
    raise InputError(
      f"shards: {num_clients} clients x {shards_per_client} shards need {num_shards} "
      f"examples but there are {len(labels)}: lower num_clients or shards_per_client."
    )
  rng = arguments.generator("shards", seed)
  shard_size = len(labels) // num_shards
  used = rng.permutation(len(labels))[: num_shards * shard_size]
  by_label = used[np.argsort(labels[used], kind="stable")]
  deal = rng.permutation(np.repeat(np.arange(num_clients), shards_per_client))
  owner = np.full(len(labels), -1)
  owner[by_label] = np.repeat(deal, shard_size)
  return from_owner(owner, num_clients, rng)
