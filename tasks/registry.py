"""The table of tasks: what is learned, from which data, split how, by which model.

A user's own task is a `Task` in a module of their own: `--task=my_module:my_task`. Rows
import TensorFlow and their data only when they are loaded.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
from collections.abc import Mapping

from tasks.loading import load
from tasks.rows import digits, fedagg, fedavg, fedgg, fedreg, twafl
from tasks.task import LoadedTask, Task
from tff_algos import own_code
from tff_algos.errors import InputError, check_number, check_whole_number

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
  _check_fields(name, task)
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


def _check_fields(name: str, task: Task) -> None:
  """Raises `InputError` for what would fail later, and seem to be a defect of ours."""
  for field in ("load_data", "build_keras_model", "make_model"):
    function = getattr(task, field)
    if field == "build_keras_model" and function is None:
      continue  # Not every program builds it; `loading.load` does.
    try:
      inspect.signature(function).bind(None, None)
    except TypeError:
      raise InputError(
        f"{field} of {name!r} must be a function of two arguments; found {function!r}."
      ) from None
    except ValueError:  # Some built-in functions do not say what they take.
      continue
  for field, kind, words in (
    ("name", str, "a text"),
    ("partition", str, "a text, such as 'iid'"),
    ("hparams", Mapping, "a dict of hyper-parameters"),
  ):
    value = getattr(task, field)
    if not isinstance(value, kind):
      raise InputError(f"{field} of {name!r} must be {words}; found {value!r}.")
  for field in ("clients_per_round", "rounds"):
    check_whole_number(f"{field} of {name!r}", getattr(task, field), 1)
  if task.num_clients is not None:
    check_whole_number(f"num_clients of {name!r}", task.num_clients, 1)
    if task.clients_per_round > task.num_clients:
      raise InputError(
        f"clients_per_round of {name!r} is {task.clients_per_round}, more than its "
        f"num_clients, {task.num_clients}."
      )
  if task.target_accuracy is not None:
    check_number(f"target_accuracy of {name!r}", task.target_accuracy)
