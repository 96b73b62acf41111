"""Laws of all splits."""

from __future__ import annotations

import numpy as np
import pytest
from split_laws import ALL, equal

from tff_algos import partitions
from tff_algos.errors import InputError
from tff_algos.partitions import arguments


@pytest.mark.parametrize("spec", ALL)
def test_is_a_pure_function_of_its_seed(spec, mnist):
  np.random.seed(0)
  before = np.random.get_state()[1].copy()
  first = partitions.partition(spec, mnist, 20, 3)
  np.testing.assert_array_equal(np.random.get_state()[1], before)
  np.random.seed(1)
  assert equal(first, partitions.partition(spec, mnist, 20, 3))
  assert not equal(first, partitions.partition(spec, mnist, 20, 4))


def test_splits_of_one_seed_share_no_draws():
  draws = [arguments.generator(name, 3).random(8) for name in partitions.NAMES]
  assert len(np.unique(draws)) == 8 * len(partitions.NAMES)


@pytest.mark.parametrize("spec", ALL)
def test_leaves_the_labels_alone(spec, mnist):
  labels = mnist.copy()
  partitions.partition(spec, labels, 20, 0)
  np.testing.assert_array_equal(labels, mnist)


@pytest.mark.parametrize("spec", ALL)
def test_examples_within_a_client_are_shuffled(spec, mnist):
  # In a random order of m labels with counts c, two neighbours differ with probability
  # 1 - sum c (c - 1) / (m (m - 1)). Sorted by label they differ c.size - 1 times.
  # Two neighbouring indices ascend with probability 1/2; sorted by index, always.
  expected = changes = ascents = pairs = 0
  for client in partitions.partition(spec, mnist, 20, 0).clients:
    own = mnist[client]
    m, c = len(own), np.bincount(own)
    expected += (m - 1) * (1 - np.sum(c * (c - 1)) / (m * (m - 1)))
    changes += np.count_nonzero(np.diff(own))
    ascents += np.count_nonzero(np.diff(client) > 0)
    pairs += m - 1
  assert changes == pytest.approx(expected, rel=0.05)
  assert ascents == pytest.approx(pairs / 2, rel=0.05)


@pytest.mark.parametrize("spec", ALL)
def test_class_numbers_may_have_gaps_and_labels_may_be_small_integers(spec, mnist):
  # Another name for each class: the same split.
  renamed = np.array([2, 3, 5, 7, 11, 13, 17, 19, 23, 100], np.uint8)[mnist]
  assert equal(
    partitions.partition(spec, renamed, 20, 0),
    partitions.partition(spec, mnist, 20, 0),
  )


@pytest.mark.parametrize("spec", ALL)
def test_which_examples_of_a_class_a_client_gets_is_random(spec, mnist):
  # All clients together hold at least 20,000; any client's mean index is that of a
  # random sample, not of the front or the back of the data.
  for client in partitions.partition(spec, mnist, 20, 5).clients:
    deviation = 60_000 / np.sqrt(12 * len(client))
    assert abs(client.mean() - 59_999 / 2) < 6 * deviation


@pytest.mark.parametrize(
  "name, settings",
  [
    ("iid", dict(num_clients=200)),
    ("natural", dict(num_clients=10)),
    ("shards", dict(num_clients=100, shards_per_client=4)),
    ("dirichlet", dict(num_clients=100, min_size=3, beta=1e6)),
    ("dirichlet_by_class", dict(num_clients=100, min_size=3, beta=100.0)),
    ("dirichlet_equal", dict(num_clients=100, beta=1.0)),
    ("power_law", dict(num_clients=100, classes_per_client=4, min_size=5)),
    ("twafl", dict(num_clients=100, min_size=40, max_size=100)),
  ],
)
def test_whole_numbers_of_eight_bits_count_as_any_other(name, settings):
  labels = np.repeat(np.arange(10), 100)
  given = {"groups": labels} if name == "natural" else {}
  split = partitions.SPLITS[name].function
  small = {k: np.uint8(v) if isinstance(v, int) else v for k, v in settings.items()}
  with np.errstate(over="raise"):
    found = split(labels, **small, seed=np.uint8(3), **given)
  assert equal(found, split(labels, **settings, seed=3, **given))


def test_too_many_examples_asked_for_in_eight_bits_are_refused():
  labels = np.repeat(np.arange(10), 100)
  with pytest.raises(InputError, match="need 2000 but there are 1000"):
    partitions.dirichlet(labels, np.uint8(200), seed=0, beta=1.0, min_size=np.uint8(10))
