"""The Keras files of a run: its model, which others open without us."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any, Optional

import tensorflow as tf

from experiments.run_folder.folder import RunFolder
from tff_algos import durable_files, to_keras
from tff_algos.errors import InputError
from tff_algos.models.functional import Model, Weights

MODEL, BEST_MODEL = "model.keras", "best_model.keras"


def keep(
  folder: RunFolder, model: Model, weights: Weights, best: Optional[Weights]
) -> None:
  """Writes a run's model, and that of its best round if it is known.

  Says on standard error where the model cannot be written.
  """
  try:
    for name, values in ((MODEL, weights), (BEST_MODEL, best)):
      if values is not None:
        save(to_keras(model, values), folder.file(name))
  except InputError as error:
    print(f"{folder.path} gets no {MODEL}: {error}", file=sys.stderr)


def remove(folder: RunFolder) -> None:
  """Removes what `keep` wrote: it is not the model of a run that goes on."""
  for name in (MODEL, BEST_MODEL):
    with contextlib.suppress(FileNotFoundError):
      os.remove(folder.file(name))


def save(keras_model: tf.keras.Model, path: str) -> None:
  """Writes a Keras file (.keras) that plain Keras opens.

  Raises:
    InputError: The model holds something that is not of Keras's own.
  """
  config = tf.keras.saving.serialize_keras_object(keras_model)
  for name in _foreign(config):
    raise InputError(
      f"the Keras model holds {name}, which is none of Keras's own, so that no other "
      "program could open the file: give the layer a standard_layer, as "
      "tff_algos.to_keras says, or make it of Keras's layers."
    )
  # Keras asks for the name's end.
  unfinished = f"{path.removesuffix('.keras')}.unfinished.keras"
  with durable_files.writing(path):
    try:
      keras_model.save(unfinished)
      durable_files.sync_tree(unfinished)
      durable_files.replace(unfinished, path)
    finally:
      with contextlib.suppress(FileNotFoundError):
        os.remove(unfinished)


def _foreign(config: Any) -> Iterator[str]:
  """Classes and functions in a model's settings that Keras alone does not know."""
  if isinstance(config, (list, tuple)):
    for part in config:
      yield from _foreign(part)
  elif isinstance(config, dict):
    name = str(config.get("class_name"))
    module = str(config.get("module")).partition(".")[0]
    is_own = "registered_name" in config and module != "keras"
    if is_own or name in ("__lambda__", "Lambda"):
      yield name
    for part in config.values():
      yield from _foreign(part)
