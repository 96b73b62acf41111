"""How every program begins and ends: flags, sentences for mistakes, exit statuses.

| status | meaning |
|---|---|
| 0 | done |
| 1 | a run or the disk failed; or our own defect: a traceback, and asks for a report, or
      names the place in a user's own module that it comes through |
| 2 | what the user gave cannot be used: one sentence; only whole rounds were written |
| 75 | stopped early by a signal; the same command goes on, or goes on with --resume |
| 130 | ended at once by Ctrl-C; what was written before stays |
| 141 | what read its output went away, as of `| head`; as at Ctrl-C |

75 is EX_TEMPFAIL of sysexits.h.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import gc
import importlib
import io
import os
import re
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from absl import app, flags, logging

from tff_algos import durable_files, own_code, preflight
from tff_algos.errors import (
  InputError,
  InputWarning,
  UnsupportedComputationError,
  WorkerLostError,
  first_line,
)

STOPPED_EARLY = os.EX_TEMPFAIL

# What absl says in the words of its code, and a user's.
_SAID_BY_ABSL = {
  r"flag --(\w+)=None: Flag --\1 must have a value other than None\.": r"Give --\1.",
  r"flag --(\w+)=.*?: \('Non-boolean argument to boolean flag', .*\)": (
    r"--\1 is a switch: write --\1 or --no\1."
  ),
  r"^ERROR:: Unable to open flagfile: \[Errno \d+\] (.*): (['\"])(.*)\2\s*$": (
    r"The --flagfile cannot be read: \1, \3."
  ),
  r"^'utf-8' codec can't decode .*": "The --flagfile cannot be read: it is no text.",
}
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_LONGEST_NAME = 255 - len(durable_files.UNFINISHED)
_OF_MEMORY = (
  "The memory is too small ({}); what was written before stays: take fewer --threads, "
  "clients of a round or epochs, a smaller model, or a larger machine."
)
_REPORT_IT = (
  "This is a defect of the program and not of what it was given: please report it, with "
  "the command and the lines above."
)


def parse_flags(argv: Sequence[str]) -> list[str]:
  """Parses the flags that are defined.

  Raises:
    InputError: A flag is unknown, missing or ill-formed, or there is more than flags.
  """
  try:
    rest = flags.FLAGS(argv)
  except SystemExit:  # absl ends with status 1 after showing the help.
    sys.exit(0)
  except (flags.Error, UnicodeDecodeError) as error:
    raise wrong_flag(error) from error
  except ValueError as error:
    if "does not take an argument" not in str(error):  # absl of a --noswitch.
      raise
    raise wrong_flag(error) from error
  if len(rest) > 1:
    raise InputError(
      f"This program takes flags only; found {rest[1]!r}: write --flag=value."
    )
  return rest


def wrong_flag(error: Exception) -> InputError:
  """What absl has found wrong in flags or their files, in one sentence."""
  said = str(error).replace("\n", " ")
  for pattern, sentence in _SAID_BY_ABSL.items():
    said = re.sub(pattern, sentence, said)
  return InputError(said)


def given_flags(names: Sequence[str]) -> dict[str, object]:
  """The values of the flags that the command line names; others have their defaults."""
  return {name: flags.FLAGS[name].value for name in names if flags.FLAGS[name].present}


def check_folder(name: str, folder: str) -> None:
  """Raises `InputError` if the folder neither is there nor can be made locally."""
  there = check_place(name, folder)
  if not os.access(there, os.W_OK):
    raise InputError(
      f"{folder} cannot be the {name}: {there} is not a folder that can be written to."
    )


def check_place(name: str, folder: str) -> str:
  """`check_folder` of one that may do without being written to, as what is prepared.

  Returns:
    The folder that is there: itself, or the nearest above it.
  """
  if not folder:
    raise InputError(f"{name} is empty: name a folder.")
  if "://" in folder:
    raise InputError(f"{folder} cannot be the {name}: it must be a local folder.")
  try:
    folder.encode()
  except UnicodeEncodeError:
    # TensorFlow's files, and JSON, do not take it.
    raise InputError(
      f"{os.fsencode(folder)!r} cannot be the {name}: its name must be UTF-8."
    ) from None
  there = os.path.abspath(folder)
  while not os.path.exists(there):
    there = os.path.dirname(there)
  if not os.path.isdir(there):
    raise InputError(f"{folder} cannot be the {name}: {there} is not a folder.")
  return there


def check_folder_of(name: str, path: str) -> None:
  """`check_folder` of the folder that a file is to be in."""
  if "://" in path:
    raise InputError(f"{path} cannot be the {name}: it must be a local file.")
  check_folder(f"folder of {name}", os.path.dirname(os.path.abspath(path)))
  # Until it is whole it has a longer name.
  if len(os.fsencode(os.path.basename(path))) > _LONGEST_NAME:
    raise InputError(
      f"{path} cannot be the {name}: a file's name may have {_LONGEST_NAME} bytes here."
    )


def check_out_file(path: str, begins: bytes) -> None:
  """Checks where --out is to be written, for the first time or once more.

  Args:
    path: The file; its folder may be one that can be made.
    begins: What such a file begins with; no other is written over that holds anything.

  Raises:
    InputError: It is a folder or another file, or the folder neither is there nor can be
      made.
  """
  if not path:
    raise InputError("--out is empty: name a file.")
  check_folder_of("--out", path)
  if os.path.isdir(path) or path.endswith(os.sep):
    raise InputError(f"{path} cannot be the --out: it is a folder, so name a file in it.")
  if os.path.isfile(path) and not _begins_with(path, begins):  # No pipe or device.
    raise InputError(
      f"{path} cannot be the --out: it is another file, which would be lost; name a "
      "new one."
    )


def _begins_with(path: str, begins: bytes) -> bool:
  with open(path, "rb") as file:
    return file.read(len(begins)) in (begins, b"")


def _fail(error: Exception, status: int = 2) -> NoReturn:
  """Prints the error's message and ends; a traceback only with `--verbosity=1`."""
  if flags.FLAGS.is_parsed() and logging.get_verbosity() >= logging.DEBUG:
    traceback.print_exception(type(error), error, error.__traceback__)
  print(error, file=sys.stderr)
  sys.exit(status)


