"""The one table that says how each algorithm of the registry is replayed in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Optional

import numpy as np
import problems
import replay
import replay_fed_agg
import replay_fed_reg
import replay_pfedgp
import tensorflow as tf

from tff_algos.algorithms import fed_curv
from tff_algos.client_work import step_seeds
from tff_algos.privacy import dp_sgd_step

# The seed of a run, as `federate` has it by default.
SEED = 1


class Row(NamedTuple):
  """One algorithm.

  Attributes:
    make: `(numpy_model, weights, hparams, num_clients) -> replay.Algorithm`.
    settings: Name to the hyper-parameters of a run, over `problems.LOCAL`. Each must
      lead to another model, so that a mixed-up one is seen.
    server_extra: `(algorithm) -> arrays`, what the server keeps beside the model, as
      flat as `tf.nest.flatten` makes it.
    client_state: `(algorithm, client) -> arrays`, the same for a client's state.
    size: Of the numbers whose differences the two hold; their rounding is in proportion
      to it. 0 where they hold no differences.
    comparable: `(server extra) -> arrays`, applied to both sides before they are
      compared: makes numbers of them whose rounding is in proportion to `size`.
    loss_model: `(numpy_model, hparams) -> model` whose loss the local steps are along;
      None where it is the model's own, a mean over the examples.
  """

  make: Callable[..., replay.Algorithm]
  settings: Mapping[str, Mapping[str, Any]]
  server_extra: Callable[[replay.Algorithm], list] = lambda algorithm: []
  client_state: Callable[[replay.Algorithm, int], list] = lambda algorithm, client: []
  size: float = 0.0
  comparable: Callable[[list], list] = lambda arrays: arrays
  loss_model: Optional[Callable[..., Any]] = None


class ScaffoldWithMomentum(replay.Scaffold):
  """SCAFFOLD whose local steps have momentum b   [derived].

  The gradient of step j acts on step j and, by b, b^2, ..., on all later ones, so that
  a constant gradient g moves w by eta_l g sum_{j=1..K} (1 + b + ... + b^(j-1)). Option
  2 divides by that in place of K eta_l.
  """

  def __init__(self, *args, momentum: float, **options):
    super().__init__(*args, **options)
    self.momentum = momentum

  def _client(self, client_id, x, y, batches):
    delta, renewed = super()._client(client_id, x, y, batches)
    if self.option == 2:
      sums = [sum(self.momentum**k for k in range(j + 1)) for j in range(len(batches))]
      change = replay.subtract(self.client_control(client_id), self.control_variate)
      renewed = replay.add(change, delta, -1 / (sum(sums) * self.learning_rate))
    return delta, renewed


def _options(h) -> dict:
  return dict(
    learning_rate=h.learning_rate,
    momentum=h.momentum,
    server_learning_rate=h.server_learning_rate,
    weighting=h.client_weighting,
  )


def _fed_sgd(model, weights, h, num_clients):
  return replay.FedSGD(model, weights, h.learning_rate, h.client_weighting)


def _fed_avg(model, weights, h, num_clients):
  return replay.FedAvg(model, weights, **_options(h))


def _fed_avg_m(model, weights, h, num_clients):
  return replay.FedAvgM(
    model,
    weights,
    server_momentum=h.server_momentum,
    looks_ahead=h.server_momentum_form == "nesterov",
    **_options(h),
  )


def _fed_prox(model, weights, h, num_clients):
  return replay.FedProx(model, weights, mu=h.mu, **_options(h))


def _scaffold(model, weights, h, num_clients):
  option = {"I": 1, "II": 2}[h.option]
  return ScaffoldWithMomentum(
    model, weights, num_clients=num_clients, option=option, **_options(h)
  )


def _adaptive(cls):
  def make(model, weights, h, num_clients):
    has_beta2 = {} if cls is replay.FedAdagrad else dict(beta2=h.beta2)
    return cls(model, weights, beta1=h.beta1, tau=h.tau, **has_beta2, **_options(h))

  return make


def _fed_gg(model, weights, h, num_clients):
  is_adaptive = h.weight == "adaptive"
  return replay.FedGG(
    model,
    weights,
    mu=h.mu,
    adaptive=is_adaptive,
    lam=None if is_adaptive else h.fixed_weight,
    direction=h.direction,
    first_step=h.first_step,
    **_options(h),
  )


def _fed_gg_extra(algorithm):
  return algorithm.previous_weights if algorithm.direction == "broadcast" else []


def _fed_gg_state(algorithm, client):
  state = algorithm.client_states.get(client)
  return [] if state is None else [True, *state]


def _with_server_rate(cls):
  """The algorithm with x + eta_g (what it makes of x - x) in place of what it makes."""

  class WithServerRate(cls):
    def __init__(self, *args, server_learning_rate: float, **options):
      super().__init__(*args, **options)
      self.server_rate = server_learning_rate

    def round(self, cohort, dropped=()):
      before = self.weights
      change = replay.subtract(super().round(cohort, dropped), before)
      self.weights = replay.add(before, change, self.server_rate)
      return self.weights

  return WithServerRate


class Normals:
  """The noise that a private run draws; like its batches, it is the library's."""

  def __init__(self, weights):
    self.round_num, self._weights = 0, [tf.constant(w) for w in weights]

  def of_step(self, client, m):
    """Of local step m, or for m = 0 of the Fisher information."""
    if m == 0:
      return self._draw(self._fold(self._seed(client), fed_curv._FISHER))
    key = self._fold(self._seed(client), step_seeds._STEP)
    return self._draw(self._fold(key, m - 1))

  def of_round(self, client, m):
    """Of the one gradient on all of a client's examples."""
    del m
    return self._draw(self._seed(client))

  def _seed(self, client):
    return tf.constant(problems.client_seed(SEED, self.round_num, client))

  def _fold(self, seed, number):
    return step_seeds.fold_in(seed, number)

  def _draw(self, seed):
    drawn = dp_sgd_step.normal_like(self._weights, seed)
    return [w.numpy().astype(np.float64) for w in drawn]


