"""What a user names as module:attribute, a task or an algorithm of their own."""

from __future__ import annotations

import functools
import importlib
import os
import sys
import traceback
from typing import Any

from tff_algos.errors import InputError

# Of the modules that were found.
_files: set[str] = set()


def passed_through(error: BaseException) -> str:
  """The last place in a user's module that an error comes through; "" for none."""
  places = [
    f"{frame.filename}, line {frame.lineno}"
    for frame in traceback.extract_tb(error.__traceback__)
    if frame.filename in _files
  ]
  return places[-1] if places else ""


def find(name: str, kind: str) -> Any:
  """The attribute of a module that is installed, or a file in the folder one is in.

  Args:
    name: module:attribute.
    kind: What it is to be, "task" or "algorithm", for messages.

  Raises:
    InputError: The module cannot be imported, or has no such attribute.
  """
  module, _, attribute = name.partition(":")
  refused = f"The {kind} {name!r} cannot be imported: "
  if not attribute or not module or module.startswith("."):
    raise InputError(
      f"{refused}give a module name and a {kind}'s, as in my_{kind}s:mine."
    )
  here = os.getcwd()
  # Python looks in the folder one is in only for what `-m` or `-c` runs. Behind all
  # others, so that no file there is taken for a library; for good, as its functions may
  # import more when they are called.
  if here not in sys.path:
    sys.path.append(here)
  try:
    found = importlib.import_module(module)
  # Whatever a user's module raises is the user's.
  except (Exception, SystemExit) as error:
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing and f"{module}.".startswith(f"{missing}."):
      reason = f"there is no module {missing!r} in {here}, and none is installed"
    else:
      said = " ".join(str(error).split()).rstrip(".")
      reason = ": ".join(filter(None, (type(error).__name__, said)))
    raise InputError(f"{refused}{reason}.") from error
  place = getattr(found, "__file__", None) or module
  if not hasattr(found, attribute):
    article = "an" if kind[0] in "aeiou" else "a"
    raise InputError(
      f"{refused}{place} has no {attribute!r}: name {article} {kind} that it has."
    )
  _files.add(place)
  return getattr(found, attribute)


def called_by(part: Any) -> Any:
  """Of a partial what it calls, whose name and module are the author's."""
  while isinstance(part, functools.partial):
    part = part.func
  return part
