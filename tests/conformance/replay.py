"""The algorithms in NumPy and float64, written from their formulas alone.

This is the executable specification which the TensorFlow Federated processes are
checked against. It shares no code with them, favours the literal formula over speed,
and takes every random draw (initial weights, cohorts, order of the batches, noise) as
an argument, so that a run of the library can be replayed exactly.

Conventions:
- Weights, gradients and updates are lists of float64 arrays, never changed in place.
  Norms and inner products run over all arrays of a list together.
- A cohort is a list of `(client_id, (x, y), batches)`. `batches` lists the example
  indices of each local step: all epochs one after another, a short last batch kept.
  The number of local steps of a client is `K_i = len(batches)`.
- Notation: `x` is the server model at round `t`, `w` the local model (`w = x` at the
  start), `g(w)` the mini-batch gradient, `S` the accepted clients of the round, `N`
  all clients, `n_i` the examples of client `i` and `n_S` those of `S`.
- Marks: [paper] printed in the paper, [derived] worked out, [code] what a public
  implementation does, [recalled] known from the literature, [choice] made here where
  the sources are silent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

Weights = list  # of float64 arrays


# Arithmetic on lists of arrays.


def as_weights(arrays) -> Weights:
  return [np.array(a, dtype=np.float64) for a in arrays]


def zeros_like(a: Weights) -> Weights:
  return [np.zeros_like(p) for p in a]


def add(a: Weights, b: Weights, scale: float = 1.0) -> Weights:
  """a + scale b."""
  return [p + scale * q for p, q in zip(a, b)]


def subtract(a: Weights, b: Weights) -> Weights:
  return add(a, b, -1.0)


def scaled(a: Weights, scale: float) -> Weights:
  return [scale * p for p in a]


def dot(a: Weights, b: Weights) -> float:
  return float(sum(np.sum(p * q) for p, q in zip(a, b)))


def norm(a: Weights) -> float:
  return float(np.sqrt(dot(a, a)))


def clipped(a: Weights, clip_norm: float) -> Weights:
  """a min(1, C/|a|)."""
  return scaled(a, clip_norm / norm(a)) if norm(a) > clip_norm else a


def weighted_mean(items: list[Weights], shares) -> Weights | None:
  """sum_i s_i a_i / sum_i s_i, or None where the shares sum to zero."""
  total = float(sum(shares))
  if total == 0.0:
    return None
  mean = zeros_like(items[0])
  for item, share in zip(items, shares):
    mean = add(mean, item, share / total)
  return mean


# Models. The loss is the mean over the batch; over no examples it is 0.


def _cross_entropy(logits, y):
  """The mean cross entropy of integer labels and its gradient by the logits."""
  y = np.asarray(y).reshape(-1).astype(np.int64)
  rows, count = np.arange(len(y)), max(len(y), 1)
  shifted = logits - logits.max(axis=1, keepdims=True)
  log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
  slope = np.exp(log_p)
  slope[rows, y] -= 1.0
  return -log_p[rows, y].sum() / count, slope / count


def _soft_cross_entropy(logits, targets):
  """The mean of -sum_c t_c log p_c and its gradient by the logits."""
  targets, count = np.asarray(targets, np.float64), max(len(logits), 1)
  shifted = logits - logits.max(axis=1, keepdims=True)
  log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
  slope = np.exp(log_p) * targets.sum(axis=1, keepdims=True) - targets
  return -np.sum(targets * log_p) / count, slope / count


def _softmax(logits):
  """exp(l_c) / sum_k exp(l_k), row by row."""
  raised = np.exp(logits - logits.max(axis=1, keepdims=True))
  return raised / raised.sum(axis=1, keepdims=True)


class SoftmaxRegression:
  """logits = x W + b, softmax cross entropy; weights [W (d, c), b (c,)]."""

  def __init__(self, num_features: int, num_classes: int):
    self._shape = (num_features, num_classes)

  def initial(self) -> Weights:
    return [np.zeros(self._shape), np.zeros(self._shape[1])]

  def predict(self, w: Weights, x):
    """The logits, (n, c)."""
    return np.asarray(x, np.float64) @ w[0] + w[1]

  def loss_and_gradient(self, w: Weights, x, y):
    loss, slope = _cross_entropy(self.predict(w, x), y)
    return loss, self.back(w, x, slope)

  def back(self, w: Weights, x, slope) -> Weights:
    """The gradient of what has the gradient `slope` (n, c) by the predictions."""
    return [np.asarray(x, np.float64).T @ slope, slope.sum(axis=0)]

  def input_gradient(self, w: Weights, x, y):
    """The gradient of the sum of the examples' losses by x, in the shape of x."""
    _, slope = _cross_entropy(self.predict(w, x), y)
    return len(x) * slope @ w[0].T

  def targets(self, w: Weights, x):
    """The model's own soft prediction: softmax of the logits, (n, c)."""
    return _softmax(self.predict(w, x))

  def soft_loss_and_gradient(self, w: Weights, x, targets):
    """The loss is the mean of -sum_c t_c log p_c."""
    loss, slope = _soft_cross_entropy(self.predict(w, x), targets)
    return loss, self.back(w, x, slope)