def _counting(cls, normals):
  """The algorithm, which tells its noise what round it is."""

  class Counting(cls):
    def round(self, cohort, dropped=()):
      result = super().round(cohort, dropped)
      normals.round_num += 1
      return result

  return Counting


def _private(cls, own_options: Callable[[Any], dict] = lambda h: {}):
  def make(model, weights, h, num_clients):
    normals = Normals(weights)
    draw = normals.of_round if cls is replay.FedSGD else normals.of_step
    privacy = replay.Privacy(h.clip_norm, h.noise_multiplier, draw)
    if cls is replay.FedSGD:
      options = dict(learning_rate=h.learning_rate, weighting=h.client_weighting)
    else:
      options = {**_options(h), **own_options(h)}
    return _counting(cls, normals)(model, weights, privacy=privacy, **options)

  return make


def _fed_dyn(model, weights, h, num_clients):
  return replay.FedDyn(
    model,
    weights,
    h.learning_rate,
    h.alpha,
    num_clients,
    sum(problems.SIZES),
    clip_norm=h.max_gradient_norm,
    momentum=h.momentum,
    adds_dual=h.server_dual == "mean",
  )


class FedCurvInRounds(replay.FedCurv):
  """FedCurv with the number of the round that each Fisher information is of."""

  def __init__(self, *args, **options):
    super().__init__(*args, **options)
    self.round_num, self.round_of = 0, {}

  def round(self, cohort, dropped=()):
    result = super().round(cohort, dropped)
    self.round_num += 1
    self.round_of.update((c, self.round_num) for c, *_ in cohort)
    return result


def _fed_curv(model, weights, h, num_clients):
  return FedCurvInRounds(model, weights, curvature=h.curvature, **_options(h))


def _fed_curv_extra(algorithm):
  return [*algorithm.fisher, *algorithm.fisher_model, algorithm.round_num]


def _fed_curv_state(algorithm, client):
  return [*algorithm.client_states[client], algorithm.round_of[client]]


