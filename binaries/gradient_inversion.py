"""Recovers the pictures that clients train on from what they upload.

  python binaries/gradient_inversion.py --algorithms=fedavg,fedreg_mg --out=inversion

Xu et al. (FedReg), ICLR 2022, Appendix B.4 and Figure C.3: each client takes one local
step on one picture of the test set. In the folder: grid.png (the originals above, a row
for each algorithm), inversion.md, inversion.csv, the pictures as .npy, config.json. What
is there already is not computed again, so that a run cut short goes on with the same
command. Exit status: 2 if the flags are wrong, and then nothing is written.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":  # Before what a broken environment fails to import.
  sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
  from tff_algos import preflight

  preflight.check_and_quiet(sys.argv)

from collections.abc import Sequence

from absl import flags

from binaries import command_line
from tasks import registry as tasks_registry
from tff_algos.privacy.gradient_inversion import InversionHparams

flags.DEFINE_string(
  "task",
  "mnist_two_class",
  f"Of pictures; one of {', '.join(tasks_registry.TASKS)}; or module:attribute.",
)
flags.DEFINE_list(
  "algorithms", ["fedavg", "fedreg_mg"], "Names of train.py --list, commas between."
)
flags.DEFINE_integer("num_examples", 4, "Pictures of the test set, drawn by the seed.")
flags.DEFINE_integer("seed", 0, "Seed of weights, pictures, noise and starts.")
flags.DEFINE_string(
  "run", None, "Attack the model of this run's newest checkpoint; default: the initial."
)
flags.DEFINE_string("data_dir", None, "Folder of the data set; default: TFDS's own.")
flags.DEFINE_string("cache_dir", "~/.cache/tff_algos", "Folder for prepared data.")
flags.DEFINE_string("out", None, "Folder for the results: new, empty, or to go on with.")
flags.DEFINE_list(
  "hparams",
  [],
  "Hyper-parameters as name=value, of every algorithm that has it, or "
  "algorithm:name=value, of one; default: the task's. The paper has on EMNIST "
  "noise_multiplier=0.01,fedreg_mg:pseudo_step=0.03.",
)
for _name, _flag, _define in (
  ("distance", "distance", flags.DEFINE_string),
  ("tv_weight", "tv", flags.DEFINE_float),
  ("iterations", "iterations", flags.DEFINE_integer),
  ("learning_rate", "attack_learning_rate", flags.DEFINE_float),
  ("restarts", "restarts", flags.DEFINE_integer),
):
  _field = InversionHparams.__dataclass_fields__[_name]
  _define(_flag, _field.default, _field.metadata["help"])


def main(argv: Sequence[str]) -> None:
  """Attacks what the flags say."""
  del argv
  sys.path.append(os.getcwd())  # Where a task of the user's own may be.
  given = flags.FLAGS
  algorithms = list(dict.fromkeys(given.algorithms))
  try:
    hparams = command_line.parse_hparams(given.hparams, algorithms)
    search = InversionHparams(
      distance=given.distance,
      tv_weight=given.tv,
      iterations=given.iterations,
      learning_rate=given.attack_learning_rate,
      restarts=given.restarts,
    )
  except (command_line.UsageError, ValueError) as error:
    command_line.fail(error)
  from binaries import experiment, inversion

  try:
    inversion.run(
      inversion.Request(
        task=given.task,
        algorithms=algorithms,
        num_examples=given.num_examples,
        seed=given.seed,
        run=given.run and os.path.expanduser(given.run),
        data_dir=given.data_dir,
        cache_dir=given.cache_dir,
        out=os.path.expanduser(given.out),
        hparams=hparams,
        search=search,
      )
    )
  except experiment.InputError as error:
    command_line.fail(error)


if __name__ == "__main__":
  flags.mark_flag_as_required("out")
  command_line.start(main)
