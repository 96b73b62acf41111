"""Hyper-parameters as frozen dataclasses whose fields say all that a user is told.

A field carries its help text, its range, its source and whether it is *tunable*: a
tunable one is part of the server state, so that `process.set_hparams` changes it between
rounds without tracing anything again. The others shape the computation.
"""

from __future__ import annotations

import contextlib
import contextvars
import copy
import dataclasses
import math
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Optional, TypeVar

import numpy as np

from tff_algos.errors import InputError, is_held_by_float32

_H = TypeVar("_H")
# The tunable fields that are read as numbers while somebody wants to know it.
_numbers: contextvars.ContextVar[Optional[dict[str, float]]] = contextvars.ContextVar(
  "numbers", default=None
)


def hparam(
  default: Any,
  help: str,
  *,
  source: str,
  low: Optional[float] = None,
  high: Optional[float] = None,
  open_low: bool = False,
  choices: Optional[tuple[str, ...]] = None,
  tunable: bool = False,
  optional: bool = False,
) -> Any:
  """A dataclass field with what `--help`, the docs and the checks need.

  Args:
    default: The value where the user gives none; its type is the field's, but for None.
    help: One sentence with the unit.
    source: Where the default and the meaning come from: "paper, ...", "code, ...",
      "recalled", "derived" or "convention".
    low: The smallest value allowed.
    high: The largest value allowed.
    open_low: Whether `low` itself is forbidden.
    choices: The allowed words, for a field that is a word.
    tunable: Whether the value lives in the server state.
    optional: Whether `None` is allowed, which `inf` becomes.
  """
  metadata = dict(
    help=help,
    source=source,
    low=low,
    high=high,
    open_low=open_low,
    choices=choices,
    tunable=tunable,
    optional=optional,
  )
  return dataclasses.field(default=default, metadata=metadata)


def type_of(field: dataclasses.Field[Any]) -> type:
  """The type of a field's values other than None: its default's, or the annotation's."""
  if field.default is not None:
    return type(field.default)
  # The annotation is text where its module postpones annotations.
  words = re.findall(r"\w+", str(field.type))
  return next((kind for kind in (bool, int, float) if kind.__name__ in words), str)


def range_text(field: dataclasses.Field[Any]) -> str:
  """The field's range in words, such as "> 0" or "one of adaptive, fixed"."""
  meta = field.metadata
  if meta["choices"]:
    return "one of " + ", ".join(meta["choices"])
  if type_of(field) is str:
    return "any name"
  if type_of(field) is bool:
    return "true or false"
  parts = []
  if meta["low"] is not None:
    parts.append(f"{'>' if meta['open_low'] else '>='} {meta['low']:g}")
  if meta["high"] is not None:
    parts.append(f"<= {meta['high']:g}")
  text = " and ".join(parts) or "any number"
  return text + (" or inf" if meta["optional"] else "")


@dataclasses.dataclass(frozen=True)
class HyperParameters:
  """Base of every algorithm's hyper-parameters: checks them when they are made.

  Raises:
    TypeError: A value has another type than its default.
    InputError: A value lies outside its range; the message names field and range. Or a
      field was not made by `hparam`, or is asked for and is not there.
  """

  # Apart from the fields: whoever asks for `vars` is to find these alone.
  __slots__ = ("_read", "_read_in_rounds")

  def __post_init__(self) -> None:
    check_fields(type(self))
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      if field.metadata["tunable"] and hasattr(value, "graph"):
        continue  # A tensor of a graph, in a copy of what a function was given.
      value = _as_type_of(field, value)
      object.__setattr__(self, field.name, value)
      _check_range(field, value)
    object.__setattr__(self, "_read", set())
    object.__setattr__(self, "_read_in_rounds", set())

  def __getattribute__(self, name: str) -> Any:
    value = super().__getattribute__(name)
    if not name.startswith("_") and (read := getattr(self, "_read", None)) is not None:
      read.add(name)
      field = self.__dataclass_fields__.get(name)
      is_tunable = field is not None and field.metadata["tunable"]
      numbers = _numbers.get()
      if numbers is not None and is_tunable and isinstance(value, float):
        numbers[name] = value
        self._read_in_rounds.add(name)  # Of which is warned already.
    return value

  # For copies and pickles, of which nobody has read anything.
  def __getstate__(self) -> dict[str, Any]:
    slots = {n for kind in type(self).__mro__ for n in vars(kind).get("__slots__", ())}
    held = {n: object.__getattribute__(self, n) for n in slots if hasattr(self, n)}
    held.update(getattr(self, "__dict__", {}))
    return {n: v for n, v in held.items() if n not in HyperParameters.__slots__}

  def __setstate__(self, state: Mapping[str, Any]) -> None:
    for name, value in state.items():
      object.__setattr__(self, name, value)

  # Only asked for what there is not.
  def __getattr__(self, name: str) -> Any:
    if name.startswith("_"):
      raise AttributeError(name)
    raise NoSuchHparamError(
      f"{type(self).__name__} has no {name}, which this algorithm asks for: give the "
      "class that it was written for, that of its builder's default, or where this is "
      "your own, add the field."
    )


class NoSuchHparamError(InputError, AttributeError):
  """An algorithm was given the hyper-parameters of another."""


