"""The template refuses computations of other types than it documents."""

from __future__ import annotations

import re
from collections import OrderedDict

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.errors import InputError
from tff_algos.templates import stateful_process
from tff_algos.templates.process_types import ProcessTypeError
from tff_algos.templates.rounds import RoundOutput

ModelWeights = tff.learning.models.ModelWeights

# S, C, D and M of a process that is right.
VECTOR = tff.TensorType(np.float32, [2])
STATE = tff.to_type(OrderedDict(weights=VECTOR, rate=np.float32))
CLIENT = tff.to_type(np.int32)
INPUT = tff.to_type(np.str_)
METRICS = tff.to_type(OrderedDict(loss=np.float32))
WEIGHTS = tff.to_type(ModelWeights((VECTOR,), ()))
HPARAMS = tff.to_type(OrderedDict(rate=np.float32))
# None of them.
OTHER = tff.to_type(np.int64)

PARTS = (
  "initialize_fn",
  "initialize_client_fn",
  "next_fns",
  "get_model_weights",
  "set_model_weights",
  "get_hparams",
  "set_hparams",
)


def zeros(t: tff.Type):
  """A value of a type, for the result of a TensorFlow computation."""
  if isinstance(t, tff.StructType):
    items = [(name, zeros(v)) for name, v in tff.structure.iter_elements(t)]
    has_names = all(name for name, _ in items)
    return OrderedDict(items) if has_names else tuple(v for _, v in items)
  return tf.constant("") if t.dtype == tf.string else tf.zeros(t.shape, t.dtype)


def ignoring(count: int, function):
  """`function` behind that many arguments, which TFF wants spelt out."""
  return (
    lambda: function(),
    lambda a: function(),
    lambda a, b: function(),
    lambda a, b, c: function(),
  )[count]


def make(result: tff.Type, *parameters: tff.Type):
  """A TensorFlow computation of a type."""
  function = ignoring(len(parameters), lambda: zeros(result))
  return tff.tensorflow.computation(function, *parameters)


def make_at(placement, result: tff.Type, *parameters: tff.Type):
  """A federated computation `(parameters -> result@placement)`."""
  inner = make(result)
  function = ignoring(len(parameters), lambda: tff.federated_eval(inner, placement))
  return tff.federated_computation(function, *parameters)


def at_server(t):
  return tff.FederatedType(t, tff.SERVER)


def at_clients(t):
  return tff.FederatedType(t, tff.CLIENTS)


AT_SERVER = at_server(STATE)
AT_CLIENTS = at_clients(CLIENT)
INPUTS = at_clients(INPUT)
MEASURED = at_server(METRICS)


def make_next(
  parameters=(AT_SERVER, AT_CLIENTS, INPUTS),
  state=AT_SERVER,
  client_states=AT_CLIENTS,
  metrics=MEASURED,
  container=RoundOutput,
):
  def value(t):
    return tff.federated_eval(make(t.member), t.placement)

  def result():
    return container(value(state), value(client_states), value(metrics))

  return tff.federated_computation(ignoring(len(parameters), result), *parameters)


def one_kind(*args, **kwargs) -> dict:
  return {"": make_next(*args, **kwargs)}


def right_parts() -> dict:
  return dict(
    zip(
      PARTS,
      (
        make_at(tff.SERVER, STATE),
        make(CLIENT),
        one_kind(),
        make(WEIGHTS, STATE),
        make(STATE, STATE, WEIGHTS),
        make(HPARAMS, STATE),
        make(STATE, STATE, HPARAMS),
      ),
    )
  )


def build(**changed) -> stateful_process.StatefulProcess:
  return stateful_process.StatefulProcess(**{**right_parts(), **changed})


def test_kinds_of_rounds_follow_the_schedule():
  kinds = {"even": make_next(), "odd": make_next()}
  process = build(next_fns=kinds, schedule=("even", "odd"))
  assert [process.next_of(done) for done in range(3)] == [
    kinds["even"],
    kinds["odd"],
    kinds["even"],
  ]
  assert [process.kind_of_round(done) for done in range(3)] == ["even", "odd", "even"]
  assert build(next_fns={"only": make_next()}).kind_of_round(7) == "only"
  assert process.next is kinds["odd"]


@pytest.mark.parametrize("schedule", [(), ("even", "neither")])
def test_several_kinds_without_a_schedule_of_them_are_refused(schedule):
  with pytest.raises(InputError, match="Say by schedule"):
    build(next_fns={"even": make_next(), "odd": make_next()}, schedule=schedule)


