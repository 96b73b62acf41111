"""How much local training forgets of the data of the clients of the round before.

Xu, Hong, Huang, Jiang (FedReg), ICLR 2022, Appendix B.1 and B.3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from numpy.typing import NDArray

from tff_algos import client_data
from tff_algos.client_data import ClientInput
from tff_algos.client_work import local_training
from tff_algos.errors import InputError
from tff_algos.models.functional import Model, Weights
from tff_algos.simulation import evaluation
from tff_algos.templates.rounds import ServerVariables
from tff_algos.templates.stateful_process import StatefulProcess

LocalModels = Callable[[Any, Sequence[Any], Sequence[ClientInput]], list[Weights]]


class Forgetting(NamedTuple):
  """Losses of the clients i of round t - 1, in nats an example, float64 (clients,).

  Attributes:
    before: loss^(t-1)(i), under the global model from which round t starts.
    after: loss^(t)(i), the mean over the local models of round t's clients.
  """

  before: NDArray[np.float64]
  after: NDArray[np.float64]

  @property
  def increase(self) -> NDArray[np.float64]:
    """loss^(t)(i) - loss^(t-1)(i) [paper]: above 0 where something was forgotten."""
    return self.after - self.before


def build_local_models(model: Model, process: StatefulProcess) -> LocalModels:
  """Makes what trains the clients of a round and keeps each one's model.

  Args:
    model: The model.
    process: The algorithm. A client's local model is what its last `train_client` leaves
      behind, whatever of it is sent.

  Returns:
    `(variables, client_states, client_inputs) -> local models`, one for each client,
    with the server's variables and the arguments of `process.next`.

  Raises:
    InputError: The clients train a part of the model in some rounds, need others'
      estimates, or do not train by `train_client`.
  """
  work = process.client_work
  if work is None:
    raise InputError(
      "Local models are known only of algorithms whose clients send their whole model "
      "in every round: choose another algorithm."
    )

  @tf.function(autograph=False)
  def train(
    variables: ServerVariables, client_state: Any, path: tf.Tensor, seed: tf.Tensor
  ) -> Weights:
    examples = client_data.read(path, model.example_spec)
    with local_training.noting() as results:
      work(variables, client_state, examples, seed)
    if not results:
      raise InputError(
        "Local models are known only of algorithms whose clients train by "
        "tff_algos.train_client: choose another algorithm."
      )
    return results[-1].weights

  # Traced here, as it is then that an algorithm refuses; by types, without a runtime.
  state_type = process.initialize.type_signature.result.member
  client_type = process.initialize_client.type_signature.result
  train.get_concrete_function(
    tff.types.structure_from_tensor_type_tree(_spec_of, state_type.variables),
    tff.types.structure_from_tensor_type_tree(_spec_of, client_type),
    tf.TensorSpec([], tf.string),
    tf.TensorSpec([2], tf.int32),
  )

  def local_models(
    variables: ServerVariables,
    client_states: Sequence[Any],
    client_inputs: Sequence[ClientInput],
  ) -> list[Weights]:
    variables, client_states = tf.nest.map_structure(
      tf.convert_to_tensor, (variables, list(client_states))
    )

    def arguments(client_state: Any, client_input: ClientInput) -> tuple[Any, ...]:
      return variables, client_state, *map(tf.constant, client_input)

    def of_client(client_state: Any, client_input: ClientInput) -> Weights:
      trained: Weights = train(*arguments(client_state, client_input))
      return trained

    for first in zip(client_states[:1], client_inputs):
      # Its containers may be others than above; traced before several threads ask for it.
      train.get_concrete_function(*arguments(*first))
    # Operations may have one core each: other clients use the others.
    with futures.ThreadPoolExecutor() as pool:
      return list(pool.map(of_client, client_states, client_inputs))

  return local_models


def _spec_of(tensor_type: tff.TensorType) -> tf.TensorSpec:
  return tf.TensorSpec(tensor_type.shape, tensor_type.dtype)


def build_forgetting(
  model: Model,
) -> Callable[
  [Weights, Sequence[Weights], Sequence[tuple[NDArray[Any], NDArray[Any]]]], Forgetting
]:
  """Makes the measurement [paper]; the model is in inference mode [convention].

  Returns:
    `(global model, local models, examples) -> Forgetting`: the model from which round t
    starts, those of its clients after training, and (x, y) of each client of the round
    before, as they are stored.
  """
  means = evaluation.build_means(model)

  def measure(
    start: Weights,
    local_models: Sequence[Weights],
    examples: Sequence[tuple[NDArray[Any], NDArray[Any]]],
  ) -> Forgetting:
    before = [means(start, x, y)["loss"] for x, y in examples]
    after = [
      np.mean([means(local, x, y)["loss"] for local in local_models]) for x, y in examples
    ]
    return Forgetting(np.array(before), np.array(after))

  return measure