class LinearRegression:
  """The quadratic: loss 1/2 (x W + b - y)^2; weights [W (d, 1), b (1,)]."""

  def __init__(self, num_features: int):
    self._num_features = num_features

  def initial(self) -> Weights:
    return [np.zeros((self._num_features, 1)), np.zeros(1)]

  def predict(self, w: Weights, x):
    """The predictions, (n, 1)."""
    return np.asarray(x, np.float64) @ w[0] + w[1]

  def loss_and_gradient(self, w: Weights, x, y):
    x = np.asarray(x, np.float64)
    error = self.predict(w, x) - np.asarray(y, np.float64).reshape(-1, 1)
    count = max(len(x), 1)
    loss = 0.5 * np.sum(error**2) / count
    return loss, [x.T @ error / count, error.sum(axis=0) / count]

  def input_gradient(self, w: Weights, x, y):
    """The gradient of the sum of the examples' losses by x, in the shape of x."""
    error = self.predict(w, x) - np.asarray(y, np.float64).reshape(-1, 1)
    return error @ w[0].T

  def targets(self, w: Weights, x):
    """The model's own prediction, (n, 1)."""
    return self.predict(w, x)

  def soft_loss_and_gradient(self, w: Weights, x, targets):
    """Targets are numbers already: the loss is 1/2 (x W + b - t)^2."""
    return self.loss_and_gradient(w, x, targets)


class Mlp:
  """logits = tanh(x W1 + b1) W2 + b2, softmax cross entropy; [W1, b1, W2, b2]."""

  def __init__(self, d: int, h: int, c: int):
    self._sizes = (d, h, c)

  def initial(self, seed: int = 0) -> Weights:
    """Normal with variance 1 / fan-in (zeros would never leave their symmetry)."""
    d, h, c = self._sizes
    rng = np.random.default_rng(seed)
    w1 = rng.normal(size=(d, h)) / np.sqrt(d)
    w2 = rng.normal(size=(h, c)) / np.sqrt(h)
    return [w1, np.zeros(h), w2, np.zeros(c)]

  def predict(self, w: Weights, x):
    """The logits, (n, c)."""
    return np.tanh(np.asarray(x, np.float64) @ w[0] + w[1]) @ w[2] + w[3]

  def loss_and_gradient(self, w: Weights, x, y):
    loss, slope = _cross_entropy(self.predict(w, x), y)
    return loss, self.back(w, x, slope)

  def back(self, w: Weights, x, slope) -> Weights:
    """The gradient of what has the gradient `slope` (n, c) by the predictions."""
    x = np.asarray(x, np.float64)
    hidden = np.tanh(x @ w[0] + w[1])
    back = (slope @ w[2].T) * (1.0 - hidden**2)
    return [x.T @ back, back.sum(axis=0), hidden.T @ slope, slope.sum(axis=0)]

  def input_gradient(self, w: Weights, x, y):
    """The gradient of the sum of the examples' losses by x, in the shape of x."""
    hidden = np.tanh(np.asarray(x, np.float64) @ w[0] + w[1])
    _, slope = _cross_entropy(hidden @ w[2] + w[3], y)
    return len(x) * ((slope @ w[2].T) * (1.0 - hidden**2)) @ w[0].T

  def targets(self, w: Weights, x):
    """The model's own soft prediction: softmax of the logits, (n, c)."""
    return _softmax(self.predict(w, x))

  def soft_loss_and_gradient(self, w: Weights, x, targets):
    """The loss is the mean of -sum_c t_c log p_c."""
    loss, slope = _soft_cross_entropy(self.predict(w, x), targets)
    return loss, self.back(w, x, slope)


# Local training.


def batches_in_order(num_examples: int, epochs: int = 1, batch_size=None) -> list:
  """`epochs` passes in the order of the data; `batch_size` None is B = infinity."""
  indices = np.arange(num_examples)
  size = batch_size or max(num_examples, 1)
  epoch = [indices[i : i + size] for i in range(0, num_examples, size)]
  return epoch * epochs


def private_gradient(model, w, x, y, clip_norm, noise_multiplier, normals) -> Weights:
  """1/|B| (sum_e g_e min(1, C/|g_e|) + sigma C xi)   [paper: Abadi et al. 2016].

  DP-SGD. `g_e` is the gradient of one example, C `clip_norm`, sigma `noise_multiplier`
  and xi `normals`: standard normal arrays of the shapes of the weights. Over no
  examples it is 0, without noise [choice].
  """
  if len(x) == 0:
    return zeros_like(as_weights(w))
  total = scaled(as_weights(normals), noise_multiplier * clip_norm)
  for g in example_gradients(model, w, x, y):
    total = add(total, clipped(g, clip_norm))
  return scaled(total, 1.0 / len(x))


