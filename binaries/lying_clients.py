r"""Trains with clients that lie, and says what each defence is worth.

  python binaries/lying_clients.py --out=liars
  python binaries/lying_clients.py --algorithms=fedavg --attacks=scaled:factor=-100 \
    --defences=none,median,norm_limit:times=3 --out=liars

One client of ten does its honest work and sends something else, in every part of its
message: scaled (-1e6 times that), sign_flipped (-1 times, or by factor -4 times) or
random (Gaussian noise of 100 times its norm). Every algorithm is trained with every
defence that it takes, under each attack and with nobody lying. In the folder: table.md,
table.csv, runs.csv (a line for each run), accuracy.png, config.json. What is there
already is not trained again, so that a command cut short goes on where it is given again.
Exit status: 2 if the flags are wrong, and then nothing is written.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":  # Before what a broken environment fails to import.
  from tff_algos import preflight

  preflight.check_and_quiet(sys.argv)

from collections.abc import Sequence

from absl import flags

from experiments import command_line
from experiments.attacks import lies
from experiments.config import parse_hparams
from tff_algos.errors import InputError

flags.DEFINE_string("task", "digits_cnn", "A task, as of train.py.")
flags.DEFINE_list(
  "algorithms",
  ["fedavg", "scaffold", "twafl", "fedreg"],
  "Names of train.py --list, commas between.",
)
flags.DEFINE_list(
  "attacks",
  ["scaled", "sign_flipped", "sign_flipped:factor=4", "random"],
  "What liars send: scaled:factor=-1e6, sign_flipped:factor=1, random:factor=100.",
)
flags.DEFINE_list(
  "defences",
  [
    *("none", "norm_limit:times=5", "zeroing", "clipping", "robust", "median"),
    "trimmed_mean:share=0.2",
  ],
  "none; norm_limit:times=5, for every algorithm, but for FedAgg with "
  "estimates=fixed_point; or an --aggregator of train.py, for those that take one.",
)
flags.DEFINE_float("liars", 0.1, "The share of all clients who lie.")
flags.DEFINE_integer("rounds", None, "Of each run; default: the task's.", 1)
flags.DEFINE_integer("num_clients", None, "All clients; default: the task's.", 1)
flags.DEFINE_integer("clients_per_round", None, "Of one round; default: the task's.", 1)
flags.DEFINE_integer("repeats", 1, "Runs of each, with seeds 0, 1, ....", 1)
flags.DEFINE_list(
  "hparams",
  [],
  "Hyper-parameters as name=value, of every algorithm that has it, or "
  "algorithm:name=value, of one; default: the task's.",
)
flags.DEFINE_string("data_dir", None, "Folder of the data set; default: TFDS's own.")
flags.DEFINE_string("cache_dir", "~/.cache/tff_algos", "Folder for prepared data.")
flags.DEFINE_string("out", None, "Folder for the results: new, empty, or to go on with.")


def _asked() -> lies.Request:
  given = flags.FLAGS
  algorithms = list(dict.fromkeys(given.algorithms))
  if not algorithms:
    raise InputError("--algorithms is empty: name at least one.")
  lies.check_share(given.liars)
  return lies.Request(
    task=given.task,
    algorithms=algorithms,
    attacks=lies.parse_attacks(given.attacks),
    defences=lies.parse_defences(given.defences),
    liars=given.liars,
    num_clients=given.num_clients,
    clients_per_round=given.clients_per_round,
    rounds=given.rounds,
    repeats=given.repeats,
    hparams=parse_hparams(given.hparams, algorithms),
    data_dir=given.data_dir,
    cache_dir=os.path.expanduser(given.cache_dir),
    out=os.path.expanduser(given.out),
  )


def _parse(argv: Sequence[str]) -> list[str]:
  rest = command_line.parse_flags(argv)
  _asked()
  print(f"lying clients on {flags.FLAGS.task}: loading TensorFlow and data", flush=True)
  return rest


def main() -> None:
  """Trains what the flags say."""
  from experiments.attacks import lying

  lying.run(_asked())


if __name__ == "__main__":
  flags.mark_flag_as_required("out")
  command_line.start(main, _parse, imports="experiments.attacks.lying")
