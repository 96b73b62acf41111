r"""Trains several algorithms with several seeds over a grid of settings, in one process.

  python binaries/sweep.py --algorithms=fedavg,fedgg --seeds=0,1,2 \
    --grid=learning_rate=0.05,0.1 --task=digits_cnn --rounds=20 --out=sweep

Every run is a folder as of train.py, whose flags these are too. In --out: table.md, .csv
and .png, mean and standard deviation over the seeds; curves.md, .csv and .png, the mean
curves. What is done is not run again: a sweep that was stopped (status 75) goes on by the
same command. Exit status: 2 if something cannot be run, and then nothing was; 1 if runs
failed.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":  # Before what a broken environment fails to import.
  from tff_algos import preflight

  preflight.check_and_quiet(sys.argv)

import functools
from collections.abc import Sequence
from typing import Optional

from absl import flags

from experiments import command_line
from experiments.sweeps import plan
from experiments.tables.cells import StoppedEarlyError

_make_plan = functools.cache(plan.make)


def _parse(argv: Sequence[str]) -> list[str]:
  rest = plan.parse(argv)
  runs = len(_make_plan().configs)
  print(f"{runs} runs: loading TensorFlow and data", flush=True)
  return rest


def main() -> Optional[int]:
  """Runs what the flags say."""
  from experiments.sweeps import running

  try:
    failed = running.run(_make_plan(), quiet=flags.FLAGS.quiet)
  except StoppedEarlyError as stopped:
    print(stopped, file=sys.stderr)
    return command_line.STOPPED_EARLY
  if failed:
    print(f"Runs that failed, {len(failed)}: {'; '.join(failed)}.", file=sys.stderr)
  return 1 if failed else None


if __name__ == "__main__":
  plan.define_flags()
  command_line.start(main, _parse, imports="experiments.sweeps.running")