def example_gradients(model, w, x, y) -> list[Weights]:
  """g_e of each example."""
  rows = [slice(e, e + 1) for e in range(len(x))]
  return [model.loss_and_gradient(w, x[row], y[row])[1] for row in rows]


class Privacy(NamedTuple):
  """DP-SGD in place of the plain gradients.

  Attributes:
    clip_norm: C.
    noise_multiplier: sigma.
    normals: `(client_id, m) -> xi` of the client's local step m = 1, 2, ... of this
      round; m = 0 is FedCurv's Fisher information.
  """

  clip_norm: float
  noise_multiplier: float
  normals: Callable


def private_gradients(model, privacy: Privacy | None, client_id):
  """The `gradient` of `local_sgd` for this client, None without privacy."""
  if privacy is None:
    return None
  c, sigma, normals = privacy
  return lambda w, x, y, m: private_gradient(
    model, w, x, y, c, sigma, normals(client_id, m)
  )


def local_sgd(
  model, w, x, y, batches, lr, momentum=0.0, correction=None, gradient=None
) -> Weights:
  """w(m) = w(m-1) - lr v,  v = momentum v + g_total,  v = 0 at the start.

  `correction(g, w, w_prev, m)` gives `g_total` from the mini-batch gradient `g` at
  `w = w(m-1)`, with `w_prev = w(m-2)` (None when m = 1) and m = 1, 2, ... Without it
  `g_total = g`. Momentum acts on the corrected gradient. `gradient(w, x, y, m)`, where
  there is one, gives `g` in place of the model.
  """
  x, y = np.asarray(x), np.asarray(y)
  w, w_prev = as_weights(w), None
  velocity = zeros_like(w)
  for m, batch in enumerate(batches, start=1):
    if len(batch) == 0:
      raise ValueError(f"The batch of local step {m} is empty.")
    if gradient is None:
      _, g = model.loss_and_gradient(w, x[batch], y[batch])
    else:
      g = gradient(w, x[batch], y[batch], m)
    if correction is not None:
      g = correction(g, w, w_prev, m)
    velocity = add(scaled(velocity, momentum), g)
    w, w_prev = add(w, velocity, -lr), w
  return w


# Algorithms.


class Algorithm:
  """What all rounds have in common.

  Attributes:
    weights: The server model.
    client_states: The state of each client that has one, by client id.
  """

  def __init__(self, model, weights, weighting: str = "examples"):
    if weighting not in ("examples", "uniform"):
      raise ValueError(f"weighting must be examples or uniform, found {weighting!r}.")
    self.model = model
    self.weighting = weighting
    self.weights = as_weights(weights)
    self.client_states = {}

  def round(self, cohort, dropped=()) -> Weights:
    """Runs one round and returns the new server model.

    The order of the cohort does not matter (it is sorted, so not even rounding
    differs). Clients whose id is in `dropped` stand for those with a non-finite
    update: weight 0, and their state stays as it was. A round whose weights sum to 0
    (no client, or none accepted) changes nothing on the server [choice].
    """
    updates, shares, states = [], [], {}
    for client_id, (x, y), batches in self._accepted(cohort, dropped):
      update, state = self._client(client_id, x, y, batches)
      updates.append(update)
      shares.append(len(x) if self.weighting == "examples" else 1)
      if state is not None:
        states[client_id] = state
    mean = weighted_mean(updates, shares)
    if mean is not None:
      self._server(mean, states)
    self.client_states = {**self.client_states, **states}
    return self.weights

  def _accepted(self, cohort, dropped) -> list:
    """The clients that are not dropped, sorted."""
    ids = [client_id for client_id, _, _ in cohort]
    if len(set(ids)) != len(ids):
      raise ValueError(f"A client is twice in the cohort: {ids}.")
    if not set(dropped) <= set(ids):
      raise ValueError(f"Dropped clients {set(dropped)} are not all in {ids}.")
    accepted = [client for client in cohort if client[0] not in dropped]
    return sorted(accepted, key=lambda c: str(c[0]))

  def _client(self, client_id, x, y, batches):
    """Returns what the client sends to the mean, and its new state or None."""
    raise NotImplementedError

  def _server(self, mean: Weights, states: dict) -> None:
    """Takes in the mean and the new states; `client_states` are still the old ones."""
    raise NotImplementedError


