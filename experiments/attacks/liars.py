"""Clients that lie: they work as their algorithm has it, and then change what they send.

What a client sends is a number in its state, so that one process, which takes long to
build, is for all attacks and for runs in which nobody lies.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from experiments.attacks.lies import HONEST, Lie
from tff_algos.client_work import tree_math
from tff_algos.client_work.model_update import ClientResult
from tff_algos.errors import InputError
from tff_algos.simulation import seeds
from tff_algos.templates.client_results import RememberingClient
from tff_algos.templates.rounds import ClientUpdate, Round
from tff_algos.templates.stateful_process import StatefulProcess

# Folded into a client's seed, so that its noise is not of its shuffles.
_NOISE = 0x6C696573


class MayLie(NamedTuple):
  """The state of a client that may lie.

  Attributes:
    own: The algorithm's.
    lie: What it sends, as `Lie`; `HONEST` as `initialize_client` makes it.
  """

  own: Any
  lie: Any


def let_lie(process: StatefulProcess, **changed: Any) -> StatefulProcess:
  """The same process with clients that may lie.

  Args:
    process: Composed by `compose_process`.
    **changed: Other arguments of that.

  Raises:
    InputError: It is not, or a value is out of range.
  """
  given = process.composed_of
  if not given:
    raise InputError(
      "Clients can lie only in a process that compose_process has made: leave this "
      "algorithm out."
    )
  init_client = given["init_client"]

  def init_any() -> MayLie:
    return MayLie(init_client(), Lie._make(map(tf.constant, HONEST)))

  kinds = {name: _lying_round(kind) for name, kind in given["rounds"].items()}
  return process.recomposed(rounds=kinds, init_client=init_any, **changed)


def _lying_round(kind: Round) -> Round:
  estimation = kind.estimation
  if estimation is not None:
    estimation = estimation._replace(client=_lying(estimation.client))
  return kind._replace(client_update=_lying(kind.client_update), estimation=estimation)


def _lying(client_update: ClientUpdate) -> ClientUpdate:
  def update(received, state, examples, seed, h) -> ClientResult:
    result = client_update(received, state.own, examples, seed, h)
    factor, noise = state.lie
    honest = tf.nest.map_structure(tf.convert_to_tensor, dict(result.message))
    message = tf.cond(
      tf.equal(factor, HONEST.factor) & tf.equal(noise, HONEST.noise),
      lambda: honest,
      lambda: _changed(honest, factor, noise, seed),
    )
    return result._replace(
      message=OrderedDict((k, message[k]) for k in result.message),
      client_state=state._replace(own=result.client_state),
    )

  return update


def _changed(
  message: Mapping[str, Any], factor: tf.Tensor, noise: tf.Tensor, seed: tf.Tensor
) -> dict[str, Any]:
  fold_in = tf.random.experimental.stateless_fold_in
  seed = fold_in(seed, _NOISE)

  def of_part(place: int, part: Any) -> Any:
    values = tuple(tf.nest.flatten(part))
    drawn = tuple(
      tf.random.stateless_normal(tf.shape(v), fold_in(fold_in(seed, place), k))
      for k, v in enumerate(values)
    )
    length = tf.math.divide_no_nan(noise * tree_math.norm(values), tree_math.norm(drawn))
    sent = [factor * v + length * d for v, d in zip(values, drawn)]
    return tf.nest.pack_sequence_as(part, sent)

  return {name: of_part(k, part) for k, (name, part) in enumerate(message.items())}


def telling(state: Any, lie: Lie) -> Any:
  """The state of a client as `initialize_client` gives it, of one that tells a lie."""
  if isinstance(state, RememberingClient):
    return state._replace(own=telling(state.own, lie))
  return state._replace(lie=Lie._make(map(np.float32, lie)))


def liars_of(num_clients: int, share: float, seed: int) -> Collection[int]:
  """The places of those who lie: the share of all clients, at least one."""
  count = max(1, round(share * num_clients))
  draw = seeds.generator(seed, "liars")
  return frozenset(draw.choice(num_clients, count, replace=False).tolist())
