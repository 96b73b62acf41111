"""What the programs share: one sentence and exit status 2 for a mistake of the user's."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from absl import app, flags, logging

from tff_algos import preflight
from tff_algos.algorithms import registry


class UsageError(Exception):
  """A mistake on the command line; the message is one sentence."""


def parse_flags(argv: Sequence[str]) -> list[str]:
  """Parses the flags that are defined.

  Raises:
    UsageError: A flag is unknown, missing or ill-formed, or there is more than flags.
  """
  try:
    rest = flags.FLAGS(argv)
  except flags.Error as error:
    raise UsageError(str(error).replace("\n", " ")) from error
  if len(rest) > 1:
    raise UsageError(
      f"This program takes flags only; found {rest[1]!r}: write --flag=value."
    )
  return rest


def check_folder(name: str, folder: str) -> None:
  """Raises `UsageError` if the folder neither is there nor can be made locally."""
  if not folder:
    raise UsageError(f"{name} is empty: name a folder.")
  if "://" in folder:
    raise UsageError(f"{folder} cannot be the {name}: it must be a local folder.")
  there = os.path.abspath(folder)
  while not os.path.exists(there):
    there = os.path.dirname(there)
  if not os.path.isdir(there) or not os.access(there, os.W_OK):
    raise UsageError(
      f"{folder} cannot be the {name}: {there} is not a folder that can be written to."
    )


def fail(error: Exception, status: int = 2) -> NoReturn:
  """Prints the error's message and ends; a traceback only with `--verbosity=1`."""
  if flags.FLAGS.is_parsed() and logging.get_verbosity() >= logging.DEBUG:
    traceback.print_exception(type(error), error, error.__traceback__)
  print(error, file=sys.stderr)
  sys.exit(status)


def parse_hparams(
  words: Sequence[str], algorithms: Sequence[str]
) -> dict[str, dict[str, Any]]:
  """Hyper-parameters of several algorithms, for each by name.

  Args:
    words: name=value, for all algorithms that have it, or algorithm:name=value.
    algorithms: Names of `registry`.

  Raises:
    UsageError: A word cannot be read, or is of none of the algorithms.
  """
  given: dict[str, dict[str, Any]] = {name: {} for name in algorithms}
  for word in words:
    key, equals, text = word.partition("=")
    owner, colon, hparam = key.rpartition(":")
    taken = False
    for name in [owner] if colon else algorithms:
      fields = {} if name not in given else _fields(name)
      if equals and hparam in fields:
        given[name][hparam] = _value(word, fields[hparam], text)
        taken = True
    if not taken:
      raise UsageError(
        f"--hparams: {word!r} is no name=value or algorithm:name=value of a "
        f"hyper-parameter of {', '.join(algorithms)}: correct it."
      )
  return given


def _fields(algorithm: str) -> dict[str, dataclasses.Field]:
  hparams = registry.get(algorithm).hparams_class
  return {field.name: field for field in dataclasses.fields(hparams)}


def _value(word: str, field: dataclasses.Field, text: str) -> Any:
  if text == "inf" and field.metadata["optional"]:
    return None
  try:
    kind: Callable[[str], Any] = type(field.default)
    return kind(text)
  except ValueError:
    raise UsageError(
      f"--hparams: {text!r} in {word!r} is not {type(field.default).__name__}: "
      "correct it."
    ) from None


def start(
  main: Callable[[Sequence[str]], object],
  parse: Callable[[Sequence[str]], list[str]] = parse_flags,
) -> None:
  """Parses the flags and runs a program.

  Args:
    main: Takes what is left of the command line.
    parse: Parses it.
  """

  def parse_or_fail(argv: Sequence[str]) -> list[str]:
    try:
      return parse(argv)
    except UsageError as error:
      fail(error)
    except SystemExit:  # absl ends with status 1 after showing the help.
      sys.exit(0)

  def run_main(argv: Sequence[str]) -> object:
    # absl raises the verbosity to INFO where the flag was not given.
    if not preflight.asks_for_messages(sys.argv):
      logging.set_verbosity(logging.WARNING)
    try:
      return main(argv)
    except BrokenPipeError:  # `--list | head`: the reader has seen enough.
      os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
      return None

  try:
    app.run(run_main, flags_parser=parse_or_fail)
  except KeyboardInterrupt:
    sys.exit(128 + signal.SIGINT)
