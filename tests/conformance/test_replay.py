"""Checks of the NumPy reference against facts that do not come from its own code."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import replay

# Tools.

MODELS = {
  "softmax": replay.SoftmaxRegression(4, 3),
  "quadratic": replay.LinearRegression(4),
  "mlp": replay.Mlp(4, 5, 3),
}


def random_weights(model, seed=0):
  rng = np.random.default_rng(seed)
  return [rng.normal(size=p.shape) for p in model.initial()]


def random_client(model, num_examples, seed):
  rng = np.random.default_rng(seed)
  x = rng.normal(size=(num_examples, 4)) + rng.normal(size=4)
  if isinstance(model, replay.LinearRegression):
    return x, rng.normal(size=num_examples)
  return x, rng.integers(0, 3, size=num_examples)


SIZES = (5, 8, 3, 7)  # of clients 0..3: with B = 3 their K_i differ, last batch short


def cohort_of(model, client_ids, round_num=0, epochs=2, batch_size=3):
  cohort = []
  for i in client_ids:
    rng = np.random.default_rng((round_num, i))
    batches = []
    for _ in range(epochs):
      order = rng.permutation(SIZES[i])
      batches += [order[k : k + batch_size] for k in range(0, SIZES[i], batch_size)]
    cohort.append((i, random_client(model, SIZES[i], seed=i), batches))
  return cohort


def full_batch_cohort(model, client_ids, round_num=0, epochs=1):
  return [
    (i, random_client(model, SIZES[i], seed=i), [np.arange(SIZES[i])] * epochs)
    for i in client_ids
  ]


def central_differences(function, w, step=1e-5):
  gradient = []
  for k, p in enumerate(w):
    g = np.zeros_like(p)
    for index in np.ndindex(p.shape):
      up, down = [q.copy() for q in w], [q.copy() for q in w]
      up[k][index] += step
      down[k][index] -= step
      g[index] = (function(up) - function(down)) / (2 * step)
    gradient.append(g)
  return gradient


def assert_close(a, b, atol=1e-12):
  assert len(a) == len(b)
  for p, q in zip(a, b):
    np.testing.assert_allclose(p, q, rtol=0, atol=atol)


def assert_same(a, b):
  assert len(a) == len(b)
  for p, q in zip(a, b):
    np.testing.assert_array_equal(p, q)


def differ(a, b):
  return any(not np.array_equal(p, q) for p, q in zip(a, b))


ROUNDS = ([0, 1], [1, 2, 3], [0, 3], [2], [0, 1, 2, 3])


def run(algorithm, rounds=ROUNDS, cohort=cohort_of):
  for t, client_ids in enumerate(rounds):
    algorithm.round(cohort(algorithm.model, client_ids, t))
  return algorithm.weights


def normals_like(w, *seed):
  """xi of a step: other numbers for another seed."""
  rng = np.random.default_rng(seed)
  return [rng.normal(size=p.shape) for p in w]


PRIVACY = replay.Privacy(
  0.5, 0.3, lambda i, m: normals_like([np.zeros((4, 3)), np.zeros(3)], i, m)
)


def make(cls, **options):
  return functools.partial(cls, **options)


ALGORITHMS = {
  "fed_sgd": make(replay.FedSGD, learning_rate=0.1),
  "fed_avg": make(replay.FedAvg, learning_rate=0.1, momentum=0.5),
  "fed_avg_uniform": make(replay.FedAvg, learning_rate=0.1, weighting="uniform"),
  "fed_prox": make(replay.FedProx, learning_rate=0.1, mu=0.5),
  "scaffold_1": make(replay.Scaffold, learning_rate=0.1, num_clients=4, option=1),
  "scaffold_2": make(replay.Scaffold, learning_rate=0.1, num_clients=4),
  "scaffold_examples": make(
    replay.Scaffold, learning_rate=0.1, num_clients=4, weighting="examples"
  ),
  "fed_adam": make(replay.FedAdam, learning_rate=0.1, server_learning_rate=0.01),
  "fed_yogi": make(replay.FedYogi, learning_rate=0.1, server_learning_rate=0.01),
  "fed_adagrad": make(replay.FedAdagrad, learning_rate=0.1, server_learning_rate=0.01),
  "fed_avg_m": make(replay.FedAvgM, learning_rate=0.1, server_momentum=0.5),
  "fed_avg_m_ahead": make(
    replay.FedAvgM, learning_rate=0.1, server_momentum=0.5, looks_ahead=True
  ),
  "fed_gg": make(replay.FedGG, learning_rate=0.1, mu=0.3, momentum=0.9),
  "fed_gg_fixed": make(replay.FedGG, learning_rate=0.1, adaptive=False, lam=0.01),
  "fed_gg_broadcast": make(
    replay.FedGG, learning_rate=0.1, mu=0.3, direction="broadcast"
  ),
  "fed_dyn": make(
    replay.FedDyn, learning_rate=0.1, alpha=0.1, num_clients=4, num_examples=23
  ),
  "fed_curv": make(replay.FedCurv, learning_rate=0.1, curvature=0.3),
  "fed_sgd_private": make(replay.FedSGD, learning_rate=0.1, privacy=PRIVACY),
  "fed_avg_private": make(
    replay.FedAvg, learning_rate=0.1, weighting="uniform", privacy=PRIVACY
  ),
  "fed_curv_private": make(
    replay.FedCurv, learning_rate=0.1, curvature=0.3, privacy=PRIVACY
  ),
  "twafl": make(
    replay.Twafl,
    learning_rate=0.1,
    examples={**dict(enumerate(SIZES)), 9: 0},
    base=np.e / 2,
    num_shallow=1,
    rounds_in_loop=2,
    freq=1,
  ),
}

every_model = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
every_algorithm = pytest.mark.parametrize("build", ALGORITHMS.values(), ids=ALGORITHMS)
SOFTMAX, QUADRATIC, MLP = MODELS.values()


# Models and local training.


@every_model
def test_gradient_is_that_of_the_loss(model):
  w = random_weights(model)
  x, y = random_client(model, 6, seed=1)
  _, gradient = model.loss_and_gradient(w, x, y)
  numeric = central_differences(lambda v: model.loss_and_gradient(v, x, y)[0], w)
  assert_close(gradient, numeric, atol=1e-8)


@every_model
def test_loss_and_gradient_are_means_over_the_batch(model):
  w = random_weights(model)
  x, y = random_client(model, 6, seed=1)
  parts = [model.loss_and_gradient(w, x[k : k + 1], y[k : k + 1]) for k in range(6)]
  loss, gradient = model.loss_and_gradient(w, x, y)
  assert loss == pytest.approx(np.mean([part[0] for part in parts]), abs=1e-14)
  assert_close(gradient, replay.weighted_mean([part[1] for part in parts], [1] * 6))


def test_losses_by_hand():
  x = np.array([[1.0, 2.0]])
  w = [np.array([[3.0], [-1.0]]), np.array([0.5])]
  linear = replay.LinearRegression(2)
  loss, gradient = linear.loss_and_gradient(w, x, np.array([0.0]))
  assert loss == 0.5 * 1.5**2
  assert_same(gradient, [np.array([[1.5], [3.0]]), np.array([1.5])])
  assert_same([linear.predict(w, x)], [np.array([[1.5]])])

  logits = np.log([0.2, 0.3, 0.5])
  w = [np.zeros((2, 3)), logits + 1000.0]  # a shift of the logits does not matter
  loss, gradient = replay.SoftmaxRegression(2, 3).loss_and_gradient(w, x, [1])
  assert loss == pytest.approx(-np.log(0.3), abs=1e-12)
  np.testing.assert_allclose(gradient[1], [0.2, -0.7, 0.5], atol=1e-12)


@every_model
def test_labels_may_be_a_column(model):
  w = random_weights(model)
  x, y = random_client(model, 6, seed=1)
  flat, column = (model.loss_and_gradient(w, x, v) for v in (y, y.reshape(-1, 1)))
  assert flat[0] == column[0]
  assert_same(flat[1], column[1])


def test_batches_in_order_keep_the_short_last_batch():
  batches = replay.batches_in_order(5, epochs=2, batch_size=2)
  assert [b.tolist() for b in batches] == [[0, 1], [2, 3], [4]] * 2
  assert [b.tolist() for b in replay.batches_in_order(3)] == [[0, 1, 2]]
  assert replay.batches_in_order(0, epochs=2, batch_size=2) == []


def test_local_sgd_by_hand():
  """The loss is 1/2 (b - y)^2, so g = w - y; lr 1/2, momentum 1/2, from w = 0."""
  x, y = np.zeros((2, 1)), np.array([8.0, 0.0])
  start = [np.zeros((1, 1)), np.zeros(1)]
  model, batches = replay.LinearRegression(1), [[0], [1], [0, 1]]
  plain = replay.local_sgd(model, start, x, y, batches, 0.5)
  assert plain[1] == [3.0]  # 0 -> 4 -> 2 -> 3
  heavy = replay.local_sgd(model, start, x, y, batches, 0.5, momentum=0.5)
  assert heavy[1] == [4.0]  # v = -8, 0, 0: 0 -> 4 -> 4 -> 4
  assert_same(start, [np.zeros((1, 1)), np.zeros(1)])


def test_correction_sees_the_last_two_models_and_momentum_acts_on_its_result():
  x, y = np.zeros((1, 1)), np.zeros(1)
  calls = []

  def correction(g, w, w_prev, m):
    calls.append((m, w[1][0], None if w_prev is None else w_prev[1][0]))
    return [0.0 * g[0], np.ones(1)]

  start = [np.zeros((1, 1)), np.ones(1)]
  model = replay.LinearRegression(1)
  w = replay.local_sgd(model, start, x, y, [[0]] * 3, 0.5, 0.5, correction)
  # v = 1, 1.5, 1.75
  assert calls == [(1, 1.0, None), (2, 0.5, 1.0), (3, -0.25, 0.5)]
  assert w[1] == [-1.125]


def test_raises_on_an_empty_batch():
  x, y = random_client(SOFTMAX, 3, seed=0)
  with pytest.raises(ValueError, match="local step 2 is empty"):
    replay.local_sgd(SOFTMAX, SOFTMAX.initial(), x, y, [[0], []], 0.1)


# What holds for every algorithm.


@every_algorithm
def test_order_of_the_cohort_does_not_matter(build):
  one, two = (build(SOFTMAX, random_weights(SOFTMAX)) for _ in range(2))
  for t, client_ids in enumerate(ROUNDS):
    cohort = cohort_of(SOFTMAX, client_ids, t)
    assert_same(one.round(cohort), two.round(cohort[::-1]))
    assert one.client_states.keys() == two.client_states.keys()
    for i in one.client_states:
      assert_same(one.client_states[i], two.client_states[i])


@every_algorithm
def test_dropped_client_counts_as_absent(build):
  with_it, without_it = (build(SOFTMAX, random_weights(SOFTMAX)) for _ in range(2))
  for t, client_ids in enumerate(ROUNDS):
    before = dict(with_it.client_states)
    cohort = cohort_of(SOFTMAX, client_ids, t)
    poisoned = [
      (i, (np.full_like(x, np.nan), y) if i == 1 else (x, y), batches)
      for i, (x, y), batches in cohort
    ]
    with_it.round(poisoned, dropped={1} & set(client_ids))
    without_it.round([client for client in cohort if client[0] != 1])
    assert with_it.client_states.get(1) is before.get(1)
    assert_same(with_it.weights, without_it.weights)
    assert with_it.client_states.keys() == without_it.client_states.keys()


def test_dropped_client_keeps_the_state_it_had():
  for name in ("scaffold_2", "fed_gg", "fed_dyn", "fed_curv", "twafl"):
    algorithm = ALGORITHMS[name](SOFTMAX, random_weights(SOFTMAX))
    algorithm.round(cohort_of(SOFTMAX, [0, 1]))
    state = algorithm.client_states[1]
    algorithm.round(cohort_of(SOFTMAX, [0, 1], 1), dropped={1})
    assert algorithm.client_states[1] is state
    assert differ(algorithm.client_states[0], state)


@every_algorithm
@pytest.mark.parametrize("client_ids", [[], [0, 1]], ids=["empty", "all_dropped"])
def test_round_without_accepted_clients_leaves_the_server(build, client_ids):
  algorithm = build(SOFTMAX, random_weights(SOFTMAX))
  run(algorithm, rounds=ROUNDS[:2])
  before, states = algorithm.weights, algorithm.client_states
  algorithm.round(cohort_of(SOFTMAX, client_ids, 2), dropped=set(client_ids))
  assert_same(algorithm.weights, before)
  assert algorithm.client_states == states


@every_algorithm
def test_client_without_data_is_harmless(build):
  algorithm = build(SOFTMAX, random_weights(SOFTMAX))
  run(algorithm, rounds=ROUNDS[:2])
  nobody = (9, (np.zeros((0, 4)), np.zeros(0, int)), [])
  algorithm.round([*cohort_of(SOFTMAX, [0], 2), nobody])
  assert all(np.isfinite(p).all() for p in algorithm.weights)


@every_algorithm
def test_stays_in_float64_and_leaves_its_arguments_alone(build):
  start = [p.astype(np.float32) for p in random_weights(SOFTMAX)]
  kept = [p.copy() for p in start]
  algorithm = build(SOFTMAX, start)
  cohort = [
    (i, (x.astype(np.float32), y), batches)
    for i, (x, y), batches in cohort_of(SOFTMAX, [0, 1])
  ]
  for _ in range(2):
    algorithm.round(cohort)
  assert_same(start, kept)
  for arrays in (algorithm.weights, *algorithm.client_states.values()):
    assert all(p.dtype == np.float64 for p in arrays)


def test_raises_on_a_wrong_cohort_or_option():
  algorithm = replay.FedAvg(SOFTMAX, SOFTMAX.initial(), 0.1)
  cohort = cohort_of(SOFTMAX, [0, 1])
  with pytest.raises(ValueError, match="twice"):
    algorithm.round(cohort + cohort)
  with pytest.raises(ValueError, match="Dropped"):
    algorithm.round(cohort, dropped={2})
  with pytest.raises(ValueError, match="weighting"):
    replay.FedAvg(SOFTMAX, SOFTMAX.initial(), 0.1, weighting="example")
  with pytest.raises(ValueError, match="option"):
    replay.Scaffold(SOFTMAX, SOFTMAX.initial(), 0.1, 4, option=3)
  with pytest.raises(ValueError, match="direction"):
    replay.FedGG(SOFTMAX, SOFTMAX.initial(), 0.1, direction="both")
  with pytest.raises(ValueError, match="lam"):
    replay.FedGG(SOFTMAX, SOFTMAX.initial(), 0.1, adaptive=False)
  with pytest.raises(ValueError, match="freq"):
    replay.Twafl(SOFTMAX, SOFTMAX.initial(), 0.1, {0: 1}, 1.0, 1, 15, freq=16)
  with pytest.raises(ValueError, match="number of examples"):
    replay.Twafl(SOFTMAX, SOFTMAX.initial(), 0.1, {0: 1}, 1.0, 1).round(cohort)


# FedSGD, FedAvg, FedProx.


def constant_client(client_id, num_examples, target, steps=1):
  """Only the bias b learns: g = b - target, b_K = target + (1-lr)^K (b_0 - target)."""
  data = np.zeros((num_examples, 1)), np.full(num_examples, target)
  return client_id, data, [np.arange(num_examples)] * steps


BIAS = replay.LinearRegression(1)


@pytest.mark.parametrize(
  "options, expected",
  [
    ({}, (1 * 4.0 + 3 * 6.0) / 4),
    ({"weighting": "uniform"}, 5.0),
    ({"server_learning_rate": 0.5}, 0.5 * (1 * 4.0 + 3 * 6.0) / 4),
  ],
  ids=["examples", "uniform", "server_learning_rate"],
)
def test_fed_avg_by_hand(options, expected):
  """One step of 1/2 and two steps of 1/2 towards 8 give 4 and 6."""
  algorithm = replay.FedAvg(BIAS, BIAS.initial(), 0.5, **options)
  algorithm.round([constant_client(0, 1, 8.0), constant_client(1, 3, 8.0, steps=2)])
  assert algorithm.weights[1] == [expected]
  assert algorithm.client_states == {}


@every_model
def test_fed_sgd_is_fed_avg_with_one_full_batch_epoch(model):
  start = random_weights(model)
  sgd = replay.FedSGD(model, start, 0.1)
  avg = replay.FedAvg(model, start, 0.1)
  assert_close(run(sgd), run(avg, cohort=full_batch_cohort))


@every_model
def test_fed_sgd_is_gradient_descent_on_the_pooled_data(model):
  algorithm = replay.FedSGD(model, random_weights(model), 0.1)
  cohort = cohort_of(model, range(4))
  x, y = (np.concatenate([data[k] for _, data, _ in cohort]) for k in range(2))
  w = algorithm.weights
  for _ in range(3):
    algorithm.round(cohort)
    w = replay.add(w, model.loss_and_gradient(w, x, y)[1], -0.1)
  assert_close(algorithm.weights, w)


@every_model
def test_fed_avg_with_one_client_is_local_training(model):
  start = random_weights(model)
  ((_, (x, y), batches),) = cohort = cohort_of(model, [1])
  algorithm = replay.FedAvg(model, start, 0.1, momentum=0.9)
  algorithm.round(cohort)
  assert_close(algorithm.weights, replay.local_sgd(model, start, x, y, batches, 0.1, 0.9))


@every_model
def test_fed_prox_with_mu_zero_is_fed_avg(model):
  start = random_weights(model)
  avg, prox = replay.FedAvg(model, start, 0.1), replay.FedProx(model, start, 0.1, 0.0)
  assert_close(run(prox), run(avg))


def test_fed_prox_follows_its_objective():
  model, mu, lr = MLP, 0.7, 0.1
  start = random_weights(model)
  cohort = full_batch_cohort(model, [1], epochs=4)
  x, y = cohort[0][1]

  def objective(w):
    distance = sum(np.sum((p - q) ** 2) for p, q in zip(w, start))
    return model.loss_and_gradient(w, x, y)[0] + mu / 2 * distance

  w = start
  for _ in range(4):
    w = replay.add(w, central_differences(objective, w), -lr)
  algorithm = replay.FedProx(model, start, lr, mu)
  assert_close(algorithm.round(cohort), w, atol=1e-8)


def test_fed_prox_by_hand_stays_closer_with_larger_mu():
  """The minimum of 1/2 (b - 8)^2 + mu/2 b^2 is 8 / (1 + mu)."""
  for mu in (0.0, 1.0, 3.0):
    algorithm = replay.FedProx(BIAS, BIAS.initial(), 0.2, mu)
    algorithm.round([constant_client(0, 2, 8.0, steps=500)])
    np.testing.assert_allclose(algorithm.weights[1], 8.0 / (1.0 + mu), atol=1e-12)


# SCAFFOLD.

every_scaffold = pytest.mark.parametrize(
  "options",
  [{"option": 1}, {"option": 2}, {"weighting": "examples"}],
  ids=["option_1", "option_2", "examples"],
)


@every_scaffold
def test_scaffold_control_variate_is_the_mean_over_all_clients(options):
  algorithm = replay.Scaffold(SOFTMAX, random_weights(SOFTMAX), 0.1, 5, **options)
  for t, client_ids in enumerate(ROUNDS):  # client 4 never takes part
    dropped = {3} if t == 2 else set()
    algorithm.round(cohort_of(SOFTMAX, client_ids, t), dropped)
    controls = [algorithm.client_control(i) for i in range(5)]
    mean = replay.weighted_mean(controls, [1] * 5)
    assert_close(algorithm.control_variate, mean)
    assert replay.norm(algorithm.control_variate) > 0.1


@every_scaffold
def test_scaffold_starts_as_uniform_fed_avg(options):
  start = random_weights(SOFTMAX)
  scaffold = replay.Scaffold(SOFTMAX, start, 0.1, 4, server_learning_rate=0.5, **options)
  avg = replay.FedAvg(
    SOFTMAX,
    start,
    0.1,
    server_learning_rate=0.5,
    weighting=options.get("weighting", "uniform"),
  )
  cohort = cohort_of(SOFTMAX, [0, 1, 2])
  assert_close(scaffold.round(cohort), avg.round(cohort))
  cohort = cohort_of(SOFTMAX, [0, 1, 2], 1)
  assert differ(scaffold.round(cohort), avg.round(cohort))


def test_scaffold_option_2_is_the_mean_gradient_along_the_local_path():
  """x - y = eta_l sum (g - c_i + c), so c_i+ = 1/K sum g, K in steps of all epochs."""
  lr = 0.1
  algorithm = replay.Scaffold(MLP, random_weights(MLP), lr, 4)
  for t, client_ids in enumerate(ROUNDS):
    x, c = algorithm.weights, algorithm.control_variate
    old = {i: algorithm.client_control(i) for i in range(4)}
    cohort = cohort_of(MLP, client_ids, t)
    algorithm.round(cohort)
    locals_ = []
    for i, (inputs, labels), batches in cohort:
      w, seen = x, []
      for batch in batches:
        g = MLP.loss_and_gradient(w, inputs[batch], labels[batch])[1]
        seen.append(g)
        w = [p - lr * (q - a + b) for p, q, a, b in zip(w, g, old[i], c)]
      assert len(seen) == 2 * -(-SIZES[i] // 3)
      assert_close(
        algorithm.client_states[i], replay.weighted_mean(seen, [1] * len(seen))
      )
      locals_.append(w)
    assert_close(algorithm.weights, replay.weighted_mean(locals_, [1] * len(locals_)))


def test_scaffold_options_agree_for_one_full_batch_step():
  one, two = (replay.Scaffold(MLP, random_weights(MLP), 0.1, 4, option=o) for o in (1, 2))
  assert_close(run(one, cohort=full_batch_cohort), run(two, cohort=full_batch_cohort))
  for i in range(4):
    assert_close(one.client_states[i], two.client_states[i])


def test_scaffold_option_1_is_the_full_gradient_at_the_received_model():
  algorithm = replay.Scaffold(MLP, random_weights(MLP), 0.1, 4, option=1)
  for t, client_ids in enumerate(ROUNDS):
    x, cohort = algorithm.weights, cohort_of(MLP, client_ids, t)
    algorithm.round(cohort)
    for i, (inputs, labels), _ in cohort:
      expected = MLP.loss_and_gradient(x, inputs, labels)[1]
      assert_close(algorithm.client_states[i], expected)


def test_scaffold_of_clients_with_the_same_examples_is_fed_avg():
  """Option I with full batches: c = c_i, so that no correction is left [derived]."""
  start, data = random_weights(MLP), random_client(MLP, 5, seed=1)
  scaffold = replay.Scaffold(MLP, start, 0.1, 4, option=1)
  avg = replay.FedAvg(MLP, start, 0.1, weighting="uniform")
  twins = [(i, data, [np.arange(5)] * 2) for i in range(4)]
  for _ in range(3):
    assert_close(scaffold.round(twins), avg.round(twins))


def test_scaffold_finds_the_optimum_that_fed_avg_misses():
  """Clients that disagree and differ in steps: the optimum is where mean g is 0."""
  cohort = [
    (i, random_client(QUADRATIC, 8, seed=i), [np.arange(8)] * steps)
    for i, steps in enumerate((2, 5, 9))
  ]
  start = random_weights(QUADRATIC)
  scaffold = replay.Scaffold(QUADRATIC, start, 0.05, 3)
  avg = replay.FedAvg(QUADRATIC, start, 0.05, weighting="uniform")

  def slope(w):
    gradients = [QUADRATIC.loss_and_gradient(w, *data)[1] for _, data, _ in cohort]
    return replay.norm(replay.weighted_mean(gradients, [1] * 3))

  for _ in range(700):
    scaffold.round(cohort)
    avg.round(cohort)
  assert slope(scaffold.weights) < 1e-9
  assert slope(avg.weights) > 1e-2


# Adaptive servers.


def adaptive(cls, start=0.0, **options):
  options = {"beta1": 0.5, "beta2": 0.75, "tau": 2.0, **options}
  weights = [np.zeros((1, 1)), np.array([start])]
  return cls(BIAS, weights, 0.5, server_learning_rate=3.0, **options)


@pytest.mark.parametrize(
  "cls, v1, v2",
  [
    (replay.FedAdam, 0.75 * 4 + 0.25 * 16, lambda v, d: 0.75 * v + 0.25 * d),
    (replay.FedYogi, 4 + 0.25 * 16, lambda v, d: v - 0.25 * d * np.sign(v - d)),
    (replay.FedAdagrad, 4 + 16, lambda v, d: v + d),
  ],
  ids=["adam", "yogi", "adagrad"],
)
def test_adaptive_server_by_hand(cls, v1, v2):
  """Delta = 4 in round 1 and (8 - b) / 2 in round 2; v starts at tau^2 = 4."""
  algorithm = adaptive(cls)
  cohort = [constant_client(0, 2, 8.0)]
  algorithm.round(cohort)
  m, b = 2.0, 3 * 2.0 / (np.sqrt(v1) + 2)
  np.testing.assert_allclose(algorithm.first_moment[1], m, atol=1e-14)
  np.testing.assert_allclose(algorithm.second_moment[1], v1, atol=1e-14)
  np.testing.assert_allclose(algorithm.weights[1], b, atol=1e-14)
  algorithm.round(cohort)
  delta = (8 - b) / 2
  m, v = 0.5 * m + 0.5 * delta, v2(v1, delta**2)
  np.testing.assert_allclose(algorithm.second_moment[1], v, atol=1e-13)
  np.testing.assert_allclose(
    algorithm.weights[1], b + 3 * m / (np.sqrt(v) + 2), atol=1e-13
  )


def test_yogi_lets_v_fall_where_delta_is_small():
  algorithm = adaptive(replay.FedYogi, start=7.0)  # Delta = 1/2, Delta^2 < v
  algorithm.round([constant_client(0, 2, 8.0)])
  assert algorithm.second_moment[1] == [4 - 0.25 * 0.25]


def test_adaptive_server_takes_the_weighting():
  cohort = [constant_client(0, 1, 8.0), constant_client(1, 3, -8.0)]
  for weighting, delta in (("examples", -2.0), ("uniform", 0.0)):
    algorithm = adaptive(replay.FedAdagrad, beta1=0.0, weighting=weighting)
    algorithm.round(cohort)
    assert algorithm.first_moment[1] == [delta]


def test_defaults_are_those_of_the_paper():
  adam = replay.FedAdam(BIAS, BIAS.initial(), 0.1, 0.01)
  assert (adam.beta1, adam.beta2, adam.tau) == (0.9, 0.99, 1e-3)
  assert_same(adam.first_moment, [np.zeros((1, 1)), np.zeros(1)])
  assert_same(adam.second_moment, [np.full((1, 1), 1e-6), np.full(1, 1e-6)])
  assert replay.FedAdagrad(BIAS, BIAS.initial(), 0.1, 0.01).beta1 == 0.0


@pytest.mark.parametrize("cls", [replay.FedAdam, replay.FedYogi])
def test_adaptive_server_that_does_not_adapt_is_fed_avg(cls):
  """With b1 = 0 and b2 = 1, v stays tau^2 and the step is eta Delta / (2 tau)."""
  start, tau = random_weights(MLP), 0.05
  server = cls(MLP, start, 0.1, 0.08, beta1=0.0, beta2=1.0, tau=tau)
  avg = replay.FedAvg(MLP, start, 0.1, server_learning_rate=0.08 / (2 * tau))
  assert_close(run(server), run(avg))


# FedAvgM.


@pytest.mark.parametrize("looks_ahead", [False, True])
def test_fed_avg_m_without_momentum_is_fed_avg(looks_ahead):
  start = random_weights(MLP)
  options = dict(server_momentum=0.0, looks_ahead=looks_ahead)
  momentum = replay.FedAvgM(MLP, start, 0.1, **options)
  assert_close(run(momentum), run(replay.FedAvg(MLP, start, 0.1)))


@pytest.mark.parametrize("looks_ahead", [False, True])
def test_fed_avg_m_is_fed_avg_and_half_of_its_last_move(looks_ahead):
  """While eta_g = 1, v is the last move: FedAvg(x) + b v, or FedAvg(x + b v)."""
  last = before = random_weights(MLP)
  options = dict(server_momentum=0.5, looks_ahead=looks_ahead)
  momentum = replay.FedAvgM(MLP, last, 0.1, **options)
  for t, client_ids in enumerate(ROUNDS):
    cohort = cohort_of(MLP, client_ids, t)
    half = replay.scaled(replay.subtract(last, before), 0.5)
    start = replay.add(last, half) if looks_ahead else last
    expected = replay.FedAvg(MLP, start, 0.1).round(cohort)
    if not looks_ahead:
      expected = replay.add(expected, half)
    before, last = last, momentum.round(cohort)
    assert_close(last, expected)


# FedGG.


def gg_triple(seed=0):
  x, w, d = (random_weights(MLP, seed=3 * seed + k) for k in range(3))
  return w, x, d


def test_fed_gg_gradient_is_that_of_the_cosine_loss_and_the_printed_one_is_not():
  for seed in range(3):
    w, x, d = gg_triple(seed)
    numeric = central_differences(lambda v, x=x, d=d: replay.cosine_loss(v, x, d), w)
    u = replay.subtract(w, x)
    pull = replay.cosine_pull(w, x, d)
    assert_close(replay.scaled(pull, -1 / replay.norm(u)), numeric, atol=1e-9)
    cos = 1.0 - replay.cosine_loss(w, x, d)
    printed = replay.add(pull, u, 2 * cos / replay.norm(u))  # D/|D| + cos u/|u|
    wrong = replay.scaled(printed, -1 / replay.norm(u))
    assert replay.norm(replay.subtract(wrong, numeric)) > 1e-3


def test_fed_gg_pull_is_orthogonal_to_the_local_update():
  w, x, d = gg_triple()
  pull = replay.cosine_pull(w, x, d)
  assert replay.dot(pull, replay.subtract(w, x)) == pytest.approx(0.0, abs=1e-12)
  assert replay.dot(pull, d) > 0.0


def test_fed_gg_has_no_pull_where_a_norm_is_zero():
  w, x, d = gg_triple()
  assert replay.cosine_pull(w, x, replay.zeros_like(x)) is None
  assert replay.cosine_pull(x, x, d) is None


@pytest.mark.parametrize("normalized", [False, True])
def test_fed_gg_kick_is_the_gradient_of_the_cut_cosine_where_u_is_0(normalized):
  x, _, d = gg_triple()
  x = replay.zeros_like(x)  # So that a step of 1e-11 from it is exact.
  first_step = "epsilon_normalized" if normalized else "epsilon"
  algorithm = replay.FedGG(
    MLP, x, 0.1, adaptive=False, lam=3e-9, direction="broadcast", first_step=first_step
  )
  algorithm.previous_weights = replay.scaled(d, -1.0)
  kick = algorithm._correction(0)(replay.zeros_like(x), x, None, 1)
  for seed in range(3):
    way = random_weights(MLP, seed=seed)
    there, back = (replay.scaled(way, sign * 1e-11) for sign in (1, -1))
    slope = 3e-9 * sum(
      sign * (1 - replay.cut_cosine(w, x, d, normalized)) / 2e-11
      for sign, w in ((1, there), (-1, back))
    )
    assert replay.dot(kick, way) == pytest.approx(slope, rel=1e-4)
  # Beyond the cut both are the paper's cosine.
  w, x, d = gg_triple()
  cosine = 1 - replay.cosine_loss(w, x, d)
  assert replay.cut_cosine(w, x, d, normalized) == pytest.approx(cosine)


@pytest.mark.parametrize("direction", ["client_state", "broadcast"])
@pytest.mark.parametrize("options", [{"mu": 0.3}, {"adaptive": False, "lam": 0.02}])
def test_fed_gg_follows_its_objective(direction, options):
  """The third round, replayed with central differences of l_sup + lambda_m l_cos."""
  lr, momentum = 0.1, 0.9
  algorithm = replay.FedGG(
    MLP, random_weights(MLP), lr, momentum=momentum, direction=direction, **options
  )
  received = []
  for t, client_ids in enumerate(([0, 1], [0], [1])):
    received.append(algorithm.weights)
    cohort = cohort_of(MLP, client_ids, t)
    algorithm.round(cohort)
  x = received[2]
  d = replay.subtract(x, received[0 if direction == "client_state" else 1])
  ((_, (inputs, labels), batches),) = cohort
  w, w_prev, velocity = x, None, replay.zeros_like(x)
  for m, batch in enumerate(batches, start=1):
    if m == 1:
      weight = 0.0
    elif "lam" in options:
      weight = options["lam"]
    else:
      weight = options["mu"]
      weight *= replay.norm(replay.subtract(w, x))
      weight *= replay.norm(replay.subtract(w, w_prev))

    def loss(v, weight=weight, batch=batch):
      extra = weight * replay.cosine_loss(v, x, d) if weight else 0.0
      return MLP.loss_and_gradient(v, inputs[batch], labels[batch])[0] + extra

    velocity = replay.add(central_differences(loss, w), velocity, momentum)
    w, w_prev = replay.add(w, velocity, -lr), w
  assert_close(algorithm.weights, w, atol=1e-7)
  avg = replay.FedAvg(MLP, x, lr, momentum=momentum)
  assert replay.norm(replay.subtract(avg.round(cohort), w)) > 1e-3


@pytest.mark.parametrize("direction", ["client_state", "broadcast"])
def test_fed_gg_reduces_to_fed_avg(direction):
  start = random_weights(MLP)

  def pair(mu):
    gg = replay.FedGG(MLP, start, 0.1, mu, momentum=0.9, direction=direction)
    return gg, replay.FedAvg(MLP, start, 0.1, momentum=0.9)

  gg, avg = pair(mu=0.0)
  assert_same(run(gg), run(avg))
  gg, avg = pair(mu=0.3)  # one local step
  assert_same(run(gg, cohort=full_batch_cohort), run(avg, cohort=full_batch_cohort))
  gg, avg = pair(mu=0.3)  # round 0, and only that one
  assert_same(*(a.round(cohort_of(MLP, [0, 1])) for a in (gg, avg)))
  assert differ(*(a.round(cohort_of(MLP, [0, 1], 1)) for a in (gg, avg)))


def test_fed_gg_directions_agree_under_full_participation_only():
  start = random_weights(MLP)
  own, sent = (
    replay.FedGG(MLP, start, 0.1, 0.3, direction=d) for d in ("client_state", "broadcast")
  )
  everyone = [[0, 1, 2, 3]] * 3
  assert_same(run(own, rounds=everyone), run(sent, rounds=everyone))
  assert differ(run(own), run(sent))


def test_fed_gg_newcomer_has_no_term_unless_the_last_model_is_broadcast():
  for direction, same in (("client_state", True), ("broadcast", False)):
    gg = replay.FedGG(MLP, random_weights(MLP), 0.1, 0.3, direction=direction)
    gg.round(cohort_of(MLP, [0]))
    avg = replay.FedAvg(MLP, gg.weights, 0.1)
    cohort = cohort_of(MLP, [1], 1)
    assert differ(gg.round(cohort), avg.round(cohort)) != same


def test_fed_gg_states():
  start = random_weights(MLP)
  own = replay.FedGG(MLP, start, 0.1, 0.3)
  own.round(cohort_of(MLP, [0, 1]))
  second = own.weights
  own.round(cohort_of(MLP, [1, 2], 1))
  assert_same(own.client_states[0], start)
  assert_same(own.client_states[1], second)
  assert_same(own.client_states[2], second)
  assert_same(own.previous_weights, second)
  sent = replay.FedGG(MLP, start, 0.1, 0.3, direction="broadcast")
  assert sent.previous_weights is None
  sent.round(cohort_of(MLP, [0, 1]))
  assert sent.client_states == {}
  assert_same(sent.previous_weights, start)


# FedDyn.


def fed_dyn(model, start, lr=0.1, alpha=0.5, **options):
  return replay.FedDyn(model, start, lr, alpha, 4, sum(SIZES), **options)


@pytest.mark.parametrize("weighting, mean", [("uniform", 14 / 3), ("examples", 5.0)])
def test_fed_dyn_by_hand(weighting, mean):
  """alpha = 1/2, N = 2, n = 4: a = 1 and 1/3. The first step of 1/2 from 0 gives 4.

  Client 0 stays there, as 4 - 8 + 1 (0 + 4) = 0; for client 1 the gradient is
  -4 + 4/3. So l = 4 and 16/3, and h = 14/3.
  """
  algorithm = replay.FedDyn(
    BIAS, BIAS.initial(), 0.5, 0.5, num_clients=2, num_examples=4, weighting=weighting
  )
  one, three = (constant_client(i, n, 8.0, steps=2) for i, n in ((0, 1), (1, 3)))
  algorithm.round([one, three])
  np.testing.assert_allclose(algorithm.client_dual(0)[1], 4.0, atol=1e-14)
  np.testing.assert_allclose(algorithm.client_dual(1)[1], 16 / 3, atol=1e-14)
  np.testing.assert_allclose(algorithm.mean_dual[1], 14 / 3, atol=1e-14)
  x = mean + 14 / 3
  np.testing.assert_allclose(algorithm.weights[1], x, atol=1e-13)
  algorithm.round([one])  # client 1 is absent and counts in h all the same
  w1 = x - 0.5 * (x - 8 + 4.0)
  w2 = w1 - 0.5 * (w1 - 8 + 4.0 + (w1 - x))
  dual = 4.0 + w2 - x
  np.testing.assert_allclose(algorithm.client_dual(0)[1], dual, atol=1e-13)
  h = (dual + 16 / 3) / 2
  np.testing.assert_allclose(algorithm.weights[1], w2 + h, atol=1e-13)


def test_fed_dyn_mean_dual_is_the_mean_over_all_clients():
  algorithm = replay.FedDyn(SOFTMAX, random_weights(SOFTMAX), 0.1, 0.5, 5, 30)
  for t, client_ids in enumerate(ROUNDS):  # client 4 never takes part
    dropped = {3} if t == 2 else set()
    algorithm.round(cohort_of(SOFTMAX, client_ids, t), dropped)
    duals = [algorithm.client_dual(i) for i in range(5)]
    assert_close(algorithm.mean_dual, replay.weighted_mean(duals, [1] * 5))
    assert replay.norm(algorithm.mean_dual) > 0.01


def test_fed_dyn_without_alpha_is_fed_avg_plus_the_mean_dual():
  """And the duals are the sums of all the updates of a client."""
  start = random_weights(MLP)
  dyn = fed_dyn(MLP, start, alpha=0.0, momentum=0.5)
  sums = [replay.zeros_like(start) for _ in SIZES]
  for t, client_ids in enumerate(ROUNDS):
    avg = replay.FedAvg(MLP, dyn.weights, 0.1, momentum=0.5, weighting="uniform")
    cohort = cohort_of(MLP, client_ids, t)
    for i, (x, y), batches in cohort:
      w = replay.local_sgd(MLP, dyn.weights, x, y, batches, 0.1, 0.5)
      sums[i] = replay.add(sums[i], replay.subtract(w, dyn.weights))
    expected = avg.round(cohort)
    dyn.round(cohort)
    assert_close(dyn.weights, replay.add(expected, dyn.mean_dual))
    assert_close(dyn.mean_dual, replay.weighted_mean(sums, [1] * 4))
  near = fed_dyn(MLP, start, alpha=1e-9, momentum=0.5)
  assert_close(run(near), dyn.weights, atol=1e-7)


def test_fed_dyn_that_adds_no_dual_is_the_mean_model():
  """By hand as above: mean_S(w_i) in both rounds, and the same duals in the first."""
  algorithm = replay.FedDyn(
    BIAS, BIAS.initial(), 0.5, 0.5, num_clients=2, num_examples=4, adds_dual=False
  )
  one, three = (constant_client(i, n, 8.0, steps=2) for i, n in ((0, 1), (1, 3)))
  algorithm.round([one, three])
  x = 14 / 3
  np.testing.assert_allclose(algorithm.weights[1], x, atol=1e-14)
  np.testing.assert_allclose(algorithm.client_dual(1)[1], 16 / 3, atol=1e-14)
  algorithm.round([one])
  w1 = x - 0.5 * (x - 8 + 4.0)
  w2 = w1 - 0.5 * (w1 - 8 + 4.0 + (w1 - x))
  np.testing.assert_allclose(algorithm.weights[1], w2, atol=1e-13)


def test_fed_dyn_follows_its_objective():
  """Client 1's second time, after a round that it missed."""
  lr, alpha = 0.1, 0.7
  algorithm = fed_dyn(MLP, random_weights(MLP), lr, alpha)
  for t, client_ids in enumerate(([0, 1], [0, 2])):
    algorithm.round(cohort_of(MLP, client_ids, t))
  x, dual = algorithm.weights, algorithm.client_dual(1)
  others = [algorithm.client_dual(i) for i in (0, 2)]
  ((_, (inputs, labels), batches),) = cohort = cohort_of(MLP, [1], 2)
  a = alpha / (SIZES[1] * 4 / sum(SIZES))
  w = x
  for batch in batches:

    def objective(v, batch=batch):
      loss = MLP.loss_and_gradient(v, inputs[batch], labels[batch])[0]
      linear = replay.dot(v, replay.subtract(dual, x))
      return loss + a * linear + a / 2 * replay.dot(v, v)

    w = replay.add(w, central_differences(objective, w), -lr)
  algorithm.round(cohort)
  dual = replay.add(dual, replay.subtract(w, x))
  assert_close(algorithm.client_dual(1), dual, atol=1e-8)
  h = replay.scaled(replay.add(replay.add(dual, others[0]), others[1]), 1 / 4)
  assert_close(algorithm.weights, replay.add(w, h), atol=1e-8)


