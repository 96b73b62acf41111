"""A `StatefulProcess` as TFF's own kinds of processes, and the other way round."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos import client_arrays, client_data
from tff_algos.errors import InputError, check_function, check_is, check_whole_number
from tff_algos.models.functional import ExampleSpec, check_example_spec
from tff_algos.templates.client_readings import FromDatasets
from tff_algos.templates.identity import Identity
from tff_algos.templates.rounds import RoundOutput
from tff_algos.templates.stateful_process import StatefulProcess, check_process


class OnDeviceInput(NamedTuple):
  """What a client that keeps its own state brings to a round.

  Attributes:
    state: The client's state, C.
    data: Its `ClientInput`, D.
  """

  state: object
  data: client_data.ClientInput


def over_datasets(
  process: StatefulProcess, element_spec: Any = None, *, seed: int = 0
) -> StatefulProcess:
  """The same process over clients' data sets: D is `<x, y>*`.

  What a client draws in a round is of a key made of its examples in their order, the
  number of rounds done and `seed` (`dataset_seed`), so that rounds are reproducible
  wherever they are run. Clients with the same examples draw the same. One without
  examples counts for nothing, as a dropped one, and keeps its state. Noise that follows
  from the examples hides none of them, so that the process's `privacy` is None.

  Rounds over files are faster: TFF's own runtimes send all of the data again each round,
  and `in_process` does not work on blocks of clients here.

  Args:
    process: One that `compose_process` has made, as all builders do.
    element_spec: What the data sets' elements are, as `dataset.element_spec` or a
      `ClientData`'s `element_type_structure` has it: `(x, y)` or a mapping of x and y, of
      an example as the model takes it or of a batch. Batches are joined: a local step
      takes as many examples as the hyper-parameters say. Default: `(x, y)` of an example.
    seed: The seed of all draws, from 0 to 2^31 - 1.

  Raises:
    InputError: The elements are not such, or the process or the seed is not.
    tf.errors.InvalidArgumentError: In a round, if a label is none that the model takes.
  """
  check_process(process)
  if process.model is None:
    raise InputError("This process says nothing of its model: give one of our builders'.")
  model = process.model
  seed = check_whole_number("seed", seed, 0, np.iinfo(np.int32).max)
  reading = FromDatasets(model.example_spec, element_spec, seed, model.labels())
  return process.over(reading)


def as_learning_process(
  process: StatefulProcess,
) -> tff.learning.templates.LearningProcess:
  """A process without client state as TFF's `LearningProcess`.

  So `tff.learning.programs`, `tff.program` and all that takes a `LearningProcess` take
  it: `next` is `(<S@SERVER, {D}@CLIENTS> -> <state=S@SERVER, metrics=M@SERVER>)`.

  Raises:
    InputError: It is no `StatefulProcess`, its clients keep a state, or it has several
      kinds of rounds, for which TFF has no place.
  """
  check_process(process)
  if not process.is_stateless:
    raise InputError(
      "A LearningProcess cannot keep the clients' states: use the process itself, or "
      "on_device_next for clients that keep their own."
    )
  if len(process.next_fns) > 1:
    kinds = ", ".join(process.next_fns)
    raise InputError(
      f"A LearningProcess cannot do several kinds of rounds ({kinds}): use the process "
      "itself, in simulate or train_with_client_states."
    )
  state_type, _, input_type = process.next.type_signature.parameter

  @tff.federated_computation(state_type, input_type)
  def next_fn(
    state: tff.Value, client_inputs: tff.Value
  ) -> tff.learning.templates.LearningProcessOutput:
    nothing = tff.federated_eval(process.initialize_client, tff.CLIENTS)
    output = process.next(state, nothing, client_inputs)
    return tff.learning.templates.LearningProcessOutput(output.state, output.metrics)

  return tff.learning.templates.LearningProcess(
    process.initialize,
    next_fn,
    process.get_model_weights,
    process.set_model_weights,
    get_hparams_fn=process.get_hparams,
    set_hparams_fn=process.set_hparams,
  )


def on_device_next(process: StatefulProcess, rounds_done: int = 0) -> tff.Computation:
  """A round for clients that keep their own state, as deployments have it.

  `(<S@SERVER, {<state=C, data=D>}@CLIENTS> -> <S@SERVER, M@SERVER>)`, which compiles to
  TFF's MapReduceForm and DistributeAggregateForm, but to neither where clients estimate
  something together before they train (FedAgg's `estimates=fixed_point`).

  Args:
    process: The process.
    rounds_done: Chooses among a process's kinds of rounds, where it has several.

  Raises:
    InputError: It is no `StatefulProcess`, or `rounds_done` no number of rounds.
  """
  check_process(process)
  rounds_done = check_whole_number("rounds_done", rounds_done, 0)
  round_fn = process.next_of(rounds_done)
  state_type, client_type, input_type = round_fn.type_signature.parameter
  brought = OnDeviceInput(client_type.member, input_type.member)

  @tff.federated_computation(state_type, tff.FederatedType(brought, tff.CLIENTS))
  def next_fn(state: tff.Value, clients: tff.Value) -> tuple[tff.Value, tff.Value]:
    output = round_fn(state, clients.state, clients.data)
    return output.state, output.metrics

  return next_fn


def from_learning_process(
  process: tff.learning.templates.LearningProcess,
  example_spec: ExampleSpec,
  make_dataset: Callable[[client_data.Examples, tf.Tensor], tf.data.Dataset],
) -> StatefulProcess:
  """Any TFF `LearningProcess` over client data sets, as a `StatefulProcess`.

  Args:
    process: Takes the clients' data as data sets, such as
      `tff.learning.algorithms.build_weighted_fed_avg(...)` gives.
    example_spec: What the clients' files hold.
    make_dataset: `(examples, seed) -> tf.data.Dataset` of the batches that `process`
      takes; runs inside the client computation.

  Raises:
    InputError: `process` is no `LearningProcess`, `example_spec` no `ExampleSpec`, or
      `make_dataset` no function.
  """
  kind = tff.learning.templates.LearningProcess
  check_is("process", process, kind, "tff.learning.templates")
  check_example_spec(example_spec)
  check_function("make_dataset", make_dataset, " of examples and a seed")
  input_type = tff.to_type(client_data.CLIENT_INPUT_TYPE)

  @tff.tensorflow.computation(input_type)
  def read_dataset(client_input: client_data.ClientInput) -> tf.data.Dataset:
    examples = client_data.read(client_input.path, example_spec)
    return make_dataset(examples, client_input.seed)

  @tff.tensorflow.computation
  def initialize_client() -> tuple[()]:
    return ()

  client_type = tff.FederatedType(initialize_client.type_signature.result, tff.CLIENTS)

  @tff.federated_computation(
    process.next.type_signature.parameter[0],
    client_type,
    tff.FederatedType(input_type, tff.CLIENTS),
  )
  def next_fn(
    state: tff.Value, client_states: tff.Value, client_inputs: tff.Value
  ) -> RoundOutput:
    output = process.next(state, tff.federated_map(read_dataset, client_inputs))
    return RoundOutput(output.state, client_states, output.metrics)

  adapted = StatefulProcess(
    process.initialize,
    initialize_client,
    {"": next_fn},
    process.get_model_weights,
    process.set_model_weights,
    process.get_hparams,
    process.set_hparams,
  )
  takes = client_arrays.dtypes_and_shapes(example_spec)
  return adapted.with_identity(Identity(example=takes))
