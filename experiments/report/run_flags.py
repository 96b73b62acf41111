"""The flags of the programs that show runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NamedTuple, Optional

from absl import flags

from experiments.run_folder.reading import Run, read_runs
from tff_algos.errors import InputError


class Asked(NamedTuple):
  """What the flags ask for.

  Attributes:
    runs: The runs to show.
    out: The file to write.
    title: Its title, "" for none.
    target: The accuracy whose first round the table gives, 0..1; None for none.
  """

  runs: Sequence[Run]
  out: str
  title: str
  target: Optional[float]


def define_flags(out: str) -> None:
  """Defines the flags of a program that shows runs.

  Args:
    out: What `--out` names.
  """
  place = dict(module_name=sys.argv[0])  # Where absl looks for what --help shows.
  runs = "Folders of runs, or folders that hold such, with commas between them."
  flags.DEFINE_list("runs", None, runs, **place)
  flags.DEFINE_string("out", None, f"{out} to write.", **place)
  flags.DEFINE_string("title", "", "Its title.", **place)
  target = "An accuracy whose first round the table gives, 0..1."
  flags.DEFINE_float("target_accuracy", None, target, **place)
  flags.mark_flags_as_required(["runs", "out"])


def read_flags() -> Asked:
  """What the parsed flags ask for.

  Raises:
    InputError: A value is wrong, or a run cannot be read.
  """
  values = flags.FLAGS
  if not values.out:
    raise InputError("out is empty: name a file.")
  values.out = os.path.expanduser(values.out)
  folder = os.path.dirname(os.path.abspath(values.out))
  if not os.path.isdir(folder):
    raise InputError(f"{values.out} cannot be written: there is no folder {folder}.")
  there = values.out if os.path.exists(values.out) else folder
  if os.path.isdir(values.out) or not os.access(there, os.W_OK):
    raise InputError(
      f"{values.out} cannot be written: it is a folder, or {there} may not be written to."
    )
  if not values.runs:
    raise InputError("runs is empty: give folders that train.py has written.")
  target = values.target_accuracy
  if target is not None and not 0 < target <= 1:
    raise InputError(f"target_accuracy must be in (0, 1]; found {target:g}.")
  paths = map(os.path.expanduser, values.runs)
  return Asked(read_runs(paths), values.out, values.title, target)
