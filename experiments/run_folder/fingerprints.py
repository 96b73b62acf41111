"""What a run's numbers depend on besides its settings: data and model, in short."""

from __future__ import annotations

import hashlib
import json
import pathlib
import sys
from typing import Any

import numpy as np
import tensorflow as tf

from tasks.registry import LoadedTask
from tff_algos.client_data import ClientDirectory
from tff_algos.templates.algorithm import Algorithm


def of_data(loaded: LoadedTask) -> dict[str, Any]:
  """Names, counts and contents of a task's clients and test set.

  Args:
    loaded: The task.
  """
  return {
    "note": loaded.note,
    "clients": len(loaded.clients),
    "examples": int(loaded.clients.num_examples.sum()),
    "left_over": loaded.left_over,
    "test_examples": len(loaded.test_y),
    "client_files": _of_clients(loaded.clients),
    "test_set": _of_arrays(loaded.test_x, loaded.test_y),
  }


def of_model(loaded: LoadedTask) -> dict[str, Any]:
  """The arrays that are trained, as their shapes, and the layers of a task's model."""
  model = loaded.model
  shapes = ["x".join(map(str, w.shape)) for w in model.initial_weights]
  return {
    "num_weights": model.num_weights,
    "weights": shapes,
    "layers": loaded.layers,
  }


def of_own_code(name: str, row: Algorithm) -> dict[str, str]:
  """Digests of the files that an algorithm of a user's own is in, by module.

  They are those of the module that is named, of the builder and of the hyper-parameters'
  class, less what is the library's, but not what these import.

  Args:
    name: module:attribute.
    row: What that is.
  """
  named = (name.partition(":")[0], row.builder.__module__, row.hparams_class.__module__)
  own = (m for m in dict.fromkeys(named) if m.partition(".")[0] != "tff_algos")
  files = {m: getattr(sys.modules[m], "__file__", None) for m in own}
  return {
    module: hashlib.sha256(pathlib.Path(file).read_bytes()).hexdigest()
    for module, file in files.items()
    if file
  }


def _of_clients(clients: ClientDirectory) -> str:
  """A digest of every client's name, number of examples and file."""
  digest = hashlib.sha256()
  for client, count in zip(clients.ids, clients.num_examples):
    with tf.io.gfile.GFile(clients.path(client), "rb") as f:
      content = hashlib.sha256(f.read()).hexdigest()
    digest.update(json.dumps([client, int(count), content]).encode())
  return digest.hexdigest()


def _of_arrays(*arrays: np.ndarray) -> str:
  digest = hashlib.sha256()
  for array in arrays:
    digest.update(f"{array.dtype}{array.shape};".encode())
    digest.update(np.ascontiguousarray(array).data)
  return digest.hexdigest()
