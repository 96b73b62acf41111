"""Composes an algorithm's pure functions into a `StatefulProcess`.

This is the one place that writes federated computations. A round is

1. the distributor says what of the server's variables is sent, as named parts;
2. every client reads its examples and runs the client work on what it received;
3. a result with a number that is not finite is dropped: it counts for nothing, the
   client's state stays as it was, and the metrics count it;
4. each named part of the messages is aggregated by its own aggregator, which may have
   the clients remember what they sent (`ClientMemoryFactory`);
5. the server update makes the new variables; without any accepted message it is
   skipped.

Before 2 there may be exchanges that estimate something (`Estimation`). A process may have
several kinds of rounds over the same states (`Round`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos import client_data, hyper_parameters
from tff_algos.errors import InputError
from tff_algos.models.functional import Model
from tff_algos.templates import client_results
from tff_algos.templates.ledger import Ledger, RoundTraffic
from tff_algos.templates.rounds import (
  AggregationFactory,
  ClientUpdate,
  Estimation,
  Round,
  RoundOutput,
  ServerState,
  ServerVariables,
  create_process,
  mean,
)

if TYPE_CHECKING:
  from tff_algos.templates.stateful_process import StatefulProcess


def compose_process(
  model: Model,
  hparams: hyper_parameters.HyperParameters,
  *,
  rounds: Round | Mapping[str, Round],
  aggregators: Mapping[str, AggregationFactory],
  init_server: Callable[[], Any] = lambda: (),
  init_client: Callable[[], Any] = lambda: (),
  kind_of_round: Optional[Callable[[int], str]] = None,
) -> StatefulProcess:
  """Makes the process.

  Args:
    model: The model; its initial weights are x^0.
    hparams: The algorithm's hyper-parameters.
    rounds: What a round is; or, where rounds differ in what travels, each kind by name.
    aggregators: An aggregation factory for each part of the message.
    init_server: `() -> extra`.
    init_client: `() -> C`.
    kind_of_round: `(rounds done) -> name` of the next one's, where there are several.

  Raises:
    ProcessTypeError: The functions do not fit together.
  """
  # Here, as classes of TFF are its bases, without which algorithms can be listed.
  from tff_algos.templates.stateful_process import StatefulProcess

  composition = _Composition(model, hparams, aggregators, init_server, init_client)
  kinds = {"": rounds} if isinstance(rounds, Round) else dict(rounds)
  exchanges = {name: _Exchange(composition, kind) for name, kind in kinds.items()}
  composition.create_aggregators(exchanges.values())

  def client_work(variables, client_state, examples, seed, *, kind=""):
    this = kinds[kind]
    if this.estimation is not None:
      raise InputError(
        "The clients of this round first estimate something together: none works alone."
      )
    h = hyper_parameters.with_values(hparams, composition.constant_hparams())
    parts = this.distribute(variables)
    return this.client_update(parts, client_state, examples, seed, h)

  return StatefulProcess(
    composition.initialize,
    composition.initialize_client,
    {name: exchange.build_next() for name, exchange in exchanges.items()},
    *composition.accessors(),
    kind_of_round=kind_of_round,
    client_work=client_work,
    count_traffic=lambda: {name: e.traffic() for name, e in exchanges.items()},
    model=model,
  )


class _Composition:
  """What all kinds of rounds of a process share: types, states, aggregators."""

  def __init__(
    self,
    model: Model,
    hparams: hyper_parameters.HyperParameters,
    aggregators: Mapping[str, AggregationFactory],
    init_server: Callable[[], Any],
    init_client: Callable[[], Any],
  ):
    from tff_algos.aggregators.client_memory import ClientMemoryFactory

    self.hparams, self.factories = hparams, dict(aggregators)
    self.memories = {
      part: factory
      for part, factory in self.factories.items()
      if isinstance(factory, ClientMemoryFactory)
    }

    @tff.tensorflow.computation
    def init_variables():
      weights = tuple(tf.constant(w) for w in model.initial_weights)
      return ServerVariables(weights, init_server())

    init_hparams = tff.tensorflow.computation(self.constant_hparams)

    @tff.tensorflow.computation
    def initialize_client():
      own = init_client()
      if not self.memories:
        return own
      memory = ((k, f.initialize_client()) for k, f in self.memories.items())
      return client_results.RememberingClient(own, OrderedDict(memory))

    self.initialize_client = initialize_client
    self._init_variables, self._init_hparams = init_variables, init_hparams
    self.variables_type = init_variables.type_signature.result
    self.hparams_type = init_hparams.type_signature.result
    self.client_type = initialize_client.type_signature.result
    self.input_type = tff.to_type(client_data.CLIENT_INPUT_TYPE)

    @tff.tensorflow.computation(self.input_type)
    def read(client_input):
      return client_data.read(client_input.path, model.example_spec)

    self.read = read

  def constant_hparams(self) -> OrderedDict[str, tf.Tensor]:
    """The tunable hyper-parameters as they were given."""
    values = hyper_parameters.tunable_values(self.hparams)
    return OrderedDict((k, tf.constant(v, tf.float32)) for k, v in values.items())

  def create_aggregators(self, exchanges: Iterable[_Exchange]) -> None:
    """Makes each part's aggregator, by the type that the part has in the messages."""
    self.processes: OrderedDict[str, tff.templates.AggregationProcess] = OrderedDict()
    for exchange in exchanges:
      work_type = exchange.client_work.type_signature.result
      for part, part_type in tff.structure.iter_elements(work_type.message):
        if part not in self.processes:
          self.processes[part] = create_process(
            self.factories[part], part_type, work_type.weight[part]
          )

    @tff.federated_computation
    def initialize():
      states = OrderedDict((part, p.initialize()) for part, p in self.processes.items())
      return tff.federated_zip(
        ServerState(
          variables=tff.federated_eval(self._init_variables, tff.SERVER),
          aggregator=tff.federated_zip(states),
          hparams=tff.federated_eval(self._init_hparams, tff.SERVER),
          round_num=tff.federated_value(np.int32(0), tff.SERVER),
        )
      )

    self.initialize = initialize
    self.state_type = initialize.type_signature.result

  def accessors(self) -> tuple[tff.Computation, ...]:
    """get_model_weights, set_model_weights, get_hparams, set_hparams."""
    state_type = self.state_type.member

    @tff.tensorflow.computation(state_type)
    def get_model_weights(state):
      return tff.learning.models.ModelWeights(state.variables.model, ())

    @tff.tensorflow.computation(state_type, get_model_weights.type_signature.result)
    def set_model_weights(state, weights):
      return state._replace(
        variables=state.variables._replace(model=tuple(weights.trainable))
      )

    @tff.tensorflow.computation(state_type)
    def get_hparams(state):
      return state.hparams

    @tff.tensorflow.computation(state_type, self.hparams_type)
    def set_hparams(state, values):
      return state._replace(hparams=values)

    return get_model_weights, set_model_weights, get_hparams, set_hparams


