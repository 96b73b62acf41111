"""What is raised where it is not the library that is at fault; free of TensorFlow.

Programs print the message of these alone. Any other exception is a defect of the code
that it comes from, and is shown with its traceback.
"""

from __future__ import annotations

import inspect
import numbers
import struct
from collections.abc import Sequence
from typing import Any, Optional


class InputError(ValueError):
  """What the caller gave cannot be used; one sentence: what, where, and what to do."""


class DamagedError(InputError):
  """A file does not hold what was written to it."""


class InputWarning(UserWarning):
  """What the caller gave can be used, but hardly does what is meant; one sentence."""


class UnsupportedComputationError(NotImplementedError):
  """The computation uses something that the runtime does not run."""


class WorkerLostError(RuntimeError):
  """The worker, or every worker, did not start or died too often; not retried."""


def first_line(error: BaseException) -> str:
  """What an error says first; its type where it says nothing."""
  return (str(error).strip() or type(error).__name__).splitlines()[0]


def check_whole_number(
  name: str, value: Any, low: int, high: Optional[int] = None
) -> int:
  """The value as Python's; `InputError` unless it is an integer of low..high, no bool."""
  if isinstance(value, bool) or not isinstance(value, numbers.Integral):
    raise InputError(f"{name} must be a whole number; found {value!r}.")
  if int(value) < low:
    raise InputError(f"{name} must be at least {low}; found {value}.")
  if high is not None and int(value) > high:
    raise InputError(f"{name} must be at most {high}; found {value}.")
  return int(value)


def check_number(name: str, value: Any, *, of_float32: bool = False) -> float:
  """The value as Python's; `InputError` unless it is a real number, and no bool.

  With `of_float32` nor may one become infinite or 0 where it is computed with.
  """
  if isinstance(value, bool) or not isinstance(value, numbers.Real):
    raise InputError(f"{name} must be a number; found {value!r}.")
  try:
    number = float(value)
  except OverflowError as error:
    raise InputError(f"{name} must be a number that a float holds.") from error
  if of_float32 and not is_held_by_float32(number):
    raise InputError(f"{name} must be a number that float32 holds; found {value!r}.")
  return int(value) if isinstance(value, numbers.Integral) else number


def is_held_by_float32(number: float) -> bool:
  """Whether it does not become infinite as float32, or 0 where it is not."""
  try:
    (held,) = struct.unpack("<f", struct.pack("<f", number))
  except OverflowError:
    return False
  return bool(held) == bool(number)


def set_whole_number(frozen: object, name: str, low: int) -> None:
  """Checks a frozen dataclass's attribute and keeps it as Python's, as JSON takes it."""
  object.__setattr__(frozen, name, check_whole_number(name, getattr(frozen, name), low))


def set_number(
  frozen: object, name: str, said: Optional[str] = None, *, of_float32: bool = False
) -> None:
  """As `set_whole_number`, of a real number; `said`: what a message calls it."""
  value = check_number(said or name, getattr(frozen, name), of_float32=of_float32)
  object.__setattr__(frozen, name, value)


def check_is(name: str, value: Any, public: type, package: str = "tff_algos") -> None:
  """Raises `InputError` unless the value is of a class that the package has."""
  if not isinstance(value, public):
    raise InputError(f"{name} must be a {package}.{public.__name__}; found {value!r}.")


def check_takes(
  name: str,
  function: Any,
  arguments: Sequence[str],
  error: type[InputError] = InputError,
) -> None:
  """Raises the error unless the value can be called with so many arguments."""
  wanted = f"{name} must be a function of ({', '.join(arguments)})"
  if not callable(function):
    raise error(f"{wanted}; found {function!r}.")
  try:
    signature = inspect.signature(function)
  except ValueError:  # Some built-in functions do not say what they take.
    return
  try:
    signature.bind(*arguments)
  except TypeError as unfit:
    raise error(f"{wanted}; found one of {signature}.") from unfit


def check_function(name: str, value: Any, such_as: str = "") -> None:
  """Raises `InputError` unless the value can be called; `such_as`: words on which."""
  if not callable(value):  # Often data, of which no message could hold the text.
    raise InputError(
      f"{name} must be a function{such_as}; found a {type(value).__name__}."
    )
