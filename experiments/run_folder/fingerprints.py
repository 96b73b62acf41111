"""What a run's numbers depend on besides its settings: data, model, own code."""

from __future__ import annotations

import hashlib
import json
import pathlib
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from tasks import registry as tasks_registry
from tasks.registry import LoadedTask
from tff_algos import own_code
from tff_algos.algorithms import registry as algorithms_registry
from tff_algos.client_data import ClientDirectory


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

  `input` is the dtype and shape of an example, before it is preprocessed. Of what is
  frozen in the model there is a digest, where anything is.
  """
  model = loaded.model
  shapes = ["x".join(map(str, w.shape)) for w in model.initial_weights]
  found = {
    "num_weights": model.num_weights,
    "weights": shapes,
    "layers": loaded.layers,
    "input": f"{model.example_spec.x.dtype.name}{list(model.example_spec.x.shape)}",
  }
  if model.keras_source and (frozen := model.keras_source.frozen_arrays()):
    found["frozen"] = _of_arrays(*frozen)
  return found


def of_own_code(task: str, algorithms: Iterable[str] = ()) -> dict[str, dict[str, str]]:
  """Digests of the files that what is a user's own is in: `OWN_CODE` to modules to them.

  They are those of the module that is named, and of an algorithm's builder and its
  hyper-parameters' class, or of what a task is made of, less what is the library's, but
  not what these import. A task's data and model have fingerprints of their own; its loss,
  metrics and preprocessing are in these.

  Args:
    task: Its name; heading "task", if it is module:attribute.
    algorithms: Their names; heading "algorithm", if any is module:attribute.
  """
  found: dict[str, dict[str, str]] = {}
  for name in algorithms:
    if ":" in name:
      row = algorithms_registry.get(name)
      files = _of_files(name, row.builder, row.hparams_class)
      found.setdefault("algorithm", {}).update(files)
  if ":" in task:
    own = tasks_registry.get(task)
    parts = own.load_data, own.build_keras_model, own.make_model
    found["task"] = _of_files(task, *parts)
  return found


def of_all(
  loaded: LoadedTask, task: str, algorithms: Iterable[str]
) -> dict[str, dict[str, Any]]:
  """All that numbers depend on besides settings, by the headings of a manifest.

  Args:
    loaded: The task.
    task: Its name.
    algorithms: The names of those that are run on it.
  """
  return {
    "data": of_data(loaded),
    "model": of_model(loaded),
    **of_own_code(task, algorithms),
  }


def _of_files(name: str, *parts: Any) -> dict[str, str]:
  named = [name.partition(":")[0]]
  named += (
    getattr(own_code.called_by(part), "__module__", "tff_algos") for part in parts
  )
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
