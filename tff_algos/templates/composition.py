"""What all kinds of rounds of a composed process share: types, states, aggregators."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos import hyper_parameters
from tff_algos.aggregators import past_medians
from tff_algos.aggregators.client_memory import ClientMemoryFactory
from tff_algos.models.functional import Model
from tff_algos.templates import (
  client_readings,
  client_results,
  norm_limits,
  own_functions,
)
from tff_algos.templates.process_types import ProcessTypeError
from tff_algos.templates.rounds import (
  AggregationFactory,
  ServerState,
  ServerVariables,
  create_process,
  warn_of_a_sum,
)

if TYPE_CHECKING:
  from tff_algos.templates.exchange import Exchange


class Composition:
  """What all kinds of rounds of a process share: types, states, aggregators."""

  def __init__(
    self,
    model: Model,
    hparams: hyper_parameters.HyperParameters,
    aggregators: Mapping[str, AggregationFactory],
    init_server: Callable[[], Any],
    init_client: Callable[[], Any],
    norm_limit: Optional[float],
  ):
    self.hparams, self.factories = hparams, dict(aggregators)
    self.norm_limit = norm_limit
    self.medians_type = tff.TensorType(np.float32, (past_medians.ROUNDS,))
    self.memories = {
      part: factory
      for part, factory in self.factories.items()
      if isinstance(factory, ClientMemoryFactory)
    }

    @tff.tensorflow.computation
    def init_variables() -> ServerVariables:
      weights = tuple(tf.constant(w) for w in model.initial_weights)
      with own_functions.watching("init_server", "a seed of your own"):
        extra = init_server()
      own_functions.check_values("What init_server returns", extra)
      return ServerVariables(weights, extra)

    init_hparams = tff.tensorflow.computation(self.constant_hparams)

    @tff.tensorflow.computation
    def initialize_client() -> Any:
      with own_functions.watching("init_client", "a seed of your own"):
        own = init_client()
      own_functions.check_values("What init_client returns", own)
      if not self.memories:
        return own
      memory = ((k, f.initialize_client()) for k, f in self.memories.items())
      return client_results.RememberingClient(own, OrderedDict(memory))

    self.initialize_client = initialize_client
    self._init_variables, self._init_hparams = init_variables, init_hparams
    self.variables_type = init_variables.type_signature.result
    self.hparams_type = init_hparams.type_signature.result
    self.client_type = initialize_client.type_signature.result
    self.files = client_readings.FromFiles(model.example_spec)

  def add_norm_part(self, kind: str) -> str:
    """Adds the part of a kind of round that says an update's norm; "" without a limit."""
    if self.norm_limit is None:
      return ""
    part = f"{norm_limits.PART}_{kind}" if kind else norm_limits.PART
    self.factories[part] = past_medians.PastMediansFactory()
    return part

  def constant_hparams(self) -> OrderedDict[str, tf.Tensor]:
    """The tunable hyper-parameters as they were given."""
    values = hyper_parameters.tunable_values(self.hparams)
    return OrderedDict((k, tf.constant(v, tf.float32)) for k, v in values.items())

  def create_aggregators(self, exchanges: Iterable[Exchange]) -> None:
    """Makes each part's aggregator, by the type that the part has in the messages."""
    self.processes: OrderedDict[str, tff.templates.AggregationProcess] = OrderedDict()
    for exchange in exchanges:
      work_type = exchange.client_work.type_signature.result
      for part, part_type in tff.structure.iter_elements(work_type.message):
        if part not in self.factories:
          raise ProcessTypeError(
            f"client_update sends the part {part!r}, for which aggregators has no "
            f"factory; it has {', '.join(self.factories) or 'none at all'}."
          )
        if part not in self.processes:
          if part == "model":
            warn_of_a_sum(self.factories[part])
          try:
            self.processes[part] = create_process(
              self.factories[part], part_type, work_type.weight[part]
            )
          except TypeError as error:
            raise ProcessTypeError(
              f"{type(self.factories[part]).__name__} does not aggregate the part "
              f"{part!r}, which is {part_type.compact_representation()}: {error}"
            ) from error
    for part in self.factories:
      if part not in self.processes:
        raise ProcessTypeError(
          f"aggregators has a factory for the part {part!r}, which no client_update "
          f"sends; parts are {', '.join(self.processes)}."
        )

    @tff.federated_computation
    def initialize() -> tff.Value:
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
    def get_model_weights(state: ServerState) -> tff.learning.models.ModelWeights:
      return tff.learning.models.ModelWeights(state.variables.model, ())

    @tff.tensorflow.computation(state_type, get_model_weights.type_signature.result)
    def set_model_weights(
      state: ServerState, weights: tff.learning.models.ModelWeights
    ) -> ServerState:
      return state._replace(
        variables=state.variables._replace(model=tuple(weights.trainable))
      )

    @tff.tensorflow.computation(state_type)
    def get_hparams(state: ServerState) -> Mapping[str, tf.Tensor]:
      return state.hparams

    @tff.tensorflow.computation(state_type, self.hparams_type)
    def set_hparams(state: ServerState, values: Mapping[str, tf.Tensor]) -> ServerState:
      return state._replace(hparams=values)

    return get_model_weights, set_model_weights, get_hparams, set_hparams
