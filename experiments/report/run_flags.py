"""The flags of the programs that show runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NamedTuple, Optional

from absl import flags

from experiments import command_line
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


def read_flags(begins: bytes) -> Asked:
  """What the parsed flags ask for.

  Args:
    begins: What the file that is to be written begins with.

  Raises:
    InputError: A value is wrong, or a run cannot be read.
  """
  values = flags.FLAGS
  values.out = os.path.expanduser(values.out)
  command_line.check_out_file(values.out, begins)
  if not values.runs:
    raise InputError("runs is empty: give folders that train.py has written.")
  target = values.target_accuracy
  if target is not None and not 0 < target <= 1:
    raise InputError(f"target_accuracy must be in (0, 1]; found {target:g}.")
  paths = map(os.path.expanduser, values.runs)
  return Asked(read_runs(paths), values.out, values.title, target)
