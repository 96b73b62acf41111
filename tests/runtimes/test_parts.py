"""Cohorts in parts of a fixed size, which are joined in a fixed tree."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_algos
from tff_algos.runtimes import accumulation, blocks


def _shown() -> tff.Computation:
  """What is done to the clients' names, written down: + accumulates, * joins."""

  def written(sign):
    return lambda a, b: tf.strings.join(["(", a, sign, b, ")"])

  pair = (np.str_, np.str_)

  @tff.federated_computation(tff.FederatedType(np.str_, tff.CLIENTS))
  def compute(names):
    return tff.federated_aggregate(
      names,
      "0",
      tff.tensorflow.computation(written("+"), pair),
      tff.tensorflow.computation(written("*"), pair),
      tff.tensorflow.computation(lambda a: a, np.str_),
    )

  return compute


@pytest.fixture(scope="module")
def shown():
  return _shown()


def _expected(names, size: int) -> str:
  """By the definition: halves of a power of two, by recursion."""
  parts = [names[i : i + size] for i in range(0, len(names), size)]

  def accumulated(part):
    total = "0"
    for name in part:
      total = f"({total}+{name})"
    return total

  def joined(parts):
    if len(parts) == 1:
      return accumulated(parts[0])
    half = 1
    while 2 * half < len(parts):
      half *= 2
    return f"({joined(parts[:half])}*{joined(parts[half:])})"

  return joined(parts) if parts else "0"


@pytest.mark.parametrize("size", [1, 2, 3, 20])
@pytest.mark.parametrize("num_threads", [1, 3])
def test_order_of_a_sum(shown, size, num_threads):
  """On one runtime, as each plans and traces a computation anew."""
  with tff_algos.create_runtime(num_threads=num_threads, clients_per_part=size):
    for count in (*range(10), 17):
      names = [chr(ord("a") + i) for i in range(count)]
      assert shown(names).decode() == _expected(names, size), count


def test_default_is_as_many_clients_as_give_16_parts(shown):
  with tff_algos.create_runtime():
    for count, size in ((1, 1), (16, 1), (17, 4), (64, 4), (100, 8)):
      names = [f"c{i}" for i in range(count)]
      assert shown(names).decode() == _expected(names, size), count


@pytest.mark.parametrize("num_workers", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("count", [0, 1, 2, 5, 10, 13, 16, 31, 64, 1000])
def test_ranges_joined_by_themselves_are_of_the_same_tree(count, num_workers):
  """Whoever joins a range's parts, and whatever the number of workers."""

  class Written:
    def merge(self, before, after):
      return [f"({before[0]} {after[0]})"]

    def zero(self):
      return ["nobody"]

  def joined(parts):
    tree = accumulation.Tree(Written())
    for part in parts:
      tree.add([str(part)])
    return tree.total()

  ranges = accumulation.subtrees(count, num_workers)
  assert [part for r in ranges for part in r] == list(range(count))
  tree = accumulation.Tree(Written())
  for r in ranges:
    tree.add(joined(r), len(r))
  assert tree.total() == joined(range(count))


def test_ranges_are_at_most_a_workers_share_of_what_is_left():
  assert [len(r) for r in accumulation.subtrees(16, 2)] == [8, 4, 2, 1, 1]
  assert [len(r) for r in accumulation.subtrees(10, 2)] == [4, 2, 2, 1, 1]
  assert [len(r) for r in accumulation.subtrees(10, 10)] == [1] * 10
  for count in (16, 100, 1000):
    for num_workers in (2, 3, 16):
      left = count
      for r in accumulation.subtrees(count, num_workers):
        assert len(r) <= max(1, left // num_workers)
        left -= len(r)


def test_parts_cover_the_cohort_in_order():
  for count in (0, 1, 31, 64, 1000, 100_003):
    for block_size in (None, blocks.ON_CPU.block_size(count, 1000)):
      parts = accumulation.parts_of(count, None, block_size)
      assert [client for part in parts for client in part] == list(range(count))
      assert len(parts) <= accumulation.MOST_PARTS


@pytest.mark.parametrize(
  "num_clients, sizes",
  [
    (16, [16]),
    (40, [16, 16, 8]),
    (100, [25] * 4),
    (300, [75] * 4),
    (1000, [128] * 7 + [104]),
  ],
)
def test_default_part_of_clients_in_blocks_is_a_block(num_clients, sizes):
  block_size = blocks.ON_CPU.block_size(num_clients, 1000)
  parts = accumulation.parts_of(num_clients, None, block_size)
  assert [len(part) for part in parts] == sizes


def test_clients_get_what_is_theirs_whatever_the_parts():
  double = tff.tensorflow.computation(lambda n: 2 * n, np.int32)

  @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
  def compute(numbers):
    return tff.federated_map(double, numbers), tff.federated_sum(numbers)

  with tff_algos.create_runtime(clients_per_part=2):
    doubled, total = compute([1, 2, 3, 4, 5])
  assert list(doubled) == [2, 4, 6, 8, 10]
  assert total == 15


@pytest.mark.parametrize("size", [0, -1])
def test_a_part_has_a_client(size):
  with pytest.raises(tff_algos.InputError, match="at least 1"):
    tff_algos.create_runtime(clients_per_part=size)
