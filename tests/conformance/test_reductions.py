"""Law: with some settings an algorithm is another one, or has a closed form.

Every process is its replay (`test_replayed_rounds.py`), and what the replays reduce to is
in `test_replay.py` and those beside it, in float64. Here is what no replay can say.
"""

from __future__ import annotations

import driver
import numpy as np
import problems
import pytest
import replay
import tensorflow as tf

from tff_algos.aggregators.temporal_weighting import TemporalWeightingFactory
from tff_algos.algorithms import fed_reg
from tff_algos.algorithms.fed_agg import build_fed_agg
from tff_algos.algorithms.fed_gg import FedGGHparams
from tff_algos.client_work import local_training
from tff_algos.errors import InputError


def test_fedgg_first_step_is_for_a_fixed_weight():
  with pytest.raises(InputError, match="first_step=epsilon is for weight=fixed"):
    FedGGHparams(first_step="epsilon")


def test_twafl_with_all_layers_in_every_round_is_tefl_wherever_they_are_cut(federate):
  always = dict(rounds_in_loop=2, freq=2)
  twafl = federate("twafl", base=4.0, deep_from="w3", **always)
  tefl = federate("tefl", base=4.0)
  for t, clients in enumerate(problems.ROUNDS):
    expected = tefl.round(clients).weights
    driver.assert_within_rounding(twafl.round(clients).weights, expected, f"round {t}")


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_fedavg_of_one_client_alone_is_plain_sgd(federate, momentum):
  """One round of linear regression, written out; also the mean of the losses met."""
  federation = federate("fedavg", "linear", momentum=momentum)
  x, y = federation.problem.numpy_examples(1)
  n, rate = len(x), problems.LOCAL["learning_rate"]
  order = local_training.batch_order(
    tf.constant(problems.client_seed(federation.seed, 0, 1)),
    tf.constant(n),
    problems.LOCAL["epochs"],
  ).numpy()
  w, b = replay.as_weights(federation.problem.model.initial_weights)
  v_w, v_b, losses = 0.0, 0.0, []
  for epoch in order:
    for first in range(0, n, problems.LOCAL["batch_size"]):
      rows = epoch[first : first + problems.LOCAL["batch_size"]]
      errors = (x[rows] @ w + b)[:, 0] - y[rows]
      losses.extend(errors**2 / 2)
      v_w = momentum * v_w + x[rows].T @ errors[:, None] / len(rows)
      v_b = momentum * v_b + np.mean(errors)
      w, b = w - rate * v_w, b - rate * v_b
  federation.round([1])
  driver.assert_close(federation.weights, [w, b])
  assert len(losses) == problems.LOCAL["epochs"] * n
  np.testing.assert_allclose(federation.training["loss"], np.mean(losses), rtol=1e-5)


def test_fedaggs_first_round_is_fedavgs_its_loss_too(federate):
  """Nothing was estimated, so the rate is the given one; each epoch's losses differ."""
  settings = dict(epochs=3, learning_rate=0.1)
  one = federate("fedagg", **settings).round((0, 1, 2))
  other = federate("fedavg", **settings).round((0, 1, 2))
  driver.assert_close(one.weights, other.weights)
  np.testing.assert_allclose(one.training["loss"], other.training["loss"], rtol=1e-6)


@pytest.mark.thorough
def test_fedagg_estimates_then_temporal_weights_are_the_mean_while_everyone_takes_part(
  federate,
):
  """All uploads are then of one age; the estimates' exchanges leave no memory."""
  other = federate("fedagg", **driver.ESTIMATES)
  problem, hparams = other.problem, other.hparams
  temporal = TemporalWeightingFactory(
    problem.model.initial_weights, total_weight=sum(problems.SIZES)
  )
  process = build_fed_agg(problem.model, hparams, model_aggregator=temporal)
  one = driver.Federation(process, problem, hparams, seed=1)
  for _ in range(2):
    one.round(range(problems.NUM_CLIENTS))
    other.round(range(problems.NUM_CLIENTS))
    driver.assert_close(one.weights, other.weights)


@pytest.mark.parametrize(
  "drift, expected",
  [
    ((3.0, 2.0), (3.0, 2.0)),
    ((-1.0, 2.0), (0.0, 2.0)),
    ((1.0, -2.0), (1.0, 0.0)),
    ((-1.0, -2.0), (0.0, 0.0)),
  ],
)
def test_fedreg_never_goes_further_along_what_it_regularizes(drift, expected):
  """By hand: along the unit vectors, so each weight is a component of the drift, or 0."""
  unit = (tf.constant([1.0, 0.0]),), (tf.constant([0.0, 1.0]),)
  found = fed_reg.regularize((tf.constant(drift),), *unit)
  assert tuple(map(float, found)) == expected


@pytest.mark.parametrize(
  "drift, expected", [((2.0, 2.0), (2.0, 1.0)), ((-1.0, 2.0), (0.0, 0.5))]
)
def test_fedregs_second_weight_is_of_what_the_first_leaves(drift, expected):
  """g_s = (1, 0) and g_p = (1, 1), so that w_p = (u_1 - w_s + u_2) / 2."""
  gradients = (tf.constant([1.0, 0.0]),), (tf.constant([1.0, 1.0]),)
  found = fed_reg.regularize((tf.constant(drift),), *gradients)
  assert tuple(map(float, found)) == expected
