"""Evaluates the model of a run again: on the test set, and on each client's examples."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping
from typing import Any, NamedTuple, Optional

import numpy as np

from experiments import command_line, preparation
from experiments.export import run_model
from experiments.progress import number
from experiments.run_folder import fingerprints
from experiments.run_folder.folder import differences
from tasks.registry import LoadedTask
from tff_algos import durable_files
from tff_algos.client_data import ClientDirectory
from tff_algos.errors import InputError
from tff_algos.simulation import client_evaluation, cohorts, evaluation

_FIRST_COLUMNS = ("client", "examples", "held_out")


class Request(NamedTuple):
  """What the flags ask for.

  Attributes:
    run: The folder of a run.
    best: Whether to take the best round's model, not the last.
    data_dir: Where the data are; None: where they were.
    cache_dir: Where client files are kept; None: where they were.
    other_data: Whether the data may be others than the run's.
    out: The CSV of the clients; None: in the run's folder.
  """

  run: str
  best: bool
  data_dir: Optional[str]
  cache_dir: Optional[str]
  other_data: bool
  out: Optional[str]


def run(request: Request) -> None:
  """Evaluates, prints both, and writes a line for each client.

  Raises:
    InputError: There is no model, the data are not the run's, or not such as its model
      takes, or the CSV cannot be written; nothing was written.
  """
  name = "best_clients.csv" if request.best else "clients.csv"
  out = request.out or os.path.join(request.run, name)
  config, manifest = run_model.config_of(request.run, request.data_dir, request.cache_dir)
  command_line.check_out_file(out, ",".join(_FIRST_COLUMNS).encode())
  folder = os.path.dirname(os.path.abspath(out))
  loaded = preparation.load(config)
  if not request.other_data:
    _check_data(request.run, manifest, loaded)
  clients = loaded.clients
  held_out = np.ones(len(clients), bool)
  training = cohorts.training_clients(len(clients), config.held_out_clients, config.seed)
  held_out[list(training)] = False
  found = run_model.read_functions(config, manifest, loaded, best=request.best)
  process = preparation.process_of(request.run, manifest, found.model)
  evaluate_clients = client_evaluation.build_client_evaluation(
    found.model, personal_model=process.personal_model, seed=config.seed
  )
  print(f"{found.source}:")
  if process.personal_model is None:
    evaluate = evaluation.build_evaluation(found.model, loaded.test_x, loaded.test_y)
    words = _words(evaluate(found.weights))
    # The clients may take longer.
    print(f"test set, {len(loaded.test_y):,} examples: {words}", flush=True)
  # Of the other half their own models are made.
  whose = "their own" if process.personal_model is None else "half of their own"
  values = evaluate_clients(found.weights, clients, clients.ids)
  os.makedirs(folder, exist_ok=True)
  _write(out, clients, values, held_out)
  for group, chosen in (("clients", ~held_out), ("held-out clients", held_out)):
    if chosen.any():
      name = "accuracy" if "accuracy" in values else "loss"
      spread = client_evaluation.spread(
        name, values[name][chosen], values["num_examples"][chosen]
      )
      range_of = f"{name} on {whose} examples {_range(name, spread)}"
      print(f"{chosen.sum():,} {group}: {range_of}")
  print(f"each client in {out}")


def _check_data(run_dir: str, manifest: Mapping[str, Any], loaded: LoadedTask) -> None:
  """Raises `InputError` if the data are not those that config.json says."""
  found = differences(manifest, {"data": fingerprints.of_data(loaded)})
  if found:
    names = ", ".join(name for name, _, _ in found)
    raise InputError(
      f"These are not the data of {run_dir}, for they differ in {names}: name its own by "
      "--data_dir, or pass --other_data to evaluate on these."
    )


def _write(
  path: str,
  clients: ClientDirectory,
  values: client_evaluation.ClientValues,
  held_out: np.ndarray,
) -> None:
  counts = values["num_examples"]
  measures = {name: v for name, v in values.items() if name != "num_examples"}
  rows = zip(clients.ids, counts, held_out.astype(int), *measures.values())
  with durable_files.new_file(path, "w", newline="") as f:
    writer = csv.writer(f)
    writer.writerow([*_FIRST_COLUMNS, *measures])
    writer.writerows(rows)


def _words(values: Mapping[str, float]) -> str:
  return ", ".join(f"{name} {number(name, v)}" for name, v in values.items())


def _range(name: str, spread: Mapping[str, float]) -> str:
  words = {part: number(name, value) for part, value in spread.items()}
  return (
    f"{words['p50']} (median), {words['p10']} to {words['p90']} (10th to 90th "
    f"percentile), {words['worst']} (worst)"
  )
