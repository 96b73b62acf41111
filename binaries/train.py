"""Trains one federated-learning algorithm on one task.

  python binaries/train.py --algorithm=fedgg --task=digits_cnn

`--list` shows the algorithms and tasks; `--algorithm=NAME --help` the flags of one.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":  # Before what a broken environment fails to import.
  sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
  from tff_algos import preflight

  preflight.check_and_quiet(sys.argv)

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from absl import flags

from binaries import command_line
from tasks import registry as tasks_registry
from tff_algos.algorithms import registry as algorithms_registry

_COMMON_HPARAMS = ("epochs", "batch_size", "learning_rate", "momentum")
_DEFAULT_ALGORITHM = "fedavg"
_DEFAULT_TASK = "digits_cnn"

_LIST = flags.DEFINE_boolean("list", False, "List the algorithms and tasks, and end.")
_RESUME = flags.DEFINE_boolean(
  "resume",
  False,
  "Go on with the run that --run_dir holds, from its newest checkpoint; start it if "
  "there is none.",
)
flags.DEFINE_string(
  "algorithm", _DEFAULT_ALGORITHM, f"One of {', '.join(algorithms_registry.ALGORITHMS)}."
)
flags.DEFINE_string(
  "task",
  _DEFAULT_TASK,
  f"One of {', '.join(tasks_registry.TASKS)}; or module:attribute, a "
  "tasks.registry.Task of your own.",
)
flags.DEFINE_integer("rounds", None, "Rounds in all; default: the task's.")
flags.DEFINE_integer(
  "num_clients",
  None,
  "All clients (N); default: the task's, or as many roles, users or sources as its data "
  "have.",
)
flags.DEFINE_integer(
  "clients_per_round", None, "Clients of one round; default: the task's."
)
flags.DEFINE_string(
  "partition",
  None,
  "How the examples are split over the clients: name or name:key=value,..., such as "
  "iid, shards:shards_per_client=2, dirichlet:beta=0.1; default: the task's.",
)
flags.DEFINE_integer(
  "partition_seed", 0, "Seed of the split, so that repeats with other --seed share it."
)
flags.DEFINE_integer("seed", 0, "Seed of weights, cohorts, shuffles and noise.")
flags.DEFINE_string(
  "run_dir", None, "Folder for the results; default: a new one under runs/."
)
flags.DEFINE_string(
  "data_dir",
  None,
  "Folder of the data set: a TFDS folder or, for CIFAR-10, one with train/ and test/ "
  "pictures, or what the publisher of another set hands out; default: TFDS's own.",
)
flags.DEFINE_string(
  "cache_dir", "~/.cache/tff_algos", "Folder for prepared client data, used again."
)
flags.DEFINE_integer("eval_every", 1, "Rounds between evaluations on the test set.")
flags.DEFINE_integer(
  "checkpoint_every", 10, "Rounds between checkpoints; 0: only when stopped."
)
flags.DEFINE_float(
  "target_accuracy", None, "Report the first round that reaches it, 0 to 1."
)
flags.DEFINE_string(
  "runtime", "in_process", "in_process, local_worker or remote_workers."
)
flags.DEFINE_integer(
  "threads",
  None,
  "Clients worked on at once on each device of in_process; default: one on a GPU, on the "
  "CPU one for each core.",
)
flags.DEFINE_list(
  "devices",
  None,
  "Where in_process places clients, in turn: GPU:0,GPU:1; default: all GPUs, else CPU:0.",
)
flags.DEFINE_list(
  "workers",
  None,
  "The workers of remote_workers, started by binaries/worker.py: host:port,...",
)
flags.DEFINE_string(
  "worker_certificate",
  None,
  "What remote_workers shows the workers, a PEM file; without it, its key and its "
  "authority: they run with --trusted_network.",
)
flags.DEFINE_string("worker_key", None, "The certificate's private key, a PEM file.")
flags.DEFINE_string(
  "worker_authority",
  None,
  "The certificate of the authority that signed the workers', a PEM file.",
)


def _define_hparam_flags(algorithm: str) -> None:
  hparams = algorithms_registry.get(algorithm).hparams_class
  from tff_algos import hyper_parameters

  for field in dataclasses.fields(hparams):
    help_text = (
      f"{field.metadata['help']} Range: {hyper_parameters.range_text(field)}. Default: "
      f"{'the task' if field.name in _COMMON_HPARAMS else field.default}. Source: "
      f"{field.metadata['source']}."
    )
    name = _flag_name(algorithm, field.name)
    # `main` is where absl looks for the flags that --help shows.
    place = dict(module_name=sys.argv[0])
    if field.metadata["optional"]:
      flags.DEFINE_string(name, None, help_text, **place)
    elif isinstance(field.default, float):
      flags.DEFINE_float(name, None, help_text, **place)
    elif isinstance(field.default, int):
      flags.DEFINE_integer(name, None, help_text, **place)
    else:
      flags.DEFINE_string(name, None, help_text, **place)


def _flag_name(algorithm: str, hparam: str) -> str:
  return hparam if hparam in _COMMON_HPARAMS else f"{algorithm}_{hparam}"


def _value_in(argv: Sequence[str], flag: str, default: str) -> str:
  """A flag's value before flags are parsed: which flags there are depends on it."""
  value = default
  for i, word in enumerate(argv):
    name, equals, rest = word.lstrip("-").partition("=")
    if word.startswith("-") and name == flag:
      value = rest if equals else (argv[i + 1] if i + 1 < len(argv) else "")
  return value


