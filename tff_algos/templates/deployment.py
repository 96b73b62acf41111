"""A process as a deployment has it: MapReduceForm, and what devices compute."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.errors import UnsupportedComputationError
from tff_algos.templates.stateful_process import StatefulProcess
from tff_algos.templates.views import OnDeviceInput, on_device_next


class DeviceWork(NamedTuple):
  """What a client's device does in a round.

  Attributes:
    upload: What `form.work` gives: the client's part of each aggregation.
    state: The client's new state, which stays with it.
  """

  upload: Any
  state: Any


@dataclasses.dataclass(frozen=True)
class DeviceForm:
  """A round as TensorFlow computations for the server and for devices.

  Attributes:
    form: TFF's `MapReduceForm` of `on_device_next`.
    work: `(<OnDeviceInput, broadcast> -> DeviceWork)`: `form.work` that also gives the
      client's new state, for which `MapReduceForm` has no place.
  """

  form: tff.backends.mapreduce.MapReduceForm
  work: tff.Computation


def device_form(process: StatefulProcess, rounds_done: int = 0) -> DeviceForm:
  """Compiles a round for devices that keep their own state.

  Args:
    process: The process.
    rounds_done: Chooses among a process's kinds of rounds, where it has several.

  Raises:
    InputError: It is no `StatefulProcess`, or `rounds_done` no number of rounds.
    UnsupportedComputationError: The clients of a round exchange several things one after
      the other, as FedAgg's with `estimates=fixed_point`.
  """
  round_fn = on_device_next(process, rounds_done)
  try:
    form = compile_form(round_fn)
  except (TypeError, ValueError) as error:
    raise UnsupportedComputationError(
      "This round is no MapReduceForm, as its clients hear from the server more than "
      f"once: use a process whose rounds are one exchange. TFF says: {error}"
    ) from error
  whole = compile_form(_next_with_states(process, rounds_done))
  brought_type, broadcast_type = form.work.type_signature.parameter

  @tff.tensorflow.computation(brought_type, broadcast_type)
  def work(brought: tff.structure.Struct, broadcast: Any) -> DeviceWork:
    aggregated, *secure = whole.work(brought, broadcast)
    *aggregated, state = aggregated
    return DeviceWork((tuple(aggregated), *secure), state)

  # With Python's containers, which the compiler forgets; it checks the types too.
  client_type = process.initialize_client.type_signature.result
  given = DeviceWork(form.work.type_signature.result, client_type)
  signature = tff.FunctionType(work.type_signature.parameter, given)
  return DeviceForm(form, tff.framework.ConcreteComputation.with_type(work, signature))


def compile_form(comp: tff.Computation) -> tff.backends.mapreduce.MapReduceForm:
  """A computation as TFF's `MapReduceForm`, with loops that tf.function takes.

  Raises:
    TypeError, ValueError: It is none.
  """
  # Else TFF has Grappler rewrite loops to those of TensorFlow 1, which neither
  # tf.function nor in_process takes; whatever runs the graphs optimises them anyway.
  config = tf.compat.v1.ConfigProto()
  config.graph_options.rewrite_options.disable_meta_optimizer = True
  return tff.backends.mapreduce.get_map_reduce_form_for_computation(comp, config)


def _next_with_states(process: StatefulProcess, rounds_done: int) -> tff.Computation:
  """`on_device_next` whose clients upload their new states too, after all else.

  So that what compiles the round compiles them with it. They are uploaded nowhere.
  """
  round_fn = process.next_of(rounds_done)
  state_type, client_type, input_type = round_fn.type_signature.parameter
  brought = OnDeviceInput(client_type.member, input_type.member)

  @tff.tensorflow.computation(client_type.member, client_type.member)
  def last(one: Any, other: Any) -> Any:
    del one
    return other

  @tff.tensorflow.computation(client_type.member)
  def same(one: Any) -> Any:
    return one

  @tff.federated_computation(state_type, tff.FederatedType(brought, tff.CLIENTS))
  def next_fn(
    state: tff.Value, clients: tff.Value
  ) -> tuple[tff.Value, tuple[tff.Value, tff.Value]]:
    output = round_fn(state, clients.state, clients.data)
    first = process.initialize_client()
    kept = tff.federated_aggregate(output.client_states, first, last, last, same)
    return output.state, (output.metrics, kept)

  return next_fn