def test_every_kind_is_checked():
  kinds = {"wrong": make_next(()), "": make_next()}
  with pytest.raises(ProcessTypeError):
    build(next_fns=kinds, schedule=("",))


def test_right_parts_are_taken_and_returned():
  parts = right_parts()
  process = stateful_process.StatefulProcess(**parts)
  assert process.initialize is parts["initialize_fn"]
  assert process.initialize_client is parts["initialize_client_fn"]
  assert process.next is parts["next_fns"][""]
  for name in PARTS[3:]:
    assert getattr(process, name) is parts[name]
  assert isinstance(process, tff.templates.IterativeProcess)


def test_process_is_stateless_where_clients_keep_nothing():
  assert not build().is_stateless
  nothing = tff.to_type(())
  parameters = AT_SERVER, at_clients(nothing), INPUTS
  stateless = build(
    initialize_client_fn=make(nothing),
    next_fns=one_kind(parameters, client_states=at_clients(nothing)),
  )
  assert stateless.is_stateless


def test_process_that_was_not_composed_is_composed_of_nothing():
  process = build()
  assert dict(process.composed_of) == {}
  with pytest.raises(InputError, match="not made by compose_process"):
    process.recomposed(norm_limit=5.0)


# Name of the case: what is wrong, and what the message must say.
WRONG = {
  "initialize_is_not_placed": (
    lambda: dict(initialize_fn=make(STATE)),
    "initialize must return a SERVER-placed state",
  ),
  "initialize_is_at_clients": (
    lambda: dict(initialize_fn=make_at(tff.CLIENTS, STATE)),
    "initialize must return a SERVER-placed state",
  ),
  "initialize_is_of_another_type_than_next": (
    lambda: dict(initialize_fn=make_at(tff.SERVER, OTHER)),
    "next must take the state of initialize",
  ),
  "initialize_client_is_placed": (
    lambda: dict(initialize_client_fn=make_at(tff.CLIENTS, CLIENT)),
    "initialize_client must return an unplaced structure",
  ),
  "initialize_client_is_of_another_type_than_next": (
    lambda: dict(initialize_client_fn=make(OTHER)),
    "next must take .* by initialize_client, as its second argument",
  ),
  "next_takes_nothing": (
    lambda: dict(next_fns=one_kind(())),
    "next must take .server state, client states, client inputs.",
  ),
  "next_takes_two_arguments": (
    lambda: dict(next_fns=one_kind((AT_SERVER, AT_CLIENTS))),
    "next must take .server state, client states, client inputs.",
  ),
  "next_takes_another_state": (
    lambda: dict(next_fns=one_kind((at_server(OTHER), AT_CLIENTS, INPUTS))),
    "next must take the state of initialize, .* as its first argument",
  ),
  "next_takes_the_state_at_clients": (
    lambda: dict(next_fns=one_kind((at_clients(STATE), AT_CLIENTS, INPUTS))),
    "next must take the state of initialize, .* as its first argument",
  ),
  "next_takes_other_client_states": (
    lambda: dict(next_fns=one_kind((AT_SERVER, at_clients(OTHER), INPUTS))),
    "next must take .* as its second argument",
  ),
  "next_takes_client_states_at_the_server": (
    lambda: dict(next_fns=one_kind((AT_SERVER, at_server(CLIENT), INPUTS))),
    "next must take .* as its second argument",
  ),
  "next_takes_inputs_at_the_server": (
    lambda: dict(next_fns=one_kind((AT_SERVER, AT_CLIENTS, at_server(INPUT)))),
    "next must take a CLIENTS-placed third argument",
  ),
  "next_returns_a_tuple_without_names": (
    lambda: dict(next_fns=one_kind(container=lambda *values: values)),
    "next must return <state, client_states, metrics>",
  ),
  "next_returns_other_names": (
    lambda: dict(next_fns=one_kind(container=lambda s, c, m: OrderedDict(a=s, b=c, c=m))),
    "next must return <state, client_states, metrics>",
  ),
  "next_returns_only_the_state": (
    lambda: dict(next_fns=one_kind(container=lambda s, c, m: s)),
    "next must return <state, client_states, metrics>",
  ),
  "next_returns_another_state": (
    lambda: dict(next_fns=one_kind(state=at_server(OTHER))),
    "next must return the state it takes",
  ),
  "next_returns_the_state_at_clients": (
    lambda: dict(next_fns=one_kind(state=at_clients(STATE))),
    "next must return the state it takes",
  ),
  "next_returns_other_client_states": (
    lambda: dict(next_fns=one_kind(client_states=at_clients(OTHER))),
    "next must return the client states it takes",
  ),
  "next_returns_client_states_at_the_server": (
    lambda: dict(next_fns=one_kind(client_states=at_server(CLIENT))),
    "next must return the client states it takes",
  ),
  "next_returns_metrics_at_clients": (
    lambda: dict(next_fns=one_kind(metrics=at_clients(METRICS))),
    "next must return SERVER-placed metrics",
  ),
  "get_model_weights_takes_nothing": (
    lambda: dict(get_model_weights=make(WEIGHTS)),
    "get_model_weights must take the server state",
  ),
  "get_model_weights_takes_another_state": (
    lambda: dict(get_model_weights=make(WEIGHTS, OTHER)),
    "get_model_weights must take the server state",
  ),
  "set_model_weights_takes_another_state": (
    lambda: dict(set_model_weights=make(STATE, OTHER, WEIGHTS)),
    "set_model_weights must take <",
  ),
  "set_model_weights_takes_other_weights": (
    lambda: dict(set_model_weights=make(STATE, STATE, OTHER)),
    "set_model_weights must take <",
  ),
  "set_model_weights_takes_three_arguments": (
    lambda: dict(set_model_weights=make(STATE, STATE, WEIGHTS, OTHER)),
    "set_model_weights must take <",
  ),
  "set_model_weights_returns_another_state": (
    lambda: dict(set_model_weights=make(OTHER, STATE, WEIGHTS)),
    "set_model_weights must return the server state",
  ),
  "get_hparams_takes_nothing": (
    lambda: dict(get_hparams=make(HPARAMS)),
    "get_hparams must take the server state",
  ),
  "get_hparams_takes_another_state": (
    lambda: dict(get_hparams=make(HPARAMS, OTHER)),
    "get_hparams must take the server state",
  ),
  "get_hparams_returns_others_than_set_hparams_takes": (
    lambda: dict(get_hparams=make(tff.to_type(OrderedDict(other=OTHER)), STATE)),
    "set_hparams must take <",
  ),
  "set_hparams_takes_another_state": (
    lambda: dict(set_hparams=make(STATE, OTHER, HPARAMS)),
    "set_hparams must take <",
  ),
  "set_hparams_takes_other_values": (
    lambda: dict(set_hparams=make(STATE, STATE, OTHER)),
    "set_hparams must take <",
  ),
  "set_hparams_returns_another_state": (
    lambda: dict(set_hparams=make(OTHER, STATE, HPARAMS)),
    "set_hparams must return the server state",
  ),
  "initialize_takes_an_argument": (
    lambda: dict(initialize_fn=make_at(tff.SERVER, STATE, AT_SERVER)),
    "^initialize ",
  ),
  "initialize_client_takes_an_argument": (
    lambda: dict(initialize_client_fn=make(CLIENT, OTHER)),
    "^initialize_client ",
  ),
  "initialize_client_holds_a_placed_value": (
    lambda: dict(
      initialize_client_fn=tff.federated_computation(
        lambda: (tff.federated_eval(make(CLIENT), tff.SERVER),)
      )
    ),
    "^initialize_client ",
  ),
  "get_model_weights_returns_no_model_weights": (
    lambda: dict(
      get_model_weights=make(HPARAMS, STATE),
      set_model_weights=make(STATE, STATE, HPARAMS),
    ),
    "^get_model_weights ",
  ),
  "set_model_weights_takes_nothing": (
    lambda: dict(set_model_weights=make(STATE)),
    "^set_model_weights ",
  ),
  "get_hparams_returns_no_names": (
    lambda: dict(get_hparams=make(OTHER, STATE), set_hparams=make(STATE, STATE, OTHER)),
    "^get_hparams ",
  ),
  "set_hparams_takes_one_tensor": (
    lambda: dict(set_hparams=make(STATE, OTHER)),
    "^set_hparams ",
  ),
}


def assert_refused(changed, message):
  with pytest.raises(ProcessTypeError, match=message) as raised:
    build(**changed())
  assert re.search(r"; found .+\.$", str(raised.value))


@pytest.mark.parametrize("changed, message", WRONG.values(), ids=WRONG)
def test_raises_on_a_wrong_type_and_names_it(changed, message):
  assert_refused(changed, message)


def test_error_is_a_type_error():
  assert issubclass(ProcessTypeError, TypeError)
