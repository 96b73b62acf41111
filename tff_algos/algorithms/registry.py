"""The one table of algorithms: it drives the flags, the docs, the tests and the runs.

Its rows are those that the modules of this package declare as their `ALGORITHMS`; an
algorithm of a user's own is named as module:attribute.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import pkgutil
from collections.abc import Mapping
from typing import Any

from tff_algos import algorithms, hyper_parameters, own_code
from tff_algos.errors import InputError
from tff_algos.hyper_parameters import HyperParameters
from tff_algos.templates.algorithm import Algorithm


def _find_rows() -> dict[str, Algorithm]:
  rows: dict[str, Algorithm] = {}
  for _, module, _ in pkgutil.iter_modules(algorithms.__path__, "tff_algos.algorithms."):
    if module != __name__:
      for row in importlib.import_module(module).ALGORITHMS:
        if row.name in rows:
          raise ValueError(f"{module} declares {row.name!r}, which another module has.")
        rows[row.name] = row
  return dict(sorted(rows.items()))


ALGORITHMS: Mapping[str, Algorithm] = _find_rows()


def get(name: str) -> Algorithm:
  """The row of an algorithm, or of that which `module:attribute` names.

  The attribute is an `Algorithm`, a sequence of one, or a builder `(model, hparams)`,
  whose default for `hparams` says the class; then the name is the builder's, without
  `build_`.

  Raises:
    InputError: There is none of this name; the message gives the nearest. Or the module
      cannot be imported, or the attribute is none of these.
  """
  if ":" in name:
    return _own(name)
  if name not in ALGORITHMS:
    nearest = difflib.get_close_matches(name, ALGORITHMS, n=1, cutoff=0)[0]
    raise InputError(
      f"There is no algorithm {name!r}: did you mean {nearest!r}? The algorithms are "
      f"{', '.join(ALGORITHMS)}, or module:attribute for one of your own."
    )
  return ALGORITHMS[name]


def _own(name: str) -> Algorithm:
  found = own_code.find(name, "algorithm")
  if isinstance(found, (tuple, list)) and not isinstance(found, Algorithm):
    if len(found) != 1:
      raise InputError(
        f"{name!r} holds {len(found)} algorithms: name the builder of one of them."
      )
    [found] = found
  row = found if isinstance(found, Algorithm) else _row_of_builder(name, found)
  if not isinstance(row.name, str) or not row.name.isidentifier():
    raise InputError(
      f"{name!r} is called {row.name!r}, which its flags cannot begin with: give it a "
      "name of letters, digits and underscores."
    )
  row.check_builder()
  kind = row.hparams_class
  if not isinstance(kind, type) or not issubclass(kind, HyperParameters):
    raise InputError(
      f"The hparams_class of {name!r} must be a class of tff_algos.HyperParameters; "
      f"found {kind!r}."
    )
  hyper_parameters.check_fields(kind)
  return row


def _row_of_builder(name: str, builder: Any) -> Algorithm:
  asked = (
    f"{name!r} must be a tff_algos.Algorithm, or a function (model, hparams) whose "
    "default for hparams is a tff_algos.HyperParameters"
  )
  if not inspect.isfunction(builder):
    raise InputError(f"{asked}; it is a {type(builder).__name__}.")
  parameter = inspect.signature(builder).parameters.get("hparams")
  default = parameter and parameter.default
  if not isinstance(default, HyperParameters):
    raise InputError(f"{asked}; {builder.__name__} has no such default.")
  if default != type(default)():
    raise InputError(
      f"The default for hparams of {name!r} is not {type(default).__name__}(): put its "
      "values into the class, where the flags find them."
    )
  description = (inspect.getdoc(builder) or "").partition("\n")[0]
  short = builder.__name__.removeprefix("build_")
  return Algorithm(short, builder, type(default), description, "your own")
