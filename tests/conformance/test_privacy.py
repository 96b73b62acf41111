"""Law: a process says that it is private where private gradients are really taken."""

from __future__ import annotations

import dataclasses

import driver
import pytest

import tff_algos
from tff_algos.algorithms import fed_avg, fed_reg, registry
from tff_algos.privacy.accounting import GaussianMechanism
from tff_algos.privacy.dp_sgd_step import DpSgd

# Noisy sums that an example takes part in, in a round of E epochs.
RELEASES = {
  "dpsgd": lambda epochs: 1,
  "fedavg_dpsgd": lambda epochs: epochs,
  "fedprox_dpsgd": lambda epochs: epochs,
  # One more for the Fisher information.
  "fedcurv_dpsgd": lambda epochs: epochs + 1,
}


@pytest.mark.parametrize("name", registry.ALGORITHMS)
def test_privacy_is_what_the_algorithm_was_built_with(federate, problem_of, name):
  if name not in RELEASES:
    assert federate(name).process.privacy is None
    return
  given = dict(noise_multiplier=0.7, delta=1e-3, epochs=2)
  hparams = driver.hparams_of(name, **driver.where_it_has_them(name, **given))
  process = driver.build(name, problem_of("linear"), hparams)
  assert process.privacy == GaussianMechanism(0.7, RELEASES[name](2), 1e-3)


def test_noise_that_follows_from_the_examples_hides_nothing(problem_of):
  hparams = driver.hparams_of("dpsgd", noise_multiplier=10.0)
  process = driver.build("dpsgd", problem_of("linear"), hparams)
  over = tff_algos.over_datasets(process)
  assert over.privacy is None and process.privacy is not None
  assert process.recomposed().privacy == process.privacy
  assert process.recomposed(norm_limit=3.0).privacy == process.privacy


def test_rounds_of_ones_own_are_not_private(problem_of):
  process = driver.build("dpsgd", problem_of("linear"), driver.hparams_of("dpsgd"))
  own = process.recomposed(rounds=process.composed_of["rounds"])
  assert own.privacy is None and process.privacy is not None
  assert own.with_privacy(process.privacy).privacy == process.privacy


@dataclasses.dataclass(frozen=True)
class FedRegAndDpSgd(fed_reg.FedRegHparams, DpSgd):
  """Asks for privacy of an algorithm that has none."""


@dataclasses.dataclass(frozen=True)
class FedAvgAndDpSgd(fed_avg.FedAvgHparams, DpSgd):
  """The same of one that has it by another builder only."""


@pytest.mark.parametrize(
  "build, hparams",
  [
    (fed_reg.build_fed_reg, FedRegAndDpSgd()),
    (fed_avg.build_fed_avg, FedAvgAndDpSgd()),
  ],
)
def test_hyper_parameters_alone_make_nothing_private(problem_of, build, hparams):
  assert build(problem_of("softmax").model, hparams).privacy is None


def test_private_process_is_the_same_process(problem_of):
  process = fed_avg.build_fed_avg(problem_of("linear").model)
  private = process.with_privacy(GaussianMechanism(1.0, 1, 1e-5))
  assert (process.privacy, private.privacy) == (None, (1.0, 1, 1e-5))
  assert private.next is process.next and private.initialize is process.initialize