class FedSGD(Algorithm):
  """x <- x - eta sum_{i in S} n_i/n_S grad F_i(x)   [paper: McMahan et al. 2017].

  One gradient per client, over all of its data; `batches` are not used. Equal to
  FedAvg with E = 1, B = infinity and the same rate. With `privacy` the gradient is
  DP-SGD's, of step m = 1.
  """

  def __init__(self, model, weights, learning_rate, weighting="examples", privacy=None):
    super().__init__(model, weights, weighting)
    self.learning_rate = learning_rate
    self.privacy = privacy

  def _client(self, client_id, x, y, batches):
    gradient = private_gradients(self.model, self.privacy, client_id)
    if gradient is not None:
      return gradient(self.weights, x, y, 1), None
    return self.model.loss_and_gradient(self.weights, x, y)[1], None

  def _server(self, mean, states):
    self.weights = add(self.weights, mean, -self.learning_rate)


class FedAvg(Algorithm):
  """x <- x + eta_g (sum_{i in S} n_i/n_S w_i - x)   [paper: McMahan et al. 2017].

  `n_S` counts the selected clients only (the paper's erratum). `eta_g` = 1 is the
  paper; `weighting` uniform is `1/|S|` in place of `n_i/n_S`. Client momentum starts
  at zero every round [choice]. With `privacy` every local gradient is DP-SGD's; what a
  subclass adds to the gradient is added after that, neither clipped nor noised.
  """

  def __init__(
    self,
    model,
    weights,
    learning_rate,
    momentum=0.0,
    server_learning_rate=1.0,
    weighting="examples",
    privacy=None,
  ):
    super().__init__(model, weights, weighting)
    self.learning_rate = learning_rate
    self.momentum = momentum
    self.server_learning_rate = server_learning_rate
    self.privacy = privacy

  def _correction(self, client_id):
    """The `correction` of `local_sgd` for this client, or None."""
    return None

  def _train(self, client_id, start, x, y, batches, correction=None) -> Weights:
    """w_i after local training from `start`."""
    gradient = private_gradients(self.model, self.privacy, client_id)
    return local_sgd(
      self.model,
      start,
      x,
      y,
      batches,
      self.learning_rate,
      self.momentum,
      correction,
      gradient,
    )

  def _client(self, client_id, x, y, batches):
    correction = self._correction(client_id)
    w = self._train(client_id, self.weights, x, y, batches, correction)
    return subtract(w, self.weights), None

  def _server(self, mean, states):
    self.weights = add(self.weights, mean, self.server_learning_rate)


class FedProx(FedAvg):
  """Local gradient g(w) + mu (w - x)   [paper: Li et al. 2020].

  It is the gradient of F_i(w) + mu/2 |w - x|^2. The server is FedAvg's.
  """

  def __init__(self, model, weights, learning_rate, mu, **fed_avg_options):
    super().__init__(model, weights, learning_rate, **fed_avg_options)
    self.mu = mu

  def _correction(self, client_id):
    start = self.weights
    return lambda g, w, w_prev, m: add(g, subtract(w, start), self.mu)


class Scaffold(FedAvg):
  """SCAFFOLD   [paper: Karimireddy et al. 2020, Alg. 1].

    y     <- y - eta_l (g(y) - c_i + c)
    c_i+  =  grad F_i(x)                        option 1 (all of the client's data)
    c_i+  =  c_i - c + (x - y) / (K_i eta_l)    option 2
    x     <- x + eta_g mean_S(y - x)
    c     <- c + |S|/N mean_S(c_i+ - c_i)

  All control variates start at 0, so c = 1/N sum_{all i} c_i always [derived]. The
  mean over `y - x` may be weighted by examples; the one over `c_i+ - c_i` is always
  uniform. A client without a local step keeps its c_i [choice: 0/0]. No momentum: with
  it `K_i eta_l` would not be the sum of the step sizes.

  Attributes:
    control_variate: c.
    client_states: c_i; a client that is not in it has c_i = 0.
  """

  def __init__(
    self,
    model,
    weights,
    learning_rate,
    num_clients,
    option=2,
    server_learning_rate=1.0,
    weighting="uniform",
  ):
    if option not in (1, 2):
      raise ValueError(f"option must be 1 or 2, found {option!r}.")
    super().__init__(
      model,
      weights,
      learning_rate,
      server_learning_rate=server_learning_rate,
      weighting=weighting,
    )
    self.num_clients = num_clients
    self.option = option
    self.control_variate = zeros_like(self.weights)

  def client_control(self, client_id) -> Weights:
    """c_i."""
    return self.client_states.get(client_id, zeros_like(self.weights))

  def _correction(self, client_id):
    c, c_i = self.control_variate, self.client_control(client_id)
    return lambda g, w, w_prev, m: add(subtract(g, c_i), c)

  def _client(self, client_id, x, y, batches):
    delta, _ = super()._client(client_id, x, y, batches)
    c, c_i = self.control_variate, self.client_control(client_id)
    if len(batches) == 0:
      return delta, c_i
    if self.option == 1:
      return delta, self.model.loss_and_gradient(self.weights, x, y)[1]
    summed_steps = len(batches) * self.learning_rate
    return delta, add(subtract(c_i, c), delta, -1.0 / summed_steps)

  def _server(self, mean, states):
    super()._server(mean, states)
    changes = [subtract(c_i, self.client_control(i)) for i, c_i in states.items()]
    mean_change = weighted_mean(changes, [1] * len(changes))
    share = len(changes) / self.num_clients
    self.control_variate = add(self.control_variate, mean_change, share)


