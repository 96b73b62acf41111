"""The command line of train.py, whose flags depend on the algorithm."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from absl import flags

from experiments import command_line
from experiments.config import Config, check_held, field_names, make_config, read_hparam
from experiments.run_folder.folder import CONFIG, FREE_SETTINGS, RunFolder
from tasks import registry as tasks_registry
from tff_algos import hyper_parameters
from tff_algos.algorithms import registry as algorithms_registry
from tff_algos.errors import InputError
from tff_algos.templates.algorithm import Algorithm

#: Hyper-parameters whose flags have no algorithm's name before them.
COMMON = ("epochs", "batch_size", "learning_rate", "momentum")


def with_flag_files(argv: Sequence[str]) -> list[str]:
  """The command line with what the files of `--flagfile` hold in their places.

  Raises:
    InputError: Such a file cannot be read.
  """
  try:
    return [argv[0], *flags.FLAGS.read_flags_from_files(argv[1:], force_gnu=False)]
  except (flags.Error, UnicodeDecodeError) as error:
    raise command_line.wrong_flag(error) from error


def parse(argv: Sequence[str]) -> list[str]:
  """Defines the chosen algorithm's flags, then parses them all.

  The algorithm is that of the command line, or of the run that is resumed.

  Raises:
    InputError: The flags are wrong.
  """
  argv = with_flag_files(argv)
  if "--list" in argv:
    return command_line.parse_flags([argv[0], "--list"])
  held = _held(value_in(argv, "run_dir", "")) if _resumes(argv) else {}
  for name in ("algorithm", "task"):
    flags.FLAGS.set_default(name, str(held.get(name, flags.FLAGS[name].default)))
  algorithm, task = value_in(argv, "algorithm"), value_in(argv, "task")
  row = algorithms_registry.get(algorithm)
  if ":" not in task:
    tasks_registry.get(task)
  define_hparam_flags([row])
  check_foreign_flags(argv, [algorithm])
  return command_line.parse_flags(argv)


@functools.cache  # Whose default folder's name has the time.
def config() -> Config:
  """The settings that the parsed flags say, over those of the run that is resumed.

  Raises:
    InputError: They cannot be used, or are not those of that run.
  """
  values = flags.FLAGS
  if values.resume and values.run_dir is None:
    raise InputError("--resume needs --run_dir, the folder of the run to resume.")
  held = _held(values.run_dir) if values.resume else {}
  own = ("algorithm", "task", "hparams")
  given = command_line.given_flags([name for name in field_names() if name not in own])
  made = make_config(
    values.algorithm,
    values.task,
    held=held or None,
    hparams=given_hparams(algorithms_registry.get(values.algorithm)),
    **given,
  )
  if held:  # Before TensorFlow is imported.
    settings = {"flags": dataclasses.asdict(made)}
    RunFolder(made.run_dir).check(settings, free=FREE_SETTINGS)
  return made


def print_list() -> None:
  """Prints the algorithms and the tasks."""
  tables: dict[str, Mapping[str, Any]] = {
    "algorithms": algorithms_registry.ALGORITHMS,
    "tasks": tasks_registry.TASKS,
  }
  for title, rows in tables.items():
    print(f"{title}:")
    for name, row in rows.items():
      print(f"  {name:<{max(map(len, rows))}} {row.description}")


def _held(run_dir: str) -> Mapping[str, Any]:
  """The flags of the run that is to be resumed; {} for none."""
  folder = RunFolder(run_dir)
  held = (folder.read() or {}).get("flags", {}) if run_dir else {}
  check_held(held, folder.file(CONFIG))
  return held


def _resumes(argv: Sequence[str]) -> bool:
  return any(word.partition("=")[0] in ("-resume", "--resume") for word in argv)


def value_in(argv: Sequence[str], flag: str, default: Optional[str] = None) -> str:
  """A flag's value before flags are parsed: which flags there are depends on it."""
  value = flags.FLAGS[flag].default if default is None else default
  for i, word in enumerate(argv):
    name, equals, rest = word.lstrip("-").partition("=")
    if word.startswith("-") and name == flag:
      value = rest if equals else (argv[i + 1] if i + 1 < len(argv) else "")
  return value


