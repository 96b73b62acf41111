"""What an algorithm says of its rounds, as pure functions of plain `tf` operations."""

from __future__ import annotations

import logging
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Optional, Union

import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.client_data import Examples
from tff_algos.client_work.model_update import ClientResult
from tff_algos.errors import InputError, InputWarning
from tff_algos.models.functional import Weights

# The named parts of what is sent, each a structure of tensors.
Parts = Mapping[str, Any]

AggregationFactory = Union[
  "tff.aggregators.WeightedAggregationFactory",
  "tff.aggregators.UnweightedAggregationFactory",
]


class ServerVariables(NamedTuple):
  """What the server keeps of an algorithm.

  Attributes:
    model: The global weights x.
    extra: The algorithm's own variables, such as a control variate; () for none.
  """

  model: Weights
  extra: Any


class ServerState(NamedTuple):
  """S, the server state of every composed process.

  Attributes:
    variables: `ServerVariables`.
    aggregator: Part name to its aggregator's state.
    hparams: Name to float32, the tunable hyper-parameters.
    round_num: int32 scalar, the number of rounds done.
  """

  variables: ServerVariables
  aggregator: Mapping[str, Any]
  hparams: Mapping[str, Any]
  round_num: Any


def send_model(variables: ServerVariables) -> OrderedDict[str, Any]:
  """The distributor of most algorithms: the whole model and nothing else."""
  return OrderedDict(model=variables.model)


def mean() -> tff.aggregators.WeightedAggregationFactory:
  """The weighted mean; 0 where every weight is 0 (all messages were dropped).

  Of a part in float16 or bfloat16 it is float32, as are its sums.
  """
  # Here, as its class is one of TFF's, and without TFF algorithms can be listed.
  from tff_algos.aggregators import weighted_mean

  return weighted_mean.MeanFactory()


def _is_not_of_unused_assertions(record: logging.LogRecord) -> bool:
  """TFF's secure sums leave some, of each of which TensorFlow would print a page."""
  return "Object was never used" not in record.getMessage()


def _adds_up(factory: Any) -> bool:
  """Whether it is a sum of TFF's, or all that it has inside are such, as of clipping."""
  sums = (
    tff.aggregators.SumFactory,
    tff.aggregators.SecureSumFactory,
    tff.aggregators.SecureModularSumFactory,
    tff.aggregators.EncodedSumFactory,
  )
  averages = (
    tff.aggregators.MeanFactory,
    tff.aggregators.UnweightedMeanFactory,
    tff.aggregators.DifferentiallyPrivateFactory,
  )
  if isinstance(factory, (*sums, *averages)):
    return isinstance(factory, sums)
  if not type(factory).__module__.startswith("tensorflow_federated."):
    return False
  kinds = (
    tff.aggregators.WeightedAggregationFactory,
    tff.aggregators.UnweightedAggregationFactory,
  )
  # Clipping, zeroing and the like have theirs in a closure.
  cells = getattr(type(factory).create, "__closure__", None) or ()
  held = [*vars(factory).values(), *(cell.cell_contents for cell in cells)]
  inner = [value for value in held if isinstance(value, kinds)]
  return bool(inner) and all(map(_adds_up, inner))


def warn_of_a_sum(factory: AggregationFactory) -> None:
  """Warns by `InputWarning` of one that adds up, where the model's part is averaged."""
  if _adds_up(factory):
    warnings.warn(
      f"{type(factory).__name__} adds the clients' updates up, where algorithms take "
      "their mean: of n clients it is n times too long. Give "
      "tff.learning.secure_aggregator(), or tff.aggregators.MeanFactory around the sum.",
      InputWarning,
      stacklevel=2,
    )


def create_process(
  factory: AggregationFactory, value_type: tff.Type, weight_type: tff.Type
) -> tff.templates.AggregationProcess:
  """The process that aggregates a part; the weights' type is for a weighted one.

  Raises:
    InputError: What is given is no factory.
  """
  tf.get_logger().addFilter(_is_not_of_unused_assertions)
  if isinstance(factory, type) or not hasattr(factory, "create"):
    raise InputError(
      "An aggregator must be an aggregation factory, such as tff_algos.median_factory() "
      f"or tff.learning.robust_aggregator(); found {factory!r}."
    )
  if isinstance(factory, tff.aggregators.WeightedAggregationFactory):
    return factory.create(value_type, weight_type)
  return factory.create(value_type)


# `(received, client_state, examples, seed, h) -> ClientResult`.
ClientUpdate = Callable[[Parts, Any, Examples, "tf.Tensor", Any], ClientResult]
# `(variables, aggregate, num_clients, h) -> ServerVariables`.
ServerUpdate = Callable[[ServerVariables, Parts, "tf.Tensor", Any], ServerVariables]


class Estimation(NamedTuple):
  """Exchanges before the clients' real work, by which they estimate something together.

  Attributes:
    client: `(received, client_state, examples, seed, h) -> ClientResult`, whose state is
      ignored. The weighted means of its message's parts are sent to all clients, which
      find them in `received` from then on, in the next exchange and in the real work.
    times: How many exchanges.
  """

  client: ClientUpdate
  times: int


class Round(NamedTuple):
  """What happens in a round, as pure functions of plain `tf` operations.

  They are traced without AutoGraph, which would take as long again: use `tf.cond` and
  `tf.while_loop`, not Python's `if` and `for`, where a tensor decides, or a `tf.function`
  inside.

  In all of them `h` holds the hyper-parameters, of which the tunable ones are tensors.

  Attributes:
    client_update: `(received, client_state, examples, seed, h) -> ClientResult`.
    server_update: `(variables, aggregate, num_clients, h) -> ServerVariables`, where
      `aggregate` maps each part of the message to its aggregate and `num_clients` is a
      float32 scalar, the number of clients that count: not dropped, nor without weight.
    distribute: `(variables) -> parts` that the server sends to each client.
    estimation: Exchanges before the clients' real work; None: there are none.
    takes_memories: Whether the server can go on with what absent clients have sent
      before, as a `TemporalWeightingFactory` has it.
  """

  client_update: ClientUpdate
  server_update: ServerUpdate
  distribute: Callable[[ServerVariables], Parts] = send_model
  estimation: Optional[Estimation] = None
  takes_memories: bool = True


class RoundOutput(NamedTuple):
  """The result of `StatefulProcess.next`.

  Attributes:
    state: The new server state.
    client_states: The new states of the round's clients, in the order they came in.
    metrics: `client_work.train` (loss in nats a training example, counts) and
      `aggregator` (measurements of each part's aggregator).
  """

  state: Any
  client_states: Any
  metrics: Any
