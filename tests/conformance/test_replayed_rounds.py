"""Law: every round of every algorithm is what its formulas give in NumPy."""

from __future__ import annotations

import itertools

import driver
import numpy as np
import problems
import pytest
from replays import REPLAYS

from tff_algos.algorithms import registry

CASES = [(name, label) for name, row in REPLAYS.items() for label in row.settings]

# Those that take gradients in a way of their own, for which the loss matters; the others
# all take them in `local_training.train_client`, as FedAvg.
OWN_GRADIENTS = {"fedavg", "fedsgd", "fedcurv", "fedreg", "fedreg_mg", "dpsgd", "pfedgp"}

# Of FedAgg, whose other settings have their options one by one.
_LONG = ("fixed_point_3_whole", "fixed_point_literal_local", "slow")

# Every setting on one of the models, the first one of some algorithms on all of them.
RUNS = [
  (name, label, problem)
  for name, label in CASES
  for problem in problems.REPLAYED
  if problem == "mlp"
  or (
    name in OWN_GRADIENTS
    and label == next(iter(REPLAYS[name].settings))
    and problem == driver.problem_for(name, problem)
  )
]


def replay_of(name, problem, hparams):
  weights = problem.model.initial_weights
  return REPLAYS[name].make(problem.numpy_model, weights, hparams, problems.NUM_CLIENTS)


def test_every_algorithm_of_the_registry_is_replayed():
  missing = [name for name in registry.ALGORITHMS if name not in REPLAYS]
  assert not missing, (
    f"tests/conformance/replays.py does not say how to replay {', '.join(missing)}: "
    "write the algorithm in replay.py from its formulas and add a row to REPLAYS."
  )
  gone = [name for name in REPLAYS if name not in registry.ALGORITHMS]
  assert not gone, f"REPLAYS has rows of no algorithm: {', '.join(gone)}."


@pytest.mark.parametrize(
  "name, label, problem",
  [
    pytest.param(
      *run,
      id="-".join(run),
      marks=[] if run[2] == "mlp" and run[1] not in _LONG else pytest.mark.thorough,
    )
    for run in RUNS
  ],
)
def test_rounds_are_the_replayed_ones(federate, name, label, problem):
  row = REPLAYS[name]
  federation = federate(name, problem, **row.settings[label])
  algorithm = replay_of(name, federation.problem, federation.hparams)
  for t, clients in enumerate(problems.ROUNDS):
    algorithm.round(federation.cohort(clients))
    federation.round(clients)
    driver.assert_close(
      federation.weights, algorithm.weights, f"the weights after round {t}"
    )
    driver.assert_close(
      row.comparable(driver.flat(federation.state.variables.extra)),
      row.comparable(row.server_extra(algorithm)),
      f"what the server keeps after round {t}",
      size=row.size,
    )
    for client in clients:
      driver.assert_close(
        federation.client_states[client],
        row.client_state(algorithm, client),
        f"the state of client {client} after round {t}",
        size=row.size,
      )


def test_another_algorithm_or_setting_would_be_seen(problem_of):
  """Any two cases end far apart, so none can stand in for another unnoticed."""
  problem = problem_of("mlp")
  ends = {}
  for name, label in CASES:
    hparams = driver.hparams_of(name, **REPLAYS[name].settings[label])
    algorithm = replay_of(name, problem, hparams)
    for t, clients in enumerate(problems.ROUNDS):
      algorithm.round(problem.cohort(clients, 1, t, hparams))
    ends[name, label] = np.concatenate([w.ravel() for w in algorithm.weights])
  for (a, end_a), (b, end_b) in itertools.combinations(ends.items(), 2):
    assert np.max(np.abs(end_a - end_b)) > 1e-4, f"{a} and {b}"
