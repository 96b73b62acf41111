"""The table of tasks: what is learned, from which data, split how, by which model.

A user's own task is a `Task` in a module of their own: `--task=my_module:my_task`. Rows
import TensorFlow and their data only when they are loaded.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping

from tasks.loading import load
from tasks.rows import digits, fedagg, fedavg, fedgg, fedreg, twafl
from tasks.task import LoadedTask, Task
from tff_algos import own_code
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
  # Which imports TensorFlow, as a module with a task does.
  from tff_algos.algorithms import registry as algorithms

  task = own_code.find(name, "task")
  if not isinstance(task, Task):
    raise InputError(
      f"{name!r} is a {type(task).__name__}; a task of your own must be a "
      "tasks.registry.Task."
    )
  rows = algorithms.ALGORITHMS.values()
  known = {f.name for row in rows for f in dataclasses.fields(row.hparams_class)}
  for hparam in task.hparams:
    # Of an algorithm of one's own there may be others.
    nearest = [] if hparam in known else difflib.get_close_matches(hparam, known, n=1)
    if nearest:
      raise InputError(
        f"{name!r} has the hyper-parameter {hparam!r}, which no algorithm here has: did "
        f"you mean {nearest[0]!r}?"
      )
  return task