def _twafl(all_layers: bool):
  def make(model, weights, h, num_clients):
    schedule, num_shallow = dict(rounds_in_loop=1, freq=1), len(weights)
    if not all_layers:
      schedule = dict(rounds_in_loop=h.rounds_in_loop, freq=h.freq)
      # Weight w3 is the fourth, so that three are before it.
      num_shallow = int(h.deep_from[1:]) if h.deep_from else len(weights) // 2
    return _with_server_rate(replay.Twafl)(
      model,
      weights,
      examples=dict(enumerate(problems.SIZES)),
      base=getattr(h, "base", 1.0),
      num_shallow=num_shallow,
      normalise=getattr(h, "normalization", "weights") == "weights",
      **schedule,
      **_options(h),
    )

  return make


def _remembered(algorithm, client, upload):
  """The round of the last upload, the upload, and what it counted for."""
  value, round_num = upload[client]
  count = 1 if algorithm.weighting == "uniform" else algorithm.examples[client]
  return [round_num, *value, count if round_num else 0]


def _twafl_state(algorithm, client):
  deep, shallow = (
    _remembered(algorithm, client, u) for u in (algorithm.deep, algorithm.shallow)
  )
  return [*algorithm.client_states[client], *deep, *shallow]


def _tefl_state(algorithm, client):
  return _remembered(algorithm, client, algorithm.shallow)


def _fed_agg(model, weights, h, num_clients):
  return replay_fed_agg.FedAgg(
    model,
    weights,
    h.learning_rate,
    h.alpha,
    h.epochs,
    rule=h.rule,
    estimates=h.estimates,
    passes=h.passes,
    direction=h.direction,
    planned_steps=h.planned_steps,
    gradient=h.epoch_gradient,
    max_learning_rate=h.max_learning_rate,
    weighting=h.client_weighting,
  )


def _fed_agg_extra(algorithm):
  known = algorithm.estimates
  if known is None:
    return []
  rows = [
    np.stack(epochs) for term in (known.phi1, known.drifts) for epochs in zip(*term)
  ]
  return [True, *rows]


def _fed_reg(modified_gradient: bool):
  def make(model, weights, h, num_clients):
    return _with_server_rate(replay_fed_reg.FedReg)(
      model,
      weights,
      h.learning_rate,
      h.gamma,
      h.pseudo_step,
      h.perturbation_ratio,
      h.pseudo_steps,
      h.clip_range,
      modified_gradient,
      weighting=h.client_weighting,
      server_learning_rate=h.server_learning_rate,
    )

  return make


def _of_features(model, h):
  return replay_pfedgp.FeatureModel(
    model, h.output_scale, h.length_scale, h.alpha_epsilon
  )


def _pfedgp(model, weights, h, num_clients):
  return replay.FedAvg(_of_features(model, h), weights, **_options(h))


_LOCAL_SETTINGS = {
  "plain": dict(),
  "whole_uniform": dict(batch_size=None, client_weighting="uniform"),
  "one_epoch_momentum": dict(epochs=1, batch_size=1, learning_rate=0.05, momentum=0.9),
}
# All of them at once, for algorithms that train as FedAvg does.
_OTHER = dict(
  epochs=2, batch_size=None, learning_rate=0.05, momentum=0.9, client_weighting="uniform"
)
_SERVER_RATE = dict(server_rate=dict(server_learning_rate=0.6))


def _with(settings: Mapping, common: Mapping) -> dict:
  return {name: {**common, **own} for name, own in settings.items()}


def _moments(algorithm):
  return [*algorithm.first_moment, *algorithm.second_moment]


def _moments_like_updates(arrays):
  """m and the root of v, which are both of the size of Delta = w_i - x."""
  half = len(arrays) // 2
  return [*arrays[:half], *map(np.sqrt, arrays[half:])]


def _adaptive_row(cls, **more_settings) -> Row:
  settings = {
    # A step multiplies the rounding of Delta by up to eta/tau, so not both at once.
    "server_rate": dict(server_learning_rate=0.1, tau=0.02),
    "other": dict(beta1=0.5, tau=0.01, **_OTHER, **more_settings),
  }
  settings = _with(settings, dict(server_learning_rate=0.03))
  return Row(
    _adaptive(cls),
    settings,
    server_extra=_moments,
    size=1.0,
    comparable=_moments_like_updates,
  )


