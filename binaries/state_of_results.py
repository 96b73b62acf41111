"""Writes which of the papers' tables and figures were run, and how they compare.

  python binaries/state_of_results.py

One table of all five papers into results/README.md, and three lines into each paper's
page there, from the runs that are kept; nothing is run. Exit status: 2 if a run or a page
cannot be read, and then nothing is written.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":  # Before what a broken environment fails to import.
  from tff_algos import preflight

  preflight.check_and_quiet(sys.argv)

from experiments.papers import fedagg, fedavg, fedgg, fedreg, twafl
from experiments.tables import state_pages

PAPERS: dict[str, state_pages.Build] = {
  "fedavg": fedavg.build,
  "fedgg": fedgg.build,
  "twafl": twafl.build,
  "fedagg": fedagg.build,
  "fedreg": fedreg.build,
}

if __name__ == "__main__":
  state_pages.start(PAPERS)
