"""Law: with some settings an algorithm is another one, or has a closed form."""

from __future__ import annotations

import driver
import numpy as np
import problems
import pytest
import replay
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.aggregators.temporal_weighting import TemporalWeightingFactory
from tff_algos.algorithms import fed_reg
from tff_algos.algorithms.fed_agg import build_fed_agg
from tff_algos.algorithms.fed_gg import FedGGHparams
from tff_algos.client_work import local_training
from tff_algos.errors import InputError


def assert_same_runs(one, other, rounds=problems.ROUNDS):
  for t, clients in enumerate(rounds):
    one.round(clients)
    other.round(clients)
    driver.assert_within_rounding(one.weights, other.weights, f"round {t}")


def initial(problem):
  return replay.as_weights(problem.model.initial_weights)


def largest_difference(one, other) -> float:
  pairs = zip(one.weights, other.weights)
  return max(np.max(np.abs(a - b)) for a, b in pairs)


EVERYONE = range(problems.NUM_CLIENTS)


def test_fedprox_without_its_term_is_fedavg(federate):
  assert_same_runs(federate("fedprox", "mlp", mu=0.0), federate("fedavg", "mlp"))


@pytest.mark.parametrize("direction", ["client_state", "broadcast"])
@pytest.mark.parametrize(
  "off",
  [dict(mu=0.0), dict(weight="fixed", fixed_weight=0.0)],
  ids=["adaptive", "fixed"],
)
def test_fedgg_without_its_term_is_fedavg(federate, direction, off):
  fed_gg = federate("fedgg", "mlp", direction=direction, **off)
  assert_same_runs(fed_gg, federate("fedavg", "mlp"))


@pytest.mark.parametrize("weight", ["adaptive", "fixed"])
@pytest.mark.parametrize("direction", ["client_state", "broadcast"])
def test_fedgg_is_fedavg_in_round_0_only(federate, direction, weight):
  fed_gg = federate(
    "fedgg", "mlp", mu=1.0, fixed_weight=0.05, weight=weight, direction=direction
  )
  fed_avg = federate("fedavg", "mlp")
  assert_same_runs(fed_gg, fed_avg, [EVERYONE])
  fed_gg.round(EVERYONE)
  fed_avg.round(EVERYONE)
  assert largest_difference(fed_gg, fed_avg) > 1e-4


def test_fedgg_first_step_is_for_a_fixed_weight():
  with pytest.raises(InputError, match="first_step=epsilon is for weight=fixed"):
    FedGGHparams(first_step="epsilon")


def test_fedgg_client_takes_no_direction_from_rounds_it_missed(federate):
  """A newcomer of round 1 trains as in FedAvg, whatever the server did before."""
  fed_gg, fed_avg = federate("fedgg", mu=1.0), federate("fedavg")
  assert_same_runs(fed_gg, fed_avg, [(0, 1), (2, 3)])


def test_fedgg_directions_agree_while_everyone_takes_part(federate):
  own = federate("fedgg", "mlp", mu=1.0)
  sent = federate("fedgg", "mlp", mu=1.0, direction="broadcast")
  assert_same_runs(own, sent, [EVERYONE] * 3)


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
def test_fedsgd_is_fedavg_with_one_step_on_all_examples(federate, weighting):
  options = dict(problem="mlp", client_weighting=weighting, learning_rate=0.2)
  fed_avg = federate("fedavg", epochs=1, batch_size=None, **options)
  assert_same_runs(federate("fedsgd", **options), fed_avg)


def test_sgd_is_fedsgd_with_all_clients_counting_the_same(federate):
  fed_sgd = federate("fedsgd", "mlp", client_weighting="uniform")
  assert_same_runs(federate("sgd", "mlp"), fed_sgd)


def test_fedavg_with_batches_of_more_than_all_examples_takes_all_examples(federate):
  largest = federate("fedavg", "mlp", batch_size=1000)
  assert_same_runs(largest, federate("fedavg", "mlp", batch_size=None))