def _parse(argv: Sequence[str]) -> list[str]:
  """Defines the chosen algorithm's flags, then parses them all."""
  try:
    argv = [argv[0], *flags.FLAGS.read_flags_from_files(argv[1:], force_gnu=False)]
  except flags.Error as error:
    raise command_line.UsageError(str(error)) from error
  if "--list" in argv:
    return command_line.parse_flags([argv[0], "--list"])
  algorithm = _value_in(argv, "algorithm", _DEFAULT_ALGORITHM)
  task = _value_in(argv, "task", _DEFAULT_TASK)
  try:
    algorithms_registry.get(algorithm)
    if ":" not in task:
      tasks_registry.get(task)
  except ValueError as error:
    raise command_line.UsageError(str(error)) from error
  _define_hparam_flags(algorithm)
  _check_foreign_flags(argv, algorithm)
  return command_line.parse_flags(argv)


def _check_foreign_flags(argv: Sequence[str], algorithm: str) -> None:
  for word in argv[1:]:
    if not word.startswith("-"):
      continue
    name = word.lstrip("-").partition("=")[0]
    if name in flags.FLAGS:
      continue
    # The longest name: fedreg_mg_gamma is not a flag of fedreg.
    owners = [a for a in algorithms_registry.ALGORITHMS if name.startswith(f"{a}_")]
    owner = max(owners, key=len, default=algorithm)
    if owner != algorithm:
      raise command_line.UsageError(
        f"--{name} is a flag of {owner}, but this run's algorithm is {algorithm}: "
        f"leave it out or choose --algorithm={owner}."
      )
    if name in _COMMON_HPARAMS:
      raise command_line.UsageError(
        f"{algorithm} has no hyper-parameter {name}, so leave --{name} out."
      )


def _print_list() -> None:
  tables: dict[str, Mapping[str, Any]] = {
    "algorithms": algorithms_registry.ALGORITHMS,
    "tasks": tasks_registry.TASKS,
  }
  for title, rows in tables.items():
    print(f"{title}:")
    for name, row in rows.items():
      print(f"  {name:<{max(map(len, rows))}} {row.description}")


def _given_hparams(algorithm: str) -> dict[str, Any]:
  given = {}
  for field in dataclasses.fields(algorithms_registry.get(algorithm).hparams_class):
    value = flags.FLAGS[_flag_name(algorithm, field.name)].value
    if value is not None:
      is_number = field.metadata["optional"]
      given[field.name] = _whole_number_or_inf(field.name, value) if is_number else value
  return given


def _whole_number_or_inf(name: str, text: str) -> Optional[int]:
  if text == "inf":
    return None
  try:
    return int(text)
  except ValueError:
    raise command_line.UsageError(
      f"--{name} must be a whole number or inf; found {text!r}."
    ) from None


def main(argv: Sequence[str]) -> None:
  """Runs what the flags say."""
  del argv
  if _LIST.value:
    _print_list()
    return
  from binaries import experiment
  from tff_algos.runtimes.compiler import UnsupportedComputationError
  from tff_algos.runtimes.local_worker import WorkerLostError

  if _RESUME.value and flags.FLAGS.run_dir is None:
    command_line.fail(
      command_line.UsageError(
        "--resume needs --run_dir, the folder of the run to resume."
      )
    )
  sys.path.append(os.getcwd())  # Where a task of the user's own may be.
  names = {field.name for field in dataclasses.fields(experiment.Config)} - {"hparams"}
  try:
    config = experiment.make_config(
      hparams=_given_hparams(flags.FLAGS.algorithm),
      **{name: flags.FLAGS[name].value for name in names},
    )
    experiment.run(config, resume=_RESUME.value)
  except (command_line.UsageError, experiment.InputError) as error:
    command_line.fail(error)
  except (WorkerLostError, UnsupportedComputationError) as error:
    command_line.fail(error, status=1)


if __name__ == "__main__":
  command_line.start(main, _parse)
