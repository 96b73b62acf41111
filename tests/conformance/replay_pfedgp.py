"""pFedGP's local loss in NumPy and float64, written from its formulas alone.

With it for its model's loss, `replay.FedAvg` is the algorithm's shared part. Of a batch
with features g_i, labels y_i and the P classes c that are among them:

  u_i = g_i / |g_i|,  K_ij = s exp(-|u_i - u_j|^2 / (2 l^2))                [code: pFedGP]
  alpha_ic = epsilon + 1[y_i = c],  sigma2_ic = log(1 / alpha_ic + 1)
  t_ic = log(alpha_ic) - sigma2_ic / 2                      [paper: Milios et al. 2018]
  m_c = log(p_c) + mean_ic(t_ic - log(p_c)),  p_c = #{y_i = c} / n  [code: Milios et al.]
  loss = -1/n sum_c log N(t_c; m_c, K + diag(sigma2_c))

and 0 where P = 1   [code: pFedGP's tree has no process for one class].
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class GaussianProcesses(NamedTuple):
  """One for each class among the labels, ascending.

  Attributes:
    classes: (P,).
    shares: (P,), p_c.
    residuals: (P, n), t_c - m_c.
    noise: (P, n), sigma2_c.
  """

  classes: np.ndarray
  shares: np.ndarray
  residuals: np.ndarray
  noise: np.ndarray


def processes(y, epsilon: float) -> GaussianProcesses:
  classes, counts = np.unique(y, return_counts=True)
  alpha = epsilon + (np.asarray(y) == classes[:, None])
  noise = np.log(1 / alpha + 1)
  shares = counts / len(y)
  t, log_p = np.log(alpha) - noise / 2, np.log(shares)[:, None]
  return GaussianProcesses(classes, shares, t - (log_p + np.mean(t - log_p)), noise)


def kernel(g, h, s: float, length: float):
  """(n, d) and (m, d) -> (n, m)."""
  u, v = (a / np.linalg.norm(a, axis=1, keepdims=True) for a in (g, h))
  squares = np.sum((u[:, None] - v[None]) ** 2, axis=-1)
  return s * np.exp(-squares / (2 * length**2))


class FeatureModel:
  """The model of `replay` whose outputs are features."""

  def __init__(self, model, s: float, length: float, epsilon: float):
    self._model, self._s, self._length = model, s, length
    self._epsilon = epsilon

  def loss_and_gradient(self, w, x, y):
    x, s, length = np.asarray(x, np.float64), self._s, self._length
    g = self._model.predict(w, x)
    found, n = processes(y, self._epsilon), len(y)
    slope = np.zeros_like(g)
    if len(found.classes) == 1:
      return 0.0, self._model.back(w, x, slope)
    covariance, loss = kernel(g, g, s, length), 0.0
    by_covariance = np.zeros_like(covariance)
    for r, sigma2 in zip(found.residuals, found.noise):
      noisy = covariance + np.diag(sigma2)
      inverse = np.linalg.inv(noisy)
      a = inverse @ r
      loss += (r @ a + np.linalg.slogdet(noisy)[1] + n * np.log(2 * np.pi)) / 2
      by_covariance += (inverse - np.outer(a, a)) / 2
    lengths = np.linalg.norm(g, axis=1)
    u = g / lengths[:, None]
    for i in range(n):
      # K_ij and K_ji both change with u_i.
      pull = 2 * (by_covariance * covariance)[i][:, None] * (u - u[i]) / length**2
      by_u = pull.sum(axis=0)
      slope[i] = (by_u - u[i] * (u[i] @ by_u)) / lengths[i]
    return loss / n, self._model.back(w, x, slope / n)