def test_fedsgd_follows_the_gradient_of_all_examples_together(federate):
  """With weights n_i/n_S it is gradient descent on the pooled examples [derived]."""
  fed_sgd = federate("fedsgd", "mlp", learning_rate=0.2)
  weights = initial(fed_sgd.problem)
  for t, clients in enumerate(problems.ROUNDS):
    _, gradient = problems.pooled(fed_sgd.problem, clients, weights)
    weights = [w - 0.2 * g for w, g in zip(weights, gradient)]
    fed_sgd.round(clients)
    driver.assert_close(fed_sgd.weights, weights, f"round {t}")


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
@pytest.mark.parametrize("option", ["I", "II"])
def test_scaffold_is_fedavg_in_round_0(federate, option, weighting):
  scaffold = federate("scaffold", "mlp", option=option, client_weighting=weighting)
  fed_avg = federate("fedavg", "mlp", client_weighting=weighting)
  assert_same_runs(scaffold, fed_avg, [(0, 1, 3)])
  scaffold.round((1, 2))
  fed_avg.round((1, 2))
  assert driver.differ(scaffold.weights, fed_avg.weights)


def test_scaffold_options_agree_for_one_step_on_all_examples(federate):
  """(x - y)/eta_l is then grad F_i(x) - c_i + c, so that c_i+ is grad F_i(x)."""
  settings = dict(epochs=1, batch_size=None)
  one, two = (federate("scaffold", option=o, **settings) for o in ("I", "II"))
  for clients in problems.ROUNDS:
    one.round(clients)
    two.round(clients)
    # (x - y)/eta_l takes 1/eta_l = 10 times the rounding of x.
    driver.assert_close(one.weights, two.weights)
    for client in clients:
      states = one.client_states[client], two.client_states[client]
      driver.assert_close(*states, size=1.0)


def test_scaffold_where_everyone_has_the_same_examples_is_fedavg(federate):
  """Option I with full batches: c = c_i, so that no correction is left [derived]."""
  settings = dict(batch_size=None, client_weighting="uniform")
  scaffold = federate("scaffold", option="I", **settings)
  fed_avg = federate("fedavg", **settings)
  twins = dict.fromkeys(EVERYONE, "1")
  for _ in range(3):
    scaffold.round(EVERYONE, twins)
    fed_avg.round(EVERYONE, twins)
    driver.assert_close(scaffold.weights, fed_avg.weights)


def test_fedcurv_without_its_penalty_is_fedavg(federate):
  fed_curv = federate("fedcurv", "mlp", curvature=0.0)
  assert_same_runs(fed_curv, federate("fedavg", "mlp"))


def test_fedcurv_is_fedavg_in_round_0_only(federate):
  fed_curv = federate("fedcurv", "mlp", curvature=1.0)
  fed_avg = federate("fedavg", "mlp")
  assert_same_runs(fed_curv, fed_avg, [(0, 1, 3)])
  fed_curv.round((0, 1))
  fed_avg.round((0, 1))
  assert largest_difference(fed_curv, fed_avg) > 1e-4


def test_fedcurv_client_feels_no_penalty_of_its_own(federate):
  """Who was alone in the round before leaves its own share out: nothing is left."""
  fed_curv = federate("fedcurv", "mlp", curvature=1.0)
  fed_avg = federate("fedavg", "mlp")
  assert_same_runs(fed_curv, fed_avg, [(1,), (1,), (), (1,)])
  fed_curv.round((0,))
  fed_avg.round((0,))
  assert largest_difference(fed_curv, fed_avg) > 1e-4


def test_fedcurv_client_leaves_out_its_share_of_the_last_round_only(federate):
  """Its state is older than what the others sent, so nothing is taken away."""
  one, other = (federate("fedcurv", "mlp", curvature=1.0) for _ in range(2))
  one.round((0, 1)).round((2,))
  other.round((0, 1)).round((2,))
  other.client_states[0] = other.process.initialize_client()
  assert_same_runs(one, other, [(0, 3)])


def fed_dyn_and_fed_avg(federate):
  """Both from the same weights in each round, FedDyn with a regularizer that vanishes."""
  fed_dyn = federate("feddyn", "mlp", alpha=0.0)
  fed_avg = federate("fedavg", "mlp", client_weighting="uniform")
  for clients in problems.ROUNDS:
    before = tuple(fed_dyn.weights)
    fed_avg.state = fed_avg.process.set_model_weights(
      fed_avg.state, tff.learning.models.ModelWeights(before, ())
    )
    yield clients, before, fed_dyn.round(clients), fed_avg.round(clients)


