"""Measures how much local training forgets of the data of the round before.

  python binaries/forgetting.py --task=mnist_two_class --algorithms=fedavg,fedreg --fisher
  python binaries/forgetting.py --task=mnist_two_class --driver=fedavg --algorithms=fedavg

The driver is trained as by train.py, into the same kind of folder. In the rounds that are
measured, every algorithm trains the round's clients from the driver's global model, and
the loss of the clients of the round before is compared: under that model and under the
local ones [paper, FedReg, Figures 1, 2 and C.1]. `--fisher` adds the correlation of the
empirical Fisher information of FedReg's pseudo data with that of the clients of the last
10 rounds. The folder then also holds forgetting.csv, fisher.csv, forgetting.png,
increase.png and table.md.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":  # Before what a broken environment fails to import.
  from tff_algos import preflight

  preflight.check_and_quiet(sys.argv)

from collections.abc import Mapping, Sequence
from typing import Any, Optional

from absl import flags

from experiments import command_line
from experiments.config import check_held, parse_hparams
from experiments.forgetting.asked import Asked
from experiments.run_folder.folder import CONFIG, RunFolder
from tff_algos.errors import InputError

_SETTINGS = (
  *("task", "rounds", "eval_every", "num_clients", "clients_per_round", "partition"),
  *("partition_seed", "seed", "run_dir", "data_dir", "cache_dir", "loss_epsilon"),
)
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
flags.DEFINE_integer("rounds", None, "Rounds in all, >= 2; default: the task's.", 2)
flags.DEFINE_integer(
  "eval_every", 10, "Rounds between measurements; the last round is measured too.", 1
)
flags.DEFINE_integer("num_clients", None, "All clients (N); default: the task's.")
flags.DEFINE_integer("clients_per_round", None, "Of one round; default: the task's.")
flags.DEFINE_string("partition", None, "The split, as of train.py; default: the task's.")
flags.DEFINE_integer("partition_seed", 0, "Seed of the split.")
flags.DEFINE_float("loss_epsilon", 0.0, "As of train.py; FedReg's authors have 1e-12.")
flags.DEFINE_integer("seed", 0, "Seed of weights, cohorts, shuffles and noise.")
flags.DEFINE_string("run_dir", None, "Folder for the results; default: new, in runs/.")
flags.DEFINE_string("data_dir", None, "Folder of the data set; default: TFDS's own.")
flags.DEFINE_string("cache_dir", "~/.cache/tff_algos", "Folder for client data.")


def _held() -> Mapping[str, Any]:
  """The manifest of the folder that is gone on with; {} for none."""
  if not flags.FLAGS.resume:
    return {}
  if flags.FLAGS.run_dir is None:
    raise InputError("--resume needs --run_dir, the folder to go on with.")
  folder = RunFolder(flags.FLAGS.run_dir)
  held = folder.read() or {}
  if held and "algorithm" not in held.get("flags", {}):
    raise InputError(f"{folder.path} holds no run: choose another --run_dir.")
  check_held(held.get("flags", {}), folder.file(CONFIG))
  return held


def _asked() -> Asked:
  held = _held()
  measured = held.get("forgetting", {})
  driver, names, fisher = _DRIVER.value, _ALGORITHMS.value, _FISHER.value
  if held and not _DRIVER.present:
    driver = held["flags"]["algorithm"]
  if measured and not _ALGORITHMS.present:
    names = list(measured["algorithms"])
  if measured and not _FISHER.present:
    fisher = measured["fisher"]
  if not names or len(set(names)) < len(names):
    raise InputError("--algorithms must name at least one, each once.")
  if fisher and "fedreg" not in (*names, driver):
    raise InputError(
      "--fisher is about FedReg's pseudo data: name fedreg in --algorithms or --driver."
    )
  every = list(dict.fromkeys((*names, driver)))
  given = parse_hparams(_HPARAMS.value, every)
  before = {driver: held.get("flags", {}).get("hparams", {})}
  before.update(measured.get("algorithms", {}))
  return Asked(
    driver=driver,
    algorithms=names,
    hparams={k: {**_PAPER.get(k, {}), **before.get(k, {}), **given[k]} for k in every},
    fisher=fisher,
    settings=command_line.given_flags(_SETTINGS),
    held=held,
  )


def _parse(argv: Sequence[str]) -> list[str]:
  """Parses the flags and checks them.

  Raises:
    InputError: The flags are wrong.
  """
  rest = command_line.parse_flags(argv)
  asked = _asked()
  task = _TASK.value if _TASK.present or not asked.held else asked.held["flags"]["task"]
  print(f"forgetting on {task}: loading TensorFlow and data", flush=True)
  return rest


def main() -> Optional[int]:
  """Measures what the flags say."""
  from experiments.forgetting import program

  stopped_early = program.run(_asked(), resume=flags.FLAGS.resume)
  return command_line.STOPPED_EARLY if stopped_early else None


if __name__ == "__main__":
  command_line.start(main, _parse, imports="experiments.forgetting.program")
