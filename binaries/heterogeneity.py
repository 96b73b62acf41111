"""Draws and measures splits of a task's training examples over clients.

  python binaries/heterogeneity.py --out=splits --partitions='iid;shards;dirichlet:beta=1'

For each split a heat map, client x class [paper, FedAgg, Figure 2; FedGG, Figure 1],
columns in space, clients x classes x examples [paper, TWAFL, Figure 6], and a line of
table.csv and table.md. Only labels are looked at. Exit status: 2 if a split or the data
cannot be used, and then nothing is written.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":  # Before what a broken environment fails to import.
  from tff_algos import preflight

  preflight.check_and_quiet(sys.argv)

from absl import flags

from experiments import command_line

flags.DEFINE_string("task", "mnist_cnn", "A task, as of train.py.")
flags.DEFINE_string(
  "partitions", None, "Splits as of train.py, with ; between; default: the task's."
)
flags.DEFINE_integer("num_clients", None, "Clients; default: the task's.")
flags.DEFINE_integer("partition_seed", 0, "Seed of the splits, >= 0.", 0)
flags.DEFINE_string(
  "out", None, "Folder for the results: new, empty or of the same settings."
)
flags.DEFINE_string("data_dir", None, "Of the data set; default: TFDS's own.")
flags.DEFINE_string("cache_dir", "~/.cache/tff_algos", "Folder for prepared data.")


def main() -> None:
  """Draws what the flags say."""
  from experiments import splits

  values = {name: flags.FLAGS[name].value for name in splits.Request._fields}
  splits.run(splits.Request(**values))


if __name__ == "__main__":
  flags.mark_flags_as_required(["out"])
  command_line.start(main)
