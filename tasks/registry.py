"""The table of tasks: what is learned, from which data, split how, by which model.

A user's own task is a `Task` in a module of their own: `--task=my_module:my_task`. Rows
import TensorFlow and their data only when they are loaded.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Mapping

from tasks.loading import load
from tasks.rows import digits, fedagg, fedavg, fedgg, fedreg, twafl
from tasks.task import LoadedTask, Task
from tff_algos.errors import InputError

__all__ = ["TASKS", "LoadedTask", "Task", "get", "load"]

TASKS: Mapping[str, Task] = {
  row.name: row
  for rows in (digits, fedavg, fedgg, twafl, fedagg, fedreg)
  for row in rows.ROWS
}


def get(name: str) -> Task:
  """The row of a task, or the `Task` that `module:attribute` names.

  Raises:
    InputError: There is none of this name; the message gives the nearest. Or the module
      cannot be imported, for which it gives the reason.
  """
  if ":" in name:
    return _import_task(name)
  if name not in TASKS:
    nearest = difflib.get_close_matches(name, TASKS, n=1, cutoff=0)[0]
    raise InputError(
      f"There is no task {name!r}: did you mean {nearest!r}? "
      f"The tasks are {', '.join(TASKS)}, or module:attribute for one of your own."
    )
  return TASKS[name]


def _import_task(name: str) -> Task:
  module, _, attribute = name.partition(":")
  refused = f"The task {name!r} cannot be imported: "
  if not attribute or not module or module.startswith("."):
    raise InputError(f"{refused}give a module name and a task's, as in my_tasks:mine.")
  here = os.getcwd()
  # Python looks in the folder one is in only for what `-m` or `-c` runs. Behind all
  # others, so that no file there is taken for a library; for good, as the task's
  # functions may import more when they are called.
  if here not in sys.path:
    sys.path.append(here)
  try:
    found = importlib.import_module(module)
  except Exception as error:  # Whatever a user's module raises is the user's.
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing and f"{module}.".startswith(f"{missing}."):
      reason = f"there is no module {missing!r} in {here}, and none is installed"
    else:
      reason = f"{type(error).__name__}: {' '.join(str(error).split()).rstrip('.')}"
    raise InputError(f"{refused}{reason}.") from error
  if not hasattr(found, attribute):
    place = getattr(found, "__file__", None) or module
    raise InputError(f"{refused}{place} has no {attribute!r}: name a task that it has.")
  task = getattr(found, attribute)
  if not isinstance(task, Task):
    raise InputError(
      f"{name!r} is a {type(task).__name__}; a task of your own must be a "
      "tasks.registry.Task."
    )
  return task