class _AdaptiveServer(FedAvg):
  """FedOpt   [paper: Reddi et al. 2021, Alg. 2].

    Delta = mean_S(w_i - x)
    m <- b1 m + (1 - b1) Delta          m starts at 0
    v <- (see the subclass)             v starts at tau^2
    x <- x + eta m / (sqrt(v) + tau)

  Element by element and without bias correction. The paper's mean is uniform, here it
  is `weighting` [choice: examples by default, as the library].

  Attributes:
    first_moment: m.
    second_moment: v.
  """

  def __init__(
    self,
    model,
    weights,
    learning_rate,
    server_learning_rate,
    beta1=0.9,
    beta2=0.99,
    tau=1e-3,
    momentum=0.0,
    weighting="examples",
  ):
    super().__init__(
      model, weights, learning_rate, momentum, server_learning_rate, weighting
    )
    self.beta1, self.beta2, self.tau = beta1, beta2, tau
    self.first_moment = zeros_like(self.weights)
    self.second_moment = [np.full_like(p, tau**2) for p in self.weights]

  def _next_v(self, v, square):
    raise NotImplementedError

  def _server(self, mean, states):
    m = add(scaled(self.first_moment, self.beta1), mean, 1.0 - self.beta1)
    v = [self._next_v(v, delta**2) for v, delta in zip(self.second_moment, mean)]
    step = [p / (np.sqrt(q) + self.tau) for p, q in zip(m, v)]
    self.weights = add(self.weights, step, self.server_learning_rate)
    self.first_moment, self.second_moment = m, v


class FedAdam(_AdaptiveServer):
  """FedOpt with v <- b2 v + (1 - b2) Delta^2   [paper: Reddi et al. 2021, Alg. 2]."""

  def _next_v(self, v, square):
    return self.beta2 * v + (1.0 - self.beta2) * square


class FedYogi(_AdaptiveServer):
  """FedOpt with v <- v - (1 - b2) Delta^2 sign(v - Delta^2)   [paper: idem]."""

  def _next_v(self, v, square):
    return v - (1.0 - self.beta2) * square * np.sign(v - square)


class FedAdagrad(_AdaptiveServer):
  """FedOpt with v <- v + Delta^2 and b1 = 0   [paper: idem]; b2 has no use."""

  def __init__(self, *args, beta1=0.0, **options):
    super().__init__(*args, beta1=beta1, **options)

  def _next_v(self, v, square):
    return v + square


class FedAvgM(FedAvg):
  """FedAvg with momentum b at the server   [paper: Hsu et al. 2019].

    v <- b v + Delta, x <- x + eta v    Delta = mean_S(w_i - x); v starts at 0

  With `looks_ahead` clients start at y = x + b eta v, and Delta = mean_S(w_i - y).

  Attributes:
    velocity: v.
  """

  def __init__(self, *args, server_momentum: float, looks_ahead: bool = False, **options):
    super().__init__(*args, **options)
    self.server_momentum, self.looks_ahead = server_momentum, looks_ahead
    self.velocity = zeros_like(self.weights)

  @property
  def ahead(self):
    return scaled(self.velocity, self.server_momentum * self.server_learning_rate)

  def _client(self, client_id, x, y, batches):
    start = add(self.weights, self.ahead) if self.looks_ahead else self.weights
    return subtract(self._train(client_id, start, x, y, batches), start), None

  def _server(self, mean, states):
    self.velocity = add(mean, self.velocity, self.server_momentum)
    self.weights = add(self.weights, self.velocity, self.server_learning_rate)


def cosine_loss(w: Weights, x: Weights, direction: Weights) -> float:
  """l_cos = 1 - <D, u> / (|D| |u|), u = w - x   [paper: FedGG, Eq. 8]."""
  u = subtract(w, x)
  return 1.0 - dot(direction, u) / (norm(direction) * norm(u))


