"""What DP-SGD at the clients guarantees each of their examples."""

from __future__ import annotations

import math
from typing import NamedTuple

from tff_algos.errors import InputError, check_number


def epsilon(noise_multiplier: float, num_releases: int, delta: float) -> float:
  """The epsilon of an example's (epsilon, delta) differential privacy.

  Every example is in exactly one mini-batch of an epoch, so an epoch is one Gaussian
  mechanism for it, however many batches there are, and a client's epochs of all rounds
  compose: `num_releases` mechanisms, without amplification by sampling [derived].
  Neighbours are data sets in which one example's gradient is zero; whoever sees all that
  the client sends is the adversary, but for the seed of its round: whoever has that can
  draw the noise again, as the server of a simulation can. Composed by Renyi differential
  privacy of the `dp-accounting` library.

  Args:
    noise_multiplier: sigma, the noise's standard deviation over the clip norm, >= 0.
    num_releases: How many noisy sums an example took part in, >= 0.
    delta: In (0, 1).

  Returns:
    Epsilon >= 0; infinity without noise.

  Raises:
    InputError: An argument is no number, out of range or too large to compute with.
  """
  noise_multiplier = check_number("noise_multiplier", noise_multiplier)
  releases = check_number("num_releases", num_releases)
  delta = check_number("delta", delta)
  is_whole = -math.inf < releases < math.inf and releases == int(releases)
  if not (noise_multiplier >= 0 and releases >= 0 and is_whole and 0 < delta < 1):
    raise InputError(
      "noise_multiplier must be >= 0, num_releases a whole number >= 0 and delta in "
      f"(0, 1); found {noise_multiplier}, {releases} and {delta}."
    )
  if releases == 0:
    return 0.0
  if noise_multiplier == 0:
    return math.inf
  # Costs a second to import, and only a private run's end needs it.
  import dp_accounting

  accountant = dp_accounting.rdp.RdpAccountant()
  mechanism = dp_accounting.GaussianDpEvent(noise_multiplier)
  try:
    accountant.compose(mechanism, int(releases))
    return float(accountant.get_epsilon(delta))
  except (OverflowError, TypeError) as error:  # Beyond 64 bits NumPy has no type.
    raise InputError(
      "noise_multiplier or num_releases is so large that epsilon cannot be computed: "
      "give a smaller one."
    ) from error


class GaussianMechanism(NamedTuple):
  """By what a process keeps the examples of its clients private.

  Attributes:
    noise_multiplier: sigma of each release, see `epsilon`.
    releases_per_round: How many noisy sums an example takes part in, in a round of its
      client.
    delta: At which epsilon is reported, in (0, 1).
  """

  noise_multiplier: float
  releases_per_round: int
  delta: float

  def epsilon(self, num_rounds: int) -> float:
    """Epsilon of the examples of a client that took part in so many rounds, >= 0."""
    return epsilon(
      self.noise_multiplier, num_rounds * self.releases_per_round, self.delta
    )
