"""Laws of the splits.

Expected values come from the definitions (counting, or integrals over the draws that a
docstring names), never from what the code returned.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tasks import partitions
from tff_algos.diagnostics import heterogeneity

_laws = settings(max_examples=50, deadline=None)

# How many training pictures of MNIST show each digit.
_MNIST_SIZES = (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)

_DISJOINT = (
  "iid",
  "shards",
  "dirichlet:beta=0.5",
  "dirichlet_equal:beta=0.6",
  "power_law:classes_per_client=2",
)
_ALL = (*_DISJOINT, "twafl")
# Not by label, so that a sequence's labels are no matter either.
_BY_NUMBER = ("iid", "natural")


def _shuffled(sizes) -> np.ndarray:
  labels = np.repeat(np.arange(len(sizes)), sizes)
  return np.random.default_rng(7).permutation(labels)


@pytest.fixture(scope="module", name="mnist")
def _mnist() -> np.ndarray:
  return _shuffled(_MNIST_SIZES)


@st.composite
def _labelled(draw):
  """A small label vector in random order, its class sizes and a number of clients."""
  sizes = draw(st.lists(st.integers(5, 40), min_size=1, max_size=5))
  labels = np.array(draw(st.permutations(np.repeat(np.arange(len(sizes)), sizes))))
  return labels, np.array(sizes), draw(st.integers(1, len(labels) // 5))


_seeds = st.integers(0, 2**40)
_betas = st.floats(0.05, 100)


def _assert_disjoint_and_complete(split, labels, num_clients):
  assert len(split.clients) == num_clients
  assert all(client.dtype == np.int64 for client in split.clients)
  assert split.left_over.dtype == np.int64
  assert (np.diff(split.left_over) > 0).all()
  everything = np.concatenate([*split.clients, split.left_over])
  np.testing.assert_array_equal(np.sort(everything), np.arange(len(labels)))


def _sizes(split):
  return np.array([len(client) for client in split.clients])


def _counts(split, labels):
  return np.array(
    [np.bincount(labels[c], minlength=labels.max() + 1) for c in split.clients]
  )


def _equal(a, b):
  return all(map(np.array_equal, (*a.clients, a.left_over), (*b.clients, b.left_over)))


def _grid():
  """Midpoints of a fine grid over the square (0, 1) x (0, 1)."""
  points = (np.arange(1000) + 0.5) / 1000
  return np.meshgrid(points, points)


# What all splits have in common.


@pytest.mark.parametrize("spec", _ALL)
def test_is_a_pure_function_of_its_seed(spec, mnist):
  np.random.seed(0)
  before = np.random.get_state()[1].copy()
  first = partitions.partition(spec, mnist, 20, 3)
  np.testing.assert_array_equal(np.random.get_state()[1], before)
  np.random.seed(1)
  assert _equal(first, partitions.partition(spec, mnist, 20, 3))
  assert not _equal(first, partitions.partition(spec, mnist, 20, 4))


@pytest.mark.parametrize("spec", _ALL)
def test_leaves_the_labels_alone(spec, mnist):
  labels = mnist.copy()
  partitions.partition(spec, labels, 20, 0)
  np.testing.assert_array_equal(labels, mnist)


@pytest.mark.parametrize("spec", _ALL)
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


@pytest.mark.parametrize("spec", _ALL)
def test_class_numbers_may_have_gaps_and_labels_may_be_small_integers(spec, mnist):
  # Another name for each class: the same split.
  renamed = np.array([2, 3, 5, 7, 11, 13, 17, 19, 23, 100], np.uint8)[mnist]
  assert _equal(
    partitions.partition(spec, renamed, 20, 0),
    partitions.partition(spec, mnist, 20, 0),
  )


@pytest.mark.parametrize("spec", _ALL)
def test_which_examples_of_a_class_a_client_gets_is_random(spec, mnist):
  # All clients together hold at least 20,000; any client's mean index is that of a
  # random sample, not of the front or the back of the data.
  for client in partitions.partition(spec, mnist, 20, 5).clients:
    deviation = 60_000 / np.sqrt(12 * len(client))
    assert abs(client.mean() - 59_999 / 2) < 6 * deviation


# iid


@_laws
@given(_labelled(), _seeds)
def test_iid_uses_everything_in_near_equal_sizes(labelled, seed):
  labels, _, num_clients = labelled
  split = partitions.iid(labels, num_clients, seed=seed)
  _assert_disjoint_and_complete(split, labels, num_clients)
  assert not len(split.left_over)
  assert np.ptp(_sizes(split)) <= 1


def test_iid_mnist_has_600_each(mnist):
  split = partitions.iid(mnist, 100, seed=0)
  assert set(_sizes(split)) == {600}
  # A class count is hypergeometric: its standard deviation is below sqrt(600 p).
  p = np.array(_MNIST_SIZES) / 60_000
  assert (np.abs(_counts(split, mnist) - 600 * p) < 6 * np.sqrt(600 * p)).all()


def test_iid_draws_who_gets_which_example(mnist):
  # Two independent samples of 600 of 60,000 share 6 examples on average.
  a, b = (partitions.iid(mnist, 100, seed=seed).clients[0] for seed in (0, 1))
  assert len(np.intersect1d(a, b)) < 30


# shards


@_laws
@given(_labelled(), st.integers(1, 3), _seeds)
def test_shards_laws(labelled, shards_per_client, seed):
  labels, sizes, num_clients = labelled
  split = partitions.shards(
    labels, num_clients, seed=seed, shards_per_client=shards_per_client
  )
  _assert_disjoint_and_complete(split, labels, num_clients)
  num_shards = num_clients * shards_per_client
  shard_size = len(labels) // num_shards
  assert set(_sizes(split)) == {shards_per_client * shard_size}
  assert len(split.left_over) == len(labels) % num_shards
  # Each of the classes - 1 borders adds at most one (shard, label) pair.
  labels_held = np.count_nonzero(_counts(split, labels), axis=1)
  assert labels_held.sum() <= num_shards + len(sizes) - 1
  if shard_size <= sizes.min() - len(split.left_over):
    assert labels_held.max() <= 2 * shards_per_client  # A shard touches two classes.


def test_shards_of_balanced_classes_hold_one_label_each():
  labels = _shuffled([6000] * 10)
  split = partitions.shards(labels, 100, seed=0)
  assert not len(split.left_over)
  counts = _counts(split, labels)
  assert set(counts.ravel()) == {0, 300, 600}
  assert (counts.sum(axis=1) == 600).all()
  # Dealt at random, a client's second shard is of the class of its first with
  # probability 19/199: 9.5 of 100 clients; in order of the labels it would be all.
  assert 1 <= np.count_nonzero(counts == 600) <= 25


def test_shards_mnist_is_the_pathological_split(mnist):
  split = partitions.shards(mnist, 100, seed=0)
  assert not len(split.left_over)
  assert set(_sizes(split)) == {600}
  # 200 shards of 300 cross at most 9 borders, so at least 91 clients have <= 2 digits.
  labels_held = np.count_nonzero(_counts(split, mnist), axis=1)
  assert np.count_nonzero(labels_held <= 2) >= 91


def test_one_shard_per_client_gives_the_equal_one_class_split():
  labels = _shuffled([500] * 10)
  split = partitions.shards(labels, 1000, seed=0, shards_per_client=1)
  assert set(_counts(split, labels).ravel()) == {0, 5}
  assert not len(split.left_over)


def test_shards_remainder_comes_from_all_classes():
  # Class 2 would be last in the sorted list; one example is left over per seed.
  labels = np.array([0, 0, 1, 1, 2])
  left = {
    int(labels[partitions.shards(labels, 2, seed=s).left_over[0]]) for s in range(99)
  }
  assert left == {0, 1, 2}


# dirichlet


@_laws
@given(_labelled(), _betas, st.integers(1, 2), _seeds)
def test_dirichlet_uses_everything_and_keeps_min_size(labelled, beta, min_size, seed):
  labels, _, num_clients = labelled
  try:
    split = partitions.dirichlet(
      labels, num_clients, seed=seed, beta=beta, min_size=min_size
    )
  except ValueError as error:
    assume("draws" not in str(error))  # A rare class can make min_size unreachable.
    raise
  _assert_disjoint_and_complete(split, labels, num_clients)
  assert not len(split.left_over)
  assert _sizes(split).min() >= min_size


def test_dirichlet_shares_have_the_moments_of_the_definition():
  # Two clients, two classes, beta = 1: p_1 = (U, 1 - U), p_2 = (V, 1 - V) with U, V
  # uniform, and the first client gets U / (U + V) of class 0 and
  # (1 - U) / (2 - U - V) of class 1. By hand, the variance is 3/4 - log 2 = 0.057. One
  # vector over the clients per class would give 1/12 = 0.083 and no correlation.
  u, v = _grid()
  x, y = u / (u + v), (1 - u) / (2 - u - v)
  assert x.var() == pytest.approx(0.75 - np.log(2), rel=1e-3)
  labels, draws = _shuffled([200, 200]), 4000
  shares = np.array(
    [
      _counts(partitions.dirichlet(labels, 2, seed=seed, beta=1.0), labels)[0] / 200
      for seed in range(draws)
    ]
  )
  for ours, true in zip(shares.T, (x, y)):
    assert ours.mean() == pytest.approx(0.5, abs=5 * x.std() / np.sqrt(draws))
    spread = ((true - 0.5) ** 2).std() / np.sqrt(draws)
    assert np.mean((ours - 0.5) ** 2) == pytest.approx(true.var(), abs=5 * spread)
  products = (x - 0.5) * (y - 0.5)
  assert products.mean() < -0.03
  assert np.mean((shares[:, 0] - 0.5) * (shares[:, 1] - 0.5)) == pytest.approx(
    products.mean(), abs=5 * products.std() / np.sqrt(draws)
  )


def test_dirichlet_with_large_beta_divides_every_class_equally():
  labels = _shuffled([100, 200, 400])
  counts = _counts(partitions.dirichlet(labels, 10, seed=0, beta=1e6), labels)
  assert (np.abs(counts - [10, 20, 40]) <= 1).all()


@pytest.mark.parametrize("seed", range(20))
def test_dirichlet_with_tiny_beta_loses_no_class(seed):
  # In the limit each p_i is 1 at one class. A class that nobody drew has a column of
  # zeros in floats; it then belongs to the client with the largest p_ij, however small.
  sizes = np.arange(50, 70)
  labels = _shuffled(sizes)
  split = partitions.dirichlet(labels, 5, seed=seed, beta=1e-6)
  _assert_disjoint_and_complete(split, labels, 5)
  assert not len(split.left_over)
  for column in _counts(split, labels).T:
    assert np.ptp(column[column > 0]) <= 1  # Whole, or shared equally.


def test_dirichlet_draws_again_until_min_size():
  # Client sizes at beta = 1 and two clients spread over 1..399; 150 is often missed.
  labels = _shuffled([200, 200])
  free, kept = [], []
  for seed in range(200):
    free.append(_sizes(partitions.dirichlet(labels, 2, seed=seed, beta=0.2)).min())
    kept.append(
      _sizes(partitions.dirichlet(labels, 2, seed=seed, beta=0.2, min_size=150)).min()
    )
  assert min(free) < 150 <= min(kept)


def test_dirichlet_says_what_to_change_when_min_size_is_out_of_reach():
  # About half of the 30 clients want the class of one example.
  labels = _shuffled([1000, 1])
  with pytest.raises(ValueError, match=r"beta=0.01 .*min_size=30.*raise beta, or lower"):
    partitions.dirichlet(labels, 30, seed=0, beta=0.01, min_size=30)


# dirichlet_equal


@_laws
@given(_labelled(), st.floats(1e-6, 100), _seeds)
def test_dirichlet_equal_sizes_are_exact(labelled, beta, seed):
  labels, _, num_clients = labelled
  split = partitions.dirichlet_equal(labels, num_clients, seed=seed, beta=beta)
  _assert_disjoint_and_complete(split, labels, num_clients)
  assert set(_sizes(split)) == {len(labels) // num_clients}
  assert len(split.left_over) == len(labels) % num_clients


def test_dirichlet_equal_mix_has_the_moments_of_the_definition():
  # Two clients of n, two classes of n, beta = 1, n large: they ask for n (U + V) of
  # class 0. If that is too much, the first gets U / (U + V) of it and fills up from
  # class 1; if too little, the same holds for class 1.
  u, v = _grid()
  x = np.where(u + v >= 1, u / (u + v), 1 - (1 - u) / (2 - u - v))
  labels, draws = _shuffled([500, 500]), 3000
  shares = np.array(
    [
      _counts(partitions.dirichlet_equal(labels, 2, seed=seed, beta=1.0), labels)[0, 0]
      / 500
      for seed in range(draws)
    ]
  )
  assert shares.mean() == pytest.approx(0.5, abs=5 * x.std() / np.sqrt(draws))
  spread = ((x - 0.5) ** 2).std() / np.sqrt(draws)
  # Drawing places and, of a class that ran out, its takers adds chance of up to 1/4
  # per place each.
  assert shares.var() == pytest.approx(x.var(), abs=5 * spread + 0.5 / 500)


def test_dirichlet_equal_with_large_beta_is_nearly_iid():
  # All p_i are (1/4, ...): a binomial count, 100 +- 8.7, before classes run out.
  labels = _shuffled([2000] * 4)
  counts = _counts(partitions.dirichlet_equal(labels, 20, seed=0, beta=1e6), labels)
  assert (np.abs(counts - 100) < 60).all()
  assert counts.std() < 12


def test_dirichlet_equal_with_tiny_beta_concentrates_clients():
  # 1,000 of each of 10 classes over 1,000 clients of 10: each p_i is 1 at one class,
  # and about 100 clients ask for the 1,000 places of each. The number X_j of clients
  # that ask for class j is Binomial(1000, 1/10), mean 100, standard deviation 9.5; what
  # classes cannot serve is sum (X_j - 100)+ = 0.4 x 9.5 x 10 clients, about 4 %.
  labels = _shuffled([1000] * 10)
  counts = _counts(partitions.dirichlet_equal(labels, 1000, seed=0, beta=1e-6), labels)
  assert counts.max(axis=1).sum() > 0.9 * 10_000


def test_dirichlet_equal_serves_no_client_last():
  # Were the clients served one after the other, the last would take what is left.
  # The largest class share of the first and the last of 10 clients has the same mean.
  labels = _shuffled([100] * 10)
  largest = np.array(
    [
      _counts(partitions.dirichlet_equal(labels, 10, seed=s, beta=0.1), labels).max(1)
      for s in range(400)
    ]
  )
  gap = largest[:, 0] - largest[:, -1]
  assert abs(gap.mean()) < 5 * gap.std() / np.sqrt(len(gap))


# power_law


@_laws
@given(_labelled(), st.integers(1, 3), st.floats(0, 4), st.integers(1, 4), _seeds)
def test_power_law_laws(labelled, classes_per_client, sigma, min_size, seed):
  labels, sizes, num_clients = labelled
  assume(classes_per_client <= len(sizes) and num_clients * min_size <= len(labels))

  def split():
    return partitions.power_law(
      labels,
      num_clients,
      seed=seed,
      classes_per_client=classes_per_client,
      sigma=sigma,
      min_size=min_size,
    )

  # A table of 0 and 1 with these row sums and these bounds on its columns exists
  # exactly if (Gale and Ryser) the bounds, cut at the number of rows, suffice.
  base = -(-min_size // classes_per_client)
  room = np.minimum(sizes // base, num_clients)
  if room.sum() < num_clients * classes_per_client:
    with pytest.raises(ValueError, match="do not fit the classes' sizes"):
      split()
    return
  result = split()
  _assert_disjoint_and_complete(result, labels, num_clients)
  assert _sizes(result).min() >= max(min_size, classes_per_client)
  counts = _counts(result, labels)
  assert (np.count_nonzero(counts, axis=1) == classes_per_client).all()
  # A class is used completely or not at all.
  used = counts.sum(axis=0)
  assert ((used == sizes) | (used == 0)).all()
  if num_clients * classes_per_client >= len(sizes) and base <= sizes.min():
    assert not len(result.left_over)


@pytest.mark.parametrize("classes_per_client", [1, 2])
def test_power_law_mnist_over_5000_clients(mnist, classes_per_client):
  split = partitions.power_law(mnist, 5000, seed=0, classes_per_client=classes_per_client)
  _assert_disjoint_and_complete(split, mnist, 5000)
  assert not len(split.left_over)
  counts = _counts(split, mnist)
  assert (np.count_nonzero(counts, axis=1) == classes_per_client).all()
  # As many clients for a class as its examples ask for.
  clients = np.count_nonzero(counts, axis=0)
  expected = 5000 * classes_per_client * np.array(_MNIST_SIZES) / 60_000
  assert (np.abs(clients - expected) <= 1).all()


def test_power_law_pairs_classes_at_random(mnist):
  split = partitions.power_law(mnist, 5000, seed=0, classes_per_client=2)
  pairs = {tuple(np.flatnonzero(row)) for row in _counts(split, mnist)}
  assert len(pairs) == 45  # All of them; each is expected about 111 times.


def test_power_law_sizes_are_lognormal():
  labels = np.zeros(200_000, np.int64)
  # Everyone has 1, the rest is in proportion to exp(0.5 Z), Z standard normal.
  sizes = _sizes(partitions.power_law(labels, 2000, seed=0, sigma=0.5))
  logs = np.log(sizes - 1)
  assert logs.std() == pytest.approx(0.5, abs=5 * 0.5 / np.sqrt(2 * 2000))
  # Median over mean of lognormal(0, sigma) is exp(-sigma^2 / 2).
  assert np.median(sizes - 1) / np.mean(sizes - 1) == pytest.approx(
    np.exp(-0.125), rel=0.1
  )


def test_power_law_default_has_the_long_tail_of_sigma_2():
  labels = np.zeros(400_000, np.int64)
  ratios = []
  for seed in range(10):
    sizes = _sizes(partitions.power_law(labels, 2000, seed=seed)) - 1
    ratios.append(np.median(sizes) / np.mean(sizes))
  # The mean of 2,000 lognormal(0, 2) varies by sqrt((e^4 - 1) / 2000) = 16 %.
  assert np.mean(ratios) == pytest.approx(np.exp(-2), rel=5 * 0.16 / np.sqrt(10))


def test_power_law_with_sigma_0_gives_equal_sizes_and_proportional_clients():
  labels = _shuffled([100, 300])
  counts = _counts(partitions.power_law(labels, 40, seed=0, sigma=0.0), labels)
  # 400 examples over 40 clients: 10 of class 0, 30 of class 1, with 10 examples each.
  np.testing.assert_array_equal(np.count_nonzero(counts, axis=0), [10, 30])
  assert set(counts.ravel()) == {0, 10}


def test_power_law_with_few_clients_leaves_out_the_smallest_classes():
  labels = _shuffled([10, 50, 20, 40, 30])
  split = partitions.power_law(labels, 3, seed=0)
  np.testing.assert_array_equal(_counts(split, labels).sum(axis=0), [0, 50, 0, 40, 30])
  assert set(labels[split.left_over]) == {0, 2}
  assert len(split.left_over) == 30


# twafl


@_laws
@given(st.data(), st.lists(st.integers(5, 40), min_size=3, max_size=6), _seeds)
def test_twafl_laws(data, class_sizes, seed):
  labels = _shuffled(class_sizes)
  max_classes = data.draw(st.integers(1, 3))
  min_classes = data.draw(st.integers(1, max_classes))
  max_size = data.draw(st.integers(max_classes, min(class_sizes)))
  min_size = data.draw(st.integers(max_classes, max_size))
  split = partitions.twafl(
    labels,
    data.draw(st.integers(1, 10)),
    seed=seed,
    min_size=min_size,
    max_size=max_size,
    min_classes=min_classes,
    max_classes=max_classes,
  )
  for client in split.clients:
    assert client.dtype == np.int64
    assert len(np.unique(client)) == len(client)
    assert min_size <= len(client) <= max_size
    assert min_classes <= len(np.unique(labels[client])) <= max_classes
  held = set(np.concatenate(split.clients).tolist())
  assert split.left_over.tolist() == sorted(set(range(len(labels))) - held)


def test_twafl_mnist_defaults(mnist):
  split = partitions.twafl(mnist, 2000, seed=1)
  sizes = _sizes(split)
  # Uniform over 601 sizes; standard error of the mean 600 / sqrt(12 x 2000).
  assert 1000 <= sizes.min() < 1010 and 1590 < sizes.max() <= 1600
  assert sizes.mean() == pytest.approx(1300, abs=5 * 600 / np.sqrt(12 * 2000))
  counts = _counts(split, mnist)
  held = np.count_nonzero(counts, axis=1)
  assert set(held) == {2, 3}
  assert np.mean(held == 2) == pytest.approx(0.5, abs=5 * 0.5 / np.sqrt(2000))
  # Every digit is at a client with probability 2.5 / 10.
  assert (np.abs(np.mean(counts > 0, axis=0) - 0.25) < 5 * 0.433 / np.sqrt(2000)).all()
  # 20 clients of about 1,300 fit into 60,000, but they are drawn with overlap.
  twenty = partitions.twafl(mnist, 20, seed=1)
  assert 60_000 - len(twenty.left_over) < _sizes(twenty).sum()


def test_twafl_draws_both_ends_of_the_size():
  labels = _shuffled([50] * 4)
  sizes = _sizes(partitions.twafl(labels, 600, seed=0, min_size=10, max_size=12))
  assert set(sizes) == {10, 11, 12}


def test_twafl_weights_are_normalised_uniforms(mnist):
  # With two classes the first has U / (U + V): variance 3/4 - log 2.
  split = partitions.twafl(
    mnist, 2000, seed=0, min_size=1000, max_size=1000, max_classes=2
  )
  counts = _counts(split, mnist)
  shares = np.array([row[row > 0][0] for row in counts]) / 1000
  u, v = _grid()
  x = u / (u + v)
  spread = ((x - 0.5) ** 2).std() / np.sqrt(len(shares))
  assert np.mean((shares - 0.5) ** 2) == pytest.approx(
    0.75 - np.log(2), abs=5 * spread + 0.002
  )


# The command line's form.


@pytest.mark.parametrize(
  ("spec", "expected"),
  [
    ("iid", ("iid", {})),
    ("shards:shards_per_client=3", ("shards", {"shards_per_client": 3})),
    (
      "dirichlet:beta=0.1,min_size=10",
      ("dirichlet", {"beta": 0.1, "min_size": 10}),
    ),
    (" dirichlet_equal: beta = 1 ", ("dirichlet_equal", {"beta": 1.0})),
    (
      "power_law:sigma=1e-1,classes_per_client=2",
      ("power_law", {"sigma": 0.1, "classes_per_client": 2}),
    ),
    ("twafl:min_size=250,max_size=500", ("twafl", {"min_size": 250, "max_size": 500})),
  ],
)
def test_parse(spec, expected):
  name, kwargs = partitions.parse(spec)
  assert (name, kwargs) == expected
  assert [type(v) for v in kwargs.values()] == [type(v) for v in expected[1].values()]


@pytest.mark.parametrize(
  ("spec", "fragments"),
  [
    ("dirichlett:beta=1", ["'dirichlett'", "nearest is 'dirichlet'", "power_law"]),
    ("", ["no split named ''", "iid"]),
    ("iid:seed=3", ["no parameter 'seed'", "iid takes no parameters"]),
    ("iid:", ["key=value"]),
    ("shards:shards=2", ["no parameter 'shards'", "shards_per_client (int, 2)"]),
    ("dirichlet", ["beta is missing", "beta (float, required)", "min_size (int, 1)"]),
    ("dirichlet:min_size=2", ["beta is missing"]),
    ("dirichlet:beta", ["'beta' is not of the form key=value", "beta (float"]),
    ("dirichlet:beta=", ["'beta=' is not of the form key=value"]),
    ("dirichlet:=1", ["'=1' is not of the form key=value"]),
    ("dirichlet:beta=1,", ["'' is not of the form key=value"]),
    ("dirichlet:beta=small", ["beta=small is not float", "beta (float, required)"]),
    ("dirichlet:beta=1,min_size=2.5", ["min_size=2.5 is not int"]),
    ("dirichlet:beta=1,beta=2", ["beta is given twice"]),
  ],
)
def test_parse_errors(spec, fragments):
  with pytest.raises(ValueError) as caught:
    partitions.parse(spec)
  message = str(caught.value)
  assert repr(spec) in message
  assert message.endswith(".") and "\n" not in message
  for fragment in fragments:
    assert fragment in message


def test_partition_calls_the_named_split(mnist):
  assert _equal(
    partitions.partition("dirichlet:beta=0.5,min_size=10", mnist, 10, 4),
    partitions.dirichlet(mnist, 10, seed=4, beta=0.5, min_size=10),
  )


def test_the_table_names_and_describes_every_split():
  assert tuple(partitions.SPLITS) == partitions.NAMES
  for name, split in partitions.SPLITS.items():
    assert getattr(partitions, name) is split.function
    assert split.description and "\n" not in split.description
  assert {spec.split(":")[0] for spec in (*_ALL, "natural")} == set(partitions.NAMES)


# Errors are one sentence: where, what, and what to do.


@pytest.mark.parametrize(
  ("spec", "num_clients", "fragments"),
  [
    ("iid", 0, ["iid: num_clients", "at least 1", "is 0"]),
    ("iid", 2.0, ["iid: num_clients", "integer", "2.0"]),
    ("iid", 31, ["iid: 31 clients", "there are 30", "lower num_clients"]),
    ("shards:shards_per_client=0", 2, ["shards: shards_per_client", "at least 1"]),
    (
      "shards:shards_per_client=16",
      2,
      ["shards: 2 clients x 16", "32", "there are 30"],
    ),
    ("dirichlet:beta=0", 2, ["dirichlet: beta", "is 0.0"]),
    ("dirichlet:beta=-1", 2, ["dirichlet: beta", "is -1.0"]),
    ("dirichlet:beta=nan", 2, ["dirichlet: beta", "is nan"]),
    ("dirichlet:beta=inf", 2, ["dirichlet: beta", "is inf"]),
    ("dirichlet:beta=1,min_size=0", 2, ["dirichlet: min_size", "at least 1"]),
    ("dirichlet:beta=1,min_size=16", 2, ["need 32", "there are 30", "min_size"]),
    ("dirichlet_equal:beta=0", 2, ["dirichlet_equal: beta", "is 0.0"]),
    ("dirichlet_equal:beta=1", 31, ["dirichlet_equal: 31 clients"]),
    ("power_law:classes_per_client=0", 2, ["power_law: classes_per_client"]),
    ("power_law:classes_per_client=4", 2, ["classes_per_client=4", "3 classes"]),
    ("power_law:classes_per_client=2", 16, ["power_law: 16 clients with 2 classes"]),
    ("power_law:min_size=7", 4, ["power_law: 4 clients", "7 examples"]),
    ("power_law:sigma=-1", 2, ["power_law: sigma", "is -1.0"]),
    ("power_law:sigma=inf", 2, ["power_law: sigma", "is inf"]),
    ("twafl", 0, ["twafl: num_clients"]),
    ("twafl", 2, ["twafl: min_size=1000", "10 examples of the smallest class"]),
    ("twafl:min_size=9,max_size=8", 2, ["min_size=9 and max_size=8"]),
    ("twafl:min_size=2,max_size=8", 2, ["min_size=2", "max_classes=3"]),
    ("twafl:min_classes=0", 2, ["twafl: min_classes", "at least 1"]),
    ("twafl:max_classes=4", 2, ["max_classes=4", "3 classes"]),
  ],
)
def test_split_errors(spec, num_clients, fragments):
  # power_law with min_size=7 passes the count of examples (28 of 30), but classes of
  # 10 serve one client of 7 each, 3 in all. With two classes each, 16 clients need 32.
  with pytest.raises(ValueError) as caught:
    partitions.partition(spec, _shuffled([10, 10, 10]), num_clients, 0)
  message = str(caught.value)
  assert message.endswith(".") and "\n" not in message and ". " not in message
  assert message.startswith(spec.split(":")[0] + ": ")
  for fragment in fragments:
    assert fragment in message


@pytest.mark.parametrize("seed", [-1, 0.5, None])
@pytest.mark.parametrize("spec", _DISJOINT)
def test_seed_must_be_a_natural_number(spec, seed):
  with pytest.raises(ValueError, match="seed must be an integer of at least 0"):
    partitions.partition(spec, _shuffled([10, 10, 10]), 2, seed)


@pytest.mark.parametrize(
  "labels",
  [np.zeros((3, 1, 1), int), np.zeros(3), np.array([], int), np.array(["a"])],
)
@pytest.mark.parametrize("spec", [*_ALL, "natural"])
def test_labels_must_be_a_vector_of_integers(spec, labels):
  with pytest.raises(ValueError, match="labels must be a non-empty vector of integers"):
    partitions.partition(spec, labels, 1, 0)


@pytest.mark.parametrize("spec", _ALL)
def test_sequences_are_split_only_where_labels_do_not_matter(spec):
  labels = np.arange(40).reshape(20, 2) % 3
  if spec in _BY_NUMBER:
    split = partitions.partition(spec, labels, 4, 0)
    assert _equal(split, partitions.partition(spec, np.zeros(20, int), 4, 0))
  else:
    with pytest.raises(ValueError, match="labels must be a non-empty vector"):
      partitions.partition(spec, labels, 4, 0)


# Natural.


@st.composite
def _grouped(draw):
  """Groups 0..G-1 in random order, none empty, and a number of clients up to G."""
  sizes = draw(st.lists(st.integers(1, 9), min_size=1, max_size=8))
  groups = np.array(draw(st.permutations(np.repeat(np.arange(len(sizes)), sizes))))
  return groups, draw(st.integers(1, len(sizes)))


@_laws
@given(_grouped(), _seeds)
def test_natural_clients_are_whole_groups_in_their_order(grouped, seed):
  groups, num_clients = grouped
  labels = np.zeros(len(groups), int)
  split = partitions.partition("natural", labels, num_clients, seed, groups=groups)
  _assert_disjoint_and_complete(split, labels, num_clients)
  held = [np.unique(groups[client]) for client in split.clients]
  assert all(len(of_client) == 1 for of_client in held)
  assert (np.diff(np.concatenate(held)) > 0).all()
  assert not set(groups[split.left_over]) & set(np.concatenate(held))


def test_natural_draws_each_group_equally_often():
  """2 of 5 groups, 500 seeds: each 200 times, standard deviation 11."""
  groups = np.arange(5)
  drawn = np.zeros(5)
  for seed in range(500):
    split = partitions.natural(groups, 2, seed=seed, groups=groups)
    drawn[np.concatenate(split.clients)] += 1
  assert np.abs(drawn - 200).max() < 55


def test_natural_shuffles_within_a_client():
  groups = np.zeros(1000, int)
  [client] = partitions.natural(groups, 1, seed=0, groups=groups).clients
  assert 400 < np.count_nonzero(np.diff(client) > 0) < 600


@pytest.mark.parametrize(
  "num_clients, groups, match",
  [
    (4, np.array([0, 1, 2]), "natural: 4 clients but the data come from 3: lower"),
    (1, None, "natural: these data do not say from whom"),
    (0, np.array([0, 1, 2]), "natural: num_clients must be an integer of at least 1"),
  ],
)
def test_natural_refuses(num_clients, groups, match):
  with pytest.raises(ValueError, match=match) as caught:
    partitions.partition("natural", np.zeros(3, int), num_clients, 0, groups=groups)
  assert "\n" not in str(caught.value)


def test_groups_are_no_parameter_of_the_command_line():
  assert partitions.parse("natural") == ("natural", {})
  with pytest.raises(ValueError, match="no parameter 'groups': natural takes no param"):
    partitions.parse("natural:groups=3")


# Counting and measuring.


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


@_laws
@given(_labelled(), _seeds)
def test_class_counts_sum_to_what_is_held(labelled, seed):
  labels, sizes, num_clients = labelled
  split = partitions.iid(labels, num_clients, seed=seed)
  counts = partitions.class_counts(split, labels, len(sizes))
  np.testing.assert_array_equal(counts.sum(axis=0), sizes)
  np.testing.assert_array_equal(counts.sum(axis=1), _sizes(split))


def test_wasserstein_distance_orders_the_splits(mnist):
  def distance(spec):
    split = partitions.partition(spec, mnist, 100, 0)
    counts = partitions.class_counts(split, mnist, 10)
    return heterogeneity.mean_wasserstein_distance(counts)

  # One class per client and uniform classes: |i - j| of two uniform digits has mean
  # (10^2 - 1) / 30 = 3.3, and none is further away.
  iid, mild, strong = map(distance, ("iid", "dirichlet:beta=1", "dirichlet:beta=0.1"))
  assert 0 < iid < 0.3 < mild < strong < 3.5
