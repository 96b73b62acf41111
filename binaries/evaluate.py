"""Evaluates the model of a run of `train.py` again.

  python binaries/evaluate.py --run=runs/mine

On the test set, and on each client's own training examples: clients.csv in the run's
folder has a line for each client; the percentiles of their accuracies are printed, and
the worst. The data must be those of the run. Exit status: 2 if they are not, or there is
no model, and then nothing is written.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":  # Before what a broken environment fails to import.
  from tff_algos import preflight

  preflight.check_and_quiet(sys.argv)

from absl import flags

from experiments import command_line

flags.DEFINE_string("run", None, "The folder of a run that ended or was stopped.")
flags.DEFINE_boolean(
  "best",
  False,
  "The model of the best round by test accuracy, or loss where there is none.",
)
flags.DEFINE_string("data_dir", None, "Folder of the data set; default: where it was.")
flags.DEFINE_string(
  "cache_dir", None, "Folder for prepared client data; default: where it was."
)
flags.DEFINE_boolean(
  "other_data", False, "Also on other data than the run's, as long as they fit its model."
)
flags.DEFINE_string(
  "out", None, "The CSV; default: clients.csv, or best_clients.csv, in the run's folder."
)


def main() -> None:
  """Evaluates what the flags say."""
  from experiments import evaluating

  given = flags.FLAGS
  evaluating.run(
    evaluating.Request(
      run=os.path.expanduser(given.run),
      best=given.best,
      data_dir=given.data_dir,
      cache_dir=given.cache_dir,
      other_data=given.other_data,
      out=given.out and os.path.expanduser(given.out),
    )
  )


if __name__ == "__main__":
  flags.mark_flag_as_required("run")
  command_line.start(main, imports="experiments.evaluating")