def test_feddyn_without_its_regularizer_moves_further_in_round_0(federate):
  """By 1 + |S|/N of the clients' mean update, as their l_i are their updates."""
  clients, start, fed_dyn, fed_avg = next(fed_dyn_and_fed_avg(federate))
  factor = 1 + len(clients) / problems.NUM_CLIENTS
  expected = [x + factor * (w - x) for x, w in zip(start, fed_avg.weights)]
  driver.assert_within_rounding(fed_dyn.weights, expected)
  assert largest_difference(fed_dyn, fed_avg) > 1e-2


def test_feddyn_without_its_regularizer_is_the_mean_model_plus_h(federate):
  for _, _, fed_dyn, fed_avg in fed_dyn_and_fed_avg(federate):
    expected = tuple(map(np.add, fed_avg.weights, fed_dyn.state.variables.extra))
    driver.assert_within_rounding(fed_dyn.weights, expected)


def test_feddyn_without_regularizer_and_server_dual_is_uniform_fedavg(federate):
  fed_dyn = federate("feddyn", "mlp", alpha=0.0, server_dual="none")
  fed_avg = federate("fedavg", "mlp", client_weighting="uniform")
  assert_same_runs(fed_dyn, fed_avg, problems.ROUNDS)


def test_feddyn_strength_is_in_inverse_proportion_to_the_examples(federate):
  """After one step it shows nothing, for w = x and l_i = 0; after two it does [derived].

  A client alone, in full batches: w_2 = w_1 - eta (g(w_1) + a_i (w_1 - x)).
  """
  settings = dict(epochs=2, batch_size=None, learning_rate=0.2)
  for client in (1, 2):
    strong, none = (
      federate("feddyn", "mlp", alpha=alpha, **settings).round([client])
      for alpha in (0.5, 0.0)
    )
    one = federate("fedsgd", "mlp", learning_rate=0.2).round([client])
    start = initial(one.problem)
    share = problems.SIZES[client] * problems.NUM_CLIENTS / sum(problems.SIZES)
    for x, w_1, with_term, without in zip(
      start,
      one.weights,
      strong.client_states[client],
      none.client_states[client],
    ):
      expected = without - 0.2 * 0.5 / share * (w_1 - x)
      driver.assert_close(with_term, expected, size=1.0)


LOOP = dict(rounds_in_loop=3, freq=1)
ALWAYS_DEEP = dict(rounds_in_loop=2, freq=2)


@pytest.mark.parametrize("deep_from", ["", "w3"])
def test_twafl_with_all_layers_in_every_round_is_tefl(federate, deep_from):
  twafl = federate("twafl", "mlp", base=4.0, deep_from=deep_from, **ALWAYS_DEEP)
  assert_same_runs(twafl, federate("tefl", "mlp", base=4.0))


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
def test_afl_with_all_layers_and_everyone_in_every_round_is_fedavg(federate, weighting):
  afl = federate("afl", "mlp", client_weighting=weighting, **ALWAYS_DEEP)
  fed_avg = federate("fedavg", "mlp", client_weighting=weighting)
  assert_same_runs(afl, fed_avg, [EVERYONE] * 4)


@pytest.mark.parametrize("base", [1.0, 4.0])
def test_tefl_with_everyone_in_every_round_is_fedavg(federate, base):
  """All uploads are then of one age."""
  tefl, fed_avg = federate("tefl", "mlp", base=base), federate("fedavg", "mlp")
  assert_same_runs(tefl, fed_avg, [EVERYONE] * 4)


def test_twafl_whose_uploads_do_not_age_is_afl(federate):
  twafl = federate("twafl", "mlp", base=1.0, **LOOP)
  assert_same_runs(twafl, federate("afl", "mlp", **LOOP), problems.ROUNDS * 2)


