"""FedAgg: a learning rate for each local epoch from mean-field estimates.

"Federated Learning with Aggregated Gradients" (FedAgg), Eqs. (5) to (12), (18) to (22),
Algorithms 1 and 2. What the paper leaves open is an option here.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import tensorflow as tf

from tff_algos import hyper_parameters
from tff_algos.client_data import Examples
from tff_algos.client_work import gradients, local_training, tree_math
from tff_algos.client_work.local_sgd import PlainSgd
from tff_algos.client_work.model_update import ClientResult, model_update
from tff_algos.hyper_parameters import hparam
from tff_algos.models.functional import Model, Weights
from tff_algos.templates import composer, rounds
from tff_algos.templates.algorithm import Algorithm

if TYPE_CHECKING:
  from tff_algos.templates.stateful_process import StatefulProcess


@dataclasses.dataclass(frozen=True)
class FedAggHparams(PlainSgd):
  """Hyper-parameters of FedAgg; `epochs` is L, `learning_rate` is eta_ref."""

  epochs: int = hparam(
    3,
    "Passes over the client's examples in one round (L), each with its learning rate.",
    source="paper, Section VII (3)",
    low=1,
    high=100,
  )
  alpha: float = hparam(
    0.1,
    "Weight of the learning rates in a client's objective; 1 - alpha is that of its "
    "distance from the clients' mean.",
    source="paper, Section VII (0.1)",
    low=0,
    high=1,
    open_low=True,
    tunable=True,
  )
  rule: str = hparam(
    "anchored",
    "What keeps the learning rates in place: anchored, their distance from "
    "learning_rate; literal, their size, as printed, by which they fall to 0.",
    source="paper, Eq. (6) (literal); derived (anchored)",
    choices=("anchored", "literal"),
  )
  estimates: str = hparam(
    "previous_round",
    "Where the mean-field terms come from: previous_round; or fixed_point, passes of all "
    "the round's clients before its training, each as dear as the training.",
    source="paper, Algorithm 1 (fixed_point); convention (previous_round)",
    choices=("previous_round", "fixed_point"),
  )
  passes: int = hparam(
    2,
    "Passes of the fixed_point estimates in a round (J).",
    source="convention",
    low=1,
    high=20,
  )
  direction: str = hparam(
    "local",
    "Along what a local step goes: local, the client's own gradient; or aggregated, the "
    "mean-field gradient of its epoch.",
    source="paper, Eq. (2) (local, nearer to its tables) and Eq. (5) (aggregated)",
    choices=("local", "aggregated"),
  )
  planned_steps: str = hparam(
    "one",
    "How many steps of an epoch the rates are planned for: one, as Eq. (7) has it; or "
    "all, as many as there are mini-batches.",
    source="paper, Eq. (7) (one); derived (all)",
    choices=("one", "all"),
  )
  epoch_gradient: str = hparam(
    "mean",
    "A client's gradient of an epoch: the mean of its mini-batches' gradients as they "
    "are met; or full, that of all examples at the epoch's start.",
    source="convention",
    choices=("mean", "full"),
  )
  max_learning_rate: float = hparam(
    0.1,
    "The largest learning rate of an epoch (eta_max), also while there is no estimate; "
    "the smallest is 0.",
    source="convention",
    low=0,
    open_low=True,
    tunable=True,
  )
  client_weighting: str = hparam(
    "examples",
    "What a client's model counts for (theta_i): its number of examples, or the same.",
    source="paper, Eq. (3) (examples)",
    choices=("examples", "uniform"),
  )


class _MeanField(NamedTuple):
  """Estimates for a round, parts of what is sent; arrays (L, ...), a row an epoch.

  Attributes:
    is_known: Whether there are any; a client without trains by plain SGD.
    phi1: phi1(l), l = 0..L-1, the mean gradient of each epoch.
    phi2: phi2(r) - x, r = 1..L, how far the mean model is from the round's start.
  """

  is_known: Any
  phi1: Weights
  phi2: Weights


def learning_rates(steps: Weights, drifts: Weights, h: FedAggHparams) -> tf.Tensor:
  """The L learning rates, float32 (L,), that minimise a client's objective [derived].

  eta_l = eta_ref + ((1 - alpha) / alpha) <p_l, sum_{r>l} (w_r - phi2(r))> with
  w_r = x - sum_{m<r} eta_m p_m, which is the linear system
  (alpha I + (1 - alpha) G) eta = alpha eta_ref + (1 - alpha) c, where
  G_lm = (L - max(l, m)) <p_l, p_m> and c_l = -<p_l, sum_{r>l} (phi2(r) - x)>. Then cut to
  0..`max_learning_rate`. eta_ref is `learning_rate`, or 0 by the literal rule. Where
  float32 cannot hold the products, `learning_rate` is taken [convention].

  Args:
    steps: p_l, by what a learning rate of 1 moves a client in epoch l: arrays (L, ...).
    drifts: phi2(r) - x, r = 1..L, likewise.
    h: The hyper-parameters.
  """
  count = h.epochs
  epochs = tf.range(count)
  remaining = tf.cast(count - tf.maximum(epochs[:, tf.newaxis], epochs), tf.float32)
  g = _dots(steps, steps) * remaining
  # The drifts at an epoch's end and later: column r - 1 has phi2(r).
  c = -tf.reduce_sum(tf.linalg.band_part(_dots(steps, drifts), 0, -1), axis=1)
  anchor = h.alpha * h.learning_rate if h.rule == "anchored" else 0.0
  system = h.alpha * tf.eye(count) + (1 - h.alpha) * g
  wanted = anchor + (1 - h.alpha) * c
  is_held = tf.reduce_all(tf.math.is_finite(tf.concat([system, wanted[None]], 0)))
  # The solver ends the round at what is no number, and makes zeros of an infinity.
  system = tf.where(is_held, system, tf.eye(count))
  rates = tf.linalg.solve(system, wanted[:, tf.newaxis])[:, 0]
  # With rates that are no numbers no client is accepted, and the estimates stay.
  rates = tf.where(is_held & tf.math.is_finite(rates), rates, h.learning_rate)
  return tf.clip_by_value(rates, 0.0, h.max_learning_rate)


def _dots(a: Weights, b: Weights) -> tf.Tensor:
  """The inner products of the rows of both, float32 (L, L), of arrays (L, ...)."""
  rows = ([tf.reshape(x, [x.shape[0], -1]) for x in weights] for weights in (a, b))
  products = [tf.matmul(x, y, transpose_b=True) for x, y in zip(*rows)]
  return tf.reduce_sum(tf.stack(products), axis=0)


def _with_row(rows: Weights, place: tf.Tensor, row: Weights) -> Weights:
  """The arrays (L, ...) with another row at a place, in the memory that they have."""
  return tuple(
    tf.tensor_scatter_nd_update(a, [[place]], b[tf.newaxis]) for a, b in zip(rows, row)
  )


def build_fed_agg(
  model: Model,
  hparams: FedAggHparams = FedAggHparams(),
  *,
  model_aggregator: Optional[rounds.AggregationFactory] = None,
) -> StatefulProcess:
  """Builds FedAgg.

  The server averages, beside the models, each epoch's gradients (phi1) and the models at
  the epochs' ends (phi2); from these a client works out its learning rates
  (`learning_rates`) and, where `direction` is aggregated, steps along phi1. phi2 is kept
  as a distance from the start of its round, so that it suits the next round's start
  [convention].

  By the literal rule all learning rates are 0 at the fixed point, because
  sum_i theta_i eta_i = 0 there and none is negative [derived]: with many passes, or in
  the long run, such a run stands still.

  Args:
    model: The model to train.
    hparams: The hyper-parameters.
    model_aggregator: Replaces the weighted mean of the updates. Of the estimates it gives
      phi2 of the last epoch, which is the update itself, where they are previous_round.
  """
  composer.check_given(model, hparams)
  num_epochs = hparams.epochs
  from_previous = hparams.estimates == "previous_round"

  def zeros_of_epochs() -> Weights:
    return tuple(tf.zeros([num_epochs, *w.shape]) for w in model.initial_weights)

  def init_server() -> _MeanField | tuple[()]:
    if not from_previous:
      return ()
    return _MeanField(tf.constant(False), zeros_of_epochs(), zeros_of_epochs())

  def distribute(variables: rounds.ServerVariables) -> rounds.Parts:
    parts = OrderedDict(model=variables.model)
    if from_previous:
      parts.update(variables.extra._asdict())
    return parts

  def planned_rates(
    field: Optional[_MeanField], examples: Examples, h: FedAggHparams
  ) -> tf.Tensor:
    first = tf.minimum(h.learning_rate, h.max_learning_rate)
    if field is None:
      return tf.fill([num_epochs], first)
    steps = field.phi1
    if h.planned_steps == "all":
      count = tf.cast(local_training.steps_of_epoch(examples, h), tf.float32)
      steps = tuple(count * p for p in steps)
    return tf.where(field.is_known, learning_rates(steps, field.phi2, h), first)

  def train(
    received: rounds.Parts, examples: Examples, seed: tf.Tensor, h: FedAggHparams
  ) -> tuple[local_training.LocalResult, Weights, Weights]:
    """One round's training: its result, and the client's own phi1 and phi2."""
    start = received["model"]
    field = None
    if "phi1" in received:
      is_known = received.get("is_known", tf.constant(True))
      field = _MeanField(is_known, received["phi1"], received["phi2"])
    rates = planned_rates(field, examples, h)

    def run_epoch(epoch: tf.Tensor, weights: Weights) -> local_training.LocalResult:
      shared: Weights = ()
      if field is not None and h.direction == "aggregated":
        shared = tuple(p[epoch] for p in field.phi1)

      def record(
        gradient: Weights, weights: Weights, total: Weights
      ) -> tuple[Weights, Weights]:
        total = tree_math.add(total, gradient)
        if field is None or not shared:
          return gradient, total
        pairs = zip(shared, gradient)
        return tuple(tf.where(field.is_known, p, g) for p, g in pairs), total

      return local_training.train_client(
        model,
        weights,
        examples,
        hyper_parameters.with_values(h, {"learning_rate": rates[epoch]}),
        seed,
        adjust_gradient=record,
        carry=tree_math.zeros_like(start),
        only_epoch=epoch,
      )

    def body(
      epoch: tf.Tensor, weights: Weights, sums: tf.Tensor, phi1: Weights, phi2: Weights
    ) -> tuple[tf.Tensor, Weights, tf.Tensor, Weights, Weights]:
      result = run_epoch(epoch, weights)
      if h.epoch_gradient == "full":
        gradient, _ = gradients.full_gradient(model, weights, examples, seed)
      else:
        gradient = tuple(g / result.num_steps for g in result.carry)
      drift = tree_math.subtract(result.weights, start)
      sums += tf.stack([result.num_steps, result.loss, result.num_seen])
      phi1, phi2 = _with_row(phi1, epoch, gradient), _with_row(phi2, epoch, drift)
      return epoch + 1, result.weights, sums, phi1, phi2

    # A loop, as many epochs that are traced one by one take TensorFlow long.
    _, weights, sums, phi1, phi2 = tf.while_loop(
      lambda epoch, *_: epoch < num_epochs,
      body,
      (tf.constant(0), start, tf.zeros([3]), zeros_of_epochs(), zeros_of_epochs()),
      parallel_iterations=1,
    )
    num_steps, loss, num_seen = tf.unstack(sums)
    whole = local_training.LocalResult(weights, num_steps, loss, num_seen, carry=())
    return local_training.note(whole), phi1, phi2

  def build_client_update(*, is_estimate: bool) -> rounds.ClientUpdate:
    def client_update(
      received: rounds.Parts,
      client_state: Any,
      examples: Examples,
      seed: tf.Tensor,
      h: FedAggHparams,
    ) -> ClientResult:
      result, phi1, phi2 = train(received, examples, seed, h)
      update = model_update(
        h.client_weighting, received["model"], result, examples, client_state
      )
      if is_estimate:
        sent = OrderedDict(phi1=phi1, phi2=phi2)
      elif from_previous:
        sent = OrderedDict(update.message, phi1=phi1)
        if num_epochs > 1:  # The last of phi2 is what the model's update says too.
          sent["phi2"] = tuple(p[:-1] for p in phi2)
      else:
        return update
      weight = dict.fromkeys(sent, update.weight["model"])
      return update._replace(message=sent, weight=weight)

    return client_update

  def server_update(
    variables: rounds.ServerVariables,
    aggregate: rounds.Parts,
    num_clients: tf.Tensor,
    h: FedAggHparams,
  ) -> rounds.ServerVariables:
    del num_clients, h
    extra, change = variables.extra, aggregate["model"]
    if from_previous:
      phi2 = tuple(c[tf.newaxis] for c in change)
      if num_epochs > 1:
        phi2 = tuple(tf.concat(p, 0) for p in zip(aggregate["phi2"], phi2))
      extra = _MeanField(tf.constant(True), aggregate["phi1"], phi2)
    return rounds.ServerVariables(tree_math.add(variables.model, change), extra)

  client_update = build_client_update(is_estimate=False)
  estimation = None
  if not from_previous:
    estimate = build_client_update(is_estimate=True)
    estimation = rounds.Estimation(estimate, hparams.passes)
  # Of one epoch the model's update is all of phi2.
  others = ("phi1", "phi2")[: hparams.epochs] if from_previous else ()
  return composer.compose_process(
    model,
    hparams,
    rounds=rounds.Round(
      client_update,
      server_update,
      distribute,
      estimation,
      # phi2 is of this round's clients.
      takes_memories=not from_previous,
    ),
    aggregators=OrderedDict(
      model=model_aggregator,
      **{part: rounds.mean() for part in others},
    ),
    init_server=init_server,
  )


ALGORITHMS = (
  Algorithm(
    "fedagg",
    build_fed_agg,
    FedAggHparams,
    "Learning rates of the epochs from mean-field estimates.",
    "FedAgg, 2023",
  ),
)
