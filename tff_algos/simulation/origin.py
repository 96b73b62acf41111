"""What a run has begun with, and one that goes on from its checkpoints must have too."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from tff_algos.client_data import ClientDirectory
from tff_algos.errors import InputError
from tff_algos.models import keras_exchange
from tff_algos.models.functional import FadingCrossEntropy, Model
from tff_algos.templates.rounds import Round
from tff_algos.templates.stateful_process import StatefulProcess

if TYPE_CHECKING:
  from tff_algos.simulation.loop import Settings

_NUMBERS = (int, float, np.number)
# Names to values as texts, which of floats tell each from every other.
Origin = Mapping[str, str]


def of(
  process: StatefulProcess, state: Any, clients: ClientDirectory, settings: Settings
) -> Origin:
  """Who takes part, the seed, and the hyper-parameters, by the initial state if tunable.

  Clients' states go by the clients' places, and who is held out has never trained. Of
  algorithm, model and aggregators there are the names, as their states may be alike.
  """
  parts = process.composed_of
  hparams = parts.get("hparams")
  names = [f.name for f in dataclasses.fields(hparams)] if hparams is not None else []
  given = {
    **({} if hparams is None else {"hparams": _name(hparams)}),
    **({} if process.model is None else _of_model(process.model)),
    **_of_own_functions(parts.get("rounds", {})),
    **{
      f"aggregator of {part}": _name(factory)
      for part, factory in parts.get("aggregators", {}).items()
    },
    "seed": settings.seed,
    "held_out_clients": settings.held_out_clients,
    "clients": f"{len(clients)} of digest {clients.digest()}",
  }
  values = {name: getattr(hparams, name) for name in names}
  values.update(process.get_hparams(state))
  # One of a user's own may be called as what is there already.
  given.update((f"hparams.{n}" if n in given else n, v) for n, v in values.items())
  return {name: str(value) for name, value in given.items()}


def _of_own_functions(kinds: Mapping[str, Round]) -> Mapping[str, str]:
  """What a user has written of rounds; ours go by their hyper-parameters' class."""
  return {
    f"{name} {kind}".rstrip(): "" if _is_ours(function) else _name(function)
    for kind, functions in kinds.items()
    for name, function in functions._asdict().items()
    if callable(function)
  }


def _is_ours(function: Any) -> bool:
  # What wraps one of ours may have its names.
  is_wrapper = hasattr(function, "__wrapped__")
  module = "" if is_wrapper else getattr(function, "__module__", "")
  return str(module).startswith("tff_algos.")


def _of_model(model: Model) -> Mapping[str, str]:
  """The loss, and of a Keras model each layer's class, activation and numbers."""
  losses = model.example_losses
  # Of others a text may have addresses, which the next process does not have.
  is_plain = isinstance(losses, FadingCrossEntropy)
  given = {"loss": str(losses) if is_plain else _name(losses)}
  given["numbers of the loss"] = _numbers(losses)
  if model.keras_source is not None:
    layers = keras_exchange.layers_of(model.keras_source.keras_model)
    given["layers"] = str(len(layers))
    for place, layer in enumerate(layers):
      activation = getattr(layer, "activation", None)
      named = [_name(part) for part in (layer, activation) if part is not None]
      given[f"layer {place}"] = " ".join(named)
      given[f"numbers of layer {place}"] = _numbers(layer)
  return given


def _name(part: Any) -> str:
  """Of a function or of an object's class, which are the same in another process."""
  return str(getattr(part, "__qualname__", type(part).__qualname__))


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


def check(origin: Origin, found: Optional[Origin], folder: str) -> None:
  """Compares a run with the one in its folder; older versions kept less, or None.

  Raises:
    InputError: They began with another seed, other clients or other hyper-parameters.
  """
  kept = found or {}
  other = [n for n, value in origin.items() if kept.get(n, value) != value]
  if other:
    was, now = (", ".join(f"{n}={o[n]}" for n in other) for o in (kept, origin))
    raise InputError(
      f"The run in {folder} began with {was}, but this one has {now}: resume with what "
      "it began with, or choose another folder."
    )
