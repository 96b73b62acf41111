"""FedGG: local updates guided by the direction of the last global update.

"Global-Update-Guided Federated Learning" (FedGG), Algorithm 1, Eqs. (10) to (13). The
sign of the second term in the printed Eqs. (11) and (13) is wrong: the gradient of the
model-cosine loss has "- cos", as central differences show [derived].
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import tensorflow as tf

from tff_algos.algorithms import fed_avg
from tff_algos.client_data import Examples
from tff_algos.client_work import local_training, tree_math
from tff_algos.client_work.model_update import ClientResult, model_update
from tff_algos.errors import InputError
from tff_algos.hyper_parameters import hparam
from tff_algos.models.functional import Model, Weights
from tff_algos.templates import composer, rounds
from tff_algos.templates.algorithm import Algorithm

if TYPE_CHECKING:
  from tff_algos.templates.stateful_process import StatefulProcess


@dataclasses.dataclass(frozen=True)
class FedGGHparams(fed_avg.FedAvgHparams):
  """Hyper-parameters of FedGG.

  Raises:
    InputError: A `first_step` other than none without `weight="fixed"`, or what
      `HyperParameters` raises.
  """

  mu: float = hparam(
    0.01,
    "Strength of the adaptive weight of the model-cosine loss.",
    source="paper, Section 4.2 (0.01 of 0.001, 0.01, 0.1, 1)",
    low=0,
    tunable=True,
  )
  weight: str = hparam(
    "adaptive",
    "Weight of the model-cosine loss: adaptive, by Eq. (12) with mu; or fixed.",
    source="paper, Eq. (12) and Fig. 3",
    choices=("adaptive", "fixed"),
  )
  fixed_weight: float = hparam(
    5e-8,
    "Weight lambda of the model-cosine loss where it is fixed.",
    source="paper, Fig. 3 (1e-8, 5e-8, 1e-7)",
    low=0,
    tunable=True,
  )
  first_step: str = hparam(
    "none",
    "The cosine loss's gradient where u = 0, for a fixed weight: none, 0; epsilon, as "
    "PyTorch's cosine_similarity has it up to 1.11, -lambda D / 1e-8; "
    "epsilon_normalized, as it has it since, -lambda D / (|D| 1e-8).",
    source="derived, from PyTorch's formulas and Fig. 3",
    choices=("none", "epsilon", "epsilon_normalized"),
  )
  direction: str = hparam(
    "client_state",
    "Where a client takes the global model before the received one from: "
    "client_state, the last one that it received itself, with no extra traffic; "
    "broadcast, the server sends it too, which doubles the download.",
    source="paper, Section 3 (non-persistent clients: client_state)",
    choices=("client_state", "broadcast"),
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.first_step != "none" and self.weight != "fixed":
      raise InputError(
        f"first_step={self.first_step} is for weight=fixed: where u = 0, the adaptive "
        "weight is 0."
      )


# Of PyTorch's cosine_similarity: what its denominators are at least.
_EPSILON = 1e-8


class _Remembered(NamedTuple):
  """Client state: the last global model received, if there was one."""

  is_known: Any
  model: Weights


class _Direction(NamedTuple):
  """The last global update D and its length."""

  update: Weights
  length: tf.Tensor


def add_cosine_gradient(
  gradient: Weights,
  drift: Weights,
  direction: _Direction,
  step_length: tf.Tensor,
  h: FedGGHparams,
) -> Weights:
  """The gradient with lambda times that of 1 - cos(D, u) added, u = w - x [derived].

  That is -(lambda / |u|) (D / |D| - cos u / |u|), with the adaptive weight
  lambda = mu |u| |w(m-1) - w(m-2)| held constant. It is 0 where
  D or u is 0, and what `first_step` says, unless that is none, where |D| |u| (epsilon) or
  |u| (epsilon_normalized) is below 1e-8.

  Args:
    gradient: The gradient of the local loss.
    drift: u, the way of the local weights from the received model.
    direction: D, the last global update.
    step_length: |w(m-1) - w(m-2)|, float32 scalar.
    h: The hyper-parameters.
  """
  d, u = direction.length, tree_math.norm(drift)
  cosine = tf.math.divide_no_nan(tree_math.dot(direction.update, drift), d * u)
  if h.weight == "adaptive":
    strength = h.mu * step_length
  else:
    strength = tf.math.divide_no_nan(h.fixed_weight, u)
  along_direction = tf.where(u > 0, tf.math.divide_no_nan(strength, d), 0.0)
  along_drift = tf.math.divide_no_nan(strength * cosine, u)
  if h.first_step != "none":
    is_normalized = h.first_step == "epsilon_normalized"
    is_cut = (u if is_normalized else d * u) < _EPSILON
    kick = tf.math.divide_no_nan(h.fixed_weight, _EPSILON * (d if is_normalized else 1.0))
    along_direction = tf.where(is_cut, kick, along_direction)
    along_drift = tf.where(is_cut, 0.0, along_drift)
  guided = tree_math.add_scaled(gradient, along_drift, drift)
  return tree_math.add_scaled(guided, -along_direction, direction.update)


def build_fed_gg(
  model: Model,
  hparams: FedGGHparams = FedGGHparams(),
  *,
  model_aggregator: Optional[rounds.AggregationFactory] = None,
) -> StatefulProcess:
  """Builds FedGG: FedAvg with the cosine loss's gradient added to the local one.

  D is the received model less the one before it; there is no term while that is not
  known, nor in the first local step of a round, where u = 0, unless `first_step` has one.

  Args:
    model: The model to train.
    hparams: The hyper-parameters.
    model_aggregator: Replaces the weighted mean of the updates.
  """
  composer.check_given(model, hparams)
  is_broadcast = hparams.direction == "broadcast"

  def initial_model() -> Weights:
    return tuple(tf.constant(w) for w in model.initial_weights)

  def init_server() -> Weights:
    return initial_model() if is_broadcast else ()

  def init_client() -> _Remembered | tuple[()]:
    if is_broadcast:
      return ()
    return _Remembered(tf.constant(False), tree_math.zeros_like(model.initial_weights))

  def distribute(variables: rounds.ServerVariables) -> rounds.Parts:
    parts = OrderedDict(model=variables.model)
    if is_broadcast:
      parts["previous_model"] = variables.extra
    return parts

  def client_update(
    received: rounds.Parts,
    client_state: Any,
    examples: Examples,
    seed: tf.Tensor,
    h: FedGGHparams,
  ) -> ClientResult:
    start = received["model"]
    if is_broadcast:
      previous = received["previous_model"]
    else:
      previous = tuple(
        tf.where(client_state.is_known, p, x) for p, x in zip(client_state.model, start)
      )
      client_state = _Remembered(tf.constant(True), start)
    update = tree_math.subtract(start, previous)
    direction = _Direction(update, tree_math.norm(update))

    def guide(
      gradient: Weights, weights: Weights, step_length: tf.Tensor
    ) -> tuple[Weights, tf.Tensor]:
      drift = tree_math.subtract(weights, start)
      guided = add_cosine_gradient(gradient, drift, direction, step_length, h)
      return guided, step_length

    result = local_training.train_client(
      model,
      start,
      examples,
      h,
      seed,
      adjust_gradient=guide,
      note_direction=lambda way, _: h.learning_rate * tree_math.norm(way),
      carry=tf.constant(0.0),
    )
    return model_update(h.client_weighting, start, result, examples, client_state)

  def server_update(
    variables: rounds.ServerVariables,
    aggregate: rounds.Parts,
    num_clients: tf.Tensor,
    h: FedGGHparams,
  ) -> rounds.ServerVariables:
    moved = fed_avg.move_by_mean(variables, aggregate, num_clients, h)
    return moved._replace(extra=variables.model) if is_broadcast else moved

  return composer.compose_process(
    model,
    hparams,
    rounds=rounds.Round(client_update, server_update, distribute),
    aggregators=OrderedDict(model=model_aggregator),
    init_server=init_server,
    init_client=init_client,
  )


ALGORITHMS = (
  Algorithm(
    "fedgg",
    build_fed_gg,
    FedGGHparams,
    "Local updates guided by the last global update.",
    "Global-Update-Guided Federated Learning",
  ),
)
