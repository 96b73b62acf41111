"""The tables and figures of FedAvg: McMahan et al., AISTATS 2017.

  python binaries/fedavg_tables.py --table=2 --learning_rates=0.1,0.215

`--list` shows them, and experiments/papers/fedavg.py says how its numbers are taken. Exit
status: 1 if a run failed, 75 if one was stopped early: the same command goes on.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":  # Before what a broken environment fails to import.
  from tff_algos import preflight

  preflight.check_and_quiet(sys.argv)

from absl import flags

from experiments.papers import fedavg
from experiments.tables import program

_RATES = flags.DEFINE_list(
  "learning_rates",
  [],
  "Learning rates of every row, of which the best counts; default: 0.1 and 0.215 for "
  "MNIST, for its CNN 0.464 too, and 1.47 for Shakespeare, on the paper's grid.",
)

if __name__ == "__main__":
  program.start("fedavg", lambda: fedavg.build(_RATES.value))
