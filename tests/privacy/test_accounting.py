"""Epsilon against the exact one of a Gaussian mechanism, and the laws of composition.

Balle, Wang: "Improving the Gaussian Mechanism for Differential Privacy", ICML 2018,
Theorem 8: with noise of standard deviation s times the sensitivity

  delta(eps) = Phi(1/(2s) - eps s) - e^eps Phi(-1/(2s) - eps s)
"""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, special

from tff_algos.privacy import accounting


def _exact_delta(epsilon: float, s: float) -> float:
  # By the logarithm of Phi: e^eps alone is too large a number for a small s.
  second = math.exp(epsilon + special.log_ndtr(-1 / (2 * s) - epsilon * s))
  return special.ndtr(1 / (2 * s) - epsilon * s) - second


def _exact_epsilon(s: float, delta: float) -> float:
  highest = 1 / (2 * s**2) + 10 / s  # There delta(eps) is below Phi(-10).
  return optimize.brentq(lambda e: _exact_delta(e, s) - delta, 0, highest, xtol=1e-12)


@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-7])
@pytest.mark.parametrize("s", [0.05, 0.5, 1.0, 2.0, 5.0])
def test_epsilon_of_one_release_is_a_bound_and_not_a_loose_one(s, delta):
  exact = _exact_epsilon(s, delta)
  assert exact <= accounting.epsilon(s, 1, delta) <= 1.3 * exact


@pytest.mark.parametrize("num_releases", [10, 100, 1000])
def test_epsilon_of_many_releases_is_a_bound_and_not_a_loose_one(num_releases):
  """They are one Gaussian mechanism of sigma / sqrt(k), whose delta is known."""
  sigma, delta = 20.0, 1e-5
  exact = _exact_epsilon(sigma / math.sqrt(num_releases), delta)
  assert exact <= accounting.epsilon(sigma, num_releases, delta) <= 1.3 * exact


_SIGMAS, _DELTAS = st.floats(0.05, 50), st.floats(1e-9, 0.1)


@settings(max_examples=25, deadline=None)
@given(_SIGMAS, st.integers(1, 10_000), _DELTAS)
def test_k_releases_are_one_with_less_noise(sigma, num_releases, delta):
  found = accounting.epsilon(sigma, num_releases, delta)
  expected = accounting.epsilon(sigma / math.sqrt(num_releases), 1, delta)
  assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)


@settings(max_examples=25, deadline=None)
@given(_SIGMAS, st.integers(1, 1000), _DELTAS, st.floats(1.01, 3))
def test_more_noise_fewer_releases_and_a_larger_delta_cost_less(sigma, k, delta, more):
  here = accounting.epsilon(sigma, k, delta)
  assert 0 <= here < math.inf
  for less in (
    accounting.epsilon(more * sigma, k, delta),
    accounting.epsilon(sigma, k, more * delta),
  ):
    assert less <= here
  assert accounting.epsilon(sigma, k + 1, delta) >= here


def test_it_is_strictly_so_in_the_range_of_use():
  epsilon = accounting.epsilon
  assert epsilon(2, 10, 1e-5) < epsilon(1, 10, 1e-5) < epsilon(1, 20, 1e-5)
  assert epsilon(1, 10, 1e-4) < epsilon(1, 10, 1e-5)


@pytest.mark.parametrize("sigma", [0.0, 0.05, 3.0])
def test_without_a_release_nothing_is_lost(sigma):
  assert accounting.epsilon(sigma, 0, 1e-5) == 0


@pytest.mark.parametrize("num_releases", [1, 7])
def test_without_noise_there_is_no_bound(num_releases):
  assert accounting.epsilon(0.0, num_releases, 1e-5) == math.inf


def test_little_noise_has_a_finite_epsilon():
  """The smallest sigma of the FedReg paper; the exact one is at least 1/(2 sigma^2)."""
  found = accounting.epsilon(0.001, 1, 1e-5)
  assert 0.5e6 < found < 0.65e6


def test_is_a_float_and_never_below_0():
  found = accounting.epsilon(5.0, 1, 0.9)
  assert type(found) is float
  assert found >= 0


@pytest.mark.parametrize("rounds, releases", [(0, 3), (1, 3), (4, 1), (5, 2)])
def test_mechanism_of_a_process_counts_the_releases_of_all_rounds(rounds, releases):
  mechanism = accounting.GaussianMechanism(1.5, releases, 1e-5)
  assert mechanism.epsilon(rounds) == accounting.epsilon(1.5, rounds * releases, 1e-5)


@pytest.mark.parametrize(
  "arguments",
  [
    (-0.1, 1, 1e-5),
    (1.0, -1, 1e-5),
    (1.0, 1, 0.0),
    (1.0, 1, 1.0),
    (1.0, 1, -1e-5),
    (1.0, 1, math.nan),
    (1.0, math.inf, 1e-5),
    (1.0, -math.inf, 1e-5),
    (1.0, math.nan, 1e-5),
    # Also where the answer would not depend on it.
    (1.0, 0, 0.0),
    (0.0, 1, 2.0),
  ],
)
def test_refuses_arguments_out_of_range(arguments):
  with pytest.raises(ValueError) as error:
    accounting.epsilon(*arguments)
  message = str(error.value)
  assert "delta in (0, 1)" in message and message.endswith(".")
  assert all(str(argument) in message for argument in arguments)


@pytest.mark.parametrize(
  "sigma, num_releases",
  [(1e200, 1), (1.1, 2**64), (1.1, 1e300)],
)
def test_numbers_too_large_to_compute_with_are_one_sentence(sigma, num_releases):
  with pytest.raises(ValueError, match="so large that epsilon cannot be computed"):
    accounting.epsilon(sigma, num_releases, 1e-5)


def test_number_that_no_float_holds_is_one_sentence():
  said = r"^num_releases must be a number that a float holds\.$"
  with pytest.raises(ValueError, match=said):
    accounting.epsilon(1.0, 10**400, 1e-5)
