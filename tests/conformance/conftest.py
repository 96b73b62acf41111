"""The runtime, the problems and the processes that the conformance tests share."""

from __future__ import annotations

import driver
import problems
import pytest
from replays import SEED


@pytest.fixture(scope="session")
def problem_of(tmp_path_factory):
  """`(name) -> Problem`; each is written to disk once."""
  made = {}

  def get(name: str) -> problems.Problem:
    if name not in made:
      made[name] = problems.make(name, str(tmp_path_factory.mktemp(name)))
    return made[name]

  return get


@pytest.fixture(scope="session")
def federate(in_process, problem_of):
  """`(algorithm, problem, seed, **hyper-parameters) -> Federation` before its round 0.

  Processes that differ in tunable hyper-parameters alone are built once, and the values
  set; `test_setting_a_hparam_is_building_with_it` says that this is the same.
  """
  built = {}

  def make(name, problem="linear", seed=SEED, **settings):
    hparams = driver.hparams_of(name, **settings)
    key = name, problem, driver.fixed_part(hparams)
    if key not in built:
      built[key] = driver.build(name, problem_of(problem), driver.fixed_part(hparams))
    return driver.Federation(built[key], problem_of(problem), hparams, seed)

  return make
