"""Aggregation in which clients that are absent count too, by what they sent last."""

from __future__ import annotations

import abc
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff


class Contribution(NamedTuple):
  """What one client adds to the sums.

  Attributes:
    value: A structure of float32 tensors.
    weight: What it counts for, a float32 scalar.
  """

  value: Any
  weight: Any


class ClientMemoryFactory(tff.aggregators.UnweightedAggregationFactory, abc.ABC):
  """A factory for one part of the message, whose clients remember their last upload.

  Used like any other aggregation factory, for example as a builder's `model_aggregator`.
  `compose_process` keeps the memory beside the algorithm's own client state. The values
  are absolute: a client's received part plus the change that its message says; and the
  server is handed the aggregate less the part that it sent, which is a change again.

  `create` takes the type of a `Contribution`.
  """

  @abc.abstractmethod
  def initialize_client(self) -> Any:
    """The memory of a client never seen before."""

  @abc.abstractmethod
  def contribute(
    self, value: Any, weight: tf.Tensor, memory: Any, round_num: tf.Tensor
  ) -> tuple[Contribution, Any]:
    """What a client adds to the aggregate, and its new memory.

    Args:
      value: The part after the client's work, a structure of float32 tensors.
      weight: What the client counts for, a float32 scalar.
      memory: The client's memory.
      round_num: The number of this round, int32, counted from 1.
    """

  @abc.abstractmethod
  def skip_round(self, state: Any) -> Any:
    """The aggregator's state after a round in which the part did not travel."""