def check_fields(hparams_class: type) -> None:
  """Raises `InputError` for a class whose fields are not what `hparam` makes."""
  name = hparams_class.__name__
  for kind in hparams_class.__mro__:
    own = vars(kind).get("__annotations__", {}).values()
    is_decorated = "__dataclass_fields__" in vars(kind)
    has_fields = issubclass(kind, HyperParameters) and any(
      "ClassVar" not in str(annotation) for annotation in own
    )
    if has_fields and not is_decorated:
      raise InputError(
        f"{kind.__name__} has fields of its own, but is no dataclass: put "
        "@dataclasses.dataclass(frozen=True) before its class."
      )
  for field in dataclasses.fields(hparams_class):
    if "help" not in field.metadata:
      raise InputError(
        f"{name}.{field.name} is a plain field: make it by tff_algos.hparam."
      )
    kind, is_tunable = type_of(field), field.metadata["tunable"]
    if kind not in (bool, int, float, str) or (is_tunable and kind in (bool, str)):
      wanted = "a number" if is_tunable else "a number, a word, True or False"
      raise InputError(
        f"The default of {name}.{field.name} must be {wanted}, as it is "
        f"{'tunable' if is_tunable else 'a flag'}; found {field.default!r}."
      )


def _as_type_of(field: dataclasses.Field[Any], value: Any) -> Any:
  if isinstance(value, np.generic):  # Which JSON, where all values go, does not take.
    value = value.item()
  is_none = value is None or (isinstance(value, float) and value == math.inf)
  if field.metadata["optional"] and is_none:
    return None
  kind = type_of(field)
  whole_float = kind is float and isinstance(value, int) and value is not True
  if whole_float and value is not False:
    return float(value)
  if type(value) is not kind:
    raise TypeError(
      f"{field.name} must be {kind.__name__}, {range_text(field)}; "
      f"found {value!r} of type {type(value).__name__}."
    )
  return value


def _check_range(field: dataclasses.Field[Any], value: Any) -> None:
  meta = field.metadata
  if value is None or isinstance(value, bool):
    return
  if isinstance(value, str) and not meta["choices"]:
    return
  wanted = range_text(field)
  if not _fits(meta, value):
    is_infinite = isinstance(value, float) and not math.isfinite(value)
    wanted = f"a finite number, {wanted}" if is_infinite else wanted
    raise InputError(f"{field.name} must be {wanted}; found {value!r}.")
  if meta["tunable"] and isinstance(value, float) and not is_held_by_float32(value):
    raise InputError(
      f"{field.name} must be a number that float32 holds, {wanted}; found {value!r}."
    )


def _fits(meta: Mapping[str, Any], value: Any) -> bool:
  if meta["choices"]:
    return value in meta["choices"]
  fits = value == value and abs(value) != float("inf")
  if fits and meta["low"] is not None:
    fits = value > meta["low"] if meta["open_low"] else value >= meta["low"]
  if fits and meta["high"] is not None:
    fits = value <= meta["high"]
  return bool(fits)


def tunable_values(hparams: HyperParameters) -> OrderedDict[str, float]:
  """The tunable fields by name, in the order of the dataclass."""
  return OrderedDict(
    (f.name, object.__getattribute__(hparams, f.name))
    for f in dataclasses.fields(hparams)
    if f.metadata["tunable"]
  )


@contextlib.contextmanager
def noting_numbers() -> Iterator[dict[str, float]]:
  """What tunable fields give where they are read as numbers meanwhile, by name.

  Inside an algorithm's functions those of their `h` are tensors.
  """
  found: dict[str, float] = {}
  token = _numbers.set(found)
  try:
    yield found
  finally:
    _numbers.reset(token)


def unread_values(hparams: HyperParameters) -> OrderedDict[str, Any]:
  """The fields that are not at their defaults, and that nothing has read so far.

  None of what has not been told who reads it: a copy, or one whose class has a
  `__post_init__` without this one's.
  """
  read = getattr(hparams, "_read", None)
  if read is None:
    return OrderedDict()
  read = read | hparams._read_in_rounds
  return _given(hparams, lambda f: f.name not in read)


def fixed_values(hparams: HyperParameters) -> OrderedDict[str, Any]:
  """The tunable fields that are not at their defaults, and that no round's `h` gives.

  They were read, but from what the builder was given, which `set_hparams` never changes.
  """
  read: set[str] = getattr(hparams, "_read", set())
  others = read - getattr(hparams, "_read_in_rounds", set())
  return _given(hparams, lambda f: f.metadata["tunable"] and f.name in others)


def _given(
  hparams: HyperParameters, is_asked: Callable[[dataclasses.Field[Any]], bool]
) -> OrderedDict[str, Any]:
  fields = filter(is_asked, dataclasses.fields(hparams))
  values = ((f, object.__getattribute__(hparams, f.name)) for f in fields)
  return OrderedDict((f.name, value) for f, value in values if value != f.default)


def with_values(hparams: _H, values: Mapping[str, Any]) -> _H:
  """A copy whose fields hold `values` unchecked: tensors, inside a computation."""
  changed = copy.copy(hparams)
  if (read := getattr(hparams, "_read_in_rounds", None)) is not None:
    # An algorithm's functions get the copy.
    for name in HyperParameters.__slots__:
      object.__setattr__(changed, name, read)
  for name, value in values.items():
    object.__setattr__(changed, name, value)
  return changed