def cosine_pull(w: Weights, x: Weights, direction: Weights) -> Weights | None:
  """D/|D| - cos u/|u|, so that grad l_cos = -pull/|u|; None where D or u is 0.

  [derived]: FedGG prints `+ cos u/|u|` in Eqs. (11) and (13), which is not the
  gradient of its loss.
  """
  u = subtract(w, x)
  if norm(direction) == 0.0 or norm(u) == 0.0:
    return None
  unit_d, unit_u = scaled(direction, 1 / norm(direction)), scaled(u, 1 / norm(u))
  return add(unit_d, unit_u, -dot(unit_d, unit_u))


def cut_cosine(w: Weights, x: Weights, direction: Weights, normalized: bool) -> float:
  """PyTorch's cosine_similarity(D, w - x, eps=1e-8), in NumPy   [code].

  Up to version 1.11 <D, u> / sqrt(max(|D|^2 |u|^2, eps^2)); since then, normalized,
  <D / max(|D|, eps), u / max(|u|, eps)>.
  """
  u = subtract(w, x)
  if normalized:
    return dot(direction, u) / (max(norm(direction), 1e-8) * max(norm(u), 1e-8))
  return dot(direction, u) / max(norm(direction) * norm(u), 1e-8)


class FedGG(FedAvg):
  """FedGG: minimises l_sup + lambda_m l_cos locally   [paper: Wu, Liu, Xue].

    l_cos      = 1 - cos,  cos = <D, u>/(|D| |u|),  u = w(m-1) - x
    grad l_cos = -1/|u| (D/|D| - cos u/|u|)                          [derived]
    adaptive   : lambda_m = mu |w(m-1) - x| |w(m-1) - w(m-2)|        [paper, Eq. 12]
    fixed      : lambda_m = lam                                      [paper, Sec. 4.4]

  `lambda_m` is a constant to the gradient, so that the adaptive term is
  `-mu |w(m-1) - w(m-2)| (D/|D| - cos u/|u|)`. Active for m > 1 [paper, Alg. 1; its
  text says m > 2]; no term where |D| or |u| is 0. Momentum acts on the summed
  gradient. The server is FedAvg's.

  `first_step` names what grad l_cos is where |u| (normalized) or |D| |u| is below
  eps = 1e-8, as in the first step: 0; -D / eps; -D / (|D| eps)   [derived, from the
  formulas of `cut_cosine`].

  `direction` names the two readings of D for clients that come and go:
  - client_state: D_i = x^t - (the last global model client i received before)
    [paper, Sec. 3.3]; no term for a client that has received none.
  - broadcast: D = x^t - x^(t-1) for everyone [paper, Eq. 4]; no term in round 0.

  Attributes:
    client_states: With client_state, the last global model the client received.
    previous_weights: x^(t-1), None before the first round.
  """

  def __init__(
    self,
    model,
    weights,
    learning_rate,
    mu=0.01,
    adaptive=True,
    lam=None,
    direction="client_state",
    first_step="none",
    **fed_avg_options,
  ):
    if direction not in ("client_state", "broadcast"):
      raise ValueError(f"direction is client_state or broadcast, found {direction!r}.")
    if adaptive != (lam is None):
      raise ValueError("lam is for adaptive=False, and only for it.")
    super().__init__(model, weights, learning_rate, **fed_avg_options)
    self.mu, self.adaptive, self.lam = mu, adaptive, lam
    self.direction, self.first_step = direction, first_step
    self.previous_weights = None

  def round(self, cohort, dropped=()):
    received = self.weights
    super().round(cohort, dropped)
    self.previous_weights = received
    return self.weights

  def _correction(self, client_id):
    if self.direction == "client_state":
      previous = self.client_states.get(client_id)
    else:
      previous = self.previous_weights
    if previous is None:
      return None
    x = self.weights
    direction = subtract(x, previous)

    d, normalized = norm(direction), self.first_step == "epsilon_normalized"

    def correction(g, w, w_prev, m):
      u = norm(subtract(w, x))
      if self.first_step != "none" and d > 0 and (u if normalized else d * u) < 1e-8:
        return add(g, direction, -self.lam / (1e-8 * (d if normalized else 1.0)))
      pull = cosine_pull(w, x, direction) if m > 1 else None
      if pull is None:
        return g
      distance = norm(subtract(w, x))
      if self.adaptive:
        weight = self.mu * distance * norm(subtract(w, w_prev))
      else:
        weight = self.lam
      return add(g, pull, -weight / distance)

    return correction

  def _client(self, client_id, x, y, batches):
    delta, _ = super()._client(client_id, x, y, batches)
    return delta, self.weights if self.direction == "client_state" else None


