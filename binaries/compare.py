"""Draws several runs of `train.py` together and prints their table.

  python binaries/compare.py --runs=results/a,results/b --out=comparison.png

Accuracy against rounds, the second half of that closer, megabytes against rounds, and
accuracy against megabytes; the table is Markdown. Runs that differ in their seed only are
one row and one curve, their mean with the sample standard deviation. `--smooth=15` draws
running means; `--last=30` adds a column with the mean of that many rounds at the end,
which depends less on luck than the best. `--differences=all,21-30` adds a table of each
run less the first with its seed: in how many rounds it is above and below, and the mean
of the differences in these rounds. `--metric=test_loss` compares by another column of
metrics.csv, and `--metric=client_personalized_accuracy_p50,client_accuracy_p50` each
run by the first that it has, as pFedGP has no test accuracy; runs without any are left
out. Exit status: 2 if a run cannot be read, and then nothing is written.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":  # Before what a broken environment fails to import.
  from tff_algos import preflight

  preflight.check_and_quiet(sys.argv)

import warnings

from absl import flags

from experiments import command_line
from experiments.report import comparison, differences, run_flags
from experiments.run_folder import reading
from tff_algos.errors import InputError, InputWarning

_SMOOTH = flags.DEFINE_integer(
  "smooth",
  1,
  "Draw the running mean of so many measured rounds before the values themselves.",
  1,
)
_LAST = flags.DEFINE_integer(
  "last",
  None,
  "Add a column to the table: the mean of the last so many rounds; None for none.",
  1,
)
_METRIC = flags.DEFINE_list(
  "metric",
  None,
  "The column of metrics.csv to compare by, or several, of which each run takes the "
  "first that it has; -NAME of one of which less is better, as it is of every loss; "
  "default: test_accuracy, or test_loss where no run has that.",
)
_DIFFERENCES = flags.DEFINE_list(
  "differences",
  None,
  "all, or rounds such as 21-30, or several of these: add a table of each run less the "
  "first with its seed, in how many rounds it is above and below, and the mean of the "
  "differences in these rounds; None for none.",
)


def main() -> None:
  """Compares what the flags say."""
  asked = run_flags.read_flags(b"\x89PNG")
  if not asked.out.endswith(".png"):
    raise InputError(f"{asked.out} is to be a picture: let it end in .png.")
  metrics = _METRIC.value
  if metrics is None:
    metrics = [reading.default_metric(asked.runs)]
  measure = comparison.parse_measure(metrics)
  if asked.target is not None and not measure.of_accuracy:
    raise InputError(f"target_accuracy is about accuracy, not {measure.words}.")
  spans = None
  if _DIFFERENCES.value is not None:
    spans = differences.parse_rounds(_DIFFERENCES.value)
  every = [measure.of(run) for run in asked.runs]
  runs = [run for run in every if run.rounds]
  for run in every:
    if not run.rounds:
      measured = any(name in r for name in measure.columns for r in run.records)
      never = "never a finite number" if measured else "never measured"
      said = f"{run.folder} holds a run whose {measure.words} was {never}"
      if not runs:
        raise InputError(f"{said}: give others.")
      warnings.warn(f"{said}: it is left out.", InputWarning, stacklevel=1)
  for run in runs:
    if _LAST.value is not None and not comparison.last_values(run, _LAST.value):
      raise InputError(
        f"{run.folder} holds a run of {len(run.records)} rounds whose {measure.words} "
        f"was not measured in {_LAST.value} last ones: give another --last, or leave it "
        "out."
      )
  tables = [comparison.table(runs, asked.target, _LAST.value, measure)]
  if spans is not None:
    tables.append(differences.table(runs, spans, measure))
  comparison.draw(runs, asked.out, asked.title, _SMOOTH.value, measure)
  print("\n\n".join(tables))


if __name__ == "__main__":
  run_flags.define_flags("The picture, a PNG,")
  command_line.start(main)
