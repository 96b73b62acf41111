"""What a split is used for: counts of classes, and the clients' examples."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import numpy as np
import pytest
from hypothesis import given
from split_laws import labelled_clients, laws, seeds, sizes_of

from tff_algos import partitions
from tff_algos.diagnostics import heterogeneity
from tff_algos.errors import InputError


def _by_hand(*clients):
  return partitions.Partition(tuple(map(np.array, clients)), np.array([], np.int64))


def test_class_counts_of_sequences_count_labelled_steps():
  labels = np.array([[0, 1, -1], [2, 2, 2], [1, -1, -1], [0, 0, -1]])
  counts = partitions.class_counts(_by_hand([3, 0], [1]), labels, 3)
  np.testing.assert_array_equal(counts, [[3, 1, 0], [0, 0, 3]])
  for wrong in (np.array([[0, 3]]), np.array([[-2, 0]])):
    with pytest.raises(ValueError, match="must be in -1 to 2"):
      partitions.class_counts(_by_hand([0]), wrong, 3)


def test_class_counts_by_hand():
  split = _by_hand([4, 0], [1, 2, 3])
  counts = partitions.class_counts(split, np.array([0, 2, 2, 1, 0]), 4)
  assert counts.dtype == np.int64
  np.testing.assert_array_equal(counts, [[2, 0, 0, 0], [0, 1, 2, 0]])


@pytest.mark.parametrize("labels", [[0, 3], [-1, 0]])
def test_class_counts_refuses_labels_out_of_range(labels):
  with pytest.raises(ValueError, match="must be in 0 to 2"):
    partitions.class_counts(_by_hand([0], [1]), np.array(labels), 3)


def test_rows_that_differ_are_refused():
  split = _by_hand([0], [1])
  with pytest.raises(InputError, match=r"^class_counts: the labels make no array"):
    partitions.class_counts(split, [[0, 1], [1]], 3)
  for x, y, what in (([[0, 1], [1]], [0, 1], "inputs"), ([0, 1], [0, [1]], "labels")):
    with pytest.raises(InputError, match=f"^client_examples: the {what} make no array"):
      partitions.client_examples(split, x, y)


def test_masked_values_are_refused_and_a_mask_of_nothing_is_not():
  split, masked = _by_hand([0], [1]), np.ma.masked_equal([0, 1], 1)
  with pytest.raises(InputError, match=r"^client_examples: the inputs are masked in"):
    partitions.client_examples(split, masked, [0, 1])
  with pytest.raises(InputError, match=r"^iid: the labels are masked in places: "):
    partitions.iid(masked, 2, seed=0)
  clients = partitions.client_examples(split, np.ma.array([5, 6]), [0, 1])
  np.testing.assert_array_equal(clients["client_1"][0], [6])


@pytest.mark.parametrize("num_labels", [3, 5])
def test_class_counts_refuses_labels_that_were_not_split(num_labels):
  split = _by_hand([3, 0], [1, 2])
  message = f"the split is of 4 examples but there are {num_labels} labels: give"
  with pytest.raises(InputError, match=f"^class_counts: {message}"):
    partitions.class_counts(split, np.zeros(num_labels, int), 2)


@laws
@given(labelled_clients(), seeds)
def test_class_counts_sum_to_what_is_held(labelled, seed):
  labels, sizes, num_clients = labelled
  split = partitions.iid(labels, num_clients, seed=seed)
  counts = partitions.class_counts(split, labels, len(sizes))
  np.testing.assert_array_equal(counts.sum(axis=0), sizes)
  np.testing.assert_array_equal(counts.sum(axis=1), sizes_of(split))


def test_wasserstein_distance_orders_the_splits(mnist):
  def distance(spec):
    split = partitions.partition(spec, mnist, 100, 0)
    counts = partitions.class_counts(split, mnist, 10)
    return heterogeneity.mean_wasserstein_distance(counts)

  # One class per client and uniform classes: |i - j| of two uniform digits has mean
  # (10^2 - 1) / 30 = 3.3, and none is further away.
  iid, mild, strong = map(distance, ("iid", "dirichlet:beta=1", "dirichlet:beta=0.1"))
  assert 0 < iid < 0.3 < mild < strong < 3.5


@laws
@given(labelled_clients(), seeds)
def test_client_examples_are_those_of_the_split_in_its_order(labelled, seed):
  labels, _, num_clients = labelled
  x = np.arange(2 * len(labels), dtype=np.float32).reshape(-1, 2)
  split = partitions.shards(labels, num_clients, seed=seed, shards_per_client=1)
  clients = partitions.client_examples(split, x, labels)
  assert list(clients) == [f"client_{i}" for i in range(num_clients)]
  assert len(clients) == num_clients
  for rows, (own_x, own_y) in zip(split.clients, clients.values()):
    # Each input says which example it is of.
    np.testing.assert_array_equal(own_x[:, 0], 2 * rows)
    np.testing.assert_array_equal(own_x[:, 1], 2 * rows + 1)
    np.testing.assert_array_equal(own_y, labels[rows])
    assert (own_x.dtype, own_y.dtype) == (x.dtype, labels.dtype)


def test_client_examples_are_copied_when_they_are_asked_for():
  x, y = np.zeros((4, 2)), np.zeros(4, int)
  clients = partitions.client_examples(_by_hand([3, 0], [1, 2]), x, y)
  x[3], y[0] = 7, 8
  own_x, own_y = clients["client_0"]
  np.testing.assert_array_equal(own_x, [[7, 7], [0, 0]])
  np.testing.assert_array_equal(own_y, [0, 8])
  own_x[:] = 1
  assert x[0].sum() == 0  # What is given away is nobody else's.
  with pytest.raises(KeyError):
    clients["client_2"]


@pytest.mark.parametrize(
  "shapes, match",
  [
    ([(3,), (4,)], "there are 3 inputs"),
    ([(4, 2), (5,)], "there are 5 labels"),
    ([(5, 2), (5,)], "there are 5 inputs"),
  ],
)
def test_client_examples_refuses_arrays_that_were_not_split(shapes, match):
  split = partitions.Partition((np.array([1]), np.array([0])), np.array([2, 3]))
  x, y = map(np.zeros, shapes)
  message = f"client_examples: the split is of 4 examples but {match}: give"
  with pytest.raises(InputError, match=f"^{message}"):
    partitions.client_examples(split, x, y)


def test_splits_need_no_tensorflow():
  code = """
    import sys
    import numpy as np
    from tff_algos import partitions
    split = partitions.partition("dirichlet:beta=1", np.arange(20) % 2, 2, 0)
    partitions.client_examples(split, np.zeros(20), np.zeros(20))["client_0"]
    for name in ("tensorflow", "tensorflow_federated", "scipy", "matplotlib"):
      assert name not in sys.modules, name
  """
  subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=60)
