"""FedReg in NumPy and float64; conventions and marks are those of `replay`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import replay
from replay import Weights


class PseudoData(NamedTuple):
  """What a client makes once a round, row by row beside its own data.

  Rows that no batch met are NaN: nothing may use them.

  Attributes:
    inputs: The pseudo inputs.
    targets: Their soft pseudo targets.
    perturbed: The perturbed inputs, which keep the true labels.
  """

  inputs: np.ndarray
  targets: np.ndarray
  perturbed: np.ndarray


def first_epoch(batches, num_examples: int) -> list:
  """The first batches, until every row was met; none may be met twice."""
  taken, met = [], set()
  for batch in batches:
    if len(met) == num_examples:
      break
    rows = {int(row) for row in batch}
    if len(rows) < len(batch) or met & rows:
      raise ValueError("The first epoch meets an example twice.")
    met |= rows
    taken.append(batch)
  return taken


def ascend(model, x: Weights, v, y, step, num_steps, clip_range="batch"):
  """num_steps times v <- v + step sign(grad_v loss(f_x(v), y))   [paper].

  With `batch` every step is clipped to [min, max] of the v it starts from, two numbers
  over the whole batch [code]; with `none` it is not [paper].
  """
  v = np.asarray(v, np.float64)
  low, high = v.min(), v.max()
  for _ in range(num_steps):
    v = v + step * np.sign(model.input_gradient(x, v, y))
    if clip_range == "batch":
      v = np.clip(v, low, high)
  return v


def make_pseudo_data(
  model, x: Weights, inputs, labels, batches, pseudo_step, perturbed_step, **options
) -> PseudoData:
  """Runs `ascend` on each mini-batch of the first epoch, on the received model x.

  The pseudo targets are f_x(v), soft, and constants from then on [paper]. `options` are
  `num_steps` and `clip_range`.
  """
  inputs, labels = np.asarray(inputs, np.float64), np.asarray(labels)
  pseudo, perturbed = np.full_like(inputs, np.nan), np.full_like(inputs, np.nan)
  targets = np.full_like(model.targets(x, inputs), np.nan)
  for batch in first_epoch(batches, len(inputs)):
    v, y = inputs[batch], labels[batch]
    pseudo[batch] = ascend(model, x, v, y, pseudo_step, **options)
    targets[batch] = model.targets(x, pseudo[batch])
    perturbed[batch] = ascend(model, x, v, y, perturbed_step, **options)
  return PseudoData(pseudo, targets, perturbed)


def uniform_targets(targets):
  """1 / outputs everywhere."""
  return np.full(np.shape(targets), 1.0 / np.shape(targets)[1])


def coefficient(a: Weights, b: Weights) -> float:
  """<a, b> / <b, b>, and 0 where b = 0."""
  square = replay.dot(b, b)
  return replay.dot(a, b) / square if square > 0.0 else 0.0


def project_out(g: Weights, gm: Weights) -> Weights:
  """g - <g, gm>/<gm, gm> gm   [paper]; g where gm = 0."""
  return replay.add(g, gm, -coefficient(g, gm))


def regulation_weights(u: Weights, gs: Weights, gp: Weights) -> tuple:
  """The weights of gs and gp in u = w - x, one after another   [paper, Alg. D.1].

  ws = max(<u, gs>/<gs, gs>, 0),  wp = max(<u - ws gs, gp>/<gp, gp>, 0)
  """
  ws = max(coefficient(u, gs), 0.0)
  wp = max(coefficient(replay.add(u, gs, -ws), gp), 0.0)
  return ws, wp


class FedReg(replay.FedAvg):
  """FedReg   [paper: Xu et al. 2022, Alg. D.1].

  Once a client and round, on x: pseudo data (eta_s, soft targets f_x(v)) and perturbed
  data (eta_p = ratio eta_s, true labels), see `make_pseudo_data`. One local step:

    g  at gamma w + (1 - gamma) x on the batch
    g <- g - <g, gm>/<gm, gm> gm     modified only; gm at the same point on the pseudo
                                     batch with uniform targets
    w <- w - eta g
    gs on the pseudo batch, gp on the perturbed batch, both at (w + x)/2
    w <- w - ws gs - wp gp           see `regulation_weights`; no rate

  The pseudo and perturbed batch of a step are the rows of its batch, in every epoch.
  Without pseudo steps the first and third lines are all [choice]. No momentum; the mean
  is uniform [paper].
  """

  def __init__(
    self,
    model,
    weights,
    learning_rate,
    gamma,
    pseudo_step,
    perturbation_ratio=0.01,
    pseudo_steps=10,
    clip_range="batch",
    modified_gradient=False,
    weighting="uniform",
  ):
    if clip_range not in ("batch", "none"):
      raise ValueError(f"clip_range must be batch or none, found {clip_range!r}.")
    super().__init__(model, weights, learning_rate, weighting=weighting)
    self.gamma = gamma
    self.pseudo_step = pseudo_step
    self.perturbed_step = perturbation_ratio * pseudo_step
    self.pseudo_steps = pseudo_steps
    self.clip_range = clip_range
    self.modified_gradient = modified_gradient

  def pseudo_data(self, inputs, labels, batches) -> PseudoData | None:
    """What a client makes on the model it receives; None without pseudo steps."""
    if self.pseudo_steps == 0 or len(batches) == 0:
      return None
    return make_pseudo_data(
      self.model,
      self.weights,
      inputs,
      labels,
      batches,
      self.pseudo_step,
      self.perturbed_step,
      num_steps=self.pseudo_steps,
      clip_range=self.clip_range,
    )

  def local_step(self, w: Weights, v, y, pseudo: PseudoData | None) -> Weights:
    """One local step on the batch (v, y); `pseudo` has its rows alone."""
    x, model = self.weights, self.model
    at = replay.add(replay.scaled(w, self.gamma), x, 1.0 - self.gamma)
    _, g = model.loss_and_gradient(at, v, y)
    if pseudo is None:
      return replay.add(w, g, -self.learning_rate)
    if self.modified_gradient:
      uniform = uniform_targets(pseudo.targets)
      _, gm = model.soft_loss_and_gradient(at, pseudo.inputs, uniform)
      g = project_out(g, gm)
    w = replay.add(w, g, -self.learning_rate)
    middle = replay.scaled(replay.add(w, x), 0.5)
    _, gs = model.soft_loss_and_gradient(middle, pseudo.inputs, pseudo.targets)
    _, gp = model.loss_and_gradient(middle, pseudo.perturbed, y)
    ws, wp = regulation_weights(replay.subtract(w, x), gs, gp)
    return replay.add(replay.add(w, gs, -ws), gp, -wp)

  def _client(self, client_id, x, y, batches):
    inputs, labels = np.asarray(x), np.asarray(y)
    data = self.pseudo_data(inputs, labels, batches)
    w = self.weights
    for batch in batches:
      pseudo = None if data is None else PseudoData(*(rows[batch] for rows in data))
      w = self.local_step(w, inputs[batch], labels[batch], pseudo)
    return replay.subtract(w, self.weights), None
