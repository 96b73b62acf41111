"""Coordinate-wise median and trimmed mean against NumPy, client by client."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow_federated as tff

from tff_algos.aggregators import coordinate_wise
from tff_algos.errors import InputError

VALUE = tff.to_type((tff.TensorType(np.float32, (2, 3)), tff.TensorType(np.float32, ())))
WEIGHT = tff.TensorType(np.float32, ())


def trimmed(share: float):
  def statistic(values):
    cut = int(np.floor(share * len(values) + 1e-9))
    return np.sort(values, axis=0)[cut : len(values) - cut].mean(axis=0)

  return statistic


STATISTICS = {
  "median": (coordinate_wise.median_factory, lambda v: np.median(v, axis=0)),
  "trimmed 0": (lambda: coordinate_wise.trimmed_mean_factory(0.0), trimmed(0.0)),
  "trimmed 0.1": (coordinate_wise.trimmed_mean_factory, trimmed(0.1)),
  "trimmed 0.3": (lambda: coordinate_wise.trimmed_mean_factory(0.3), trimmed(0.3)),
  # 0.29 * 100 is less than 29 in floating-point numbers.
  "trimmed 0.29": (lambda: coordinate_wise.trimmed_mean_factory(0.29), trimmed(0.29)),
}


@pytest.fixture(scope="module", params=STATISTICS)
def statistic(request, in_process):
  make, expected = STATISTICS[request.param]
  return make().create(VALUE, WEIGHT), expected


def clients_of(number: int) -> list:
  rng = np.random.default_rng(number)
  shapes = ((2, 3), ())
  return [
    tuple(np.asarray(rng.normal(size=s), np.float32) for s in shapes)
    for _ in range(number)
  ]


@pytest.mark.parametrize("number", [1, 2, 7, 10, 19, 100])
def test_is_that_of_numpy(statistic, number):
  process, expected = statistic
  values = clients_of(number)
  result = process.next(process.initialize(), values, [1.0] * number).result
  for found, of_clients in zip(result, zip(*values)):
    np.testing.assert_allclose(
      found, expected(np.stack(of_clients)), rtol=1e-5, atol=1e-7
    )


def test_clients_without_weight_do_not_count(statistic):
  process, expected = statistic
  values = clients_of(9)
  weights = [5.0, 0.0, 1.0, 2.0, 0.0, 3.0, 1.0, 1.0, 9.0]
  result = process.next(process.initialize(), values, weights).result
  counted = [v for v, w in zip(values, weights) if w]
  for found, of_clients in zip(result, zip(*counted)):
    np.testing.assert_allclose(
      found, expected(np.stack(of_clients)), rtol=1e-5, atol=1e-7
    )


@pytest.mark.parametrize(
  "make", [coordinate_wise.median_factory, coordinate_wise.trimmed_mean_factory]
)
def test_whole_numbers_are_refused(make):
  """Of 0, 1, 2 and 3 the median is none of their type."""
  with pytest.raises(
    InputError, match=r"of floating-point numbers: cast .*; found <int32"
  ):
    make().create(tff.to_type((np.int32, np.float32)), WEIGHT)


def test_nobody_is_zero(statistic):
  process, _ = statistic
  result = process.next(process.initialize(), clients_of(3), [0.0] * 3).result
  assert all(not np.any(v) for v in result)


def test_a_liar_moves_no_coordinate_out_of_the_others(in_process):
  """The median and the trimmed mean stay between the least and largest of the honest."""
  honest, liar = clients_of(9), (np.full((2, 3), -1e6, np.float32), np.float32(1e6))
  low, high = ([f(np.stack(v), axis=0) for v in zip(*honest)] for f in (np.min, np.max))
  for make in (coordinate_wise.median_factory, coordinate_wise.trimmed_mean_factory):
    process = make().create(VALUE, WEIGHT)
    result = process.next(process.initialize(), [*honest, liar], [1.0] * 10).result
    for found, least, most in zip(result, low, high):
      assert np.all((least <= found) & (found <= most))


def test_of_nearly_all_that_may_be_trimmed_something_is_left(in_process):
  process = coordinate_wise.trimmed_mean_factory(0.5 - 1e-10).create(VALUE, WEIGHT)
  values = clients_of(2)
  result = process.next(process.initialize(), values, [1.0, 1.0]).result
  for found, of_clients in zip(result, zip(*values)):
    np.testing.assert_allclose(found, np.mean(of_clients, axis=0), rtol=1e-6)


@pytest.mark.parametrize("share", [-0.1, 0.5, float("nan")])
def test_share_out_of_range_is_refused(share):
  with pytest.raises(InputError, match="share must be at least 0 and less than"):
    coordinate_wise.trimmed_mean_factory(share)
