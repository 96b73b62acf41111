"""The table of aggregators for the model's part, named by a word of the command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from tff_algos import spellings
from tff_algos.errors import InputError

if TYPE_CHECKING:
  from tff_algos.templates.rounds import AggregationFactory


# Far less than could hide anything, and far more than what squared is 0.
_LEAST_NOISE = 1e-9
_SHARE = 0.1


class Aggregator(NamedTuple):
  """A row of `AGGREGATORS`.

  Attributes:
    function: Makes the factory. The keyword-only parameter `clients_per_round` is the
      run's, the others are the command line's.
    description: One line that says what it does.
  """

  function: Callable[..., AggregationFactory]
  description: str


# TFF is imported where a factory is made: flags are checked before.
def _zeroing() -> AggregationFactory:
  import tensorflow_federated as tff

  return tff.learning.robust_aggregator(clipping=False)


def _clipping() -> AggregationFactory:
  import tensorflow_federated as tff

  return tff.learning.robust_aggregator(zeroing=False)


def _robust() -> AggregationFactory:
  import tensorflow_federated as tff

  return tff.learning.robust_aggregator()


def _secure_sum() -> AggregationFactory:
  import tensorflow_federated as tff

  return tff.learning.secure_aggregator()


def _dp(*, noise_multiplier: float, clients_per_round: int) -> AggregationFactory:
  import tensorflow_federated as tff

  # TFF estimates the clip by noised counts, whose noise, of 0.05 times the cohort, is a
  # part of this; it divides by the square of what is given.
  high = 0.1 * clients_per_round
  if not _LEAST_NOISE <= noise_multiplier < high:
    raise InputError(
      f"noise_multiplier of the aggregator dp must be >= {_LEAST_NOISE:g} and below a "
      f"tenth of clients_per_round, here {high:g}; found {noise_multiplier:g}: change it "
      "or raise clients_per_round."
    )
  return tff.learning.dp_aggregator(noise_multiplier, clients_per_round)


def _median() -> AggregationFactory:
  from tff_algos.aggregators import coordinate_wise

  return coordinate_wise.median_factory()


def _trimmed_mean(*, share: float = _SHARE) -> AggregationFactory:
  from tff_algos.aggregators import coordinate_wise

  return coordinate_wise.trimmed_mean_factory(share)


AGGREGATORS: dict[str, Aggregator] = {
  "zeroing": Aggregator(_zeroing, "updates far larger than those of past rounds are 0"),
  "clipping": Aggregator(_clipping, "norms cut to the 0.8 quantile of past rounds"),
  "robust": Aggregator(_robust, "zeroing, then clipping; TFF's robust_aggregator"),
  "dp": Aggregator(_dp, "zeroing, clipping, Gaussian noise, new in each run; unweighted"),
  "secure_sum": Aggregator(_secure_sum, "zeroing, clipping, and secure sums of integers"),
  "median": Aggregator(_median, "each coordinate's median over the clients; unweighted"),
  "trimmed_mean": Aggregator(
    _trimmed_mean, "each coordinate's mean without its extremes; unweighted"
  ),
}


def parse(spec: str) -> tuple[str, dict[str, Any]]:
  """Reads name or name:key=value,...

  >>> parse("trimmed_mean:share=0.2")
  ('trimmed_mean', {'share': 0.2})

  Raises:
    InputError: The name or a parameter is unknown, malformed or missing.
  """
  functions = {name: row.function for name, row in AGGREGATORS.items()}
  return spellings.parse(spec, "aggregator", functions, given=("clients_per_round",))


def check(spec: str, *, clients_per_round: Optional[int]) -> None:
  """Checks the command line's form.

  Args:
    spec: See `parse`.
    clients_per_round: The size of the cohort of a new run; None for an older one, which
      goes on with an aggregator that does nothing.

  Raises:
    InputError: What `parse` raises, or it does nothing to so few clients.
  """
  name, kwargs = parse(spec)
  share = kwargs.get("share", _SHARE)
  if clients_per_round is None or name != "trimmed_mean" or share <= 0:
    return
  if share * clients_per_round < 1 - 1e-9:
    raise InputError(
      "aggregator trimmed_mean leaves out floor(share * clients) at each end, which is "
      f"none of {clients_per_round} with share={share:g}: give more clients_per_round"
      f"{'' if clients_per_round < 3 else ', or a larger share'}."
    )


def make(spec: str, *, clients_per_round: int) -> AggregationFactory:
  """The factory that the command line's form says, for a builder's `model_aggregator`.

  Args:
    spec: See `parse`.
    clients_per_round: The size of the cohort.

  Raises:
    InputError: What `parse` raises, or a value is out of range.
  """
  name, kwargs = parse(spec)
  if name == "dp":
    kwargs["clients_per_round"] = clients_per_round
  return AGGREGATORS[name].function(**kwargs)