class _Exchange:
  """One kind of round, as federated computations."""

  def __init__(self, composition: _Composition, kind: Round):
    self._composition, self._round = composition, kind
    own = composition

    @tff.tensorflow.computation(own.variables_type, own.hparams_type, np.int32)
    def send(variables, values, round_num):
      sent = OrderedDict(parts=kind.distribute(variables), hparams=values)
      if own.memories:
        sent["round_num"] = round_num + 1
      return sent

    self._send = send
    self._received_type = send.type_signature.result
    self._estimates: list[tuple[tff.Computation, Any]] = []
    estimation = kind.estimation or Estimation(kind.client_update, times=0)
    for _ in range(estimation.times):
      estimate = self._client_computation(estimation.client, is_estimate=True)
      work_type = estimate.type_signature.result
      means = OrderedDict(
        (part, create_process(mean(), part_type, work_type.weight[part]))
        for part, part_type in tff.structure.iter_elements(work_type.message)
      )
      self._estimates.append((estimate, means))
    self.client_work = self._client_computation(kind.client_update)

  def _estimates_type(self) -> tff.Type:
    """What the clients know from the exchange before, () if there was none."""
    if not self._estimates:
      return tff.to_type(())
    _, means = self._estimates[-1]
    results = (p.next.type_signature.result.result.member for p in means.values())
    return tff.to_type(OrderedDict(zip(means, results)))

  def _client_computation(
    self, client_update: ClientUpdate, is_estimate: bool = False
  ) -> tff.Computation:
    own = self._composition

    @tff.tensorflow.computation(
      self._received_type,
      self._estimates_type(),
      own.client_type,
      own.read.type_signature.result,
      own.input_type.seed,
    )
    @tf.function(autograph=False)
    def client_work(received, estimates, client_state, examples, seed):
      examples = client_data.Examples(*examples)
      h = hyper_parameters.with_values(own.hparams, received["hparams"])
      parts = OrderedDict([*received["parts"].items(), *dict(estimates).items()])
      before = client_state.own if own.memories else client_state
      result = client_update(parts, before, examples, seed, h)
      if is_estimate:
        result = result._replace(client_state=client_state)
      elif own.memories:
        memory = client_state.memory
        result = client_results.contribute(own.memories, result, received, memory)
      return client_results.drop_non_finite(result, client_state, tf.shape(examples.y)[0])

    return client_work

  def build_next(self) -> tff.Computation:
    own = self._composition
    server_work = self._server_computation()
    totals_type = self.client_work.type_signature.result.totals
    finish = tff.tensorflow.computation(client_results.finish_metrics, totals_type)

    @tff.federated_computation(
      own.state_type,
      tff.FederatedType(own.client_type, tff.CLIENTS),
      tff.FederatedType(own.input_type, tff.CLIENTS),
    )
    def next_fn(state, client_states, client_inputs):
      to_send = tff.federated_map(
        self._send, (state.variables, state.hparams, state.round_num)
      )
      received = tff.federated_broadcast(to_send)
      # Reading by itself: a runtime may then work on several clients' examples at once.
      examples = tff.federated_map(own.read, client_inputs)
      known = tff.federated_value((), tff.CLIENTS)
      for estimate, means in self._estimates:
        work = tff.federated_map(
          estimate, (received, known, client_states, examples, client_inputs.seed)
        )
        results = OrderedDict()
        for part, p in means.items():
          output = p.next(p.initialize(), work.message[part], work.weight[part])
          results[part] = output.result
        known = tff.federated_broadcast(tff.federated_zip(results))
      work = tff.federated_map(
        self.client_work, (received, known, client_states, examples, client_inputs.seed)
      )
      aggregate, aggregator, measurements = self._aggregate(state.aggregator, work)
      totals = tff.federated_sum(work.totals)
      variables, round_num = tff.federated_map(
        server_work, (state, aggregate, totals["counts"]["num_accepted"])
      )
      return RoundOutput(
        state=tff.federated_zip(
          ServerState(variables, aggregator, state.hparams, round_num)
        ),
        client_states=work.client_state,
        metrics=tff.federated_zip(
          OrderedDict(
            client_work=OrderedDict(train=tff.federated_map(finish, totals)),
            aggregator=measurements,
          )
        ),
      )

    return next_fn

  def traffic(self) -> RoundTraffic:
    """The bytes that cross in a round for each client."""
    own, ledger = self._composition, Ledger()
    sent = OrderedDict(tff.structure.iter_elements(self._received_type))
    parts = tff.structure.iter_elements(sent.pop("parts"))
    for name, value_type in [*parts, *sent.items()]:
      ledger.broadcast(name, value_type)
    for estimate, means in self._estimates:
      message_type = estimate.type_signature.result.message
      for part, process in means.items():
        ledger.aggregate(part, message_type[part], process)
        ledger.broadcast(part, process.next.type_signature.result.result.member)
    work_type = self.client_work.type_signature.result
    for part, part_type in tff.structure.iter_elements(work_type.message):
      value_type = part_type.value if part in own.memories else part_type
      ledger.aggregate(part, value_type, own.processes[part])
    ledger.upload("metrics", work_type.totals)
    return ledger.total()

  def _parts(self) -> list[str]:
    message_type = self.client_work.type_signature.result.message
    return [part for part, _ in tff.structure.iter_elements(message_type)]

  def _aggregate(self, states: Any, work: Any) -> tuple[Any, Any, Any]:
    """Each part's aggregate, all aggregators' new states, and their measurements."""
    own = self._composition
    outputs = OrderedDict()
    for part in self._parts():
      process = own.processes[part]
      arguments = [states[part], work.message[part]]
      if process.is_weighted:
        arguments.append(work.weight[part])
      outputs[part] = process.next(*arguments)
    new_states = OrderedDict()
    for part in own.processes:
      if part in outputs:
        new_states[part] = outputs[part].state
      elif part in own.memories:
        skip = tff.tensorflow.computation(
          own.memories[part].skip_round, own.state_type.member.aggregator[part]
        )
        new_states[part] = tff.federated_map(skip, states[part])
      else:
        new_states[part] = states[part]
    return (
      tff.federated_zip(OrderedDict((k, o.result) for k, o in outputs.items())),
      tff.federated_zip(new_states),
      tff.federated_zip(OrderedDict((k, o.measurements) for k, o in outputs.items())),
    )

  def _server_computation(self) -> tff.Computation:
    own, kind = self._composition, self._round
    aggregate_type = tff.to_type(
      OrderedDict(
        (part, own.processes[part].next.type_signature.result.result.member)
        for part in self._parts()
      )
    )

    @tff.tensorflow.computation(own.state_type.member, aggregate_type, np.int32)
    @tf.function(autograph=False)
    def server_work(state, aggregate, num_clients):
      h = hyper_parameters.with_values(own.hparams, state.hparams)
      changes = OrderedDict()
      for part in self._parts():
        if part in own.memories:
          sent = kind.distribute(state.variables)[part]
          changes[part] = tf.nest.map_structure(tf.subtract, aggregate[part], sent)
        else:
          changes[part] = aggregate[part]
      variables = kind.server_update(
        state.variables, changes, tf.cast(num_clients, tf.float32), h
      )
      variables = tf.nest.map_structure(
        lambda new, old: tf.where(num_clients > 0, new, old), variables, state.variables
      )
      return variables, state.round_num + 1

    return server_work
