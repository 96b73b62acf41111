"""The one table of algorithms: it drives the flags, the docs, the tests and the runs.

Its rows are those that the modules of this package declare as their `ALGORITHMS`.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Mapping

from tff_algos import algorithms
from tff_algos.errors import InputError
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
  """The row of an algorithm.

  Raises:
    InputError: There is none of this name; the message gives the nearest.
  """
  if name not in ALGORITHMS:
    nearest = difflib.get_close_matches(name, ALGORITHMS, n=1, cutoff=0)[0]
    raise InputError(
      f"There is no algorithm {name!r}: did you mean {nearest!r}? "
      f"The algorithms are {', '.join(ALGORITHMS)}."
    )
  return ALGORITHMS[name]