def _of_the_disk(error: OSError) -> str:
  # Else it is, as a rule, what was printed.
  where = error.filename or "Standard output, or another file"
  remedy = "make room" if error.errno in _NO_SPACE else "set that right"
  return (
    f"{where}: {error.strerror}; what was written before stays: {remedy} and give the "
    "same command again, which train.py takes with --resume."
  )


def _end(error: Exception) -> NoReturn:
  """Says what has gone wrong, and ends with the status that this has."""
  if isinstance(error, InputError):
    _fail(error)
  if isinstance(error, (UnsupportedComputationError, WorkerLostError)):
    _fail(error, status=1)
  # Which are nobody's mistake.
  if isinstance(error, OSError) and error.errno in durable_files.DISK_ERRORS:
    _fail(OSError(_of_the_disk(error)), status=1)
  # By its name, as TensorFlow may not be imported.
  if "ResourceExhaustedError" in {kind.__name__ for kind in type(error).__mro__}:
    error = MemoryError(first_line(error))
  if isinstance(error, MemoryError):
    _fail(MemoryError(_OF_MEMORY.format(str(error) or "no more is there")), status=1)
  traceback.print_exception(type(error), error, error.__traceback__)
  through = own_code.passed_through(error)
  if through:
    print(f"Look at {through} first, which the error comes through.", file=sys.stderr)
  else:
    print(_REPORT_IT, file=sys.stderr)
  sys.exit(1)


_format_with_source = warnings.formatwarning


def _format_warning(message, category, *source, **more) -> str:
  """The sentence alone of what was given: where our code says it is nothing to a user."""
  if issubclass(category, InputWarning):
    return f"Warning: {message}\n"
  return _format_with_source(message, category, *source, **more)


@contextlib.contextmanager
def handling_stops(handle: Callable[[int, Any], None]) -> Iterator[None]:
  """Calls `handle(number, frame)` at Ctrl-C, SIGTERM and, but under nohup, SIGHUP.

  Outside of the main thread, which alone gets signals, nothing is handled.
  """
  if threading.current_thread() is not threading.main_thread():
    yield
    return
  terminals = [fd for fd in (1, 2) if os.isatty(fd)]

  def handle_hangup(number: int, frame: Any) -> None:
    for fd in terminals:
      if not os.isatty(fd):  # It is closed: what is written there would be an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), fd)
    handle(number, frame)

  numbers = [signal.SIGINT, signal.SIGTERM]
  before = [signal.signal(number, handle) for number in numbers]
  if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
    numbers.append(signal.SIGHUP)
    before.append(signal.signal(signal.SIGHUP, handle_hangup))
  try:
    yield
  finally:
    for number, handler in zip(numbers, before):
      signal.signal(number, handler)


def start(
  main: Callable[[], object],
  parse: Callable[[Sequence[str]], list[str]] = parse_flags,
  *,
  imports: str = "",
) -> None:
  """Parses the flags, runs a program and ends with its status.

  Args:
    main: The program; what it returns, if anything, is the exit status.
    parse: Parses the flags.
    imports: A module of `main` that imports TensorFlow: where absl's `main` is the first
      to do so, Keras makes no models ("Output tensors of a Sequential model must ...").
  """

  def parse_or_fail(argv: Sequence[str]) -> list[str]:
    # TensorFlow's modules stay: looking through them for garbage is a fifth of the
    # time of a short run.
    gc.disable()
    try:
      rest = parse(argv)
      if imports:
        importlib.import_module(imports)
      return rest
    except Exception as error:
      _end(error)
    finally:
      gc.freeze()
      gc.enable()

  def run_main(argv: Sequence[str]) -> object:
    del argv
    # absl raises the verbosity to INFO where the flag was not given.
    if not preflight.asks_for_messages(sys.argv):
      logging.set_verbosity(logging.WARNING)
    # Of warnings, `preflight` silences libraries' for programs; these are the user's.
    warnings.filterwarnings("default", category=InputWarning)
    warnings.formatwarning = _format_warning
    out = sys.stdout
    if isinstance(out, io.TextIOWrapper) and (
      out.errors == "strict" or codecs.lookup(out.encoding).name != "utf-8"
    ):
      out.reconfigure(errors="backslashreplace")  # Such as a "±" where ASCII is.
    try:
      return main()
    except BrokenPipeError:  # Not 0, as what it does beside may not be done.
      os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
      return 128 + signal.SIGPIPE
    except Exception as error:
      _end(error)

  try:
    app.run(run_main, flags_parser=parse_or_fail)
  except KeyboardInterrupt:
    sys.exit(128 + signal.SIGINT)
  finally:
    gc.freeze()  # Python looks once more before it ends.
