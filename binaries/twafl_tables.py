"""The tables and figures of TWAFL: Chen, Sun, Jin, TNNLS 2020.

  python binaries/twafl_tables.py --table=4,5 --repeats=10

`--list` shows them, and experiments/papers/twafl.py says how its numbers are taken. Exit
status: 1 if a run failed, 75 if one was stopped early: the same command goes on.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":  # Before what a broken environment fails to import.
  from tff_algos import preflight

  preflight.check_and_quiet(sys.argv)

from experiments.papers import twafl
from experiments.tables import program

if __name__ == "__main__":
  program.start("twafl", twafl.build)
