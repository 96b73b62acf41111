"""What each algorithm's process says of itself, built for the digits task's model.

Building all of them takes half a minute, so it is kept until the library changes.
"""

from __future__ import annotations

import hashlib
import json
import pathlib
import tempfile
from typing import Any

import repository_pages

_TASK = "digits_cnn"
# Everything that the numbers depend on; pins of the packages too.
_SOURCES = ("tff_algos/**/*.py", "tasks/**/*.py", "uv.lock", "docs/_ext/traffic.py")


def _digest() -> str:
  found = hashlib.sha256()
  for pattern in _SOURCES:
    for path in sorted(repository_pages.ROOT.glob(pattern)):
      found.update(path.read_bytes())
  return found.hexdigest()


def read(folder: pathlib.Path) -> dict[str, Any]:
  """What the processes say, from `folder` where it is kept there.

  Args:
    folder: Where to keep it.

  Returns:
    weights: The number of the model's weights.
    rounds: Algorithm -> kind of round -> "down" and "up" -> part -> bytes.
    client_state: Algorithm -> the bytes that a client keeps between rounds.
  """
  kept = folder / f"traffic-{_digest()[:16]}.json"
  if kept.exists():
    return json.loads(kept.read_text())
  found = _build()
  kept.parent.mkdir(parents=True, exist_ok=True)
  kept.write_text(json.dumps(found))
  return found


def _build() -> dict[str, Any]:
  import numpy as np
  import tree

  from tasks import loading, registry
  from tff_algos.algorithms.registry import ALGORITHMS
  from tff_algos.runtimes.runtime import create_runtime

  runtime = create_runtime()  # Before any model.
  task = registry.get(_TASK)
  with tempfile.TemporaryDirectory() as folder:
    loaded = loading.load(
      task,
      data_dir=None,
      cache_dir=folder,
      partition=task.partition,
      num_clients=task.num_clients,
      partition_seed=0,
      model_seed=0,
    )
  weights = sum(np.size(w) for w in loaded.model.initial_weights)
  found: dict[str, Any] = {"weights": int(weights), "rounds": {}, "client_state": {}}
  with runtime:  # TFF's own default context would leave a worker process behind.
    for name, row in ALGORITHMS.items():
      process = row.build(
        loaded.model,
        row.hparams_class(),
        num_clients=task.num_clients,
        num_examples=int(loaded.clients.num_examples.sum()),
      )
      found["rounds"][name] = {
        kind: {"down": dict(crossing.down), "up": dict(crossing.up)}
        for kind, crossing in process.traffic.items()
      }
      state = process.initialize_client()
      arrays = [np.asarray(value) for value in tree.flatten(state)]
      found["client_state"][name] = int(sum(value.nbytes for value in arrays))
  return found