class FedDyn(FedAvg):
  """FedDyn   [code: the authors'; paper: Acar et al. 2021].

    G    =  g(w) + a_i (l_i + w - x),    a_i = alpha / (n_i N / n)
    l_i  <- l_i + (w_i - x)
    h    =  1/N sum_{all i} l_i          with the new l_i of i in S
    x    <- mean_S(w_i) + h

  G is the gradient of `F_i(w) + a_i <w, l_i - x> + a_i/2 |w|^2`. All l_i start at 0; n
  counts the examples of all N clients. With `clip_norm` C > 0, G <- G min(1, C/|G|),
  and momentum acts on that. `weighting` is for mean_S only; h is always uniform over
  all clients, the absent ones with the l_i they have. No server learning rate. Without
  `adds_dual` the server takes mean_S(w_i) alone, and h is only looked at.

  Attributes:
    mean_dual: h.
    client_states: l_i; a client that is not in it has l_i = 0.
  """

  def __init__(
    self,
    model,
    weights,
    learning_rate,
    alpha,
    num_clients,
    num_examples,
    clip_norm=0.0,
    momentum=0.0,
    weighting="uniform",
    adds_dual=True,
  ):
    super().__init__(model, weights, learning_rate, momentum, weighting=weighting)
    self.alpha, self.clip_norm, self.adds_dual = alpha, clip_norm, adds_dual
    self.num_clients, self.num_examples = num_clients, num_examples
    self.mean_dual = zeros_like(self.weights)

  def client_dual(self, client_id) -> Weights:
    """l_i."""
    return self.client_states.get(client_id, zeros_like(self.weights))

  def _client(self, client_id, x, y, batches):
    start, dual = self.weights, self.client_dual(client_id)

    def correction(g, w, w_prev, m):
      alpha = self.alpha / (len(x) * self.num_clients / self.num_examples)
      total = add(g, add(dual, subtract(w, start)), alpha)
      return clipped(total, self.clip_norm) if self.clip_norm > 0.0 else total

    w = self._train(client_id, start, x, y, batches, correction)
    delta = subtract(w, start)
    return delta, add(dual, delta)

  def _server(self, mean, states):
    h = zeros_like(self.weights)
    for dual in {**self.client_states, **states}.values():
      h = add(h, dual, 1.0 / self.num_clients)
    self.weights = add(self.weights, mean)
    if self.adds_dual:
      self.weights = add(self.weights, h)
    self.mean_dual = h


def fisher_information(model, w, x, y, privacy=None, client_id=None) -> Weights:
  """1/n sum_e g_e^2, element by element: diag(F) at `w`   [paper: FedCurv].

  `g_e` is the gradient of one example, with its true label. With `privacy` [derived]:

    max(0, 1/n (sum_e clip(g_e, C)^2 + sigma C^2 xi)),   xi = normals(client_id, 0)

  One example changes the sum by `|clip(g_e, C)^2| <= C^2`, so that this is a Gaussian
  mechanism with the noise multiplier of the local steps. Over no examples it is 0
  [choice].
  """
  total = zeros_like(w)
  if len(x) == 0:
    return total
  for g in example_gradients(model, w, x, y):
    g = clipped(g, privacy.clip_norm) if privacy else g
    total = add(total, [p**2 for p in g])
  if privacy:
    noise = privacy.noise_multiplier * privacy.clip_norm**2
    total = add(total, as_weights(privacy.normals(client_id, 0)), noise)
    total = [np.maximum(p, 0.0) for p in total]
  return scaled(total, 1.0 / len(x))


class FedCurv(FedAvg):
  """FedCurv   [paper: Shoham et al. 2019].

    minimises  F_i(w) + lambda sum_{j in S_prev, j != i} (w - w_j)^T diag(u_j) (w - w_j)
    gradient   g(w) + 2 lambda sum_{j in S_prev, j != i} (u_j * w - v_j)
    sends      w_i,  u_i = F_i (see `fisher_information`) at w_i,  v_i = u_i * w_i

  S_prev are the accepted clients of the last round that had any. The server for the
  model is FedAvg's; U = sum_{S_prev} u_j and V = sum_{S_prev} v_j are plain sums,
  whatever the `weighting`. Here each u_j, v_j is kept, not only the sums, and client i
  leaves its own out. `curvature` is lambda.

  Attributes:
    previous: `[*u_j, *v_j]` of each client of S_prev, by client id.
    fisher: U.
    fisher_model: V.
    client_states: `[*u_i, *v_i]` of the last round the client was accepted in.
  """

  def __init__(self, model, weights, learning_rate, curvature, **fed_avg_options):
    super().__init__(model, weights, learning_rate, **fed_avg_options)
    self.curvature = curvature
    self.previous = {}

  def _halves(self, state: Weights):
    """u_j, v_j."""
    return state[: len(self.weights)], state[len(self.weights) :]

  def _sum(self, half: int) -> Weights:
    total = zeros_like(self.weights)
    for state in self.previous.values():
      total = add(total, self._halves(state)[half])
    return total

  @property
  def fisher(self) -> Weights:
    return self._sum(0)

  @property
  def fisher_model(self) -> Weights:
    return self._sum(1)

  def _correction(self, client_id):
    others = [self._halves(s) for j, s in self.previous.items() if j != client_id]

    def correction(g, w, w_prev, m):
      for u, v in others:
        pull = [p * q - r for p, q, r in zip(u, w, v)]
        g = add(g, pull, 2.0 * self.curvature)
      return g

    return correction

  def _client(self, client_id, x, y, batches):
    correction = self._correction(client_id)
    w = self._train(client_id, self.weights, x, y, batches, correction)
    u = fisher_information(self.model, w, x, y, self.privacy, client_id)
    v = [p * q for p, q in zip(u, w)]
    return subtract(w, self.weights), [*u, *v]

  def _server(self, mean, states):
    super()._server(mean, states)
    self.previous = dict(states)


