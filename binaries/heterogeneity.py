"""Draws and measures splits of a task's training examples over clients.

  python binaries/heterogeneity.py --out=splits --partitions='iid;shards;dirichlet:beta=1'

For each split a heat map, client x class [paper, FedAgg, Figure 2; FedGG, Figure 1],
columns in space, clients x classes x examples [paper, TWAFL, Figure 6], and a line of
table.csv and table.md. Only labels are looked at. Exit status: 2 if a split or the data
cannot be used, and then nothing is written.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":  # Before what a broken environment fails to import.
  sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
  from tff_algos import preflight

  preflight.check_and_quiet(sys.argv)

import csv
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags

from binaries import command_line, markdown
from tasks import partitions
from tasks import registry as tasks_registry
from tff_algos.diagnostics import heterogeneity

_TASK = flags.DEFINE_string("task", "mnist_cnn", "A task, as of train.py.")
_PARTITIONS = flags.DEFINE_string(
  "partitions", None, "Splits as of train.py, with ; between; default: the task's."
)
_NUM_CLIENTS = flags.DEFINE_integer("num_clients", None, "Clients; default: the task's.")
_SEED = flags.DEFINE_integer("partition_seed", 0, "Seed of the splits.")
_OUT = flags.DEFINE_string(
  "out", None, "Folder for the results: new, empty or of the same settings."
)
_DATA_DIR = flags.DEFINE_string("data_dir", None, "Of the data set; default: TFDS's own.")
_CACHE_DIR = flags.DEFINE_string(
  "cache_dir", "~/.cache/tff_algos", "Folder for prepared data."
)

_COLUMNS = ("split", *heterogeneity.Summary._fields, "left_over")


def _table(rows: Sequence[Sequence[Any]]) -> str:
  """The rows, below their head, as a Markdown table."""
  head = [name.replace("_", " ") for name in _COLUMNS]
  body = [[v if isinstance(v, str) else f"{v:,}" for v in row] for row in rows]
  return markdown.table(head, body)


def _is_of(out: str, settings: Mapping[str, Any]) -> bool:
  """Whether the folder was begun with the same settings."""
  try:
    with open(os.path.join(out, "config.json")) as f:
      return bool(json.load(f)["flags"] == settings)
  except (OSError, ValueError, KeyError, TypeError):
    return False


def main(argv: Sequence[str]) -> None:
  """Draws what the flags say."""
  del argv
  out = os.path.expanduser(_OUT.value)
  sys.path.append(os.getcwd())  # Where a task of the user's own may be.
  try:
    task = tasks_registry.get(_TASK.value)
    given = task.partition if _PARTITIONS.value is None else _PARTITIONS.value
    specs = list(dict.fromkeys(spec.strip() for spec in given.split(";")))
    for spec in specs:
      partitions.parse(spec)
    if _SEED.value < 0:
      raise ValueError(f"--partition_seed must be >= 0; found {_SEED.value}.")
  except ValueError as error:
    command_line.fail(error)
  # Here, as they import TensorFlow.
  from binaries import experiment
  from tasks.datasets import dataset as dataset_lib
  from tff_algos.simulation import records

  num_clients = task.num_clients if _NUM_CLIENTS.value is None else _NUM_CLIENTS.value
  settings = {
    "task": task.name,
    "partitions": specs,
    "num_clients": num_clients,
    "partition_seed": _SEED.value,
  }
  drawn = []
  try:
    experiment.check_folder("out", out)
    if os.path.isdir(out) and os.listdir(out) and not _is_of(out, settings):
      raise experiment.InputError(
        f"{out} is not empty and holds nothing of these settings: choose another --out."
      )
    with experiment.user_input():
      cache_dir = os.path.expanduser(_CACHE_DIR.value)
      data = dataset_lib.check(task.load_data(_DATA_DIR.value, cache_dir))
      for spec in specs:
        split = tasks_registry.split_over_clients(data, spec, num_clients, _SEED.value)
        counts = partitions.class_counts(split, data.train_y, data.num_classes)
        found = heterogeneity.summarize(counts)
        drawn.append(((spec, *found, len(split.left_over)), counts))
  except experiment.InputError as error:
    command_line.fail(error)
  os.makedirs(out, exist_ok=True)
  records.write_json(
    os.path.join(out, "config.json"),
    {"flags": settings, "note": data.note, **experiment.provenance()},
  )
  rows = [row for row, _ in drawn]
  with open(os.path.join(out, "table.csv"), "w", newline="") as f:
    csv.writer(f).writerows([_COLUMNS, *rows])
  for (spec, *_), counts in drawn:
    path = os.path.join(out, re.sub(r"[^\w.-]+", "_", spec))
    title = f"{task.name}{f' ({data.note})' if data.note else ''}: {spec}"
    heterogeneity.draw_heat_map(counts, f"{path}.png", title)
    heterogeneity.draw_columns(counts, f"{path}_columns.png", title)
  text = _table(rows)
  # Last, as the papers' programs take it for the sign that all is there.
  with open(os.path.join(out, "table.md"), "w") as f:
    f.write(text + "\n")
  print(text)


if __name__ == "__main__":
  flags.mark_flags_as_required(["out"])
  command_line.start(main)