def test_fed_dyn_clips_the_whole_gradient_before_momentum():
  """Far from the target every G is clipped to 1: v = 1, 1.5, 1.75 with momentum 1/2."""
  options = dict(num_clients=1, num_examples=1, clip_norm=1.0, momentum=0.5)
  algorithm = replay.FedDyn(BIAS, BIAS.initial(), 0.5, 0.5, **options)
  algorithm.round([constant_client(0, 1, 1000.0, steps=3)])
  np.testing.assert_allclose(algorithm.client_dual(0)[1], 0.5 * 4.25, atol=1e-13)
  # The dual's term alone, a l_i = 0.5 * 4.25 / 2, is clipped as well; x is 4.25 now.
  algorithm.round([constant_client(0, 1, 4.25)])
  moved = algorithm.client_dual(0)[1] - 0.5 * 4.25
  np.testing.assert_allclose(moved, -0.5, atol=1e-13)

  algorithm = replay.FedDyn(BIAS, BIAS.initial(), 0.5, 0.5, 1, 1, clip_norm=1.0)
  algorithm.round([(0, (np.ones((1, 1)), np.array([1000.0])), [[0]])])
  for p in algorithm.client_dual(0):  # the norm runs over both arrays
    np.testing.assert_allclose(p, 0.5 / np.sqrt(2), atol=1e-13)

  start = random_weights(SOFTMAX)
  loose, free = (fed_dyn(SOFTMAX, start, clip_norm=c) for c in (1e6, 0.0))
  assert_same(run(loose), run(free))


