"""The workloads of the benchmark, and the names that it takes."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.benchmarks import program, workloads
from tff_algos.errors import InputError


def test_unknown_names_are_refused():
  with pytest.raises(InputError, match="choose from A, B"):
    workloads.get("a")
  ours = ["in_process", "local_worker", "dask", "datasets", "mixed_precision"]
  assert program.framework_names() == ["bare", *ours, "tff"]


@pytest.mark.parametrize("row", workloads.WORKLOADS.values(), ids=lambda row: row.name)
def test_examples_fit_the_model_and_are_the_same_everywhere(row):
  row = row._replace(num_clients=2, num_examples=3)
  spec = row.model().example_spec
  for client in row.clients():
    x, y = row.clients()[client]
    assert x.shape == (3, *spec.x.shape) and x.dtype == spec.x.dtype.as_numpy_dtype
    assert y.shape == (3,) and set(y) <= set(range(row.data.num_classes))
    np.testing.assert_array_equal(x, row.clients()[client][0])


def test_cohort_is_all_clients_or_as_many_distinct_ones_drawn_anew_in_each_round():
  assert list(workloads.get("C").cohort(3)) == list(range(1000))
  row = workloads.get("pfl_cifar10")
  rounds = [row.cohort(number) for number in range(20)]
  for cohort in rounds:
    assert len(set(cohort)) == len(cohort) == 50
    assert set(cohort) <= set(range(1000))
  assert len(set(map(frozenset, rounds))) == 20
  assert [list(row.cohort(number)) for number in range(20)] == list(map(list, rounds))
  # 20 draws miss a client with 0.95^20 = 0.358: 642 are expected, give or take 7.
  assert 600 < len(set().union(*rounds)) < 680


def test_first_round_is_evaluated_and_each_that_comes_as_many_later():
  numbers = {
    rounds: workloads.Run(rounds, 10, 1).num_evaluations for rounds in (1, 10, 11, 21)
  }
  assert numbers == {1: 1, 10: 1, 11: 2, 21: 3}


def test_no_client_has_a_test_example():
  """Nor where there are as many of them as a client has."""
  row = workloads.get("smoke")
  row = row._replace(run=workloads.Run(1, 1, row.num_examples))
  pictures = {picture.tobytes() for picture in row.test_examples()[0]}
  assert len(pictures) == row.num_examples
  for x, _ in row.clients().values():
    assert pictures.isdisjoint(picture.tobytes() for picture in x)


def test_pfl_cifar10_is_the_published_setting():
  row = workloads.get("pfl_cifar10")
  assert (row.num_clients, row.num_examples, row.batch_size) == (1000, 50, 10)
  assert (row.learning_rate, row.run) == (0.1, workloads.Run(1500, 10, 10_000))
  assert row.run.num_evaluations == 150
  x, y = row.test_examples()
  assert x.shape == (10_000, 32, 32, 3) and y.shape == (10_000,)
  assert not any(np.array_equal(x[0], row.clients()[str(k)][0][0]) for k in range(1000))
  sizes = [np.size(w) for w in row.model().initial_weights]
  kernels = [3 * 3 * 3 * 32, 3 * 3 * 32 * 64, 14 * 14 * 64 * 128, 128 * 10]
  assert (sizes[::2], sizes[1::2]) == (kernels, [32, 64, 128, 10])
  assert f"({sum(sizes):,} weights)" in row.description