class Twafl(FedAvg):
  """TWAFL, by the direct formula with one stored model per client.

    x <- sum_k n_k a^(t_k - t) w_k / sum_k n_k a^(t_k - t)        [recalled]

  over ALL K clients: `w_k` is the last upload of client k, `t_k` its round, and `x^0`
  at time 0 before the first. Rounds count t = 1, 2, ... The paper's Eq. (1) divides by
  `sum_k n_k`: that is `normalise=False`; its model shrinks.

  The first `num_shallow` arrays of the weights are the shallow layers, the rest the
  deep ones. Both have uploads and times of their own. Round t is full if
  `(t-1) % rounds_in_loop >= rounds_in_loop - freq`, shallow otherwise [paper]:
  - full: the client starts from the whole server model and uploads all layers.
  - shallow: the client starts from the server's shallow layers and its own deep ones
    (those of its last local training, x^0's before that), trains all layers and
    uploads the shallow ones. The server's deep layers stay.
  In both the client keeps the deep layers it has trained.

  TEFL is `freq = rounds_in_loop`, whatever `num_shallow`; AFL is `base` = 1.

  A round without accepted clients changes nothing on the server, but counts. With
  `weighting` uniform every n_k is 1.

  Attributes:
    examples: n_k of all K clients, by client id.
    round_num: t, the number of rounds so far.
    shallow, deep: `(w_k, t_k)` of each of the K clients, by client id.
    client_states: The client's own deep layers.
  """

  def __init__(
    self,
    model,
    weights,
    learning_rate,
    examples,
    base,
    num_shallow,
    rounds_in_loop=15,
    freq=5,
    normalise=True,
    momentum=0.0,
    weighting="examples",
  ):
    if not 0 <= freq <= rounds_in_loop:
      raise ValueError(f"freq must be in 0..{rounds_in_loop}, found {freq}.")
    super().__init__(model, weights, learning_rate, momentum, weighting=weighting)
    self.examples, self.base, self.num_shallow = dict(examples), base, num_shallow
    self.rounds_in_loop, self.freq, self.normalise = rounds_in_loop, freq, normalise
    self.round_num = 0
    shallow, self._first_deep = self._parts(self.weights)
    self.shallow = {k: (shallow, 0) for k in self.examples}
    self.deep = {k: (self._first_deep, 0) for k in self.examples}

  def _parts(self, w: Weights):
    """The shallow and the deep layers."""
    return w[: self.num_shallow], w[self.num_shallow :]

  def round(self, cohort, dropped=()):
    accepted = self._accepted(cohort, dropped)
    unknown = {client_id for client_id, _, _ in accepted} - set(self.examples)
    if unknown:
      raise ValueError(f"No number of examples for clients {unknown}.")
    self.round_num += 1
    if not accepted:
      return self.weights
    t = self.round_num
    full = (t - 1) % self.rounds_in_loop >= self.rounds_in_loop - self.freq
    shallow, deep = self._parts(self.weights)
    states = {}
    for k, (x, y), batches in accepted:
      own_deep = self.client_states.get(k, self._first_deep)
      start = [*shallow, *(deep if full else own_deep)]
      w_shallow, w_deep = self._parts(self._train(k, start, x, y, batches))
      self.shallow[k] = w_shallow, t
      if full:
        self.deep[k] = w_deep, t
      states[k] = w_deep
    shallow = self._aggregate(self.shallow, shallow)
    if full:
      deep = self._aggregate(self.deep, deep)
    self.weights = [*shallow, *deep]
    self.client_states = {**self.client_states, **states}
    return self.weights

  def _aggregate(self, uploads: dict, current: Weights) -> Weights:
    n = {
      k: n_k if self.weighting == "examples" else 1 for k, n_k in self.examples.items()
    }
    shares = [
      n[k] * self.base ** (t_k - self.round_num) for k, (_, t_k) in uploads.items()
    ]
    mean = weighted_mean([w_k for w_k, _ in uploads.values()], shares)
    if mean is None:
      return current
    return mean if self.normalise else scaled(mean, sum(shares) / sum(n.values()))
