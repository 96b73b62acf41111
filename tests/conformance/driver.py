"""Drives a process round by round, as a simulation would."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

import numpy as np
import problems
import pytest
import tensorflow as tf

from tff_algos import hyper_parameters
from tff_algos.algorithms import registry
from tff_algos.client_data import ClientInput
from tff_algos.templates.stateful_process import StatefulProcess

# Between float32 and float64 after at most ten local steps in each of four rounds: some
# tens of roundings of 6e-8 each, relative to the largest number of the array.
RTOL, ATOL = 2e-5, 2e-6

# Tunables that the initial state depends on, so that setting them later is not the same
# as building with them: v of the adaptive servers starts at tau^2.
SHAPE_THE_START = {"tau"}

# FedAgg's other estimates: an exchange before the training, in each round.
ESTIMATES = dict(estimates="fixed_point", passes=1, direction="aggregated")

# One of each kind of round that the templates compose: without a client state, with one,
# with memories and two sorts of rounds, with noise, with two exchanges.
_KINDS = ("fedavg-plain", "scaffold-plain", "twafl-plain", "fedavg_dpsgd-plain")
_KINDS += ("fedagg-estimates",)


def _marked(label: str) -> list[Any]:
  return [] if label in _KINDS else [pytest.mark.thorough]


# For a law of one argument, `name`, that templates and runtimes keep.
every_algorithm = pytest.mark.parametrize(
  "name",
  [
    pytest.param(name, marks=_marked(f"{name}-plain") if name != "fedagg" else [])
    for name in registry.ALGORITHMS
  ],
)


def every_form(*more: tuple[str, dict]) -> list[Any]:
  """`name, settings` for a law that templates and runtimes keep, not the algorithms.

  Every algorithm, FedAgg's other estimates, and what is given. Of those one of each kind
  of round is always tested, the others by `-m thorough`.
  """
  cases = [(name, {}) for name in registry.ALGORITHMS] + [("fedagg", ESTIMATES), *more]
  named = [(f"{name}-{next(iter(own), 'plain')}", name, own) for name, own in cases]
  return [pytest.param(*case, id=label, marks=_marked(label)) for label, *case in named]


def hparams_of(name: str, **settings) -> Any:
  """Those of `problems`, as far as the algorithm has them, and `settings`."""
  common = {**problems.LOCAL, **problems.PSEUDO, **problems.SCHEDULE}
  known = where_it_has_them(name, **common)
  return registry.get(name).hparams_class(**{**known, **settings})


def where_it_has_them(name: str, **settings) -> dict:
  """Those of `settings` that are hyper-parameters of the algorithm."""
  cls = registry.get(name).hparams_class
  return {k: v for k, v in settings.items() if hasattr(cls, k)}


def problem_for(name: str, problem: str) -> str:
  """The problem, or another where the algorithm is not for its labels."""
  return problems.OF_CLASSES.get(problem, problem) if name == "pfedgp" else problem


# Their server keeps sums of all clients' last uploads: they take another way to sum.
SUMMING = ("afl", "tefl", "twafl")


def build(
  name: str, problem: problems.Problem, hparams: Any, aggregator: Any = None
) -> StatefulProcess:
  """The algorithm's process, with an aggregator in place of its own if one is given."""
  row = registry.get(name)
  population = dict(num_clients=problems.NUM_CLIENTS, num_examples=sum(problems.SIZES))
  if aggregator is not None and name in SUMMING:
    return row.builder(problem.model, hparams, **population, sum_factory=aggregator)
  return row.build(problem.model, hparams, **population, aggregator=aggregator)


def tunables_of(hparams: Any) -> dict[str, np.float32]:
  values = hyper_parameters.tunable_values(hparams)
  return {name: np.float32(value) for name, value in values.items()}


def set_hparams(process: StatefulProcess, state: Any, changed: dict) -> Any:
  """The state with some tunable hyper-parameters changed."""
  values = process.get_hparams(state)
  assert set(changed) <= set(values)
  values.update(changed)
  return process.set_hparams(state, values)


