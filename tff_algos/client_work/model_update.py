"""What a client uploads: the result of its work, and the message most algorithms send."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from tff_algos.client_data import Examples
from tff_algos.client_work import local_training, tree_math
from tff_algos.errors import InputError
from tff_algos.models.functional import Weights


class ClientResult(NamedTuple):
  """What the client work of one client returns.

  Attributes:
    message: Part name to a structure of float32 tensors; what is uploaded.
    weight: Part name to a float32 scalar >= 0, what the part counts for in a weighted
      aggregator; a client with one below is dropped, and one with 0 for all parts, which
      all have such an aggregator, does not count.
    client_state: The client's new state C.
    metrics: Name to a pair of float32 scalars (total, count); the round's metric is the
      sum of the totals over the sum of the counts.
  """

  message: Mapping[str, Any]
  weight: Mapping[str, tf.Tensor]
  client_state: Any
  metrics: Mapping[str, tuple[tf.Tensor, tf.Tensor]]


def client_weight(client_weighting: str, examples: Examples) -> tf.Tensor:
  """What a client's message counts for: n_i ("examples") or 1 ("uniform"), float32.

  Raises:
    InputError: It is another word.
  """
  if client_weighting not in ("examples", "uniform"):
    raise InputError(
      f"client_weighting must be examples or uniform; found {client_weighting!r}."
    )
  if client_weighting == "uniform":
    return tf.constant(1.0)
  return tf.cast(tf.shape(examples.y)[0], tf.float32)


def model_update(
  client_weighting: str,
  received: Weights,
  result: local_training.LocalResult,
  examples: Examples,
  client_state: Any = (),
) -> ClientResult:
  """The message of most algorithms: the model's change w_i - x, and the training loss.

  Args:
    client_weighting: What it counts for, see `client_weight`.
    received: x, the model that the client has got.
    result: What its training gave.
    examples: The client's.
    client_state: Its new state.

  Raises:
    InputError: `client_weighting` is another word, or the weights are not of one shape.
  """
  return ClientResult(
    message=OrderedDict(model=tree_math.subtract(result.weights, received)),
    weight=OrderedDict(model=client_weight(client_weighting, examples)),
    client_state=client_state,
    metrics=OrderedDict(loss=(result.loss, result.num_seen)),
  )
