"""Measures what large populations cost: clients' files, and clients' states.

  python experiments/benchmarks/population.py results/benchmark/population

Each measurement of `MEASUREMENTS` is a process of its own, whose numbers are a line of
<name>.jsonl and a row of <name>.md. They take up to 25 GB and a million files in
$TMPDIR.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

if __name__ == "__main__":
  from tff_algos import preflight

  preflight.check_and_quiet([])

import numpy as np
import tensorflow as tf

import tff_algos
from experiments import markdown
from experiments.benchmarks import measurements
from tff_algos import client_data, durable_files
from tff_algos.client_data import ClientDirectory
from tff_algos.runtimes import child_process, in_process
from tff_algos.simulation import checkpoints, loop
from tff_algos.simulation.client_state_store import ClientStateStore

_COHORT = 100
_EXAMPLES, _INPUTS, _CLASSES = 10, 16, 4
_ROUNDS, _CHECKPOINT_EVERY = 30, 10
# FedReg's CNN for MNIST.
_STATE_FLOATS, _STATE_POPULATION = 228_010, 100_000


class _Clients(Mapping):
  """Clients with the same examples, which take no memory of their own."""

  def __init__(self, num_clients: int):
    draw = np.random.default_rng(0)
    x = draw.standard_normal((_EXAMPLES, _INPUTS), np.float32)
    y = draw.integers(_CLASSES, size=_EXAMPLES, dtype=np.int32)
    self._num_clients, self._examples = num_clients, (x, y)

  def __len__(self) -> int:
    return self._num_clients

  def __iter__(self) -> Iterator[str]:
    return map(str, range(len(self)))

  def __getitem__(self, client: str) -> tuple[np.ndarray, np.ndarray]:
    return self._examples


def _timed(function: Callable[[], Any]) -> tuple[float, Any]:
  start = time.perf_counter()
  result = function()
  return time.perf_counter() - start, result


def _megabytes(field: str) -> float:
  return measurements.process_bytes(os.getpid(), field) / 1e6


def _model() -> Any:
  spec = tff_algos.ExampleSpec(
    tf.TensorSpec([_INPUTS], tf.float32), tf.TensorSpec([], tf.int32)
  )
  keras_model = tf.keras.Sequential(
    [tf.keras.layers.Input([_INPUTS]), tf.keras.layers.Dense(_CLASSES)]
  )
  tff_algos.reinitialize(keras_model, seed=0)
  return tff_algos.from_keras(keras_model, spec)


def _simulate(
  process: Any, clients: ClientDirectory, rounds: int, folder: str, resume: bool = False
) -> dict[str, Any]:
  """Seconds until the first round, of a round and of the rounds with a checkpoint."""
  begins: list[float] = []
  ends: list[float] = []
  start = time.perf_counter()
  settings = loop.Settings(
    rounds=rounds,
    clients_per_round=min(_COHORT, len(clients)),
    checkpoint_every=_CHECKPOINT_EVERY,
    checkpoint_folder=folder,
  )
  loop.simulate(
    process,
    clients,
    settings,
    resume=resume,
    before_round=lambda start: begins.append(time.perf_counter()),
    on_round=lambda record: ends.append(time.perf_counter()),
  )
  seconds = [end - begin for begin, end in zip(begins, ends)]
  # What is between rounds; that of the last round is a checkpoint too.
  between = [begin - end for end, begin in zip(ends, begins[1:])]
  after = [done for done in range(1, rounds) if done % _CHECKPOINT_EVERY == 0]
  return {
    "start_seconds": begins[0] - start,
    "round_seconds": statistics.median(seconds[1:]),
    "checkpoint_seconds": statistics.median(between[k - 1] for k in after)
    if not resume
    else None,
  }


def measure_clients(num_clients: int, algorithm: str = "fed_avg") -> dict[str, Any]:
  """Files of a population, and a run over it."""
  tff_algos.create_runtime().install()
  model = _model()
  build = getattr(tff_algos, f"build_{algorithm}")
  population = {"num_clients": num_clients} if algorithm == "scaffold" else {}
  process = build(model, **population)
  base = _megabytes("VmRSS")
  with tempfile.TemporaryDirectory() as folder:
    data = os.path.join(folder, "clients")
    written, _ = _timed(
      lambda: client_data.write_clients(data, _Clients(num_clients), model.example_spec)
    )
    opened, clients = _timed(lambda: ClientDirectory(data))
    looked_at, _ = _timed(lambda: clients.check_files(clients.ids))
    run = os.path.join(folder, "run")
    seconds = _simulate(process, clients, _ROUNDS, run)
    states = checkpoints.client_file(run)
    again = _simulate(process, clients, 2 * _CHECKPOINT_EVERY + _ROUNDS, run, resume=True)
    return {
      "clients": num_clients,
      "write_seconds": written,
      "open_seconds": opened,
      "check_seconds": looked_at,
      **seconds,
      "restore_seconds": again["start_seconds"],
      "states_mb": os.path.getsize(states) / 1e6 if os.path.exists(states) else 0,
      "peak_mb": _megabytes("VmHWM"),
      "beyond_base_mb": _megabytes("VmHWM") - base,
    }


def measure_scaffold(num_clients: int) -> dict[str, Any]:
  """`measure_clients` of an algorithm whose clients keep a state."""
  return measure_clients(num_clients, "scaffold")


def measure_states(touched: int) -> dict[str, Any]:
  """The store with large states, of which so many clients have their own."""
  in_process.prepare()
  draw = np.random.default_rng(0)
  initial = (draw.standard_normal(_STATE_FLOATS, np.float32),)
  base = _megabytes("VmRSS")

  def use(store: ClientStateStore, places: list[int]) -> float:
    reading, found = _timed(lambda: store.get(places))
    changed = [tuple(leaf + np.float32(1) for leaf in state) for state in found]
    return reading + _timed(lambda: store.put(places, changed))[0]

  with tempfile.TemporaryDirectory() as folder:
    store = ClientStateStore(initial, path=checkpoints.client_file(folder))
    own = draw.permutation(_STATE_POPULATION)[:touched]
    first: list[float] = []
    later: list[float] = []
    saves: list[float] = []
    cohorts = [own[i : i + _COHORT] for i in range(0, touched, _COHORT)]
    cohorts += [draw.choice(own, _COHORT, replace=False) for _ in range(_ROUNDS)]
    for done, places in enumerate(cohorts, 1):
      seconds = first if done <= touched // _COHORT else later
      seconds.append(use(store, places.tolist()))
      if done % _CHECKPOINT_EVERY == 0:
        start = time.perf_counter()
        checkpoints.save(folder, initial, store, done, [])
        saves.append(time.perf_counter() - start)
    size = os.path.getsize(checkpoints.client_file(folder))
    peak = _megabytes("VmHWM")
    del store
    again = ClientStateStore(initial, path=checkpoints.client_file(folder))
    restored, _ = _timed(lambda: checkpoints.restore(folder, initial, again))
    return {
      "touched": touched,
      "first_seconds": statistics.median(first),
      "round_seconds": statistics.median(later),
      "checkpoint_seconds": statistics.median(saves[-_ROUNDS // _CHECKPOINT_EVERY :]),
      "restore_seconds": restored,
      "file_gb": size / 1e9,
      "needed_gb": touched * 4 * _STATE_FLOATS / 1e9,
      "beyond_base_mb": peak - base,
      "beyond_base_with_restore_mb": _megabytes("VmHWM") - base,
    }


MEASUREMENTS: dict[str, tuple[Callable[[int], dict[str, Any]], tuple[int, ...]]] = {
  "clients": (measure_clients, (10**3, 10**4, 10**5, 10**6)),
  "scaffold": (measure_scaffold, (10**3, 10**4, 10**5)),
  "states": (measure_states, (1000, 5000, 20_000)),
}


def _cell(value: Any) -> str:
  if value is None:
    return ""
  return f"{value:,}" if isinstance(value, int) else f"{value:,.3g}"


def _measure(name: str, sizes: list[int], out: str) -> None:
  path = os.path.join(out, f"{name}.jsonl")
  with open(path, "w", encoding="utf-8"):
    pass
  for size in sizes:
    command = [sys.executable, os.path.abspath(__file__), out, f"--only={name}"]
    with tempfile.TemporaryDirectory() as folder:
      log = os.path.join(folder, "log")
      process = child_process.start([*command, f"--size={size}"], log)
      if process.wait():
        with open(log, encoding="utf-8") as f:
          sys.exit(f.read())
  with open(path, encoding="utf-8") as f:
    text = f.read()
  print(text, flush=True)
  rows = [json.loads(line) for line in text.splitlines()]
  cells = [list(map(_cell, row.values())) for row in rows]
  head = [name.replace("_", " ") for name in rows[0]]
  with durable_files.new_file(os.path.join(out, f"{name}.md"), "w") as f:
    f.write(markdown.table(head, cells, right=range(len(head))) + "\n")


def main() -> None:
  """Measures what is asked for, each size in a process of its own."""
  parser = argparse.ArgumentParser()
  parser.add_argument("out", help="the folder for the results")
  parser.add_argument("--only", choices=MEASUREMENTS, help="one of the measurements")
  parser.add_argument("--size", type=int, help="one size, in this process")
  parser.add_argument("--sizes", type=int, nargs="+", help="other sizes than ours")
  flags = parser.parse_args()
  if flags.size:
    row = MEASUREMENTS[flags.only][0](flags.size)
    with open(os.path.join(flags.out, f"{flags.only}.jsonl"), "a", encoding="utf-8") as f:
      f.write(json.dumps(row) + "\n")
    return
  os.makedirs(flags.out, exist_ok=True)
  for name in [flags.only] if flags.only else MEASUREMENTS:
    _measure(name, flags.sizes or list(MEASUREMENTS[name][1]), flags.out)


if __name__ == "__main__":
  main()
