"""Trains the driver and measures what every algorithm forgets on its way."""

from __future__ import annotations

import os

from experiments import runner
from experiments.config import make_config
from experiments.forgetting import meter, records
from experiments.forgetting.asked import Asked
from experiments.preparation import Prepared

_TASK, _EVAL_EVERY = "mnist_two_class", 10


def run(asked: Asked, *, resume: bool) -> bool:
  """Measures, prints the table and writes the folder.

  Args:
    asked: What the flags say.
    resume: Whether to go on with what the folder holds.

  Returns:
    Whether it was stopped early.

  Raises:
    InputError: Something cannot be measured; nothing was written.
  """
  held = {"task": _TASK, "eval_every": _EVAL_EVERY, **asked.held.get("flags", {})}
  given = {"task": held["task"], **asked.settings, "hparams": asked.hparams[asked.driver]}
  config = make_config(asked.driver, held=held, **given)

  def watch(prepared: Prepared) -> runner.Watched:
    watcher = meter.Meter(prepared, asked.algorithms, asked.hparams, asked.fisher)
    files = (records.FORGETTING, records.FISHER)
    return runner.Watched(watcher, {"forgetting": watcher.settings}, files)

  summary = runner.run(config, resume=resume, watch=watch)
  title = f"{config.task}, {config.partition}, global model of {config.algorithm}"
  text = records.report(os.path.expanduser(config.run_dir), title)
  if text:
    print(text)
  return bool(summary["stopped_early"])
