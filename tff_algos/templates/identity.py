"""By what a process is told from another one whose states have the same types."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Optional

import numpy as np

from tff_algos import client_arrays, own_code
from tff_algos.models import keras_exchange
from tff_algos.models.functional import FadingCrossEntropy, Model
from tff_algos.templates.rounds import Round

_NUMBERS = (int, float, np.number)


class Identity(NamedTuple):
  """What a process was composed of, as JSON holds it.

  Attributes:
    parts: The names of algorithm, loss, layers, aggregators and functions of one's own.
    hparams: The hyper-parameters by name, as texts, which of floats tell each from every
      other.
    example: Dtype and shape of x and of y; None where that is not known.
  """

  parts: Mapping[str, str] = {}
  hparams: Mapping[str, str] = {}
  example: Optional[list[list[Any]]] = None


def of(composed_of: Mapping[str, Any], model: Optional[Model]) -> Identity:
  """The identity of a process, by the arguments of `compose_process` and its model."""
  hparams = composed_of.get("hparams")
  names = [f.name for f in dataclasses.fields(hparams)] if hparams is not None else []
  parts = {
    **({} if hparams is None else {"hparams": _name(hparams)}),
    **({} if model is None else of_model(model)),
    **_of_own_functions(composed_of.get("rounds", {})),
    **_of_limit(composed_of.get("norm_limit")),
    **_of_aggregators(composed_of.get("aggregators", {})),
  }
  values = {name: str(getattr(hparams, name)) for name in names}
  if model is None:
    return Identity(parts, values)
  return Identity(parts, values, client_arrays.dtypes_and_shapes(model.example_spec))


def _of_own_functions(kinds: Mapping[str, Round]) -> Mapping[str, str]:
  """What a user has written of rounds; ours go by their hyper-parameters' class."""
  found: dict[str, str] = {}
  for kind, functions in kinds.items():
    for name, function in functions._asdict().items():
      if callable(function):
        where = f"{name} {kind}".rstrip()
        found[where] = "" if _is_ours(function) else _name(function)
        found.update((f"{n} of {where}", value) for n, value in _given_to(function))
  return found


def _given_to(function: Any) -> Iterator[tuple[str, str]]:
  """A user's functions that one of ours was made with, as FedAvg's local_gradient.

  "" where there is none or one of ours, so that another run's is told from it.
  """
  if not (_is_ours(function) and inspect.isfunction(function)):
    return
  for name, value in inspect.getclosurevars(function).nonlocals.items():
    value = own_code.called_by(value)
    if value is None or (callable(value) and not isinstance(value, type)):
      yield name, "" if value is None or _is_ours(value) else _name(value)


def _of_aggregators(factories: Mapping[str, Any]) -> Mapping[str, str]:
  """Their names, and of ours by coordinates what statistic they are."""
  found = {f"aggregator of {part}": _name(f) for part, f in factories.items()}
  for part, factory in factories.items():
    if (statistic := getattr(factory, "statistic", None)) is not None:
      found[f"statistic of {part}"] = _function(statistic)
  return found


def _of_limit(norm_limit: Optional[float]) -> Mapping[str, str]:
  return {} if norm_limit is None else {"norm_limit": str(norm_limit)}


def _is_ours(function: Any) -> bool:
  # What wraps one of ours may have its names.
  is_wrapper = hasattr(function, "__wrapped__")
  module = "" if is_wrapper else getattr(function, "__module__", "")
  return str(module).startswith("tff_algos.")


def of_model(model: Model) -> Mapping[str, str]:
  """The loss, and of a Keras model each layer's class, activation and numbers."""
  losses = model.example_losses
  # Of others a text may have addresses, which the next process does not have.
  is_plain = isinstance(losses, FadingCrossEntropy)
  given = {"loss": str(losses) if is_plain else _name(losses)}
  given["numbers of the loss"] = _numbers(losses)
  given["augment"] = "" if model.augment is None else _function(model.augment)
  if model.keras_source is not None:
    if frozen := model.keras_source.frozen_arrays():
      given["what is frozen"] = client_arrays.fingerprint(*frozen)
    layers = keras_exchange.layers_of(model.keras_source.keras_model)
    given["layers"] = str(len(layers))
    for place, layer in enumerate(layers):
      activation = getattr(layer, "activation", None)
      named = [_name(part) for part in (layer, activation) if part is not None]
      given[f"layer {place}"] = " ".join(named)
      given[f"numbers of layer {place}"] = _numbers(layer)
      if layer.compute_dtype in ("bfloat16", "float16"):
        given[f"precision of layer {place}"] = layer.compute_dtype
  return given


def _name(part: Any) -> str:
  """Of a function or of an object's class, which are the same in another process."""
  return str(getattr(part, "__qualname__", type(part).__qualname__))


def _function(function: Any) -> str:
  """Its name, and of a partial the arguments too."""
  is_partial = isinstance(function, functools.partial)
  return (_numbers if is_partial else _name)(function)


def _numbers(part: Any) -> str:
  """What decides as much: of Keras's a rate of dropout, of a partial its arguments."""
  if isinstance(part, functools.partial):
    given = {**{str(k): v for k, v in enumerate(part.args)}, **part.keywords}
    plain = (f"{n}={v}" for n, v in given.items() if isinstance(v, (*_NUMBERS, str)))
    return ", ".join([_name(part.func), *plain])
  try:
    config = dict(part.get_config())
  except Exception:  # It is none of Keras's, or its author has not thought of this.
    return ""
  config.pop("seed", None)  # Draws are from the run's.
  numbers = ((n, v) for n, v in sorted(config.items()) if isinstance(v, _NUMBERS))
  return ", ".join(f"{name}={value}" for name, value in numbers)
