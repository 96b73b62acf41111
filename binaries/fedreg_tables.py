"""The tables and figures of FedReg: Xu et al., ICLR 2022.

  python binaries/fedreg_tables.py --table=1 --only=mnist_two_class

`--list` shows them, and experiments/papers/fedreg.py says how its numbers are taken. Exit
status: 1 if a run failed, 75 if one was stopped early: the same command goes on.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":  # Before what a broken environment fails to import.
  from tff_algos import preflight

  preflight.check_and_quiet(sys.argv)

from experiments.papers import fedreg
from experiments.tables import program

if __name__ == "__main__":
  program.start("fedreg", fedreg.build)
