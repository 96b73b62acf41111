"""pFedGP: features that all clients train, and a Gaussian process of each client's own.

Achituve, Shamsian, Navon, Chechik, Fetaya: "Personalized Federated Learning with Gaussian
Processes", NeurIPS 2021.

The paper's classifier is a tree of binary Gaussian processes with Polya-Gamma variables,
which are drawn by Gibbs sampling. Here the closed form of Milios et al., NeurIPS 2018, is
in its place (`client_work.gaussian_process`), so numbers can differ.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Optional

import tensorflow as tf

from tff_algos.algorithms import fed_avg
from tff_algos.client_data import Examples
from tff_algos.client_work import gaussian_process, gradients
from tff_algos.client_work.local_training import Batch
from tff_algos.errors import InputError
from tff_algos.hyper_parameters import hparam
from tff_algos.models.functional import Model, Weights, sparse_cross_entropy
from tff_algos.templates import composer, rounds
from tff_algos.templates.algorithm import Algorithm

if TYPE_CHECKING:
  from tff_algos.templates.stateful_process import StatefulProcess


@dataclasses.dataclass(frozen=True)
class PFedGPHparams(fed_avg.FedAvgHparams):
  """Hyper-parameters of pFedGP, beside those of FedAvg, which trains the features."""

  output_scale: float = hparam(
    8.0,
    "Variance of the Gaussian processes (s).",
    source="code, the authors'",
    low=0,
    open_low=True,
  )
  length_scale: float = hparam(
    1.0,
    "Length scale of the kernel (l), in units of the features' length.",
    source="code, the authors'",
    low=0,
    open_low=True,
  )
  alpha_epsilon: float = hparam(
    0.01,
    "What every class has of each example: the less, the surer labels are.",
    source="code, Milios et al. 2018",
    low=0,
    high=1,
    open_low=True,
  )
  max_support: int = hparam(
    500,
    "Most examples that a client's classifier is conditioned on.",
    source="convention",
    low=1,
    high=10_000,
  )


def build_pfedgp(
  model: Model,
  hparams: PFedGPHparams = PFedGPHparams(),
  *,
  model_aggregator: Optional[rounds.AggregationFactory] = None,
) -> StatefulProcess:
  """Builds FedAvg of a network whose outputs are features, as logits they mean nothing.

  A local step goes along the gradient of minus the log marginal likelihood of its batch,
  over the batch's examples. The process has a `personal_model`: without examples of a
  client there is no classifier.

  Args:
    model: The network, without softmax; it has an output for each class.
    hparams: The hyper-parameters.
    model_aggregator: Replaces the weighted mean of the updates.

  Raises:
    InputError: The loss is not `sparse_cross_entropy`: clients train on none, and so
      would not on another.
  """
  composer.check_given(model, hparams)
  labels = model.labels()
  if labels is None or model.example_losses is not sparse_cross_entropy:
    raise InputError(
      "pFedGP classifies: its model must have an output for each class, a label for each "
      "example, and sparse_cross_entropy for its loss."
    )
  max_support = hparams.max_support
  process = fed_avg.build_fed_avg(
    model, hparams, model_aggregator=model_aggregator, local_gradient=_gradient
  )

  def personal_model(weights: Weights, examples: Examples) -> Model:
    support = Examples(*(part[:max_support] for part in examples))
    kernel = _kernel(hparams)
    features = _features(model, weights, support.x)
    posterior = gaussian_process.condition(
      features, support.y, kernel, hparams.alpha_epsilon
    )

    def predict(
      weights: Weights, x: tf.Tensor, training: bool, seed: tf.Tensor
    ) -> tf.Tensor:
      features = model.predict(weights, x, training, seed)
      return gaussian_process.logits(posterior, features, kernel, len(labels))

    # No Keras model predicts so, and not the one of the features.
    return dataclasses.replace(model, predict=predict, keras_source=None)

  return process.with_personal_model(personal_model)


def _kernel(h: PFedGPHparams) -> gaussian_process.Kernel:
  return gaussian_process.Kernel(h.output_scale, h.length_scale)


def _features(model: Model, weights: Weights, x: tf.Tensor) -> tf.Tensor:
  """Of stored inputs, with the model's random layers at rest."""
  return model.predict(weights, model.preprocess(x), False, tf.zeros([2], tf.int32))


def _gradient(
  model: Model, h: Any, weights: Weights, batch: Batch
) -> tuple[Weights, tf.Tensor]:
  def losses_at(weights: Weights) -> tf.Tensor:
    x = model.inputs(batch.x, True, batch.seed)
    features = model.predict(weights, x, True, batch.seed)
    return gaussian_process.losses(features, batch.y, _kernel(h), h.alpha_epsilon)

  return gradients.mean_gradient(losses_at, weights)


ALGORITHMS = (
  Algorithm(
    "pfedgp",
    build_pfedgp,
    PFedGPHparams,
    "Features by FedAvg, and a Gaussian process for each client.",
    "Achituve et al., NeurIPS 2021",
    is_personal=True,
  ),
)
