"""Measures how much local training forgets of the data of the round before.

  python binaries/forgetting.py --task=mnist_two_class --algorithms=fedavg,fedreg --fisher
  python binaries/forgetting.py --task=mnist_two_class --driver=fedavg --algorithms=fedavg

The driver is trained as by train.py, into the same kind of folder. In the rounds that are
measured, every algorithm trains the round's clients from the driver's global model, and
the loss of the clients of the round before is compared: under that model and under the
local ones [paper, FedReg, Figures 1, 2 and C.1]. `--fisher` adds the correlation of the
empirical Fisher information of FedReg's pseudo data with that of the clients of the last
10 rounds. The folder then also holds forgetting.csv, fisher.csv, forgetting.json (the
settings), forgetting.png, increase.png and table.md.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":  # Before what a broken environment fails to import.
  sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
  from tff_algos import preflight

  preflight.check_and_quiet(sys.argv)

from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags

from binaries import command_line, forgetting_records
from tff_algos import preflight
from tff_algos.algorithms import registry

# Figure 2 compares FedReg with FedAvg at the same gradients [paper, Appendix B.3].
_PAPER: Mapping[str, Mapping[str, Any]] = {"fedreg": {"gamma": 1.0}}

_TASK = flags.DEFINE_string("task", "mnist_two_class", "A task, as of train.py.")
_ALGORITHMS = flags.DEFINE_list(
  "algorithms", ["fedavg", "fedreg"], "What is measured, with commas between."
)
_DRIVER = flags.DEFINE_string(
  "driver", "fedreg", "The algorithm whose global model all start from."
)
_HPARAMS = flags.DEFINE_list(
  "hparams",
  [],
  "Hyper-parameters as name=value, of every algorithm that has it, or "
  "algorithm:name=value, of one; default: the task's, and fedreg:gamma=1.",
)
_FISHER = flags.DEFINE_boolean(
  "fisher", False, "Also correlate the Fisher information of FedReg's pseudo data."
)
flags.DEFINE_boolean(
  "resume", False, "Go on with what --run_dir holds, from its newest checkpoint."
)
flags.DEFINE_integer("rounds", None, "Rounds in all, >= 2; default: the task's.")
flags.DEFINE_integer(
  "eval_every", 10, "Rounds between measurements; the last round is measured too."
)
flags.DEFINE_integer("num_clients", None, "All clients (N); default: the task's.")
flags.DEFINE_integer("clients_per_round", None, "Of one round; default: the task's.")
flags.DEFINE_string("partition", None, "The split, as of train.py; default: the task's.")
flags.DEFINE_integer("partition_seed", 0, "Seed of the split.")
flags.DEFINE_integer("seed", 0, "Seed of weights, cohorts, shuffles and noise.")
flags.DEFINE_string("run_dir", None, "Folder for the results; default: new, in runs/.")
flags.DEFINE_string("data_dir", None, "Folder of the data set; default: TFDS's own.")
flags.DEFINE_string("cache_dir", "~/.cache/tff_algos", "Folder for client data.")

_CONFIG_FLAGS = (
  *("task", "rounds", "eval_every", "num_clients", "clients_per_round", "partition"),
  *("partition_seed", "seed", "run_dir", "data_dir", "cache_dir"),
)


def _parse(argv: Sequence[str]) -> list[str]:
  """Parses the flags and checks them.

  TensorFlow must be imported here, before absl calls `main`: where `main` is the first to
  import it, Keras makes no models.

  Raises:
    UsageError: The flags are wrong.
  """
  rest = command_line.parse_flags(argv)
  names = _ALGORITHMS.value
  if not names or len(set(names)) < len(names):
    raise command_line.UsageError("--algorithms must name at least one, each once.")
  try:
    for name in (*names, _DRIVER.value):
      registry.get(name)
  except ValueError as error:
    raise command_line.UsageError(str(error)) from error
  for name, least in (("rounds", 2), ("eval_every", 1)):
    value = flags.FLAGS[name].value
    if value is not None and value < least:
      raise command_line.UsageError(f"--{name} must be at least {least}; found {value}.")
  if _FISHER.value and "fedreg" not in (*names, _DRIVER.value):
    raise command_line.UsageError(
      "--fisher is about FedReg's pseudo data: name fedreg in --algorithms or --driver."
    )
  if flags.FLAGS.resume and flags.FLAGS.run_dir is None:
    raise command_line.UsageError("--resume needs --run_dir, the folder to go on with.")
  _given_hparams()
  preflight.load_tensorflow()  # Before absl's `main`.
  return rest


def _given_hparams() -> dict[str, dict[str, Any]]:
  names = list(dict.fromkeys((*_ALGORITHMS.value, _DRIVER.value)))
  given = command_line.parse_hparams(_HPARAMS.value, names)
  return {name: {**_PAPER.get(name, {}), **given[name]} for name in names}


def main(argv: Sequence[str]) -> None:
  """Measures what the flags say."""
  del argv
  from binaries import experiment, forgetting_meter

  sys.path.append(os.getcwd())  # Where a task of the user's own may be.
  given = _given_hparams()
  try:
    config = experiment.make_config(
      algorithm=_DRIVER.value,
      hparams=given[_DRIVER.value],
      **{name: flags.FLAGS[name].value for name in _CONFIG_FLAGS},
    )
    experiment.run(
      config,
      resume=flags.FLAGS.resume,
      watch=lambda prepared: forgetting_meter.Meter(
        prepared, _ALGORITHMS.value, given, _FISHER.value
      ),
    )
  except experiment.InputError as error:
    command_line.fail(error)
  title = f"{config.task}, {config.partition}, global model of {config.algorithm}"
  text = forgetting_records.report(os.path.expanduser(config.run_dir), title)
  if text:
    print(text)


if __name__ == "__main__":
  command_line.start(main, _parse)