@pytest.mark.parametrize("name", ["twafl", "afl"])
def test_deep_layers_of_the_server_move_in_the_last_rounds_of_a_loop(federate, name):
  options = dict(base=1.0) if name == "twafl" else {}
  federation = federate(name, "mlp", **options, **LOOP)
  for t, clients in enumerate(problems.ROUNDS * 2):
    before = federation.weights
    federation.round(clients)
    for k, (old, new) in enumerate(zip(before, federation.weights)):
      is_shallow = k < 2  # The second half of an MLP's four arrays is deep.
      assert driver.differ(old, new) == (is_shallow or t % 3 == 2), f"{k}, round {t}"


PASSES = {"previous_round": {}, "fixed_point": dict(passes=1)}


@pytest.mark.parametrize("estimates", PASSES)
def test_fedagg_whose_rates_keep_to_the_anchor_is_fedavg(federate, estimates):
  """alpha = 1 leaves eta_l = eta_ref; each client goes its own way."""
  settings = dict(alpha=1.0, direction="local", estimates=estimates, **PASSES[estimates])
  fed_agg = federate("fedagg", "mlp", **settings)
  assert_same_runs(fed_agg, federate("fedavg", "mlp"))


@pytest.mark.parametrize("rule", ["anchored", "literal"])
def test_fedagg_by_the_previous_round_is_fedavg_in_round_0_only(federate, rule):
  fed_agg = federate("fedagg", "mlp", rule=rule, max_learning_rate=0.04)
  fed_avg = federate("fedavg", "mlp")
  assert_same_runs(fed_agg, fed_avg, [(0, 1, 3)])
  fed_agg.round((0, 1, 3))
  fed_avg.round((0, 1, 3))
  assert largest_difference(fed_agg, fed_avg) > 1e-4


@pytest.mark.parametrize("estimates", PASSES)
def test_fedagg_by_the_literal_rule_stands_still_at_alpha_1(federate, estimates):
  """All rates are 0 as soon as there are estimates to make them from."""
  settings = dict(rule="literal", alpha=1.0, estimates=estimates, **PASSES[estimates])
  fed_agg = federate("fedagg", "mlp", **settings)
  start = fed_agg.weights
  if estimates == "previous_round":
    assert driver.differ(fed_agg.round((0, 1)).weights, start)
    start = fed_agg.weights
  for clients in problems.ROUNDS[1:]:
    driver.assert_same(fed_agg.round(clients).weights, start)


def test_fedreg_without_pseudo_data_is_fedavg(federate):
  options = dict(gamma=1.0, pseudo_steps=0, client_weighting="examples")
  assert_same_runs(federate("fedreg", "mlp", **options), federate("fedavg", "mlp"))


def test_fedreg_at_gamma_0_takes_all_gradients_at_the_start(federate):
  """n steps of one example each are then one n times as long on all [derived]."""
  for client in (0, 3):
    steps = dict(epochs=1, batch_size=1, learning_rate=0.05)
    fed_reg = federate("fedreg", "mlp", gamma=0.0, pseudo_steps=0, **steps)
    whole = 0.05 * problems.SIZES[client]
    fed_sgd = federate("fedsgd", "mlp", learning_rate=whole)
    assert_same_runs(fed_reg, fed_sgd, [[client]])


def test_fedreg_mg_without_pseudo_data_is_fedreg(federate):
  options = dict(gamma=0.6, pseudo_steps=0, client_weighting="examples")
  one, other = (federate(name, "mlp", **options) for name in ("fedreg", "fedreg_mg"))
  assert_same_runs(one, other)


PRIVATE = {
  "dpsgd": ("sgd", {}),
  "fedavg_dpsgd": ("fedavg", {}),
  "fedprox_dpsgd": ("fedprox", dict(mu=0.5)),
  "fedcurv_dpsgd": ("fedcurv", dict(curvature=0.2)),
}


@pytest.mark.parametrize("name", PRIVATE)
def test_private_algorithm_without_noise_and_clipping_is_the_plain_one(federate, name):
  """Only the order differs in which the examples' gradients are summed."""
  plain, options = PRIVATE[name]
  off = dict(noise_multiplier=0.0, clip_norm=1e4)
  private, plain = (
    federate(name, "mlp", **off, **options),
    federate(plain, "mlp", **options),
  )
  for t, clients in enumerate(problems.ROUNDS):
    private.round(clients)
    plain.round(clients)
    driver.assert_close(private.weights, plain.weights, f"round {t}")
    extras = private.state.variables.extra, plain.state.variables.extra
    driver.assert_close(*extras, f"what the server keeps, round {t}")