def define_hparam_flags(rows: Sequence[Algorithm]) -> None:
  """Defines the flags of the hyper-parameters of algorithms, shared ones once.

  Raises:
    InputError: One would have the name of another flag.
  """
  shared: set[str] = set()
  for row in rows:
    _define_flags_of(row, shared)


def _define_flags_of(row: Algorithm, shared: set[str]) -> None:
  tasks = tasks_registry.TASKS.values()
  for field in dataclasses.fields(row.hparams_class):
    default = field.default
    if any(field.name in task.hparams for task in tasks):
      default = f"the task's, else {default}"
    help_text = (
      f"{field.metadata['help']} Range: {hyper_parameters.range_text(field)}. Default: "
      f"{default}. Source: {field.metadata['source']}."
    )
    name = flag_name(row, field.name)
    if name in shared:
      continue
    if name in flags.FLAGS:
      raise InputError(
        f"The hyper-parameter {field.name} of {row.name} would have the flag --{name}, "
        "which this program has already: rename it, or the algorithm."
      )
    shared.update([name] if name in COMMON else [])
    # `main` is where absl looks for the flags that --help shows.
    place = dict(module_name=sys.argv[0])
    if field.metadata["optional"]:
      flags.DEFINE_string(name, None, help_text, **place)
    elif isinstance(field.default, bool):
      flags.DEFINE_boolean(name, None, help_text, **place)
    elif isinstance(field.default, float):
      flags.DEFINE_float(name, None, help_text, **place)
    elif isinstance(field.default, int):
      flags.DEFINE_integer(name, None, help_text, **place)
    else:
      flags.DEFINE_string(name, None, help_text, **place)


def flag_name(row: Algorithm, hparam: str) -> str:
  """The flag of a hyper-parameter."""
  return hparam if hparam in COMMON else f"{row.name}_{hparam}"


def check_foreign_flags(argv: Sequence[str], algorithms: Sequence[str]) -> None:
  """Raises `InputError` for the flag of an algorithm that is not among those run."""
  which = " and ".join(algorithms)
  for word in argv[1:]:
    if not word.startswith("-"):
      continue
    name = word.lstrip("-").partition("=")[0]
    if name in flags.FLAGS:
      continue
    # The longest name: fedreg_mg_gamma is not a flag of fedreg.
    owners = [a for a in algorithms_registry.ALGORITHMS if name.startswith(f"{a}_")]
    owner = max(owners, key=len, default=None)
    if owner is not None and owner not in algorithms:
      flag = "algorithm" if "algorithm" in flags.FLAGS else "algorithms"
      raise InputError(
        f"--{name} is a flag of {owner}, but this run's algorithm is {which}: "
        f"leave it out or choose --{flag}={owner}."
      )
    if name in COMMON:
      raise InputError(f"{which} has no hyper-parameter {name}, so leave --{name} out.")
    for row in map(algorithms_registry.get, algorithms):
      if name in (field.name for field in dataclasses.fields(row.hparams_class)):
        raise InputError(
          f"There is no flag --{name}: {row.name}'s is --{flag_name(row, name)}."
        )


def given_hparams(row: Algorithm) -> dict[str, Any]:
  """The hyper-parameters of an algorithm that the parsed flags give."""
  given = {}
  for field in dataclasses.fields(row.hparams_class):
    flag = flag_name(row, field.name)
    value = flags.FLAGS[flag].value
    if value is not None:
      given[field.name] = hparam_value(flag, field, value)
  return given


def hparam_value(flag: str, field: dataclasses.Field, value: Any) -> Any:
  """A hyper-parameter as its class takes it, of what its flag has parsed."""
  if not field.metadata["optional"]:
    return value
  try:
    return read_hparam(field, value)
  except ValueError as error:
    raise InputError(f"--{flag} {error}.") from None
