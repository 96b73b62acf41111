"""Trains one federated-learning algorithm on one task.

  python binaries/train.py --algorithm=fedgg --task=digits_cnn

`--list` shows the algorithms and tasks; `--algorithm=NAME --help` the flags of one. A run
that was stopped early ends with status 75, and `--run_dir=DIR --resume` goes on with it.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":  # Before what a broken environment fails to import.
  from tff_algos import preflight

  preflight.check_and_quiet(sys.argv)

import warnings
from collections.abc import Sequence
from typing import Optional

from absl import flags

from experiments import command_line, run_options, training_flags
from experiments.run_folder.folder import RunFolder
from tff_algos.algorithms import registry as algorithms_registry
from tff_algos.errors import InputWarning

_LIST = flags.DEFINE_boolean("list", False, "List the algorithms and tasks, and end.")
_RESUME = flags.DEFINE_boolean(
  "resume",
  False,
  "Go on with the run that --run_dir holds, from its newest checkpoint; start it if "
  "there is none.",
)
flags.DEFINE_string(
  "algorithm",
  "fedavg",
  f"One of {', '.join(algorithms_registry.ALGORITHMS)}; or module:attribute, an "
  "algorithm of your own: its builder, or a tff_algos.Algorithm.",
)
flags.DEFINE_integer("seed", 0, "Seed of weights, cohorts, shuffles and noise.")
flags.DEFINE_string(
  "run_dir", None, "Folder for the results; default: a new one under runs/."
)
run_options.define()


def _parse(argv: Sequence[str]) -> list[str]:
  rest = training_flags.parse(argv)
  if not _LIST.value:
    config = training_flags.config()
    if not flags.FLAGS.quiet:
      print(
        f"{config.algorithm} on {config.task}: loading TensorFlow and data", flush=True
      )
    from experiments import runner  # noqa: F401 - which imports TensorFlow.
  return rest


def main() -> Optional[int]:
  """Runs what the flags say."""
  if _LIST.value:
    training_flags.print_list()
    return None
  from experiments import runner

  config, quiet = training_flags.config(), flags.FLAGS.quiet
  if _RESUME.value and quiet and RunFolder(config.run_dir).read() is None:
    # Else the header says so. The folder's name may be mistyped.
    said = f"{config.run_dir} holds no run: one begins there."
    warnings.warn(said, InputWarning, stacklevel=1)
  summary = runner.run(config, resume=_RESUME.value, quiet=quiet)
  return command_line.STOPPED_EARLY if summary["stopped_early"] else None


if __name__ == "__main__":
  command_line.start(main, _parse)
