"""Checks of the NumPy FedReg against facts that do not come from its own code."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import replay
import replay_fed_reg
import test_replay
from test_replay import (
  BIAS,
  MLP,
  QUADRATIC,
  SOFTMAX,
  assert_close,
  assert_same,
  central_differences,
  cohort_of,
  constant_client,
  differ,
  every_model,
  random_client,
  random_weights,
  run,
)


def fed_reg(model=MLP, start=None, **options):
  options = {"learning_rate": 0.1, "gamma": 0.6, "pseudo_step": 0.05, **options}
  return replay_fed_reg.FedReg(model, start or random_weights(model), **options)


ALGORITHMS = {
  "plain": fed_reg,
  "modified": functools.partial(fed_reg, modified_gradient=True, clip_range="none"),
  "no_pseudo_data": functools.partial(fed_reg, pseudo_steps=0),
}


def random_targets(model, num_examples):
  targets = random_weights(model, seed=5)[-1].size
  return np.random.default_rng(0).dirichlet(np.ones(targets), size=num_examples)


def loss_of(model, w, x, y):
  return model.loss_and_gradient(w, x, y)[0]


# What the models give to it.


@every_model
def test_input_gradient_is_that_of_the_summed_loss(model):
  w = random_weights(model)
  x, y = random_client(model, 6, seed=1)
  numeric = central_differences(lambda v: 6 * loss_of(model, w, v[0], y), [x])
  assert_close([model.input_gradient(w, x, y)], numeric, atol=1e-8)
  assert_same(*([model.input_gradient(w, x, v)] for v in (y, y.reshape(-1, 1))))


@every_model
def test_soft_gradient_is_that_of_the_soft_loss(model):
  w = random_weights(model)
  x, _ = random_client(model, 6, seed=1)
  targets = random_targets(model, 6)
  _, gradient = model.soft_loss_and_gradient(w, x, targets)
  numeric = central_differences(
    lambda v: model.soft_loss_and_gradient(v, x, targets)[0], w
  )
  assert_close(gradient, numeric, atol=1e-8)


@every_model
def test_hard_labels_are_one_hot_targets(model):
  w = random_weights(model)
  x, y = random_client(model, 6, seed=1)
  targets = y.reshape(-1, 1) if model is QUADRATIC else np.eye(3)[y]
  soft, hard = (
    model.soft_loss_and_gradient(w, x, targets),
    model.loss_and_gradient(w, x, y),
  )
  assert soft[0] == pytest.approx(hard[0], abs=1e-12)
  assert_close(soft[1], hard[1])


@every_model
def test_no_model_fits_the_targets_better_than_the_one_that_made_them(model):
  w = random_weights(model)
  x, _ = random_client(model, 6, seed=1)
  targets = model.targets(w, x)
  assert targets.shape == model.predict(w, x).shape
  loss, gradient = model.soft_loss_and_gradient(w, x, targets)
  assert_close(gradient, replay.zeros_like(w))
  other, _ = model.soft_loss_and_gradient(random_weights(model, seed=3), x, targets)
  assert other > loss + 1e-3


def test_targets_by_hand():
  x, p = np.ones((2, 4)), np.array([0.2, 0.3, 0.5])
  w = [np.zeros((4, 3)), np.log(p) + 1000.0]  # a shift of the logits does not matter
  np.testing.assert_allclose(SOFTMAX.targets(w, x), [p, p], atol=1e-12)
  loss, _ = SOFTMAX.soft_loss_and_gradient(w, x, np.array([[0.5, 0.5, 0], [0, 0, 1]]))
  expected = -(0.5 * np.log(0.2) + 0.5 * np.log(0.3) + np.log(0.5)) / 2
  assert loss == pytest.approx(expected, abs=1e-12)


# Pseudo and perturbed data.


@every_model
@pytest.mark.parametrize("clip_range", ["batch", "none"])
def test_ascent_stays_near_and_in_the_range_and_raises_the_loss(model, clip_range):
  w = random_weights(model)
  x, y = random_client(model, 6, seed=1)
  step, steps = 0.1, 10
  v = replay_fed_reg.ascend(model, w, x, y, step, steps, clip_range)
  assert np.abs(v - x).max() == pytest.approx(steps * step, abs=1e-12)
  outside = v.min() < x.min() or v.max() > x.max()
  assert outside == (clip_range == "none")
  for k in range(6):  # each example alone, as there is one direction for each
    row = slice(k, k + 1)
    assert loss_of(model, w, v[row], y[row]) > loss_of(model, w, x[row], y[row])


def test_ascent_by_hand():
  """The loss 1/2 (2 v1 - v2 - y)^2 grows with the error, whose sign does not change."""
  w = [np.array([[2.0], [-1.0]]), np.zeros(1)]
  x, y = np.array([[0.0, 0.0], [1.0, 0.25]]), np.array([1.0, 0.0])  # errors -1, 1.75
  ascend = functools.partial(
    replay_fed_reg.ascend, replay.LinearRegression(2), w, x, y, 0.25
  )
  assert_same([ascend(2, "none")], [np.array([[-0.5, 0.5], [1.5, -0.25]])])
  # Clipped to [0, 1]: the range of the whole batch, not that of a row or a column.
  assert_same([ascend(2, "batch")], [np.array([[0.0, 0.5], [1.0, 0.0]])])
  assert_same([ascend(0)], [x])


def test_every_step_of_the_ascent_is_clipped_and_follows_the_gradient_where_it_is():
  w = random_weights(MLP)
  x, y = random_client(MLP, 6, seed=1)
  v = x
  for steps in range(1, 11):
    numeric = central_differences(lambda u: 6 * loss_of(MLP, w, u[0], y), [v])[0]
    v = np.clip(v + 0.3 * np.sign(numeric), x.min(), x.max())
    assert_close([replay_fed_reg.ascend(MLP, w, x, y, 0.3, steps)], [v])
  once = np.clip(replay_fed_reg.ascend(MLP, w, x, y, 0.3, 10, "none"), x.min(), x.max())
  assert differ([v], [once])


def test_pseudo_data_come_from_the_batches_of_the_first_epoch():
  algorithm, cohort = fed_reg(), cohort_of(MLP, [3])  # 3 + 3 + 1 examples, 2 epochs
  ((_, (x, y), batches),) = cohort
  data = algorithm.pseudo_data(x, y, batches)
  for batch in batches[:3]:
    v, p = (
      replay_fed_reg.ascend(MLP, algorithm.weights, x[batch], y[batch], step, 10)
      for step in (0.05, 0.0005)
    )
    found = [rows[batch] for rows in data]
    assert_close(found, [v, MLP.targets(algorithm.weights, v), p])
  later = batches[:3] + batches[:3][::-1]
  assert_same(data, algorithm.pseudo_data(x, y, later))
  assert differ(data, algorithm.pseudo_data(x, y, batches[3:] + batches[:3]))


def test_first_epoch_ends_when_every_example_was_met():
  batches = [[2, 0], [1], [0, 1], [2]]
  assert replay_fed_reg.first_epoch(batches, 3) == [[2, 0], [1]]
  assert replay_fed_reg.first_epoch(batches[:1], 3) == [[2, 0]]
  assert replay_fed_reg.first_epoch([], 0) == []
  for twice in ([[0, 1], [1, 2]], [[0, 0]]):
    with pytest.raises(ValueError, match="twice"):
      replay_fed_reg.first_epoch(twice, 3)


def test_perturbed_data_are_a_hundred_times_nearer():
  algorithm = fed_reg(clip_range="none")
  ((_, (x, y), batches),) = cohort_of(MLP, [1])
  data = algorithm.pseudo_data(x, y, batches)
  assert np.abs(data.inputs - x).max() == pytest.approx(0.5, abs=1e-12)
  assert np.abs(data.perturbed - x).max() == pytest.approx(0.005, abs=1e-12)
  assert fed_reg(perturbation_ratio=0.5).perturbed_step == 0.025


# Projections.


def triple(seed):
  return [random_weights(MLP, seed=3 * seed + k) for k in range(3)]


def test_projected_gradient_is_orthogonal():
  g, gm, _ = triple(0)
  rest = replay_fed_reg.project_out(g, gm)
  assert replay.dot(rest, gm) == pytest.approx(0.0, abs=1e-12)
  removed = replay.subtract(g, rest)  # along gm: Cauchy and Schwarz are equal
  assert abs(replay.dot(removed, gm)) == pytest.approx(
    replay.norm(removed) * replay.norm(gm)
  )
  assert_same(replay_fed_reg.project_out(g, replay.zeros_like(g)), g)


def test_regulation_projects_on_each_half_space_in_turn():
  """Eqs. (8) and (9): the nearest point with <w - x, gs> <= 0, then that for gp."""
  signs = set()
  for seed in range(12):
    u, gs, gp = triple(seed)
    ws, wp = replay_fed_reg.regulation_weights(u, gs, gp)
    after_s = replay.add(u, gs, -ws)
    after_p = replay.add(after_s, gp, -wp)
    for before, after, g in ((u, after_s, gs), (after_s, after_p, gp)):
      if replay.dot(before, g) > 0.0:
        assert replay.dot(after, g) == pytest.approx(0.0, abs=1e-12)
      else:
        assert_same(after, before)
    signs.add((ws > 0.0, wp > 0.0))
    assert min(ws, wp) >= 0.0
  assert len(signs) == 4
  zero = replay.zeros_like(u)
  assert replay_fed_reg.regulation_weights(u, zero, zero) == (0.0, 0.0)


# The whole algorithm.


@pytest.mark.parametrize("model", [MLP, QUADRATIC], ids=["mlp", "quadratic"])
@pytest.mark.parametrize("modified", [False, True], ids=["plain", "modified"])
@pytest.mark.parametrize("gamma", [0.0, 0.4])
def test_fed_reg_follows_its_losses(model, modified, gamma):
  """A round of one client, from losses alone."""
  lr, eta_s = 0.2, 0.08
  algorithm = fed_reg(
    model, learning_rate=lr, gamma=gamma, pseudo_step=eta_s, modified_gradient=modified
  )
  x = algorithm.weights
  cohort = cohort_of(model, [1])  # 3 + 3 + 2 examples, 2 epochs
  ((_, (inputs, labels), batches),) = cohort

  def flat(weights):
    return np.concatenate([p.ravel() for p in weights])

  def slope(loss, w):
    return flat(central_differences(loss, w))

  def shaped(vector):
    parts = np.split(vector, np.cumsum([p.size for p in x])[:-1])
    return [part.reshape(p.shape) for part, p in zip(parts, x)]

  pseudo, perturbed = np.zeros_like(inputs), np.zeros_like(inputs)
  for made, step in ((pseudo, eta_s), (perturbed, eta_s / 100)):
    for batch in batches[:3]:
      v = inputs[batch]
      for _ in range(10):
        up = central_differences(lambda u, b=batch: loss_of(model, x, *u, labels[b]), [v])
        v = np.clip(v + step * np.sign(up[0]), inputs[batch].min(), inputs[batch].max())
      made[batch] = v
  targets = model.predict(x, pseudo)
  if model is MLP:
    targets = np.exp(targets) / np.exp(targets).sum(axis=1, keepdims=True)

  u, seen = flat(x) * 0.0, []  # u = w - x
  for batch in batches:
    y = labels[batch]
    uniform = np.full_like(targets[batch], 1 / targets.shape[1])

    def real(w, b=batch, y=y):
      return loss_of(model, w, inputs[b], y)

    def soft(w, t, b=batch):
      return model.soft_loss_and_gradient(w, pseudo[b], t)[0]

    at = shaped(flat(x) + gamma * u)
    g = slope(real, at)
    if modified:
      gm = slope(lambda w, s=soft, t=uniform: s(w, t), at)
      g = g - (g @ gm) / (gm @ gm) * gm
    u = u - lr * g
    middle = shaped(flat(x) + u / 2)
    gs = slope(lambda w, s=soft, t=targets[batch]: s(w, t), middle)
    gp = slope(lambda w, b=batch, y=y: loss_of(model, w, perturbed[b], y), middle)
    for h in (gs, gp):
      seen.append(max(u @ h / (h @ h), 0.0))
      u = u - seen[-1] * h
  assert max(seen[::2]) > 1e-3
  assert_close(algorithm.round(cohort), shaped(flat(x) + u), atol=1e-7)


@every_model
def test_fed_reg_without_pseudo_data_is_uniform_fed_avg(model):
  start = random_weights(model)
  for options in ({}, {"modified_gradient": True}):
    reg = fed_reg(model, start, gamma=1.0, pseudo_steps=0, **options)
    avg = replay.FedAvg(model, start, 0.1, weighting="uniform")
    assert_close(run(reg), run(avg))


def test_gamma_zero_takes_all_gradients_at_the_received_model():
  algorithm = fed_reg(gamma=0.0, pseudo_steps=0)
  x, cohort = algorithm.weights, cohort_of(MLP, [1])
  ((_, (inputs, labels), batches),) = cohort
  expected = x
  for b in batches:
    _, g = MLP.loss_and_gradient(x, inputs[b], labels[b])
    expected = replay.add(expected, g, -0.1)
  assert_close(algorithm.round(cohort), expected)


def test_server_takes_the_uniform_mean():
  cohort = [constant_client(0, 1, 8.0), constant_client(1, 3, 4.0)]
  for options, expected in (({}, 3.0), ({"weighting": "examples"}, 2.5)):
    algorithm = fed_reg(
      BIAS, BIAS.initial(), learning_rate=0.5, pseudo_steps=0, **options
    )
    assert algorithm.round(cohort)[1] == [expected]


def test_every_option_matters():
  base = run(fed_reg())
  for options in (
    {"gamma": 0.5},
    {"pseudo_step": 0.06},
    {"perturbation_ratio": 0.02},
    {"pseudo_steps": 9},
    {"clip_range": "none"},
    {"modified_gradient": True},
    {"weighting": "examples"},
  ):
    assert differ(base, run(fed_reg(**options))), options


def test_raises_on_an_unknown_clip_range():
  with pytest.raises(ValueError, match="clip_range"):
    fed_reg(clip_range="row")


@pytest.mark.parametrize("build", ALGORITHMS.values(), ids=ALGORITHMS)
@pytest.mark.parametrize(
  "check",
  [
    test_replay.test_order_of_the_cohort_does_not_matter,
    test_replay.test_dropped_client_counts_as_absent,
    test_replay.test_client_without_data_is_harmless,
    test_replay.test_stays_in_float64_and_leaves_its_arguments_alone,
  ],
  ids=lambda check: check.__name__[5:],
)
def test_what_holds_for_every_algorithm(build, check):
  check(build)


@pytest.mark.parametrize("client_ids", [[], [0, 1]], ids=["empty", "all_dropped"])
def test_round_without_accepted_clients_leaves_the_server(client_ids):
  test_replay.test_round_without_accepted_clients_leaves_the_server(fed_reg, client_ids)
