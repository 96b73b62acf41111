"""FedReg: pseudo data keep the local model from forgetting what the global one knows.

Xu, Hong, Huang, Jiang: "Acceleration of Federated Learning with Alleviated Forgetting in
Local Training", ICLR 2022, Eqs. (2) to (12), Section 3.3 and Algorithm D.1.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Optional

import tensorflow as tf

from tff_algos.algorithms import fed_avg
from tff_algos.client_data import Examples
from tff_algos.client_work import gradients, local_training, pseudo_data, tree_math
from tff_algos.client_work.local_sgd import PlainSgd
from tff_algos.client_work.model_update import ClientResult, model_update
from tff_algos.errors import InputError
from tff_algos.hyper_parameters import hparam
from tff_algos.models.functional import Model, Weights, check_model
from tff_algos.templates import composer, rounds
from tff_algos.templates.algorithm import Algorithm

if TYPE_CHECKING:
  from tff_algos.templates.stateful_process import StatefulProcess


@dataclasses.dataclass(frozen=True)
class FedRegHparams(PlainSgd):
  """Hyper-parameters of FedReg."""

  server_learning_rate: float = hparam(
    1.0,
    "How far the server moves to the clients' mean; 1 takes the mean itself.",
    source="paper, Algorithm D.1 (1)",
    low=0,
    open_low=True,
    tunable=True,
  )
  gamma: float = hparam(
    0.4,
    "Where the local gradient is taken: gamma w + (1 - gamma) x.",
    source="paper, Appendix B.2 (0.4 on MNIST, two classes)",
    low=0,
    high=1,
    tunable=True,
  )
  pseudo_step: float = hparam(
    0.2,
    "Length of one signed step towards pseudo data, in units of the model's input "
    "(eta_s).",
    source="paper, Appendix B.2 (0.2 on MNIST)",
    low=0,
    tunable=True,
  )
  perturbation_ratio: float = hparam(
    0.01,
    "Length of a signed step of the perturbed data, over that of the pseudo data.",
    source="paper, Section 3.1 (eta_p = 0.01 eta_s)",
    low=0,
    tunable=True,
  )
  pseudo_steps: int = hparam(
    10,
    "Signed steps to pseudo data (E); 0 makes none, and local training is plain SGD at "
    "gamma.",
    source="paper, Section 3.1 (10)",
    low=0,
    high=1000,
  )
  clip_range: str = hparam(
    "batch",
    "Whether pseudo data stay between the smallest and the largest input of their "
    "mini-batch after each step: batch; or are not limited: none.",
    source="convention, near the authors' code (batch); the paper does not say",
    choices=("batch", "none"),
  )
  client_weighting: str = hparam(
    "uniform",
    "What a client's model counts for: the same for all, or its number of examples.",
    source="paper, Algorithm D.1 (uniform)",
    choices=("uniform", "examples"),
  )


@dataclasses.dataclass(frozen=True)
class FedRegMgHparams(FedRegHparams):
  """Hyper-parameters of FedReg with modified gradients."""


def remove_component(gradient: Weights, direction: Weights) -> Weights:
  """The gradient without its part along `direction`: g - <g, d>/<d, d> d [paper]."""
  along = tf.math.divide_no_nan(
    tree_math.dot(gradient, direction), tree_math.dot(direction, direction)
  )
  return tree_math.add_scaled(gradient, -along, direction)


def regularize(
  drift: Weights, pseudo: Weights, perturbed: Weights
) -> tuple[tf.Tensor, tf.Tensor]:
  """How far to go back along the two gradients: w_s and w_p, float32 scalars [paper].

  w_s = max(<u, g_s> / <g_s, g_s>, 0) and w_p = max(<u - w_s g_s, g_p> / <g_p, g_p>, 0)
  for the drift u = w - x; 0 where a gradient is 0.
  """
  along = tf.math.divide_no_nan(
    tree_math.dot(drift, pseudo), tree_math.dot(pseudo, pseudo)
  )
  w_s = tf.maximum(along, 0.0)
  left = tree_math.dot(drift, perturbed) - w_s * tree_math.dot(pseudo, perturbed)
  along = tf.math.divide_no_nan(left, tree_math.dot(perturbed, perturbed))
  return w_s, tf.maximum(along, 0.0)


def pseudo_data_of(
  model: Model, start: Weights, examples: Examples, seed: tf.Tensor, h: FedRegHparams
) -> pseudo_data.PseudoData:
  """The pseudo and perturbed data that a client makes in a round.

  They are of the examples as one reading of them would augment them [code], and stay
  within the range of the example's mini-batch in the first epoch [convention].
  """
  x, limits = model.inputs(examples.x, True, seed), None
  if h.clip_range == "batch":
    order = local_training.batch_order(seed, tf.shape(examples.y)[0], h.epochs)[0]
    limits = pseudo_data.range_of_batches(x, order, h.batch_size)
  return pseudo_data.make_pseudo_data(
    model,
    start,
    x,
    examples.y,
    seed,
    pseudo_step=h.pseudo_step,
    perturbed_step=h.pseudo_step * h.perturbation_ratio,
    num_steps=h.pseudo_steps,
    limits=limits,
  )


def build_fed_reg(
  model: Model,
  hparams: FedRegHparams = FedRegHparams(),
  *,
  model_aggregator: Optional[rounds.AggregationFactory] = None,
) -> StatefulProcess:
  """Builds FedReg [paper].

  Each client makes pseudo and perturbed data once a round. A local step is
  w <- w - eta g, with g the gradient at gamma w + (1 - gamma) x; then
  w <- w - w_s g_s - w_p g_p, where g_s and g_p are the gradients on the batch's pseudo
  and perturbed data at (w + x) / 2 and `regularize` gives the weights. No momentum.

  Args:
    model: The model to train; it must have `soft_targets`.
    hparams: The hyper-parameters.
    model_aggregator: Replaces the mean of the updates.

  Raises:
    InputError: The model has no `soft_targets`, or its loss no gradient at the examples,
      such as behind an embedding.
  """
  return _build(model, hparams, model_aggregator, modified_gradient=False)


def build_fed_reg_mg(
  model: Model,
  hparams: FedRegMgHparams = FedRegMgHparams(),
  *,
  model_aggregator: Optional[rounds.AggregationFactory] = None,
) -> StatefulProcess:
  """Builds FedReg with modified gradients, which hide the examples [paper, Section 3.3].

  From each local gradient g its part along g_m is taken away, the gradient at the same
  weights on the batch's pseudo data with the same target for all classes. Otherwise
  `build_fed_reg`, with its arguments.
  """
  return _build(model, hparams, model_aggregator, modified_gradient=True)


def build_client_update(
  model: Model, *, modified_gradient: bool = False
) -> rounds.ClientUpdate:
  """Makes what a client does in a round, for `rounds.Round`.

  Args:
    model: The model to train; it must have `soft_targets`.
    modified_gradient: As in `build_fed_reg_mg`.

  Raises:
    InputError: The model has no `soft_targets`, or its loss no gradient at the examples,
      such as behind an embedding.
  """
  check_model(model)
  soft_targets = model.soft_targets
  if soft_targets is None:
    raise InputError(
      "FedReg trains on the model's own predictions: give the model soft_targets."
    )

  def soft_gradient(
    weights: Weights, x: tf.Tensor, targets: tf.Tensor, seed: tf.Tensor
  ) -> Weights:
    def losses_at(weights: Weights) -> tf.Tensor:
      predictions = model.predict(weights, x, True, seed)
      return soft_targets.losses(targets, predictions)

    return gradients.mean_gradient(losses_at, weights)[0]

  def client_update(
    received: rounds.Parts,
    client_state: Any,
    examples: Examples,
    seed: tf.Tensor,
    h: FedRegHparams,
  ) -> ClientResult:
    start = received["model"]
    if h.pseudo_steps:
      data = pseudo_data_of(model, start, examples, seed, h)

    def between(share: float | tf.Tensor, weights: Weights) -> Weights:
      return tuple(x + share * (w - x) for w, x in zip(weights, start))

    def gradient_of(
      weights: Weights, batch: local_training.Batch
    ) -> tuple[Weights, tf.Tensor]:
      point = between(h.gamma, weights)
      found = gradients.batch_gradient(model, point, batch.x, batch.y, batch.seed)
      gradient, loss = found
      if modified_gradient and h.pseudo_steps:
        pseudo = data.rows(batch.rows)
        share = 1 / tf.cast(tf.shape(pseudo.targets)[-1], tf.float32)
        uniform = share * tf.ones_like(pseudo.targets)
        hidden = soft_gradient(point, pseudo.x, uniform, batch.seed)
        gradient = remove_component(gradient, hidden)
      return gradient, loss

    def go_back(weights: Weights, batch: local_training.Batch) -> Weights:
      pseudo, middle = data.rows(batch.rows), between(0.5, weights)

      def losses_at(weights: Weights) -> tf.Tensor:
        predictions = model.predict(weights, pseudo.perturbed_x, True, batch.seed)
        return model.example_losses(batch.y, predictions)

      g_s = soft_gradient(middle, pseudo.x, pseudo.targets, batch.seed)
      g_p, _ = gradients.mean_gradient(losses_at, middle)
      w_s, w_p = regularize(tree_math.subtract(weights, start), g_s, g_p)
      return tuple(w - w_s * s - w_p * p for w, s, p in zip(weights, g_s, g_p))

    result = local_training.train_client(
      model,
      start,
      examples,
      h,
      seed,
      gradient_of=gradient_of,
      after_step=go_back if h.pseudo_steps else None,
    )
    return model_update(h.client_weighting, start, result, examples, client_state)

  return client_update


def _build(
  model: Model,
  hparams: FedRegHparams,
  model_aggregator: Optional[rounds.AggregationFactory],
  *,
  modified_gradient: bool,
) -> StatefulProcess:
  client_update = build_client_update(model, modified_gradient=modified_gradient)
  return composer.compose_process(
    model,
    hparams,
    rounds=rounds.Round(client_update, fed_avg.move_by_mean),
    aggregators=OrderedDict(model=model_aggregator),
  )


ALGORITHMS = (
  Algorithm(
    "fedreg",
    build_fed_reg,
    FedRegHparams,
    "Pseudo data keep the local model from forgetting.",
    "Xu et al., ICLR 2022",
  ),
  Algorithm(
    "fedreg_mg",
    build_fed_reg_mg,
    FedRegMgHparams,
    "FedReg with modified gradients, which hide the examples.",
    "Xu et al., ICLR 2022",
  ),
)
