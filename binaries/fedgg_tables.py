"""The tables and figures of FedGG: "Global-Update-Guided Federated Learning".

  python binaries/fedgg_tables.py --table=2 --only=cifar10 --repeats=3

`--list` shows them, and experiments/papers/fedgg.py says how its numbers are taken. Exit
status: 1 if a run failed, 75 if one was stopped early: the same command goes on.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":  # Before what a broken environment fails to import.
  from tff_algos import preflight

  preflight.check_and_quiet(sys.argv)

from experiments.papers import fedgg
from experiments.tables import program

if __name__ == "__main__":
  program.start("fedgg", fedgg.build)