@pytest.mark.parametrize(
  "name, momentum",
  [("fedavg", 0.0), ("fedavg", 0.9), ("fedprox", 0.0), ("fedgg", 0.0), ("scaffold", 0.0)],
)
def test_one_client_alone_does_plain_sgd(federate, name, momentum):
  """One round of linear regression, written out; also the mean of the losses met."""
  options = dict(mu=0.0) if name == "fedprox" else {}
  federation = federate(name, momentum=momentum, **options)
  x, y = federation.problem.numpy_examples(1)
  n, rate = len(x), problems.LOCAL["learning_rate"]
  order = local_training.batch_order(
    tf.constant(problems.client_seed(federation.seed, 0, 1)),
    tf.constant(n),
    problems.LOCAL["epochs"],
  ).numpy()
  w, b = initial(federation.problem)
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


def _adam(v, squared, beta2):
  return beta2 * v + (1 - beta2) * squared


def _yogi(v, squared, beta2):
  return v - (1 - beta2) * squared * np.sign(v - squared)


def _adagrad(v, squared, beta2):
  del beta2
  return v + squared


@pytest.mark.parametrize(
  "name, next_v", [("fedadam", _adam), ("fedyogi", _yogi), ("fedadagrad", _adagrad)]
)
def test_first_step_of_the_adaptive_servers(federate, name, next_v):
  """x + eta (1-b1) Delta / (sqrt(v) + tau) with v from tau^2: no bias correction.

  One full-batch step makes Delta = -eta_l times the gradient of the pooled examples.
  """
  b1, eta, tau, rate = 0.8, 0.05, 0.02, 0.1
  beta2 = {} if name == "fedadagrad" else dict(beta2=0.7)
  federation = federate(
    name,
    epochs=1,
    batch_size=None,
    learning_rate=rate,
    server_learning_rate=eta,
    tau=tau,
    beta1=b1,
    **beta2,
  )
  clients = (0, 1, 3)
  start = initial(federation.problem)
  _, gradient = problems.pooled(federation.problem, clients, start)
  expected = []
  for x, g in zip(start, gradient):
    delta = -rate * g
    v = next_v(tau**2, delta**2, 0.7)
    expected.append(x + eta * (1 - b1) * delta / (np.sqrt(v) + tau))
  driver.assert_close(federation.round(clients).weights, expected)


def test_fedavgm_without_momentum_is_fedavg(federate):
  assert_same_runs(
    federate("fedavgm", "mlp", server_momentum=0.0), federate("fedavg", "mlp")
  )


def test_fedavgm_that_looks_ahead_is_fedavg_from_there(federate):
  """x' = FedAvg(x + b (x - x_before)) while eta_g = 1, whose Delta is from there."""
  momentum = federate("fedavgm", server_momentum=0.5, server_momentum_form="nesterov")
  plain = federate("fedavg")
  before = last = initial(momentum.problem)
  for clients in problems.ROUNDS:
    ahead = tuple(x + 0.5 * (x - y) for x, y in zip(last, before))
    plain.state = plain.process.set_model_weights(
      plain.state, tff.learning.models.ModelWeights(ahead, ())
    )
    before, last = last, momentum.round(clients).weights
    driver.assert_close(last, plain.round(clients).weights)


def test_fedavgm_is_fedavg_and_half_of_its_last_move(federate):
  """x' = FedAvg(x) + b v, where v is the last move while eta_g = 1."""
  momentum, plain = federate("fedavgm", server_momentum=0.5), federate("fedavg")
  before, velocity = initial(momentum.problem), None
  for clients in problems.ROUNDS:
    weights = tff.learning.models.ModelWeights(tuple(before), ())
    plain.state = plain.process.set_model_weights(plain.state, weights)
    expected = plain.round(clients).weights
    if velocity is not None:
      expected = [e + 0.5 * v for e, v in zip(expected, velocity)]
    after = momentum.round(clients).weights
    driver.assert_close(after, expected)
    velocity, before = [a - b for a, b in zip(after, before)], after


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