REPLAYS: Mapping[str, Row] = {
  "fedavg": Row(_fed_avg, {**_LOCAL_SETTINGS, **_SERVER_RATE}),
  "fedsgd": Row(_fed_sgd, dict(plain={}, uniform=dict(client_weighting="uniform"))),
  "fedprox": Row(
    _fed_prox, _with(dict(plain={}, other=_OTHER, **_SERVER_RATE), dict(mu=0.5))
  ),
  "scaffold": Row(
    _scaffold,
    {
      "option_I": dict(option="I"),
      "option_II": dict(option="II"),
      "option_I_momentum_examples": dict(
        option="I", momentum=0.9, learning_rate=0.03, client_weighting="examples"
      ),
      "option_II_momentum_whole": dict(
        option="II", momentum=0.9, learning_rate=0.03, batch_size=None
      ),
      "server_rate": dict(server_learning_rate=0.6),
    },
    server_extra=lambda algorithm: algorithm.control_variate,
    client_state=lambda algorithm, client: algorithm.client_control(client),
    size=1.0,  # (x - y) / (K eta_l) with weights below 1 and K eta_l down to 0.17
  ),
  "fedadam": _adaptive_row(replay.FedAdam, beta2=0.7),
  "fedyogi": _adaptive_row(replay.FedYogi, beta2=0.7),
  "fedadagrad": _adaptive_row(replay.FedAdagrad),
  "fedavgm": Row(
    _fed_avg_m,
    _with(
      dict(
        plain={},
        other=_OTHER,
        **_SERVER_RATE,
        nesterov=dict(server_momentum_form="nesterov", server_learning_rate=0.6),
      ),
      dict(server_momentum=0.5),
    ),
    server_extra=lambda algorithm: algorithm.ahead,
    size=1.0,
  ),
  "fedgg": Row(
    _fed_gg,
    _with(
      {
        "adaptive_client_state": dict(),
        "fixed_client_state": dict(weight="fixed"),
        # A kick of 0.2 D, and one of length 0.2.
        "fixed_epsilon": dict(weight="fixed", fixed_weight=2e-9, first_step="epsilon"),
        "fixed_epsilon_normalized_momentum": dict(
          weight="fixed",
          fixed_weight=2e-9,
          first_step="epsilon_normalized",
          momentum=0.9,
        ),
        "momentum_uniform_whole": dict(
          momentum=0.9, client_weighting="uniform", batch_size=None
        ),
        "momentum_broadcast": dict(momentum=0.9, direction="broadcast"),
        "server_rate": dict(server_learning_rate=0.6),
      },
      dict(mu=1.0, fixed_weight=0.05),
    ),
    server_extra=_fed_gg_extra,
    client_state=lambda algorithm, client: (
      _fed_gg_state(algorithm, client) if algorithm.direction == "client_state" else []
    ),
  ),
  "sgd": Row(
    _fed_sgd,
    dict(
      uniform=dict(learning_rate=0.05),
      examples=dict(learning_rate=0.03, client_weighting="examples"),
    ),
  ),
  "feddyn": Row(
    _fed_dyn,
    _with(
      {
        "plain": dict(),
        "momentum": dict(momentum=0.9, learning_rate=0.03),
        "clipped_whole": dict(max_gradient_norm=0.3, batch_size=None),
        "mean_alone": dict(server_dual="none"),
      },
      dict(alpha=0.5),
    ),
    server_extra=lambda algorithm: algorithm.mean_dual if algorithm.adds_dual else [],
    client_state=lambda algorithm, client: algorithm.client_dual(client),
    size=1.0,
  ),
  "fedcurv": Row(
    _fed_curv,
    _with(dict(plain={}, other=_OTHER, **_SERVER_RATE), dict(curvature=0.2)),
    server_extra=_fed_curv_extra,
    client_state=_fed_curv_state,
  ),
  "twafl": Row(
    _twafl(all_layers=False),
    _with(
      {
        "plain": dict(),
        **_SERVER_RATE,
        "two_of_three_from_the_last": dict(freq=2, deep_from="w3", **_OTHER),
        "old_count_less": dict(base=4.0, client_weighting="uniform"),
        "as_printed": dict(normalization="examples"),
      },
      dict(rounds_in_loop=3, freq=1),
    ),
    client_state=_twafl_state,
  ),
  "tefl": Row(
    _twafl(all_layers=True),
    {
      "plain": dict(),
      **_SERVER_RATE,
      "old_count_less": dict(base=4.0),
      "as_printed": {**_OTHER, **dict(normalization="examples")},
    },
    client_state=_tefl_state,
  ),
  "afl": Row(
    _twafl(all_layers=False),
    _with(
      dict(plain={}, other_from_the_second=dict(deep_from="w1", **_OTHER)),
      dict(rounds_in_loop=3, freq=1),
    ),
    client_state=_twafl_state,
  ),
  "fedagg": Row(
    _fed_agg,
    _with(
      {
        "anchored": dict(epochs=3),
        "literal": dict(rule="literal", direction="local"),
        "all_steps_uniform": dict(planned_steps="all", client_weighting="uniform"),
        "full": dict(epoch_gradient="full"),
        "fixed_point_3_whole": dict(
          estimates="fixed_point", passes=3, planned_steps="all", batch_size=None
        ),
        "fixed_point_literal_local": dict(
          estimates="fixed_point", passes=1, rule="literal", direction="local"
        ),
        "fixed_point_cut": dict(estimates="fixed_point", max_learning_rate=0.04),
        "first_cut": dict(learning_rate=0.3, max_learning_rate=0.2),
        "one_epoch": dict(epochs=1, batch_size=1, learning_rate=0.05),
        "slow": dict(epochs=3, max_learning_rate=0.11),
      },
      dict(alpha=0.3, max_learning_rate=0.4, direction="aggregated"),
    ),
    server_extra=_fed_agg_extra,
    size=1.0,
  ),
  "fedreg": Row(
    _fed_reg(modified_gradient=False),
    _with(
      {
        "plain": dict(),
        "gamma": dict(gamma=1.0),
        "no_range_whole": dict(clip_range="none", batch_size=None),
        "no_pseudo_examples": dict(pseudo_steps=0, client_weighting="examples"),
        "one_epoch": dict(epochs=1, batch_size=1, learning_rate=0.05),
        **_SERVER_RATE,
      },
      dict(gamma=0.5, pseudo_step=0.2, perturbation_ratio=0.3),
    ),
  ),
  "fedreg_mg": Row(
    _fed_reg(modified_gradient=True),
    _with(
      {
        "plain": dict(),
        "gamma": dict(gamma=1.0),
        "examples": dict(client_weighting="examples"),
      },
      dict(gamma=0.5, pseudo_step=0.2, perturbation_ratio=0.3),
    ),
  ),
  "pfedgp": Row(
    _pfedgp,
    _with(
      {
        "plain": dict(),
        "other": _OTHER,
        "kernel": dict(output_scale=2.0, length_scale=0.6, alpha_epsilon=0.2),
        **_SERVER_RATE,
      },
      # Its losses are larger than others'.
      dict(learning_rate=0.02),
    ),
    loss_model=_of_features,
  ),
  "dpsgd": Row(
    _private(replay.FedSGD),
    _with(
      {"plain": dict(), "examples": dict(client_weighting="examples")},
      dict(clip_norm=0.6, noise_multiplier=0.3),
    ),
  ),
  "fedavg_dpsgd": Row(
    _private(replay.FedAvg),
    _with(_LOCAL_SETTINGS, dict(clip_norm=0.6, noise_multiplier=0.3)),
  ),
  "fedprox_dpsgd": Row(
    _private(replay.FedProx, lambda h: dict(mu=h.mu)),
    _with(
      dict(plain={}, momentum=dict(momentum=0.9)),
      dict(clip_norm=0.6, noise_multiplier=0.3, mu=0.5),
    ),
  ),
  "fedcurv_dpsgd": Row(
    _private(FedCurvInRounds, lambda h: dict(curvature=h.curvature)),
    _with(
      dict(plain={}, momentum=dict(momentum=0.9)),
      dict(clip_norm=0.6, noise_multiplier=0.3, curvature=0.2),
    ),
    server_extra=_fed_curv_extra,
    client_state=_fed_curv_state,
  ),
}
