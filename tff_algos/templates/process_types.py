"""The types that the computations of a `StatefulProcess` must have.

They are in the docstring of `stateful_process`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow_federated as tff

from tff_algos.errors import InputError


class ProcessTypeError(InputError, TypeError):
  """A computation of a process has another type than the template demands."""


def check(
  initialize_fn: tff.Computation,
  initialize_client_fn: tff.Computation,
  next_fns: Iterable[tff.Computation],
  weights_accessors: tuple[tff.Computation, tff.Computation],
  hparams_accessors: tuple[tff.Computation, tff.Computation],
) -> None:
  """Compares the types; of accessors the first gets and the second sets.

  Raises:
    ProcessTypeError: One is another.
  """
  get_model_weights, set_model_weights = weights_accessors
  get_hparams, set_hparams = hparams_accessors
  state_type = initialize_fn.type_signature.result
  for name, computation in (
    ("initialize", initialize_fn),
    ("initialize_client", initialize_client_fn),
  ):
    parameter = computation.type_signature.parameter
    _require(parameter is None, f"{name} must take no argument", parameter)
  _require(
    _placed(state_type, tff.SERVER),
    "initialize must return a SERVER-placed state",
    state_type,
  )
  client_type = initialize_client_fn.type_signature.result
  _require(
    not tff.types.contains(client_type, lambda t: isinstance(t, tff.FederatedType)),
    "initialize_client must return an unplaced structure",
    client_type,
  )
  for next_fn in next_fns:
    _check_next(next_fn.type_signature, state_type, client_type)
  state = state_type.member
  weights = _check_getter(get_model_weights, "get_model_weights", state)
  _require(
    _names(weights) == ["trainable", "non_trainable"],
    "get_model_weights must return tff.learning.models.ModelWeights",
    weights,
  )
  _check_setter(set_model_weights, "set_model_weights", state, weights)
  hparams = _check_getter(get_hparams, "get_hparams", state)
  _require(
    isinstance(hparams, tff.StructType) and all(_names(hparams)),
    "get_hparams must return a structure of named values",
    hparams,
  )
  _check_setter(set_hparams, "set_hparams", state, hparams)


def _require(condition: bool, what: str, found: Any) -> None:
  if not condition:
    raise ProcessTypeError(f"{what}; found {found}.")


def _names(value_type: Any) -> list[Any]:
  """The names of a structure's elements (None: without one); [] if it is none."""
  if not isinstance(value_type, tff.StructType):
    return []
  return [name for name, _ in tff.structure.iter_elements(value_type)]


def _placed(value_type: Any, placement: Any) -> bool:
  return isinstance(value_type, tff.FederatedType) and value_type.placement is placement


def _check_next(
  next_type: tff.FunctionType, state_type: tff.Type, client_type: tff.Type
) -> None:
  parameter, result = next_type.parameter, next_type.result
  _require(
    isinstance(parameter, tff.StructType) and len(parameter) == 3,
    "next must take (server state, client states, client inputs)",
    parameter,
  )
  _require(
    parameter[0].is_assignable_from(state_type),
    f"next must take the state of initialize, {state_type}, as its first argument",
    parameter[0],
  )
  client_states = tff.FederatedType(client_type, tff.CLIENTS)
  _require(
    parameter[1].is_assignable_from(client_states),
    f"next must take {client_states}, by initialize_client, as its second argument",
    parameter[1],
  )
  _require(
    _placed(parameter[2], tff.CLIENTS),
    "next must take a CLIENTS-placed third argument",
    parameter[2],
  )
  _require(
    _names(result) == ["state", "client_states", "metrics"],
    "next must return <state, client_states, metrics>",
    result,
  )
  _require(
    parameter[0].is_assignable_from(result.state),
    f"next must return the state it takes, {parameter[0]}",
    result.state,
  )
  _require(
    parameter[1].is_assignable_from(result.client_states),
    f"next must return the client states it takes, {parameter[1]}",
    result.client_states,
  )
  _require(
    _placed(result.metrics, tff.SERVER),
    "next must return SERVER-placed metrics",
    result.metrics,
  )


def _check_getter(computation: tff.Computation, name: str, state: tff.Type) -> tff.Type:
  signature = computation.type_signature
  _require(
    signature.parameter is not None and signature.parameter.is_assignable_from(state),
    f"{name} must take the server state, {state}",
    signature.parameter,
  )
  return signature.result


def _check_setter(
  computation: tff.Computation, name: str, state: tff.Type, value: tff.Type
) -> None:
  signature = computation.type_signature
  parameter = signature.parameter
  _require(
    isinstance(parameter, tff.StructType)
    and len(parameter) == 2
    and parameter[0].is_equivalent_to(state)
    and parameter[1].is_equivalent_to(value),
    f"{name} must take <{state}, {value}>",
    parameter,
  )
  _require(
    signature.result.is_equivalent_to(state),
    f"{name} must return the server state, {state}",
    signature.result,
  )
