"""Whether FedReg's pseudo data stand for the data of earlier clients.

If they do, the weights that matter for them are those that mattered before: the
diagonals of their empirical Fisher information are correlated.

Xu, Hong, Huang, Jiang (FedReg), ICLR 2022, Section 4.3 and Appendix B.3.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tff_algos import client_data
from tff_algos.algorithms import fed_reg
from tff_algos.client_data import ClientInput, Examples
from tff_algos.client_work import gradients, tree_math
from tff_algos.errors import InputError
from tff_algos.models.functional import Model, Weights

_PATH = tf.TensorSpec([], tf.string)


class PseudoFisher(NamedTuple):
  """Of one client of FedReg.

  Attributes:
    weights: The local model after one step, where the gradients are taken.
    fisher: float64 (num_weights,), the pseudo data's empirical Fisher information.
  """

  weights: Weights
  fisher: NDArray[np.float64]


def build_fisher(model: Model) -> Callable[[Weights, Sequence[str]], NDArray[np.float64]]:
  """Makes the empirical Fisher information of clients' data, the diagonal [paper].

  Returns:
    `(weights, client files) -> float64 (num_weights,)`: the mean, over all examples of
    these clients together, of the squared gradient of the label's log-likelihood.
  """

  @tf.function(input_signature=[model.weight_specs, _PATH], autograph=False)
  def of_client(weights: Weights, path: tf.Tensor) -> tuple[Weights, tf.Tensor]:
    examples = client_data.read(path, model.example_spec)
    return gradients.sum_of_squares(model, weights, examples), tf.shape(examples.y)[0]

  of_client.get_concrete_function()  # Traced before several threads ask for it.

  def fisher(weights: Weights, paths: Sequence[str]) -> NDArray[np.float64]:
    parts = [of_client(tuple(weights), tf.constant(path)) for path in paths]
    total = sum(_vector(squares) for squares, _ in parts)
    return np.asarray(total / sum(int(n) for _, n in parts))

  return fisher


def build_pseudo_fisher(
  model: Model, hparams: fed_reg.FedRegHparams
) -> Callable[[Weights, ClientInput], PseudoFisher]:
  """Makes the empirical Fisher information of a client's pseudo data.

  It is taken at the local model after one local step [paper], which is on all of the
  client's examples, as the pseudo data are of all of them [convention]. The pseudo labels
  are soft, and stand in the log-likelihood as they are [paper].

  Args:
    model: The model; it must have `soft_targets`.
    hparams: FedReg's, of which epochs and batch size do not count.

  Returns:
    `(global model, client input) -> PseudoFisher`.

  Raises:
    InputError: No pseudo data are made.
  """
  if not hparams.pseudo_steps:
    raise InputError("With pseudo_steps=0 there are no pseudo data: raise it.")
  one_step = dataclasses.replace(hparams, epochs=1, batch_size=None)
  train = fed_reg.build_client_update(model)
  assert model.soft_targets is not None
  # To this model pseudo data are examples.
  on_pseudo_data = dataclasses.replace(
    model, preprocess=lambda x: x, example_losses=model.soft_targets.losses
  )

  @tf.function(
    input_signature=[model.weight_specs, _PATH, tf.TensorSpec([2], tf.int32)],
    autograph=False,
  )
  def of_client(
    start: Weights, path: tf.Tensor, seed: tf.Tensor
  ) -> tuple[Weights, Weights, tf.Tensor]:
    examples = client_data.read(path, model.example_spec)
    trained = train(OrderedDict(model=start), (), examples, seed, one_step)
    weights = tree_math.add(start, tuple(trained.message["model"]))
    pseudo = fed_reg.pseudo_data_of(model, start, examples, seed, one_step)
    pseudo_examples = Examples(pseudo.x, pseudo.targets)
    total = gradients.sum_of_squares(on_pseudo_data, weights, pseudo_examples)
    return weights, total, tf.shape(examples.y)[0]

  of_client.get_concrete_function()  # Traced before several threads ask for it.

  def pseudo_fisher(start: Weights, client_input: ClientInput) -> PseudoFisher:
    start = tuple(map(tf.convert_to_tensor, start))
    weights, total, n = of_client(start, *map(tf.constant, client_input))
    return PseudoFisher(weights, _vector(total) / int(n))

  return pseudo_fisher


def _vector(values: Weights) -> NDArray[np.float64]:
  return np.concatenate([np.asarray(v, np.float64).ravel() for v in values])


def correlation(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
  """Pearson's correlation of two vectors; NaN where one is constant."""
  if np.ptp(a) == 0 or np.ptp(b) == 0:
    return float("nan")  # Its mean is rounded, so that the norm would not be 0.
  a, b = a - np.mean(a), b - np.mean(b)
  norms = np.linalg.norm(a) * np.linalg.norm(b)
  return float(a @ b / norms) if norms else float("nan")
