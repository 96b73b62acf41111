"""The model of a run's folder, whether it ended, was stopped or was killed."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from typing import Any, NamedTuple, Optional

import tensorflow as tf

from experiments import command_line, preparation
from experiments.config import Config, check_held, make_config
from experiments.export import keras_files
from experiments.run_folder.folder import CHECKPOINTS, CONFIG, read_manifest
from tasks.registry import LoadedTask
from tff_algos import durable_files, from_keras, to_keras
from tff_algos.algorithms import registry as algorithms_registry
from tff_algos.errors import DamagedError, InputError, first_line
from tff_algos.models.functional import Model, Weights
from tff_algos.runtimes import runtime as runtimes
from tff_algos.simulation import checkpoints

_ADVICE = "give the folder of a run of train.py"


class RunModel(NamedTuple):
  """The model of a run, for those who use it.

  Attributes:
    keras_model: It, taking stored inputs and giving logits.
    source: Where it is from, in words.
  """

  keras_model: tf.keras.Model
  source: str


class RunFunctions(NamedTuple):
  """The model of a run, for those who evaluate it.

  Attributes:
    model: With the task's loss and metrics.
    weights: The run's.
    source: Where they are from, in words.
  """

  model: Model
  weights: Weights
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
  check_held(flags, os.path.join(run_dir, CONFIG))
  if not {"algorithm", "task"} <= set(flags):
    raise InputError(f"{run_dir} holds no run of train.py: {_ADVICE}.")
  if cache_dir is not None:
    command_line.check_place("cache_dir", os.path.expanduser(cache_dir))
  config = make_config(
    flags["algorithm"],
    flags["task"],
    held=flags,
    run_dir=run_dir,
    data_dir=data_dir,
    cache_dir=cache_dir,
    tracker=(),  # Told of rounds only.
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
  if algorithms_registry.get(config.algorithm).is_personal:
    raise InputError(
      f"The model of {run_dir} predicts nothing by itself, for it is of "
      f"{config.algorithm}: {_ADVICE} by another algorithm."
    )
  path = _file(run_dir, best)
  if os.path.exists(path):
    return RunModel(_open(path), path)
  _check_kept(run_dir, best)
  found = _from_checkpoint(run_dir, manifest, preparation.load(config), best)
  return RunModel(to_keras(found.model, found.weights), found.source)


def read_functions(
  config: Config, manifest: dict[str, Any], loaded: LoadedTask, *, best: bool = False
) -> RunFunctions:
  """The model of a run's newest checkpoint, or else the one that it has kept.

  A checkpoint gives the very numbers of the run, and is of any model.

  Args:
    config: Of `config_of`.
    manifest: The same.
    loaded: The run's task.
    best: Whether to take the best round's, not the last.

  Raises:
    InputError: There is no model, or none of this task.
  """
  run_dir = config.run_dir
  _check_kept(run_dir, best)
  path = _file(run_dir, best)
  if checkpoints.exists(_checkpoints(run_dir)):
    try:
      return _from_checkpoint(run_dir, manifest, loaded, best)
    except DamagedError as error:
      if not os.path.exists(path):
        raise
      raise InputError(
        f"{error} Or move {_checkpoints(run_dir)} away, so that {path} is taken."
      ) from error
  spec = loaded.model.example_spec
  keras_model = _open(path)
  [inputs] = keras_model.inputs
  if (inputs.dtype, inputs.shape[1:]) != (spec.x.dtype, spec.x.shape):
    raise InputError(
      f"{path} takes {inputs.dtype.name} {tuple(inputs.shape[1:])}, but the data hold "
      f"{spec.x.dtype.name} {tuple(spec.x.shape)}: name the run's own by --data_dir."
    )
  of_task = loaded.model
  model = from_keras(
    keras_model,
    spec,
    loss=of_task.example_losses,
    metrics=of_task.metrics,
    preprocess=tf.identity,  # The file's model has the preprocessing in itself.
  )
  return RunFunctions(model, model.initial_weights, path)


def _file(run_dir: str, best: bool) -> str:
  return os.path.join(run_dir, keras_files.BEST_MODEL if best else keras_files.MODEL)


def _checkpoints(run_dir: str) -> str:
  return os.path.join(run_dir, CHECKPOINTS)


def _check_kept(run_dir: str, best: bool) -> None:
  path = _file(run_dir, best)
  if not os.path.exists(path) and not checkpoints.exists(_checkpoints(run_dir)):
    raise InputError(
      f"{run_dir} holds neither {os.path.basename(path)} nor a checkpoint: run it again, "
      "or go on with it by train.py --resume."
    )


def _from_checkpoint(
  run_dir: str, manifest: dict[str, Any], loaded: LoadedTask, best: bool
) -> RunFunctions:
  preparation.check_model(run_dir, manifest, loaded)
  with runtimes.create_runtime("in_process"):
    found = preparation.newest_weights(run_dir, manifest, loaded.model, best=best)
  source = f"{_checkpoints(run_dir)}, round {found.rounds}"
  return RunFunctions(loaded.model, found.weights, source)


def _open(path: str) -> tf.keras.Model:
  try:
    _check_whole(path)
    return tf.keras.models.load_model(path, compile=False)
  except (OSError, ValueError, KeyError) as error:
    has_other = checkpoints.exists(_checkpoints(os.path.dirname(path)))
    remedy = (
      "remove it, so that the checkpoint is taken"
      if has_other
      else "do the run again, in another folder"
    )
    raise InputError(
      f"{path} cannot be opened ({first_line(error)}): {remedy}."
    ) from error


def _check_whole(path: str) -> None:
  """Raises `ValueError` for a damaged file, which Keras is not to open.

  For HDF5, on opening what is none, leaves a process that crashes when it exits.
  """
  try:
    with zipfile.ZipFile(path) as file:
      damaged = file.testzip()
  except durable_files.ZIP_DAMAGES as error:
    raise ValueError(first_line(error)) from error
  if damaged:
    raise ValueError(f"{damaged} in it is damaged")
