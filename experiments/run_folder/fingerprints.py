"""What a run's numbers depend on besides its settings: data and model, in short."""

from __future__ import annotations

import hashlib
import json
import pathlib
import sys
from typing import Any

import numpy as np
import tensorflow as tf

from tasks.registry import LoadedTask, Task
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
  """The arrays that are trained, as their shapes, and the layers of a task's model.

  Of what is frozen in it there is a digest, where anything is.
  """
  model = loaded.model
  shapes = ["x".join(map(str, w.shape)) for w in model.initial_weights]
  found = {
    "num_weights": model.num_weights,
    "weights": shapes,
    "layers": loaded.layers,
  }
  constants = model.keras_source.constants if model.keras_source else {}
  # Random layers have counters among them.
  frozen = [t.numpy() for t in constants.values() if t.dtype.is_floating]
  if frozen:
    found["frozen"] = _of_arrays(*frozen)
  return found


def of_own_algorithm(name: str, row: Algorithm) -> dict[str, str]:
  """Digests of the files that an algorithm of a user's own is in, by module.

  They are those of the module that is named, of the builder and of the hyper-parameters'
  class, less what is the library's, but not what these import.

  Args:
    name: module:attribute.
    row: What that is.
  """
  return _of_files(name, row.builder, row.hparams_class)


def of_own_task(name: str, task: Task) -> dict[str, str]:
  """Digests of the files that a task of a user's own is in, likewise.

  Its data and its model have theirs; its loss, metrics and preprocessing are in these.

  Args:
    name: module:attribute.
    task: What that is.
  """
  return _of_files(name, task.load_data, task.build_keras_model, task.make_model)


def _of_files(name: str, *parts: Any) -> dict[str, str]:
  named = [name.partition(":")[0]]
  named += (getattr(part, "__module__", "tff_algos") for part in parts)
  ours = ("tff_algos", "tasks", "experiments")
  own = (m for m in dict.fromkeys(named) if m.partition(".")[0] not in ours)
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
