"""The flags of train.py beyond the task's and the algorithm's: how a run is simulated."""

from __future__ import annotations

import sys

from absl import flags


def define() -> None:
  """Defines them."""
  place = dict(module_name=sys.argv[0])  # Where absl looks for what --help shows.
  flags.DEFINE_string(
    "stop_at",
    None,
    "End the run, with status 0, after the first evaluation whose test metric is as good "
    "as this: accuracy:0.95, loss:0.2.",
    **place,
  )
  flags.DEFINE_integer(
    "patience",
    None,
    "End it likewise after so many evaluations in a row without improvement, of "
    "--stop_at's metric or of test accuracy.",
    **place,
  )