def test_fed_dyn_finds_the_optimum_of_all_examples_that_fed_avg_misses():
  """a_i is in proportion to 1/n_i: a_i l_i = -grad F_i and sum l_i = 0 at the end."""
  cohort = [
    (i, random_client(QUADRATIC, SIZES[i], seed=i), [np.arange(SIZES[i])] * steps)
    for i, steps in enumerate((2, 5, 9, 4))
  ]
  x, y = (np.concatenate([data[k] for _, data, _ in cohort]) for k in range(2))
  start = random_weights(QUADRATIC)
  dyn = fed_dyn(QUADRATIC, start, lr=0.05, alpha=1.0)
  avg = replay.FedAvg(QUADRATIC, start, 0.05)
  for _ in range(300):
    dyn.round(cohort)
    avg.round(cohort)

  def slope(w):
    return replay.norm(QUADRATIC.loss_and_gradient(w, x, y)[1])

  assert slope(dyn.weights) < 1e-9
  assert slope(avg.weights) > 1e-2
  assert replay.norm(dyn.mean_dual) < 1e-9
  assert replay.norm(dyn.client_dual(0)) > 1e-2


# FedCurv.


def squares(model, w, x, y):
  """The mean of the squared gradients of the examples, element by element."""
  total = [np.zeros_like(p) for p in w]
  for k in range(len(x)):
    g = central_differences(
      lambda v, k=k: model.loss_and_gradient(v, x[k : k + 1], y[k : k + 1])[0], w
    )
    total = [p + q**2 / len(x) for p, q in zip(total, g)]
  return total


