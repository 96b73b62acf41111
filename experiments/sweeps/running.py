"""Runs a sweep in one process, so that TensorFlow is imported once, and writes it."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Mapping

import tensorflow as tf

from experiments import preparation, runner
from experiments.config import Config
from experiments.progress import stopping_on_signal
from experiments.run_folder.folder import CONFIG
from experiments.sweeps.plan import Plan
from experiments.tables.cells import Settings, StoppedEarlyError, run_cells
from experiments.tables.model import Cell, cells_of
from experiments.tables.writing import write_figure, write_table
from tff_algos.errors import UnsupportedComputationError, WorkerLostError


def run(plan: Plan, *, quiet: bool = False) -> list[str]:
  """Runs what is not done, and writes table and picture; the runs that failed.

  Raises:
    InputError: A cell cannot be run on these data; nothing was run.
    StoppedEarlyError: A run was stopped; what is there was written.
  """
  _check(plan.configs)
  try:
    with stopping_on_signal() as should_stop:

      def run_one(cell: Cell, seed: int, settings: Settings) -> int:
        del settings
        if should_stop():
          raise StoppedEarlyError
        return _run_one(plan.configs[cell.name, seed], quiet)

      failed = run_cells(cells_of(plan.table), plan.settings, run_one)
  except KeyboardInterrupt:  # The second signal.
    raise StoppedEarlyError from None
  finally:  # What is there is written also when the rest is stopped.
    paths = write_table(plan.table, "table", plan.settings)
    for path in [*paths, *write_figure(plan.figure, "curves", plan.settings)]:
      print(path)
  return failed


def _check(configs: Mapping[tuple[str, int], Config]) -> None:
  """Prepares the first run of every cell of which none was begun."""
  firsts: dict[str, Config] = {}
  for (name, _), config in configs.items():
    firsts.setdefault(name, config)
  begun = {
    name
    for (name, _), config in configs.items()
    if os.path.exists(os.path.join(config.run_dir, CONFIG))
  }
  for config in firsts.values():
    runner.prepare_runtime(config)
  for name, config in firsts.items():
    if name not in begun:
      preparation.prepare(config)
      _forget()


def _run_one(config: Config, quiet: bool) -> int:
  try:
    summary = runner.run(config, resume=True, quiet=quiet, folder_flag="--out")
  except (UnsupportedComputationError, WorkerLostError) as error:
    print(error, file=sys.stderr)
    return 1
  finally:
    _forget()
  if summary["stopped_early"]:
    raise StoppedEarlyError
  return 0


def _forget() -> None:
  """Frees the models and compiled rounds of a run."""
  tf.keras.backend.clear_session()
  gc.collect()
