"""Checks of the NumPy FedAgg against facts that do not come from its own code."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
import replay
import replay_fed_agg
import test_replay
from replay_fed_agg import learning_rates
from test_replay import (
  BIAS,
  MLP,
  QUADRATIC,
  SIZES,
  SOFTMAX,
  assert_close,
  assert_same,
  cohort_of,
  constant_client,
  differ,
  every_model,
  full_batch_cohort,
  random_weights,
  run,
)


def fed_agg(model=SOFTMAX, start=None, **options):
  options = {"learning_rate": 0.1, "alpha": 0.3, "epochs": 2, **options}
  return replay_fed_agg.FedAgg(model, start or random_weights(model), **options)


ALGORITHMS = {
  "previous_round": fed_agg,
  "fixed_point": functools.partial(fed_agg, estimates="fixed_point"),
  "local_all_full": functools.partial(
    fed_agg, direction="local", planned_steps="all", gradient="full", rule="literal"
  ),
}

every_reference = pytest.mark.parametrize(
  "reference", [0.0, 0.2], ids=["literal", "anch"]
)


# The rates.


def random_terms(num_epochs, size=0.3):
  draw = [random_weights(SOFTMAX, seed=k) for k in range(2 * num_epochs)]
  draw = [replay.scaled(item, size) for item in draw]
  return draw[:num_epochs], draw[num_epochs:]


def own_drift(phi1, eta, steps, r):
  """w_r - x = - sum_{m<r} eta_m p_m."""
  drift = replay.zeros_like(phi1[0])
  for m in range(r):
    drift = replay.add(drift, phi1[m], -eta[m] * steps)
  return drift


def cost(eta, phi1, drifts, alpha, reference, steps):
  """The drifts are those for r = 1..L."""
  total = alpha * sum((rate - reference) ** 2 for rate in eta)
  for r in range(1, len(phi1) + 1):
    apart = replay.subtract(own_drift(phi1, eta, steps, r), drifts[r - 1])
    total += (1 - alpha) * replay.dot(apart, apart)
  return total


def unclipped(phi1, drifts, alpha, reference, steps=1):
  planned = [replay.scaled(p, steps) for p in phi1]
  return np.linalg.solve(*replay_fed_agg.system(planned, drifts, alpha, reference))


@every_reference
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("num_epochs", [1, 2, 4])
def test_rates_minimise_the_cost(reference, steps, num_epochs):
  phi1, drifts = random_terms(num_epochs)
  rest = phi1, drifts, 0.3, reference, steps
  eta = unclipped(*rest)
  for k in range(num_epochs):
    step = 1e-5 * np.eye(num_epochs)[k]
    numeric = (cost(eta + step, *rest) - cost(eta - step, *rest)) / 2e-5
    assert numeric == pytest.approx(0.0, abs=1e-8)
    assert cost(eta + 1e3 * step, *rest) > cost(eta, *rest)


@every_reference
@pytest.mark.parametrize("steps", [1, 3])
def test_rates_obey_the_recursion(reference, steps):
  """eta_l = ref + (1-alpha)/alpha <p_l, sum_{r=l+1..L} (w_r - phi2(r))>."""
  alpha, size = 0.3, 4
  phi1, drifts = random_terms(size)
  eta = unclipped(phi1, drifts, alpha, reference, steps)
  for epoch in range(size):
    pull = 0.0
    for r in range(epoch + 1, size + 1):
      apart = replay.subtract(own_drift(phi1, eta, steps, r), drifts[r - 1])
      pull += steps * replay.dot(phi1[epoch], apart)
    expected = reference + (1 - alpha) / alpha * pull
    assert eta[epoch] == pytest.approx(expected, abs=1e-12)


def test_rates_are_clipped():
  phi1, drifts = random_terms(4)
  eta = unclipped(phi1, drifts, 0.3, 0.2)
  assert eta.min() < 0.0 < 0.05 < eta.max()
  rates = learning_rates(phi1, drifts, 0.3, 0.2)
  np.testing.assert_array_equal(rates, np.maximum(eta, 0.0))
  rates = learning_rates(phi1, drifts, 0.3, 0.2, max_learning_rate=0.05)
  np.testing.assert_array_equal(rates, np.minimum(np.maximum(eta, 0.0), 0.05))


@every_reference
@pytest.mark.parametrize("steps", [1, 3])
def test_with_common_terms_the_reference_is_the_only_fixed_point(reference, steps):
  """All clients alike: phi2 is what eta itself makes. The literal rule stands still."""
  phi1, _ = random_terms(3, size=0.15)
  eta, far = np.array([0.9, 0.1, 0.5]), np.inf
  for _ in range(600):
    drifts = [own_drift(phi1, eta, steps, r) for r in (1, 2, 3)]
    eta = unclipped(phi1, drifts, 0.3, reference, steps)
    distance = np.linalg.norm(eta - reference)
    assert distance < far or distance < 1e-12
    far = distance
  np.testing.assert_allclose(eta, np.full(3, reference), atol=1e-10)


@every_reference
def test_planning_one_step_where_an_epoch_takes_more_lets_the_rates_grow(reference):
  """The drifts of s steps count as those of one: eta grows towards s eta each time."""
  phi1, _ = random_terms(3)
  rates = [np.full(3, 0.2)]
  for _ in range(4):
    drifts = [own_drift(phi1, rates[-1], 5, r) for r in (1, 2, 3)]
    rates.append(unclipped(phi1, drifts, 0.1, reference, steps=1))
  assert np.all(np.diff(np.sum(rates, axis=1)) > 0.0)
  assert np.sum(rates[-1]) > 50 * np.sum(rates[0])


# The whole algorithm.


def test_fed_agg_by_hand():
  """Targets 8 and -8 of 3 and 1 examples; g = b - target, one step an epoch."""
  cohort = [constant_client(0, 3, 8.0), constant_client(1, 1, -8.0)]
  # Round 0 is FedAvg: b = 4 and -4, the mean 2. Then phi1 = -4, d_1 = 2, so that
  # (1/2 + 1/2 16) eta = 1/2 eta_ref + 1/2 8, which is 1/2 or 8/17.
  for options, expected in (
    ({}, 2 + 4 / 2),
    ({"rule": "literal"}, 2 + 4 * 8 / 17),
    ({"direction": "local"}, 2 + (0.75 * 6 - 0.25 * 10) / 2),
  ):
    algorithm = fed_agg(
      BIAS, BIAS.initial(), learning_rate=0.5, alpha=0.5, epochs=1, **options
    )
    assert algorithm.round(cohort)[1] == [2.0]
    assert algorithm.estimates.phi1[0][1] == [-4.0]
    assert algorithm.estimates.drifts[0][1] == [2.0]
    np.testing.assert_allclose(algorithm.round(cohort)[1], [expected], atol=1e-14)


def test_the_largest_rate_is_that_of_the_first_round_too():
  """From 0 a quarter of the way to the mean of 8 and -8 by examples, 4; and again."""
  cohort = [constant_client(0, 3, 8.0), constant_client(1, 1, -8.0)]
  algorithm = fed_agg(
    *(BIAS, BIAS.initial()),
    **dict(learning_rate=0.5, alpha=0.5, epochs=1, max_learning_rate=0.25),
  )
  assert algorithm.round(cohort)[1] == [1.0]
  # phi1 = -4 and d_1 = 1, so that (1/2 + 1/2 16) eta = 1/2 1/2 + 1/2 4: 0.2647, cut.
  np.testing.assert_allclose(algorithm.round(cohort)[1], [2.0], atol=1e-14)


def minimum_of_the_cost(phi1, drifts, alpha, reference, steps):
  """The cost is a sum of squares, linear in eta: least squares, then the bounds."""
  size = len(phi1)
  rows, right = (
    [np.sqrt(alpha) * np.eye(size)],
    [np.full(size, np.sqrt(alpha) * reference)],
  )
  flat = [steps * np.concatenate([p.ravel() for p in item]) for item in phi1]
  for r in range(1, size + 1):
    columns = [flat[m] if m < r else 0.0 * flat[m] for m in range(size)]
    target = np.concatenate([p.ravel() for p in drifts[r - 1]])
    rows.append(np.sqrt(1 - alpha) * np.stack(columns, axis=1))
    right.append(-np.sqrt(1 - alpha) * target)
  return np.linalg.lstsq(np.concatenate(rows), np.concatenate(right), rcond=None)[0]


EXACT = {
  "rule": ("anchored", "literal"),
  "estimates": ("previous_round", "fixed_point"),
  "direction": ("aggregated", "local"),
  "planned_steps": ("one", "all"),
  "gradient": ("mean", "full"),
  "weighting": ("examples", "uniform"),
}


@pytest.mark.parametrize("choice", itertools.product(*EXACT.values()), ids="-".join)
def test_fed_agg_follows_its_description(choice):
  """Three rounds, client after client and step after step."""
  options = dict(zip(EXACT, choice))
  lr, alpha, top, epochs = 0.1, 0.6, 0.15, 2
  model, start = SOFTMAX, random_weights(SOFTMAX)
  algorithm = fed_agg(
    model, start, learning_rate=lr, alpha=alpha, max_learning_rate=top, **options
  )

  def everyone(x, cohort, known):
    """The weights of the clients, and the mean-field terms they make."""
    shares, gradients, path = [], [], []
    for i, (inputs, labels), batches in cohort:
      s = -(-SIZES[i] // 3)
      assert len(batches) == epochs * s
      shares.append(SIZES[i] if options["weighting"] == "examples" else 1)
      rates = np.full(epochs, lr)
      if known is not None:
        reference = lr if options["rule"] == "anchored" else 0.0
        moves = s if options["planned_steps"] == "all" else 1
        rates = minimum_of_the_cost(*known, alpha, reference, moves)
        rates = np.minimum(np.maximum(rates, 0.0), top)
      w, found, drifts = x, [], []
      for epoch in range(epochs):
        met = [model.loss_and_gradient(w, inputs, labels)[1]]
        if options["gradient"] == "mean":
          met = []
        for batch in batches[s * epoch : s * epoch + s]:
          g = model.loss_and_gradient(w, inputs[batch], labels[batch])[1]
          if options["gradient"] == "mean":
            met.append(g)
          if known is not None and options["direction"] == "aggregated":
            g = known[0][epoch]
          w = replay.add(w, g, -rates[epoch])
        found.append(replay.weighted_mean(met, [1] * len(met)))
        drifts.append(replay.subtract(w, x))
      gradients.append(found)
      path.append(drifts)
    terms = [
      [replay.weighted_mean([items[k] for items in lists], shares) for k in range(epochs)]
      for lists in (gradients, path)
    ]
    return replay.add(x, terms[1][-1]), terms

  x, known, last = start, None, None
  for t, client_ids in enumerate(([0, 1], [1, 2, 3], [0, 3])):
    cohort = cohort_of(model, client_ids, t)
    if options["estimates"] == "fixed_point":
      _, known = everyone(x, cohort, None)
      _, known = everyone(x, cohort, known)
    x, last = everyone(x, cohort, known)
    assert_close(algorithm.round(cohort), x, atol=1e-10)
    if options["estimates"] == "previous_round":
      known = last
      for found, expected in zip(algorithm.estimates, known):
        for a, b in zip(found, expected):
          assert_close(a, b, atol=1e-10)
    else:
      assert algorithm.estimates is None


@every_model
@pytest.mark.parametrize("estimates", EXACT["estimates"])
@pytest.mark.parametrize("weighting", EXACT["weighting"])
def test_anchored_with_alpha_one_and_local_steps_is_fed_avg(model, estimates, weighting):
  start = random_weights(model)
  agg = fed_agg(
    model, start, alpha=1.0, direction="local", estimates=estimates, weighting=weighting
  )
  assert_close(run(agg), run(replay.FedAvg(model, start, 0.1, weighting=weighting)))


def test_literal_with_alpha_one_stands_still_once_it_knows_the_terms():
  algorithm = fed_agg(alpha=1.0, rule="literal")
  after = algorithm.round(cohort_of(SOFTMAX, [0, 1]))
  assert differ(after, random_weights(SOFTMAX))
  assert_same(algorithm.round(cohort_of(SOFTMAX, [0, 1], 1)), after)


def test_the_first_round_is_fed_avg_and_only_that_one():
  for rule in EXACT["rule"]:
    agg = fed_agg(rule=rule)
    avg = replay.FedAvg(SOFTMAX, random_weights(SOFTMAX), 0.1)
    cohort = cohort_of(SOFTMAX, [0, 1])
    assert_close(agg.round(cohort), avg.round(cohort))
    cohort = cohort_of(SOFTMAX, [0, 1], 1)
    assert differ(agg.round(cohort), avg.round(cohort))


def test_fixed_point_without_passes_is_fed_avg_and_keeps_nothing():
  start = random_weights(SOFTMAX)
  agg = fed_agg(start=start, estimates="fixed_point", passes=0)
  assert_close(run(agg), run(replay.FedAvg(SOFTMAX, start, 0.1)))
  agg = fed_agg(start=start, estimates="fixed_point")
  run(agg)
  fresh = fed_agg(start=agg.weights, estimates="fixed_point")
  cohort = cohort_of(SOFTMAX, [1, 2], 7)
  assert_same(agg.round(cohort), fresh.round(cohort))


@pytest.mark.parametrize("model", [QUADRATIC, MLP], ids=["quadratic", "mlp"])
def test_fixed_point_of_full_batches(model):
  """Anchored: gradient descent on the pooled data. Literal: no step at all.

  With one common direction all clients walk together, so that phi2 is their own path.
  """
  start, epochs = replay.scaled(random_weights(model), 0.3), 3
  cohort = full_batch_cohort(model, range(4), epochs=epochs)
  x, y = (np.concatenate([data[k] for _, data, _ in cohort]) for k in range(2))
  w = start
  for _ in range(epochs):
    w = replay.add(w, model.loss_and_gradient(w, x, y)[1], -0.05)

  def result(**options):
    return fed_agg(
      model,
      start,
      learning_rate=0.05,
      alpha=0.7,
      epochs=epochs,
      estimates="fixed_point",
      passes=200,
      **options,
    ).round(cohort)

  assert_close(result(), w, atol=1e-9)
  assert_close(result(rule="literal"), start, atol=1e-9)


def test_options_of_the_plan_agree_where_an_epoch_has_one_step():
  runs = [
    run(fed_agg(epochs=1, planned_steps=p, gradient=g), cohort=full_batch_cohort)
    for p, g in itertools.product(EXACT["planned_steps"], EXACT["gradient"])
  ]
  for other in runs[1:]:
    assert_close(other, runs[0])


def test_raises_on_wrong_options_and_unequal_epochs():
  for name in ("rule", "estimates", "direction", "planned_steps", "gradient"):
    with pytest.raises(ValueError, match=name):
      fed_agg(**{name: "both"})
  for alpha in (0.0, 1.1):
    with pytest.raises(ValueError, match="alpha"):
      fed_agg(alpha=alpha)
  with pytest.raises(ValueError, match="3 batches are not 2 equal epochs"):
    fed_agg().round(full_batch_cohort(SOFTMAX, [0], epochs=3))


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


@pytest.mark.parametrize("build", ALGORITHMS.values(), ids=ALGORITHMS)
@pytest.mark.parametrize("client_ids", [[], [0, 1]], ids=["empty", "all_dropped"])
def test_round_without_accepted_clients_leaves_the_server(build, client_ids):
  test_replay.test_round_without_accepted_clients_leaves_the_server(build, client_ids)


def test_round_without_accepted_clients_keeps_the_estimates():
  algorithm = fed_agg()
  algorithm.round(cohort_of(SOFTMAX, [0, 1]))
  known = algorithm.estimates
  algorithm.round(cohort_of(SOFTMAX, [0, 1], 1), dropped={0, 1})
  assert algorithm.estimates is known