@every_model
def test_fed_curv_with_lambda_zero_is_fed_avg(model):
  options = dict(momentum=0.5, server_learning_rate=0.6, weighting="uniform")
  start = random_weights(model)
  curv = replay.FedCurv(model, start, 0.1, 0.0, **options)
  assert_same(run(curv), run(replay.FedAvg(model, start, 0.1, **options)))
  assert replay.norm(curv.fisher) > 0.0


def test_fed_curv_starts_as_fed_avg_and_a_client_alone_remains_so():
  start = random_weights(MLP)

  def pair():
    return replay.FedCurv(MLP, start, 0.1, 0.5), replay.FedAvg(MLP, start, 0.1)

  assert_same(*(run(a, rounds=[[1], [1], [1]]) for a in pair()))
  assert_same(*(run(a, rounds=[[0, 1]]) for a in pair()))
  assert differ(*(run(a, rounds=[[0, 1], [0]]) for a in pair()))
  for p in (pair()[0].fisher, pair()[0].fisher_model):
    assert_same(p, replay.zeros_like(start))


@pytest.mark.parametrize("second", [[1, 2], [0, 2]], ids=["with_own", "without_own"])
def test_fed_curv_follows_its_objective(second):
  """Client 1 in the third round, pulled to the others of the second round only."""
  lr, lam = 0.1, 0.5
  algorithm = replay.FedCurv(MLP, random_weights(MLP), lr, lam)
  algorithm.round(cohort_of(MLP, [0, 1]))
  pulls = {}
  for i in second:  # one round of one client shows its w_j
    alone = replay.FedCurv(MLP, algorithm.weights, lr, lam)
    alone.previous = dict(algorithm.previous)
    ((_, (x, y), _),) = cohort = cohort_of(MLP, [i], 1)
    w_i = alone.round(cohort)
    pulls[i] = w_i, squares(MLP, w_i, x, y)
  algorithm.round(cohort_of(MLP, second, 1))
  w = algorithm.weights
  ((_, (inputs, labels), batches),) = cohort = cohort_of(MLP, [1], 2)
  for batch in batches:

    def objective(v, batch=batch):
      loss = MLP.loss_and_gradient(v, inputs[batch], labels[batch])[0]
      for j, (w_j, f_j) in pulls.items():
        if j != 1:
          loss += lam * sum(np.sum(f * (p - q) ** 2) for f, p, q in zip(f_j, v, w_j))
      return loss

    w = replay.add(w, central_differences(objective, w), -lr)
  plain = replay.FedAvg(MLP, algorithm.weights, lr).round(cohort)
  assert_close(algorithm.round(cohort), w, atol=1e-8)
  assert replay.norm(replay.subtract(plain, w)) > 1e-4


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
def test_fed_curv_by_hand(weighting):
  """g_e = b - y_e. One step of 1/2 on (8, 0) leads to 2, on (4, 4, 4) to 2.

  F = (36 + 4)/2 = 20 (not the square of the mean gradient, 4) and 4. The sums are
  plain: U = 24, V = 48.
  """
  two = (0, (np.zeros((2, 1)), np.array([8.0, 0.0])), [[0, 1]])
  three = constant_client(1, 3, 4.0)
  algorithm = replay.FedCurv(BIAS, BIAS.initial(), 0.5, 0.01, weighting=weighting)
  algorithm.round([two, three])
  assert algorithm.weights[1] == [2.0]
  assert_same(algorithm.client_states[0], [np.zeros((1, 1)), [20.0], [[0.0]], [40.0]])
  assert_same(algorithm.client_states[1], [np.zeros((1, 1)), [4.0], [[0.0]], [8.0]])
  assert algorithm.fisher[1] == [24.0]
  assert algorithm.fisher_model[1] == [48.0]
  # From x = 2 the pull 2 lambda (u b - v) is 0 at first: 2 -> 3 for both, g = -2. Then
  # client 0, of mean 4: g = -1 and 0.02 (4 * 3 - 8) = 0.08. Client 2 has both pulls.
  algorithm = replay.FedCurv(BIAS, BIAS.initial(), 0.5, 0.01, weighting=weighting)
  algorithm.round([two, three])
  algorithm.round([(0, two[1], [[0, 1]] * 2)])
  np.testing.assert_allclose(algorithm.weights[1], 3 + 0.5 * (1 - 0.08), atol=1e-14)
  algorithm = replay.FedCurv(BIAS, BIAS.initial(), 0.5, 0.01, weighting=weighting)
  algorithm.round([two, three])
  algorithm.round([constant_client(2, 1, 4.0, steps=2)])
  np.testing.assert_allclose(algorithm.weights[1], 3 + 0.5 * (1 - 0.48), atol=1e-14)


