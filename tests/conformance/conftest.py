"""The runtime, the problems and the processes that the conformance tests share."""

from __future__ import annotations

import collections

import driver
import problems
import pytest
from replays import SEED

_KEPT = 8  # Each takes some 30 MB; with fewer, more are built twice.


def pytest_collection_modifyitems(items) -> None:
  """The law of the graphs comes first: they are seen when they are first run."""
  items.sort(key=lambda item: item.path.name != "test_optimized_sums.py")


@pytest.fixture(scope="session")
def problem_of(in_process, tmp_path_factory):
  """`(name) -> Problem`; each is written to disk once. Its rounds are in_process."""
  made = {}

  def get(name: str) -> problems.Problem:
    if name not in made:
      made[name] = problems.make(name, str(tmp_path_factory.mktemp(name)))
    return made[name]

  return get


@pytest.fixture(scope="session")
def federate(in_process, problem_of):
  """`(algorithm, problem, seed, **hyper-parameters) -> Federation` at its start.

  Processes that differ in tunable hyper-parameters alone are built once, and the values
  set; `test_built_anew.py` says that this is the same. Of those built the last ones used
  are kept, as each holds its traced functions.
  """
  built: collections.OrderedDict = collections.OrderedDict()

  def make(name, problem="mlp", seed=SEED, **settings):
    hparams = driver.hparams_of(name, **settings)
    problem = driver.problem_for(name, problem)
    model = problems.MODEL_OF.get(problem, problem)
    key = name, model, driver.fixed_part(hparams)
    if key not in built:
      built[key] = driver.build(name, problem_of(model), driver.fixed_part(hparams))
      if len(built) > _KEPT:
        built.popitem(last=False)
    built.move_to_end(key)
    return driver.Federation(built[key], problem_of(problem), hparams, seed)

  return make
