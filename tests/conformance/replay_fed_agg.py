"""FedAgg in NumPy and float64; conventions and marks are those of `replay`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import replay
from replay import Weights


class Estimates(NamedTuple):
  """The mean-field terms of one training.

  Attributes:
    phi1: sum theta_i (gradient of client i in epoch l), for l = 0..L-1.
    drifts: phi2(r) - x = sum theta_i (w_i after r epochs - x), for r = 1..L.
  """

  phi1: list
  drifts: list


def system(planned: list, drifts: list, alpha, reference):
  """Matrix and right side of `learning_rates`: one row for each epoch   [derived].

  (alpha I + (1-alpha) G) eta = alpha reference 1 + (1-alpha) c
  G_lm = (L - max(l, m)) <p_l, p_m>,  c_l = -<p_l, sum_{r=l+1..L} d_r>
  """
  size = len(planned)
  products = np.array([[replay.dot(p, q) for q in planned] for p in planned])
  order = np.arange(size)
  matrix = (size - np.maximum.outer(order, order)) * products
  # drifts[k] is d_(k+1), so that r = l+1..L is k = l..L-1.
  c = [-sum(replay.dot(p, d) for d in drifts[row:]) for row, p in enumerate(planned)]
  return (
    alpha * np.eye(size) + (1.0 - alpha) * matrix,
    alpha * reference + (1.0 - alpha) * np.array(c),
  )


def learning_rates(phi1, drifts, alpha, reference, steps=1, max_learning_rate=np.inf):
  """eta_l for l = 0..L-1, clipped to [0, max_learning_rate].

  Before it is clipped, eta is the minimum of

    sum_l alpha (eta_l - reference)^2 + (1-alpha) sum_{r=1..L} |w_r - phi2(r)|^2,
    w_r = x - sum_{m<r} eta_m p_m,  p_l = steps phi1(l),

  which is the one solution of `system`. [paper] has reference = 0 and steps = 1.
  """
  planned = [replay.scaled(p, steps) for p in phi1]
  eta = np.linalg.solve(*system(planned, drifts, alpha, reference))
  return np.clip(eta, 0.0, max_learning_rate)


class FedAgg(replay.FedAvg):
  """FedAgg: local rates from the mean-field terms phi1 and phi2   [paper].

    w <- w - eta_l phi1(l)      in every step of epoch l (aggregated) [paper, Eq. 5]
    w <- w - eta_l g(w)         (local)
    x <- x + sum theta_i (w_i - x)

  `eta_l` is that of `learning_rates`, constant within an epoch [choice]. While phi1 and
  phi2 are unknown, a client takes `eta_l = eta_ref`, at most `max_learning_rate`,
  and `g(w)` [choice].

  - rule: `anchored` pulls eta to eta_ref [choice], `literal` to 0 [paper].
  - estimates: `previous_round` keeps the terms of one round for the next; its drifts
    are relative to the start of their own round, and the first round knows none
    [choice]. `fixed_point` starts each round without any and trains all its clients
    `passes` times with the latest terms before the training that counts; batches and
    start are the same in all [paper: the estimator; choice: how many].
  - planned_steps: the step that the rates are planned with is phi1(l) (`one`) [paper,
    Eq. 7] or what an epoch of s steps really moves, s phi1(l) (`all`) [derived].
  - gradient: that of client i in epoch l is the `mean` of its mini-batch gradients, each
    at the w of its step, or the `full` gradient at the start of the epoch [choice].

  A client without examples has no step: its gradients and drifts are 0 [choice].

  Attributes:
    estimates: What the next training uses, None while unknown.
  """

  def __init__(
    self,
    model,
    weights,
    learning_rate,
    alpha,
    epochs,
    rule="anchored",
    estimates="previous_round",
    passes=2,
    direction="aggregated",
    planned_steps="one",
    gradient="mean",
    max_learning_rate=np.inf,
    weighting="examples",
  ):
    for name, value, allowed in (
      ("rule", rule, ("anchored", "literal")),
      ("estimates", estimates, ("previous_round", "fixed_point")),
      ("direction", direction, ("aggregated", "local")),
      ("planned_steps", planned_steps, ("one", "all")),
      ("gradient", gradient, ("mean", "full")),
    ):
      if value not in allowed:
        raise ValueError(f"{name} must be one of {allowed}, found {value!r}.")
    if not 0.0 < alpha <= 1.0:
      raise ValueError(f"alpha must be in (0, 1], found {alpha}.")
    super().__init__(model, weights, learning_rate, weighting=weighting)
    self.alpha = alpha
    self.epochs = epochs
    self.reference = learning_rate if rule == "anchored" else 0.0
    self.passes = passes if estimates == "fixed_point" else None
    self.direction = direction
    self.planned_steps = planned_steps
    self.gradient = gradient
    self.max_learning_rate = max_learning_rate
    self.estimates = None

  def round(self, cohort, dropped=()):
    if self.passes is None:
      return super().round(cohort, dropped)
    start = self.weights
    for _ in range(self.passes):
      super().round(cohort, dropped)
      self.weights = start
    super().round(cohort, dropped)
    self.estimates = None
    return self.weights

  def steps_of_an_epoch(self, batches) -> int:
    """s."""
    steps, rest = divmod(len(batches), self.epochs)
    if rest:
      raise ValueError(f"{len(batches)} batches are not {self.epochs} equal epochs.")
    return steps

  def client_rates(self, batches):
    """eta_l for l = 0..L-1 of a client with these batches."""
    if self.estimates is None:
      return np.full(self.epochs, min(self.learning_rate, self.max_learning_rate))
    return learning_rates(
      *self.estimates,
      self.alpha,
      self.reference,
      self.steps_of_an_epoch(batches) if self.planned_steps == "all" else 1,
      self.max_learning_rate,
    )

  def train(self, x, y, batches) -> Estimates:
    """One client alone: its gradients and drifts, in place of their means."""
    x, y = np.asarray(x), np.asarray(y)
    steps, w, gradients, drifts = self.steps_of_an_epoch(batches), self.weights, [], []
    aggregated = self.direction == "aggregated" and self.estimates is not None
    for epoch, eta in enumerate(self.client_rates(batches)):
      at_start, met = w, []
      for batch in batches[epoch * steps : (epoch + 1) * steps]:
        met.append(self.model.loss_and_gradient(w, x[batch], y[batch])[1])
        w = replay.add(w, self.estimates.phi1[epoch] if aggregated else met[-1], -eta)
      if not met:
        gradients.append(replay.zeros_like(w))
      elif self.gradient == "mean":
        gradients.append(replay.weighted_mean(met, [1] * steps))
      else:
        gradients.append(self.model.loss_and_gradient(at_start, x, y)[1])
      drifts.append(replay.subtract(w, self.weights))
    return Estimates(gradients, drifts)

  def _client(self, client_id, x, y, batches):
    gradients, drifts = self.train(x, y, batches)
    # All goes to the same mean; the last drift is the update of the model itself.
    return [array for item in gradients + drifts for array in item], None

  def _server(self, mean: Weights, states):
    size = len(self.weights)
    items = [mean[k : k + size] for k in range(0, len(mean), size)]
    self.estimates = Estimates(items[: self.epochs], items[self.epochs :])
    super()._server(self.estimates.drifts[-1], states)