def test_fed_curv_remembers_the_last_round_that_had_a_client():
  algorithm = replay.FedCurv(SOFTMAX, random_weights(SOFTMAX), 0.1, 0.5)
  algorithm.round(cohort_of(SOFTMAX, [0, 1, 2]), dropped={2})
  assert set(algorithm.previous) == {0, 1}
  u = replay.add(algorithm.client_states[0], algorithm.client_states[1])
  assert_close([*algorithm.fisher, *algorithm.fisher_model], u)
  algorithm.round(cohort_of(SOFTMAX, [3], 1), dropped={3})
  algorithm.round([])
  assert set(algorithm.previous) == {0, 1}
  old = algorithm.client_states[0]
  algorithm.round(cohort_of(SOFTMAX, [0, 3], 2), dropped={0})
  assert set(algorithm.previous) == {3}  # the sums do not grow, and 0 is not in them
  assert algorithm.client_states[0] is old
  assert_same([*algorithm.fisher, *algorithm.fisher_model], algorithm.client_states[3])


@every_model
def test_fisher_information_is_the_mean_of_squares_of_examples(model):
  w = random_weights(model)
  x, y = random_client(model, 6, seed=1)
  found = replay.fisher_information(model, w, x, y)
  assert_close(found, squares(model, w, x, y), atol=1e-7)
  assert_same(replay.fisher_information(model, w, x[:0], y[:0]), replay.zeros_like(w))


