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
  from tff_algos import preflight

  preflight.check_and_quiet(sys.argv)

from collections.abc import Sequence
from typing import Any

from absl import flags

from experiments import command_line
from experiments.config import parse_hparams
from tasks import registry as tasks_registry
from tff_algos.errors import InputError
from tff_algos.privacy.gradient_inversion import InversionHparams

# Flags to the fields of InversionHparams.
_SEARCH = {
  "distance": "distance",
  "tv": "tv_weight",
  "iterations": "iterations",
  "attack_learning_rate": "learning_rate",
  "restarts": "restarts",
}
_KINDS: dict[type, Any] = {
  str: flags.DEFINE_string,
  float: flags.DEFINE_float,
  int: flags.DEFINE_integer,
}

flags.DEFINE_string(
  "task",
  "mnist_two_class",
  f"Of pictures; one of {', '.join(tasks_registry.TASKS)}; or module:attribute.",
)
flags.DEFINE_list(
  "algorithms", ["fedavg", "fedreg_mg"], "Names of train.py --list, commas between."
)
flags.DEFINE_integer("num_examples", 4, "Pictures of the test set, drawn by the seed.")
flags.DEFINE_integer("seed", 0, "Seed of weights, pictures, noise and starts.", 0)
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
for _flag, _name in _SEARCH.items():
  _field = InversionHparams.__dataclass_fields__[_name]
  _KINDS[type(_field.default)](_flag, _field.default, _field.metadata["help"])


def _algorithms() -> list[str]:
  return list(dict.fromkeys(flags.FLAGS.algorithms))


def _search() -> InversionHparams:
  values = {name: flags.FLAGS[flag].value for flag, name in _SEARCH.items()}
  try:
    return InversionHparams(**values)
  except (TypeError, ValueError) as error:  # As the class says of what it is given.
    raise InputError(str(error)) from error


def _parse(argv: Sequence[str]) -> list[str]:
  rest = command_line.parse_flags(argv)
  if not _algorithms():
    raise InputError("--algorithms is empty: name at least one.")
  parse_hparams(flags.FLAGS.hparams, _algorithms())
  _search()
  print(f"attack on {flags.FLAGS.task}: loading TensorFlow and data", flush=True)
  return rest


def main() -> None:
  """Attacks what the flags say."""
  from experiments.attacks import inversion

  given = flags.FLAGS
  inversion.run(
    inversion.Request(
      task=given.task,
      algorithms=_algorithms(),
      num_examples=given.num_examples,
      seed=given.seed,
      run=given.run and os.path.expanduser(given.run),
      data_dir=given.data_dir,
      cache_dir=given.cache_dir,
      out=os.path.expanduser(given.out),
      hparams=parse_hparams(given.hparams, _algorithms()),
      search=_search(),
    )
  )


if __name__ == "__main__":
  flags.mark_flag_as_required("out")
  command_line.start(main, _parse, imports="experiments.attacks.inversion")
