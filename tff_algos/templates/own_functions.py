"""Whether what an algorithm's functions give is what the composer takes.

Said while they are traced, where the functions' author sees which of them it is: TFF's
own words would be of types of hundreds of tensors.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import traceback
import warnings
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Optional

import tensorflow as tf

from tff_algos import errors, graphs, hyper_parameters
from tff_algos.client_work.model_update import ClientResult
from tff_algos.hyper_parameters import HyperParameters
from tff_algos.templates import client_results
from tff_algos.templates.process_types import ProcessTypeError
from tff_algos.templates.rounds import Round, ServerVariables


def check_round(kind: Round) -> None:
  """Raises `ProcessTypeError` unless the functions take what they are called with."""
  work = ("received", "client_state", "examples", "seed", "h")
  _check_takes("client_update", kind.client_update, work)
  server = ("variables", "aggregate", "num_clients", "h")
  _check_takes("server_update", kind.server_update, server)
  _check_takes("distribute", kind.distribute, ("variables",))
  if kind.estimation is not None:
    _check_takes("The client of an Estimation", kind.estimation.client, work)


def _check_takes(who: str, function: Any, arguments: Sequence[str]) -> None:
  errors.check_takes(who, function, arguments, ProcessTypeError)
  is_decorated = isinstance(function, tf.types.experimental.GenericFunction)
  if is_decorated and who != "distribute":  # Whose argument is of tensors alone.
    raise ProcessTypeError(
      f"{who} must not be a tf.function, as it is traced with all around it: take the "
      "decorator away, or put it on a function that it calls."
    )


def _is_scalar(value: Any) -> bool:
  tensor = tf.convert_to_tensor(value)
  is_number = tensor.dtype.is_floating or tensor.dtype.is_integer
  return is_number and tensor.shape.rank in (0, None)


class Named(OrderedDict[str, Any]):
  """Parts by name, which says what there is where another is asked for."""

  def __missing__(self, name: str) -> Any:
    raise ProcessTypeError(
      f"There is no part {name!r}, of what the server sends or of the aggregate; there "
      f"is {', '.join(self)}."
    )

  def __repr__(self) -> str:
    """As a plain one, with which states and messages are compared."""
    return repr(OrderedDict(self))


def check_values(what: str, value: Any) -> None:
  """Raises `ProcessTypeError` for what is no tensor of the graph, nor becomes one."""
  leaves = tf.nest.flatten(value)
  if any(leaf is None for leaf in leaves):
    raise ProcessTypeError(
      f"{what} must be tensors or a structure of them, () for nothing; found None in "
      f"{_around(0, str(value))}."
    )
  if any(tf.is_tensor(leaf) and not tf.is_symbolic_tensor(leaf) for leaf in leaves):
    raise ProcessTypeError(
      f"{what} must be no variable, as Keras models' weights are, nor a tensor from "
      "outside: give NumPy's arrays, as of tff_algos.keras_weights."
    )


def check_parts(who: str, parts: Any) -> None:
  """Raises `ProcessTypeError` unless they are values by names."""
  if not isinstance(parts, Mapping):
    raise ProcessTypeError(
      f"{who} must map the names of parts to their values, as {{'model': ...}}; found "
      f"a {type(parts).__name__}."
    )
  for name in parts:
    _check_name("part", name)


def _check_name(kind: str, name: Any) -> None:
  if not isinstance(name, str) or not re.fullmatch(r"[\w./-]+", name, re.ASCII):
    raise ProcessTypeError(
      f"The {kind} {name!r} must have a name of letters, digits and _ . / - alone."
    )


def check_new_parts(message: Mapping[str, Any], received: Mapping[str, Any]) -> None:
  """Raises `ProcessTypeError` where an estimate would hide what the server sends."""
  for name in message:
    if name in received:
      raise ProcessTypeError(
        f"The part {name!r} of an Estimation's message has the name of one that the "
        "server sends, which clients would not find any more: choose another."
      )


def check_client_result(result: Any) -> None:
  """Raises `ProcessTypeError` unless it is a whole `ClientResult`."""
  if not isinstance(result, ClientResult):
    raise ProcessTypeError(
      "client_update must return a tff_algos.ClientResult, such as "
      f"tff_algos.model_update makes; found a {type(result).__name__}."
    )
  for name in ("message", "weight", "metrics"):
    if not isinstance(getattr(result, name), Mapping):
      raise ProcessTypeError(
        f"The {name} of a ClientResult must map names to values; found a "
        f"{type(getattr(result, name)).__name__}."
      )
  if not result.message or list(result.weight) != list(result.message):
    raise ProcessTypeError(
      "The message of a ClientResult must have a part, and its weight the same parts in "
      f"the same order; found {list(result.message)} and {list(result.weight)}."
    )
  for name, value in zip(result._fields, result):
    check_values(f"The {name} of a ClientResult", value)
  check_parts("The message of a ClientResult", result.message)
  for name, weight in result.weight.items():
    if not _is_scalar(weight):
      raise ProcessTypeError(
        f"The weight of the part {name!r} must be a scalar, what the client counts for; "
        f"found one of shape {tf.convert_to_tensor(weight).shape}."
      )
  for name, value in result.metrics.items():
    _check_name("metric", name)
    if name in client_results.COUNTS:
      raise ProcessTypeError(
        f"The metric {name!r} of a ClientResult has the name of one that every round "
        "has: choose another."
      )
    is_pair = isinstance(value, (tuple, list)) and len(value) == 2
    if not (is_pair and all(map(_is_scalar, value))):
      raise ProcessTypeError(
        f"The metric {name!r} of a ClientResult must be a pair of scalars, the total and "
        "what it is divided by: give (value, 1.0) for a mean over clients."
      )


def check_kept(who: str, new: Any, old: Any, initial: str) -> None:
  """Raises `ProcessTypeError` unless a state is as it was, but for its values.

  Args:
    who: What returns it.
    new: What it returned.
    old: What it was given.
    initial: What says what the state is.
  """
  found, wanted = _described(new), _described(old)
  if found != wanted:
    place = next((i for i, (a, b) in enumerate(zip(found, wanted)) if a != b), 0)
    raise ProcessTypeError(
      f"{who} returns {_around(place, found)}, but {initial} gives "
      f"{_around(place, wanted)}: make them alike."
    )


def check_variables(variables: Any, old: ServerVariables) -> None:
  """Raises `ProcessTypeError` unless `server_update` returns what it was given."""
  if not isinstance(variables, ServerVariables):
    raise ProcessTypeError(
      "server_update must return tff_algos.ServerVariables, such as "
      f"variables._replace(model=...); found a {type(variables).__name__}."
    )
  check_values("What server_update returns", variables)
  check_kept("The model of server_update", variables.model, old.model, "the Model")
  check_kept("The extra of server_update", variables.extra, old.extra, "init_server")


class _VariableMade(Exception):
  """A variable was made where there can be none."""


def _no_variable(next_creator: Any, **kwargs: Any) -> Any:
  raise _VariableMade


class _Misuse(NamedTuple):
  """A mistake of the author's that TensorFlow tells in words of its own.

  Attributes:
    kind: The class of its errors.
    words: What is in their message.
    does: What the function does.
    advice: What to do instead.
  """

  kind: type[Exception]
  words: str
  does: str
  advice: str

  def of(self, error: Exception) -> bool:
    return isinstance(error, self.kind) and self.words in str(error)


_VALUE = (
  "takes a tensor's value in Python,",
  "it is traced once, before there are values, so use TensorFlow's functions alone.",
)
_OUTSIDE = (
  "uses a variable, as Keras models do, or a tensor from outside",
  "use what it is given, a tff_algos.Model's predict, and NumPy's arrays as constants.",
)
_MISUSES = (
  _Misuse(
    tf.errors.OperatorNotAllowedInGraphError,
    "",
    "decides in Python by a tensor, or goes through one,",
    "it is traced without AutoGraph, so use tf.cond, tf.where or tf.while_loop, or a "
    "tf.function that it calls.",
  ),
  _Misuse(
    _VariableMade,
    "",
    "makes a variable",
    "use tensors that it passes on, and tff.learning.optimizers in the place of Keras'.",
  ),
  _Misuse(RuntimeError, "capture an EagerTensor", *_OUTSIDE),
  _Misuse(AttributeError, "'SymbolicTensor' object has no attribute", *_VALUE),
  _Misuse(NotImplementedError, "Cannot convert a symbolic", *_VALUE),
  _Misuse(TypeError, "'SymbolicTensor'", *_VALUE),
)


_LIBRARIES = ("keras", "numpy", "tensorflow", "tensorflow_federated", "tff_algos")
_OTHERS = (
  *(
    os.path.dirname(str(importlib.import_module(name).__file__)) + os.sep
    for name in _LIBRARIES
  ),
  contextlib.__file__,
)


def _place_in(frames: Iterable[traceback.FrameSummary]) -> str:
  """The innermost line of the author's own, "" if there is none."""
  own = [frame for frame in frames if not frame.filename.startswith(_OTHERS)]
  return f"in {own[-1].filename}, line {own[-1].lineno}" if own else ""