def fixed_part(hparams: Any) -> Any:
  """`hparams` with the default wherever a value can be set after building."""
  defaults = type(hparams)()
  tunables = [k for k in tunables_of(hparams) if k not in SHAPE_THE_START]
  return dataclasses.replace(hparams, **{k: getattr(defaults, k) for k in tunables})


class Federation:
  """The server and the clients of one run.

  Attributes:
    state: The server state.
    client_states: The state of each client that has taken part.
    metrics: Those of the last round.
  """

  def __init__(
    self, process: StatefulProcess, problem: problems.Problem, hparams: Any, seed: int
  ):
    """Starts with the tunables of `hparams`, whatever the process was built with."""
    self.process, self.problem, self.hparams = process, problem, hparams
    self.seed = seed
    self.state = set_hparams(process, process.initialize(), tunables_of(hparams))
    self.client_states: dict[int, Any] = {}
    self.metrics: Any = None
    self._rounds_done = 0

  @property
  def weights(self) -> list[np.ndarray]:
    return list(self.process.get_model_weights(self.state).trainable)

  @property
  def training(self):
    """The metrics of the clients' training in the last round."""
    return self.metrics["client_work"]["train"]

  def round(self, clients, data: Optional[dict[int, str]] = None) -> Federation:
    """One round; `data` names other files for some clients."""
    # One for each client: no client may find what another left in a shared one.
    states = [
      self.client_states[c]
      if c in self.client_states
      else self.process.initialize_client()
      for c in clients
    ]
    inputs = [
      ClientInput(
        self.problem.directory.path((data or {}).get(c, str(c))),
        problems.client_seed(self.seed, self._rounds_done, c),
      )
      for c in clients
    ]
    next_fn = self.process.next_of(self._rounds_done)
    output = next_fn(self.state, states, inputs)
    assert len(output.client_states) == len(clients)
    self.state, self.metrics = output.state, output.metrics
    self.client_states.update(zip(clients, output.client_states))
    self._rounds_done += 1
    return self

  def run(self, rounds=problems.ROUNDS) -> Federation:
    for clients in rounds:
      self.round(clients)
    return self

  def cohort(self, clients):
    """What `replay` takes for the round that is next."""
    return self.problem.cohort(clients, self.seed, self._rounds_done, self.hparams)


def flat(value: Any) -> list[np.ndarray]:
  """The arrays of a structure."""
  return [np.asarray(v) for v in tf.nest.flatten(value)]


def assert_close(
  found: Any, expected: Any, what: str = "", rtol=RTOL, atol=ATOL, size: float = 0.0
):
  """Array by array; `atol` is relative to the largest number of the array.

  Or to `size`, the size of the numbers whose difference the array is, if that is more.
  """
  found, expected = flat(found), flat(expected)
  assert len(found) == len(expected), what
  for k, (a, b) in enumerate(zip(found, expected)):
    assert a.shape == b.shape, f"{what}, array {k}"
    scale = np.max(np.abs(b), initial=size)
    np.testing.assert_allclose(
      a, b, rtol=rtol, atol=atol * scale, err_msg=f"{what}, array {k}"
    )


def assert_within_rounding(found: Any, expected: Any, what: str = "", size: float = 0.0):
  """Two float32 results that differ by the order of a few operations at most."""
  assert_close(found, expected, what, rtol=2e-6, atol=1e-6, size=size)


def assert_same(found: Any, expected: Any, what: str = ""):
  """Bit for bit."""
  found, expected = flat(found), flat(expected)
  assert len(found) == len(expected), what
  for k, (a, b) in enumerate(zip(found, expected)):
    np.testing.assert_array_equal(a, b, err_msg=f"{what}, array {k}")


def differ(found: Any, expected: Any) -> bool:
  return any(not np.array_equal(a, b) for a, b in zip(flat(found), flat(expected)))
