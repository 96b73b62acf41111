"""What is said where a Dask cluster, a worker or a computation on one fails."""

from __future__ import annotations

import builtins
import re
import sys
from typing import Any

import tensorflow as tf

from tff_algos.errors import InputError, UnsupportedComputationError
from tff_algos.runtimes.dask_tasks import Failed

_OURS: tuple[type[Exception], ...] = (InputError, UnsupportedComputationError)
# Of Python's, those that have a message alone, and that no program has other uses for.
_OF_MESSAGES = (
  *(ArithmeticError, AssertionError, AttributeError, ImportError, IndexError),
  *(MemoryError, NameError, RuntimeError, TypeError, ValueError),
)
_UNREADABLE = ("NotFoundError", "PermissionDeniedError")

NO_SCHEDULER = "The Dask scheduler is gone, or no longer reached."
UNLIKE = (
  "No worker of the cluster is like this machine, so that results would be rounded "
  "differently: there is {}. Use workers of one type, and the same packages "
  "and settings of TensorFlow everywhere."
)

_SAME_FILES = (
  "Every worker must read client files at the same path: use a shared --cache_dir, or "
  "copy it to all machines."
)


def tell_of_lost(event: tuple[float, Any]) -> None:
  """Says in one line that a worker was lost, if this event of Dask's is of one."""
  _, message = event
  if message.get("action") == "remove-worker" and not message.get("expected"):
    print(
      f"The worker {message.get('worker')} was lost: others do what it was doing.",
      file=sys.stderr,
      flush=True,
    )


def error_of(failed: Failed) -> Exception:
  """The worker's error, as in_process raises it; of kinds that cannot, `RuntimeError`."""
  who = "A client" if failed.client is None else f"Client {failed.client} of the cohort"
  given = f" ({', '.join(failed.given)})" if failed.given else ""
  where = f"{who}{given} on the worker {failed.worker}"
  # TensorFlow's line for a file, among others: "/path; No such file or directory".
  unreadable = re.search(r"^\S.*; \S.*$", failed.message, re.MULTILINE)
  if failed.kind in _UNREADABLE and unreadable:
    return InputError(f"{where} finds no readable file: {unreadable[0]}. {_SAME_FILES}")
  cut = re.search(r"Not a client file .*\[(.*)\]$", failed.message, re.MULTILINE)
  if cut:
    return InputError(
      f"{where} finds a file that is cut, or of another model's examples: {cut[1]}. "
      f"{_SAME_FILES}"
    )
  message = f"{where}: {failed.message}"
  known = {kind.__name__: kind for kind in _OURS}.get(failed.kind)
  if known is not None:
    return known(message)
  error = _of_kind(failed.kind, message)
  error.__cause__ = RuntimeError(f"On the worker:\n{failed.trace}")
  return error


def _of_kind(name: str, message: str) -> Exception:
  """TensorFlow's or Python's error of the name; of others, `RuntimeError`."""
  if (of_tensorflow := getattr(tf.errors, name, None)) is not None:
    error: Exception = of_tensorflow(None, None, message)
    return error
  of_python = getattr(builtins, name, None)
  if isinstance(of_python, type) and issubclass(of_python, _OF_MESSAGES):
    try:
      return of_python(message)
    except TypeError:  # One that takes more, as what encodings raise.
      pass
  return RuntimeError(f"{name}: {message}")