# DP-SGD.


@every_model
def test_private_gradient_without_noise_and_clipping_is_the_plain_one(model):
  w = random_weights(model)
  x, y = random_client(model, 6, seed=1)
  found = replay.private_gradient(model, w, x, y, 1e9, 0.0, normals_like(w))
  assert_close(found, model.loss_and_gradient(w, x, y)[1])


def test_private_gradient_clips_each_example_over_all_weights():
  """At w = 0, g_e = -y_e for W (where the input is 1) and b."""
  w, none = BIAS.initial(), BIAS.initial()
  x, y = np.zeros((2, 1)), np.array([8.0, 0.5])
  found = replay.private_gradient(BIAS, w, x, y, 1.0, 0.0, none)
  assert_same(found, [np.zeros((1, 1)), np.array([-0.75])])  # (-1 - 0.5) / 2
  found = replay.private_gradient(BIAS, w, x + 1.0, y, 1.0, 0.0, none)
  for p in found:  # (-1/sqrt(2) - 0.5) / 2
    np.testing.assert_allclose(p, -(np.sqrt(0.5) + 0.5) / 2, atol=1e-14)
  found = replay.private_gradient(BIAS, w, x, 0.0 * y, 1.0, 0.0, none)
  assert_same(found, none)


@every_model
def test_private_gradient_noise_is_in_proportion_to_sigma_and_c(model):
  w = random_weights(model)
  x, y = random_client(model, 6, seed=1)
  xi = normals_like(w, 5)
  for clip, sigma in ((0.3, 2.0), (50.0, 0.1)):
    noisy, clean = (
      replay.private_gradient(model, w, x, y, clip, s, xi) for s in (sigma, 0.0)
    )
    assert replay.norm(clean) <= clip
    noise = replay.subtract(noisy, clean)
    assert_close(noise, [sigma * clip * p / 6 for p in xi])
  empty = replay.private_gradient(model, w, x[:0], y[:0], 1.0, 1.0, xi)
  assert_same(empty, replay.zeros_like(w))


