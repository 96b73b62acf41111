"""The model of a run's folder, whether it ended, was stopped or was killed."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from typing import Any, NamedTuple, Optional

import tensorflow as tf

from experiments import preparation
from experiments.config import Config, make_config
from experiments.export import keras_files
from experiments.run_folder.folder import read_manifest
from tff_algos import to_keras
from tff_algos.errors import InputError
from tff_algos.runtimes import runtime as runtimes
from tff_algos.simulation import checkpoints

_ADVICE = "give the folder of a run of train.py"


class RunModel(NamedTuple):
  """The model of a run.

  Attributes:
    keras_model: It, taking stored inputs and giving logits.
    source: Where it is from, in words.
  """

  keras_model: tf.keras.Model
  source: str


def config_of(
  run_dir: str, data_dir: Optional[str] = None, cache_dir: Optional[str] = None
) -> tuple[Config, dict[str, Any]]:
  """The settings of a run, and all that its config.json holds.

  Args:
    run_dir: The run's folder.
    data_dir: Where the data are now; None: where they were.
    cache_dir: Where client files are kept now; None: where they were.

  Raises:
    InputError: There is no run, or its settings cannot be used.
  """
  manifest = read_manifest(run_dir, _ADVICE)
  flags: Mapping[str, Any] = manifest.get("flags", {})
  if not {"algorithm", "task"} <= set(flags):
    raise InputError(f"{run_dir} holds no run of train.py: {_ADVICE}.")
  config = make_config(
    flags["algorithm"],
    flags["task"],
    held=flags,
    run_dir=run_dir,
    data_dir=data_dir,
    cache_dir=cache_dir,
  )
  return config, manifest


def read(
  run_dir: str,
  *,
  best: bool = False,
  data_dir: Optional[str] = None,
  cache_dir: Optional[str] = None,
) -> RunModel:
  """The model that a run has kept, or else that of its newest checkpoint.

  Only for the latter the data must be there, as they say what the model takes.

  Args:
    run_dir: The run's folder.
    best: Whether to take the best round's, not the last.
    data_dir: As of `config_of`, and so is `cache_dir`.
    cache_dir: The same.

  Raises:
    InputError: There is no run or no model in it, or that is none of Keras's.
  """
  config, manifest = config_of(run_dir, data_dir, cache_dir)
  name = keras_files.BEST_MODEL if best else keras_files.MODEL
  path = os.path.join(run_dir, name)
  if os.path.exists(path):
    return RunModel(_open(path), path)
  folder = os.path.join(run_dir, preparation.CHECKPOINTS)
  if not checkpoints.exists(folder):
    raise InputError(
      f"{run_dir} holds neither {name} nor a checkpoint: run it again, or go on with it "
      "by train.py --resume."
    )
  with runtimes.create_runtime("in_process"):
    model = preparation.load(config).model
    found = preparation.newest_weights(run_dir, manifest, model, best=best)
  return RunModel(to_keras(model, found.weights), f"{folder}, round {found.rounds}")


def _open(path: str) -> tf.keras.Model:
  try:
    return tf.keras.models.load_model(path, compile=False)
  except (OSError, ValueError, zipfile.BadZipFile) as error:
    reason = str(error).strip().splitlines()[0]
    raise InputError(
      f"{path} cannot be opened ({reason}): remove it, so that the checkpoint is taken."
    ) from error
