"""Writes runs of `train.py` as one page for a browser.

  python binaries/report.py --runs=results --out=report.html

`--runs` takes folders of runs and folders that hold such. The page has the runs' table,
curves, megabytes and settings, asks no network for anything, and is one file. Exit
status: 2 if a run cannot be read, and then nothing is written.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":  # Before what a broken environment fails to import.
  from tff_algos import preflight

  preflight.check_and_quiet(sys.argv)

from experiments import command_line, markdown
from experiments.report import page, run_flags


def main() -> None:
  """Reports what the flags say."""
  asked = run_flags.read_flags(b"<!DOCTYPE html>")
  page.write(asked.runs, asked.out, title=asked.title, target=asked.target)
  print(f"{markdown.count(len(asked.runs), 'run')} in {asked.out}")


if __name__ == "__main__":
  run_flags.define_flags("The page, an HTML file,")
  command_line.start(main)