PRIVATE = {
  "fed_sgd": make(replay.FedSGD, learning_rate=0.1, weighting="uniform"),
  "fed_avg": make(replay.FedAvg, learning_rate=0.1, momentum=0.5),
  "fed_prox": make(replay.FedProx, learning_rate=0.1, mu=0.5),
  "fed_curv": make(replay.FedCurv, learning_rate=0.1, curvature=0.3),
}


@pytest.mark.parametrize("build", PRIVATE.values(), ids=PRIVATE)
def test_privacy_that_does_nothing_changes_nothing(build):
  start = random_weights(MLP)

  def normals(i, m):
    return normals_like(start, i, m)

  nothing = replay.Privacy(1e9, 0.0, normals)
  assert_close(run(build(MLP, start, privacy=nothing)), run(build(MLP, start)))
  clip, noise = (replay.Privacy(c, s, normals) for c, s in ((0.5, 0.0), (0.5, 0.1)))
  one, two, three = (
    run(build(MLP, start, privacy=p), rounds=[[0, 1]]) for p in (None, clip, noise)
  )
  assert differ(one, two)
  assert differ(two, three)


def test_private_fed_sgd_is_private_fed_avg_with_one_full_batch_epoch():
  start = random_weights(SOFTMAX)
  sgd = replay.FedSGD(SOFTMAX, start, 0.1, privacy=PRIVACY)
  avg = replay.FedAvg(SOFTMAX, start, 0.1, privacy=PRIVACY)
  assert_close(run(sgd), run(avg, cohort=full_batch_cohort))


def test_private_fed_sgd_by_hand():
  """-1 + 0.5 * 3 for one example, (-3 * 1 + 0.5 * 3) / 3 for three; C = 1."""
  privacy = replay.Privacy(1.0, 0.5, lambda i, m: [np.zeros((1, 1)), np.full(1, 3.0)])
  algorithm = replay.FedSGD(BIAS, BIAS.initial(), 0.5, privacy=privacy)
  algorithm.round([constant_client(0, 1, 8.0), constant_client(1, 3, 8.0)])
  np.testing.assert_allclose(
    algorithm.weights[1], -0.5 * (1 * 0.5 + 3 * -0.5) / 4, atol=1e-15
  )


def test_each_local_step_has_noise_of_its_own():
  """The proximal term is added to the private gradient, momentum acts on the sum."""
  start, lr, mu, momentum = random_weights(SOFTMAX), 0.1, 2.0, 0.5
  calls = []

  def normals(client_id, m):
    calls.append((client_id, m))
    return PRIVACY.normals(client_id, m)

  privacy = PRIVACY._replace(normals=normals)
  algorithm = replay.FedProx(SOFTMAX, start, lr, mu, momentum=momentum, privacy=privacy)
  ((_, (x, y), batches),) = cohort = cohort_of(SOFTMAX, [2])
  algorithm.round(cohort)
  assert calls == [(2, m) for m in range(1, len(batches) + 1)]
  w, velocity = start, replay.zeros_like(start)
  for m, batch in enumerate(batches, start=1):
    total = replay.scaled(PRIVACY.normals(2, m), 0.3 * 0.5)
    for e in batch:
      g = SOFTMAX.loss_and_gradient(w, x[[e]], y[[e]])[1]
      total = replay.add(total, g, min(1.0, 0.5 / replay.norm(g)))
    g = [p / len(batch) + mu * (q - r) for p, q, r in zip(total, w, start)]
    velocity = replay.add(g, velocity, momentum)
    w = replay.add(w, velocity, -lr)
  assert_close(algorithm.weights, w)


def test_private_fisher_information_by_hand():
  """At b = 0: g_e = -8 and -1, with C = 2 clipped to -2 and -1."""
  x, y = np.zeros((2, 1)), np.array([8.0, 1.0])
  for xi, expected in ((3.0, (4 + 1 + 0.25 * 4 * 3) / 2), (-9.0, 0.0)):
    calls = []

    def normals(i, m, xi=xi, calls=calls):
      calls.append((i, m))
      return [np.full((1, 1), -1.0), np.full(1, xi)]

    privacy = replay.Privacy(2.0, 0.25, normals)
    found = replay.fisher_information(BIAS, BIAS.initial(), x, y, privacy, 7)
    assert_same(found, [np.zeros((1, 1)), [expected]])  # W: noise below 0
    assert calls == [(7, 0)]


def test_one_example_moves_the_private_fisher_information_by_c_squared_at_most():
  w = random_weights(MLP)
  x, y = random_client(MLP, 6, seed=1)
  privacy = replay.Privacy(0.3, 0.0, lambda i, m: normals_like(w))
  for k in range(6):
    share = replay.fisher_information(MLP, w, x[k : k + 1], y[k : k + 1], privacy)
    assert replay.norm(share) <= 0.3**2


def test_private_fed_curv_sends_the_private_fisher_information():
  start = random_weights(SOFTMAX)
  algorithm = replay.FedCurv(SOFTMAX, start, 0.1, 0.5, privacy=PRIVACY)
  ((_, (x, y), _),) = cohort = cohort_of(SOFTMAX, [2])
  w = algorithm.round(cohort)
  u = replay.fisher_information(SOFTMAX, w, x, y, PRIVACY, 2)
  assert_close(algorithm.fisher, u)
  assert_close(algorithm.fisher_model, [p * q for p, q in zip(u, w)])
  assert differ(u, replay.fisher_information(SOFTMAX, w, x, y))


# TWAFL, TEFL, AFL.


def twafl(model, start, lr=0.1, base=np.e / 2, num_shallow=1, **options):
  return replay.Twafl(
    model, start, lr, dict(enumerate(SIZES)), base, num_shallow, **options
  )


