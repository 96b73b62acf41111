"""Functions that a word of the command line names: name or name:key=value,..."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

from tff_algos.errors import InputError


def parse(
  spec: str,
  kind: str,
  functions: Mapping[str, Callable[..., Any]],
  *,
  given: Collection[str] = (),
) -> tuple[str, dict[str, Any]]:
  """Reads name:key=value,... by the keyword-only parameters of the function it names.

  Args:
    spec: a name of `functions`, then optionally a colon and key=value pairs separated by
      commas.
    kind: what the functions are, such as "split", for messages.
    functions: name to function; its parameters are annotated `int` or `float`, as text.
    given: parameters that are not the command line's.

  Returns:
    The name and the keyword arguments, of the right types. Whether they are in range is
    for the function to say.

  Raises:
    InputError: the name is unknown, or a parameter is unknown, malformed, of the wrong
      type, given twice or missing.
  """
  name, colon, rest = spec.partition(":")
  name = name.strip()
  said = f"{kind} {spec!r}"
  if name not in functions:
    near = difflib.get_close_matches(name.lower(), functions, n=1, cutoff=0.0)[0]
    raise InputError(
      f"{said}: there is no {kind} named {name!r}, the nearest is {near!r}: "
      f"give one of {', '.join(functions)}."
    )
  types = {
    # Annotations are text: the functions' modules import those of `__future__`.
    key: ({"int": int, "float": float}[parameter.annotation], parameter.default)
    for key, parameter in inspect.signature(functions[name]).parameters.items()
    if parameter.kind is parameter.KEYWORD_ONLY and key not in given
  }
  takes = ", ".join(
    f"{key} ({kind_of.__name__}"
    + (", required)" if default is inspect.Parameter.empty else f", {default})")
    for key, (kind_of, default) in types.items()
  )
  takes = f"{name} takes {takes or 'no parameters'}."
  kwargs: dict[str, Any] = {}
  for item in rest.split(",") if colon else ():
    key, equals, text = (part.strip() for part in item.partition("="))
    if not (key and equals and text):
      raise InputError(f"{said}: {item!r} is not of the form key=value: {takes}")
    if key not in types:
      raise InputError(f"{said}: there is no parameter {key!r}: {takes}")
    if key in kwargs:
      raise InputError(f"{said}: {key} is given twice: {takes}")
    kind_of = types[key][0]
    try:
      kwargs[key] = kind_of(text)
    except ValueError:
      raise InputError(
        f"{said}: {key}={text} is not {kind_of.__name__}: {takes}"
      ) from None
  for key, (_, default) in types.items():
    if default is inspect.Parameter.empty and key not in kwargs:
      raise InputError(f"{said}: {key} is missing: {takes}")
  return name, kwargs