def _check_captures(who: str, graph: tf.Graph) -> None:
  """Raises `ProcessTypeError` where a function's graph needs a tensor from outside."""
  for outer, inner in getattr(graph, "captures", ()):
    place = "" if tf.is_symbolic_tensor(outer) else _place_in(inner.op.traceback)
    if place:
      does, advice = _OUTSIDE
      raise ProcessTypeError(f"{who} {does} {place}: {advice}")


@contextlib.contextmanager
def watching(
  who: str, seed: str, hparams: Optional[HyperParameters] = None
) -> Iterator[None]:
  """Watches a function of an algorithm while it is traced.

  It warns by `InputWarning` of a tunable hyper-parameter that is not read from `h`.

  Args:
    who: The function.
    seed: Which seed it is to draw from.
    hparams: What its `h` holds as tensors; None: it has none.

  Raises:
    ProcessTypeError: It would draw other numbers in each run, calls Python, or decides in
      Python by a tensor.
    InputError: It compares tensors by `==`.
  """
  with (
    graphs.refusing_equality(who),
    tf.variable_creator_scope(_no_variable),
    hyper_parameters.noting_numbers() as numbers,
  ):
    try:
      yield
    except Exception as error:
      found = next((m for m in _MISUSES if m.of(error)), None)
      place = _place_in(traceback.extract_tb(error.__traceback__))
      if found is None or not place:
        raise
      raise ProcessTypeError(f"{who} {found.does} {place}: {found.advice}") from error
  tunable = {} if hparams is None else hyper_parameters.tunable_values(hparams)
  fixed = [name for name, value in numbers.items() if tunable.get(name) == value]
  if fixed:
    warnings.warn(
      f"{who} reads {', '.join(fixed)} as a number, which no schedule and no set_hparams "
      "changes, of other hyper-parameters than its h: read it from h.",
      errors.InputWarning,
      stacklevel=3,
    )
  graph = tf.compat.v1.get_default_graph()
  _check_captures(who, graph)
  drawing = graphs.drawing_operations(graph.as_graph_def())
  if drawing and "PyFunc" in drawing[0]:
    raise ProcessTypeError(
      f"{who} calls Python from its graph ({drawing[0]}), which may give other numbers "
      "in each run: write it in TensorFlow's operations."
    )
  if drawing:
    raise ProcessTypeError(
      f"{who} uses {drawing[0]}, which gives other numbers in each run: draw from "
      f"{seed} by tf.random.stateless_normal and the like, or give a shuffle its seed."
    )


def _described(value: Any) -> str:
  """A structure with the dtypes and shapes of its leaves."""

  def of_leaf(leaf: Any) -> str:
    tensor = tf.convert_to_tensor(leaf)
    return f"{tensor.dtype.name}{list(tensor.shape)}"

  return str(tf.nest.map_structure(of_leaf, value)).replace("'", "")


def _around(place: int, text: str) -> str:
  """Up to 300 characters of a text, those at a place among them."""
  if len(text) <= 300:
    return text
  begin = max(0, place - 150)
  cut = text[begin : begin + 300]
  before, behind = ("..." if begin else ""), "..." if begin + 300 < len(text) else ""
  return f"{before}{cut}{behind}"