def line_client(client_id, num_examples, target):
  """From (W, b) one step of 1/4 leads to W - e/4 and b - e/4, e = W + b - target."""
  data = np.ones((num_examples, 1)), np.full(num_examples, target)
  return client_id, data, [np.arange(num_examples)]


@pytest.mark.parametrize(
  "options, expected",
  [
    # Client 0 uploads 4 in round 1, where client 1 has 0 of round 0. Then client 1
    # steps from x to (x - 8) / 2 in round 2.
    (dict(), [4 / (1 + 3 / 2), (4 / 2 + 3 * -3.2) / (1 / 2 + 3)]),
    (dict(normalise=False), [4 / 4, (4 / 2 + 3 * -3.5) / 4]),
    (dict(weighting="uniform"), [4 / (1 + 1 / 2), (4 / 2 + -8 / 3) / (1 / 2 + 1)]),
    (dict(base=1.0), [4 / 4, (4 + 3 * -3.5) / 4]),
  ],
  ids=["normalised", "literal", "uniform", "afl"],
)
def test_temporal_weights_by_hand(options, expected):
  options = dict(base=2.0, num_shallow=2, rounds_in_loop=1, freq=1) | options
  algorithm = replay.Twafl(BIAS, BIAS.initial(), 0.5, {0: 1, 1: 3}, **options)
  algorithm.round([constant_client(0, 1, 8.0)])
  np.testing.assert_allclose(algorithm.weights[1], expected[0], atol=1e-14)
  algorithm.round([constant_client(1, 3, -8.0)])
  np.testing.assert_allclose(algorithm.weights[1], expected[1], atol=1e-14)


def test_twafl_layers_by_hand():
  """a = 2, n = 1 and 2, W shallow, b deep; rounds 2 and 4 are full."""
  algorithm = replay.Twafl(
    BIAS,
    BIAS.initial(),
    0.25,
    {0: 1, 1: 2},
    base=2.0,
    num_shallow=1,
    rounds_in_loop=2,
    freq=1,
  )

  def check(w, b, **own):
    np.testing.assert_allclose(algorithm.weights[0], w, atol=1e-14)
    np.testing.assert_allclose(algorithm.weights[1], b, atol=1e-14)
    states = {f"own_{i}": s[0][0] for i, s in algorithm.client_states.items()}
    assert states == pytest.approx(own, abs=1e-14)

  # 1: client 0 goes from (0, 0) to (2, 2) and uploads W alone; client 1 has 0 of round 0.
  algorithm.round([line_client(0, 1, 8.0)])
  check((2 + 2 * 0 / 2) / (1 + 2 / 2), 0.0, own_0=2.0)
  # 2: client 1 goes from (1, 0) to (-1, -2); client 0 has W = 2 of round 1 and still
  # b = 0 of round 0.
  algorithm.round([line_client(1, 2, -7.0)])
  check((2 / 2 + 2 * -1) / 2.5, (0 / 4 + 2 * -2) / 2.25, own_0=2.0, own_1=-2.0)
  # 3: client 0 goes from the server's W = -0.4 and its own b = 2 to (1.2, 3.6).
  algorithm.round([line_client(0, 1, 8.0)])
  check((1.2 + 2 * -1 / 2) / 2, -16 / 9, own_0=3.6, own_1=-2.0)
  # 4: full, both from (0.1, -16/9), but client 1 is dropped.
  e = 0.1 - 16 / 9 - 8
  cohort = [line_client(0, 1, 8.0), line_client(1, 2, np.nan)]
  algorithm.round(cohort, dropped={1})
  w, b = 0.1 - e / 4, -16 / 9 - e / 4
  check((w + 2 * -1 / 4) / 1.5, (b + 2 * -2 / 4) / 1.5, own_0=b, own_1=-2.0)


def test_twafl_rounds_without_clients_count():
  """For the schedule, and for the age of the uploads that come later."""
  options = dict(base=2.0, num_shallow=1, rounds_in_loop=3, freq=1)
  algorithm = replay.Twafl(BIAS, BIAS.initial(), 0.25, {0: 1, 1: 1}, **options)
  algorithm.round([line_client(0, 1, 8.0)])
  before = algorithm.weights
  algorithm.round([])
  assert_same(algorithm.weights, before)
  assert algorithm.round_num == 2
  # 3: full. W = 2 / 1.5 at the server; client 0 has 2 of round 1, client 1 is new.
  algorithm.round([line_client(1, 1, 0.0)])
  w = 4 / 3 - 1 / 3
  np.testing.assert_allclose(algorithm.weights[0], (2 / 4 + w) / 1.25, atol=1e-14)
  np.testing.assert_allclose(algorithm.weights[1], (-1 / 3) / (1 + 1 / 8), atol=1e-14)
  algorithm.round([line_client(1, 1, 0.0)], dropped={1})
  assert algorithm.round_num == 4


@pytest.mark.parametrize("rounds_in_loop, freq", [(15, 5), (4, 3), (3, 0), (2, 2)])
def test_twafl_deep_layers_change_in_the_last_rounds_of_a_loop(rounds_in_loop, freq):
  algorithm = twafl(
    SOFTMAX, random_weights(SOFTMAX), rounds_in_loop=rounds_in_loop, freq=freq
  )
  for t in range(2 * rounds_in_loop):
    before = algorithm.weights
    algorithm.round(cohort_of(SOFTMAX, [t % 4], t))
    full = t % rounds_in_loop in range(rounds_in_loop - freq, rounds_in_loop)
    assert differ(before[:1], algorithm.weights[:1])
    assert differ(before[1:], algorithm.weights[1:]) == full


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
def test_twafl_weights_sum_to_one(weighting):
  start = random_weights(MLP)
  algorithm = twafl(MLP, start, lr=0.0, rounds_in_loop=2, freq=1, weighting=weighting)
  assert_close(run(algorithm), start)


def test_literal_twafl_shrinks():
  """One of ten equal clients a round: the nine others weigh less each time."""
  options = dict(num_shallow=1, rounds_in_loop=1, freq=1, normalise=False)
  start = [np.full((4, 3), 2.0), np.ones(3)]
  a = np.e / 2
  algorithm = replay.Twafl(SOFTMAX, start, 0.0, dict.fromkeys(range(10), 5), a, **options)
  sizes = [1.0]
  for k in range(10):
    algorithm.round([(k, random_client(SOFTMAX, 5, seed=k), [np.arange(5)])])
    sizes.append(algorithm.weights[1][0])
    assert_close(algorithm.weights, replay.scaled(start, sizes[-1]))
  assert sizes[1] == pytest.approx((1 + 9 / a) / 10)
  assert sizes[2] == pytest.approx((sizes[1] + 1 / a + 8 / a**2) / 10)
  assert all(small < large for large, small in zip(sizes, sizes[1:]))
  assert sizes[10] < 0.3


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
@pytest.mark.parametrize("base", [1.0, np.e / 2])
def test_twafl_with_everyone_in_full_rounds_is_fed_avg(weighting, base):
  """All uploads are of this round, so that a does not matter."""
  start, everyone = random_weights(MLP), [[0, 1, 2, 3]] * 3
  options = dict(momentum=0.5, weighting=weighting)
  avg = run(replay.FedAvg(MLP, start, 0.1, **options), rounds=everyone)
  for normalise in (True, False):
    algorithm = twafl(
      MLP, start, base=base, rounds_in_loop=3, freq=3, normalise=normalise, **options
    )
    assert_close(run(algorithm, rounds=everyone), avg)
  late = twafl(MLP, start, base=base, rounds_in_loop=3, freq=1, **options)
  assert differ(run(late, rounds=everyone), avg)


def test_tefl_has_no_shallow_layers():
  start = random_weights(MLP)
  models = [
    run(twafl(MLP, start, num_shallow=k, rounds_in_loop=3, freq=3)) for k in range(5)
  ]
  for k in range(1, 5):
    assert_close(models[k], models[0])
  for k in range(4):  # in a shallow round it does matter
    assert differ(run(twafl(MLP, start, num_shallow=k)), models[0])
  assert_close(run(twafl(MLP, start, num_shallow=4)), models[0])


def test_base_decides_where_clients_come_and_go():
  start = random_weights(SOFTMAX)
  options = dict(rounds_in_loop=1, freq=1)
  afl, tefl = (run(twafl(SOFTMAX, start, base=a, **options)) for a in (1.0, np.e / 2))
  assert differ(afl, tefl)
  avg = run(replay.FedAvg(SOFTMAX, start, 0.1))
  only_new = run(twafl(SOFTMAX, start, base=1e12, **options))
  assert_close(only_new, avg, atol=1e-9)
