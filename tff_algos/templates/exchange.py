"""One kind of round of a composed process, as federated computations."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos import client_data, hyper_parameters
from tff_algos.client_work.model_update import ClientResult
from tff_algos.templates import (
  client_readings,
  client_results,
  norm_limits,
  own_functions,
)
from tff_algos.templates.composition import Composition
from tff_algos.templates.ledger import Ledger, RoundTraffic
from tff_algos.templates.rounds import (
  ClientUpdate,
  Estimation,
  Parts,
  Round,
  RoundOutput,
  ServerState,
  ServerVariables,
  create_process,
  mean,
)

_SEED_OF_SERVER = "a seed that its extra holds"


class Exchange:
  """One kind of round, as federated computations."""

  def __init__(self, composition: Composition, kind: Round, name: str = ""):
    self._composition, self._round = composition, kind
    own = composition
    self._norm_part = own.add_norm_part(name)

    known_type = OrderedDict(
      variables=own.variables_type, hparams=own.hparams_type, round_num=np.int32
    )
    if self._norm_part:
      known_type["medians"] = own.medians_type

    @tff.tensorflow.computation(tff.to_type(known_type))
    def send(known: Mapping[str, Any]) -> Mapping[str, Any]:
      with own_functions.watching("distribute", _SEED_OF_SERVER):
        parts = kind.distribute(known["variables"])
      own_functions.check_parts("What distribute returns", parts)
      own_functions.check_values("What distribute returns", parts)
      sent = OrderedDict(parts=parts, hparams=known["hparams"])
      if own.memories:
        sent["round_num"] = known["round_num"] + 1
      if self._norm_part:
        sent[self._norm_part] = known["medians"]
      return sent

    self._send = send
    self._received_type = send.type_signature.result
    self._estimates: list[tuple[tff.Computation, Any]] = []
    estimation = kind.estimation or Estimation(kind.client_update, times=0)
    known = None
    for _ in range(estimation.times):
      before, known = known, self._estimates_type()
      if known == before:  # From the third on: the same computation again.
        self._estimates.append(self._estimates[-1])
        continue
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
      own.files.examples_type,
      client_readings.SEED_TYPE,
    )
    @tf.function(autograph=False)
    def client_work(
      received: Mapping[str, Any],
      estimates: Parts | tuple[()],
      client_state: Any,
      examples: client_data.Examples,
      seed: tf.Tensor,
    ) -> client_results.ClientWorkOutput:
      examples = client_data.Examples(*examples)
      h = hyper_parameters.with_values(own.hparams, received["hparams"])
      parts = own_functions.Named([*received["parts"].items(), *dict(estimates).items()])
      before = client_state.own if own.memories else client_state
      who = "Estimation" if is_estimate else "client_update"
      with own_functions.watching(who, "its seed", own.hparams):
        result = client_update(parts, before, examples, seed, h)
      if is_estimate and isinstance(result, ClientResult):
        result = result._replace(client_state=client_state)
      own_functions.check_client_result(result)
      # Numbers of Python's too.
      result = tf.nest.map_structure(tf.convert_to_tensor, result)
      num_examples = tf.shape(examples.y)[0]
      if is_estimate:
        own_functions.check_new_parts(result.message, received["parts"])
        return client_results.drop_non_finite(result, client_state, num_examples)
      own_functions.check_kept(
        "client_update", result.client_state, before, "init_client"
      )
      part, limit = self._norm_part, own.norm_limit
      # A client whose memory is taken back counts, whatever its weight has become.
      weighted = [
        name
        for name in result.message
        if isinstance(own.factories.get(name), tff.aggregators.WeightedAggregationFactory)
      ]
      counted = client_results.count_of(result, weighted)
      if limit is not None:
        sent = {k: v for k, v in parts.items() if k in result.message}
        result = norm_limits.with_norm(result, part, counted)
      if own.memories:
        memory = client_state.memory
        result = client_results.contribute(own.memories, result, received, memory)
      done = client_results.drop_non_finite(result, client_state, num_examples, counted)
      if limit is not None:
        too_long = norm_limits.is_too_long(
          done.message[part], limit, received[part], sent
        )
        done = norm_limits.drop_too_long(done, client_state, too_long, part)
      return done

    return client_work

  def build_next(self, reading: client_readings.ClientReading) -> tff.Computation:
    """The round over clients who get at their examples by `reading`."""
    own = self._composition
    server_work = self._server_computation()
    totals_type = self.client_work.type_signature.result.totals
    finish = tff.tensorflow.computation(client_results.finish_metrics, totals_type)

    @tff.federated_computation(
      own.state_type,
      tff.FederatedType(own.client_type, tff.CLIENTS),
      tff.FederatedType(reading.input_type, tff.CLIENTS),
    )
    def next_fn(
      state: tff.Value, client_states: tff.Value, client_inputs: tff.Value
    ) -> RoundOutput:
      known = OrderedDict(
        variables=state.variables, hparams=state.hparams, round_num=state.round_num
      )
      if self._norm_part:
        known["medians"] = state.aggregator[self._norm_part]
      to_send = tff.federated_map(self._send, tff.federated_zip(known))
      received = tff.federated_broadcast(to_send)
      read = reading.read(client_inputs, state.round_num)

      def work_by(computation: tff.Computation, known: tff.Value) -> tff.Value:
        given = received, known, client_states, read.examples, read.seeds
        done = tff.federated_map(computation, given)
        if read.has_examples is None:
          return done
        drop = tff.tensorflow.computation(
          client_results.drop_unless,
          (np.bool_, computation.type_signature.result, own.client_type),
        )
        return tff.federated_map(drop, (read.has_examples, done, client_states))

      known = tff.federated_value((), tff.CLIENTS)
      for estimate, means in self._estimates:
        work = work_by(estimate, known)
        results = OrderedDict()
        for part, p in means.items():
          output = p.next(p.initialize(), work.message[part], work.weight[part])
          results[part] = output.result
        known = tff.federated_broadcast(tff.federated_zip(results))
      work = work_by(self.client_work, known)
      totals = tff.federated_sum(work.totals)
      num_accepted = totals["counts"]["num_accepted"]
      aggregate, aggregator, measurements = self._aggregate(
        state.aggregator, work, num_accepted
      )
      variables, round_num = tff.federated_map(
        server_work, (state, aggregate, num_accepted)
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

  def traffic(self, reading: client_readings.ClientReading) -> RoundTraffic:
    """The bytes that cross in that round for each client."""
    own, ledger = self._composition, Ledger()
    sent = OrderedDict(tff.structure.iter_elements(self._received_type))
    parts = tff.structure.iter_elements(sent.pop("parts"))
    for name, value_type in [*parts, *sent.items()]:
      ledger.broadcast(name, value_type)
    if reading.is_told_the_round:
      ledger.broadcast("round_num", own.state_type.member.round_num)
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

  def _aggregate(
    self, states: Any, work: Any, num_accepted: tff.Value
  ) -> tuple[Any, Any, Any]:
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
        state_type = own.state_type.member.aggregator[part]
        has_state = tff.types.contains(
          state_type, lambda t: isinstance(t, tff.TensorType)
        )
        if has_state and part not in own.memories and part != self._norm_part:
          # Without clients an estimated norm would become NaN, and stay so.
          kept = tff.tensorflow.computation(_if_any, (np.int32, state_type, state_type))
          new_states[part] = tff.federated_map(
            kept, (num_accepted, new_states[part], states[part])
          )
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
    def server_work(
      state: ServerState, aggregate: Parts, num_clients: tf.Tensor
    ) -> tuple[ServerVariables, tf.Tensor]:
      h = hyper_parameters.with_values(own.hparams, state.hparams)
      changes = own_functions.Named()
      for part in self._parts():
        if part == self._norm_part:
          continue
        if part in own.memories:
          sent = kind.distribute(state.variables)[part]
          changes[part] = tf.nest.map_structure(tf.subtract, aggregate[part], sent)
        else:
          changes[part] = aggregate[part]
      count = tf.cast(num_clients, tf.float32)
      with own_functions.watching("server_update", _SEED_OF_SERVER, own.hparams):
        variables = kind.server_update(state.variables, changes, count, h)
      own_functions.check_variables(variables, state.variables)
      variables = _if_any(num_clients, variables, state.variables)
      return variables, state.round_num + 1

    return server_work


def _if_any(num_clients: tf.Tensor, new: Any, old: Any) -> Any:
  """What has changed; what was before where no client counts.

  By a branch, as arrays of the two may differ in length, such as the nodes of TFF's tree
  aggregation, and `tf.where` would repeat the shorter one.
  """
  chosen = tf.cond(
    num_clients > 0, lambda: tf.nest.flatten(new), lambda: tf.nest.flatten(old)
  )
  return tf.nest.pack_sequence_as(new, tf.nest.flatten(chosen))
