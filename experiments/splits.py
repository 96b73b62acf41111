"""Splits of a task's training examples over clients: their pictures and numbers."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

import numpy as np

from experiments import command_line, markdown
from experiments.run_folder.folder import RunFolder
from tasks import loading
from tasks import registry as tasks_registry
from tasks.datasets import dataset as dataset_lib
from tff_algos import durable_files, partitions
from tff_algos.diagnostics import heterogeneity
from tff_algos.errors import InputError

_COLUMNS = ("split", *heterogeneity.Summary._fields, "left_over")


class Request(NamedTuple):
  """What the flags ask for.

  Attributes:
    task: A name of `tasks.registry`.
    partitions: Splits with ; between, as `partitions.parse` takes them; None: the task's.
    num_clients: The number of clients; None: the task's.
    partition_seed: Seed of the splits.
    data_dir: Where the data set is; None: where its loader looks by itself.
    cache_dir: Where prepared data are kept.
    out: Where the results go.
  """

  task: str
  partitions: Optional[str]
  num_clients: Optional[int]
  partition_seed: int
  data_dir: Optional[str]
  cache_dir: str
  out: str


def run(request: Request) -> None:
  """Measures the splits and writes the folder.

  Raises:
    InputError: A split or the data cannot be used; nothing was written.
  """
  folder = RunFolder(request.out, flag="--out")
  command_line.check_folder("out", folder.path)
  cache_dir = os.path.expanduser(request.cache_dir)
  command_line.check_place("cache_dir", cache_dir)
  task = tasks_registry.get(request.task)
  given = task.partition if request.partitions is None else request.partitions
  specs = list(dict.fromkeys(spec.strip() for spec in given.split(";")))
  for spec in specs:
    partitions.parse(spec)
  num_clients = task.num_clients if request.num_clients is None else request.num_clients
  settings = {
    "task": task.name,
    "partitions": specs,
    "num_clients": num_clients,
    "partition_seed": request.partition_seed,
  }
  folder.check_begun_with("partitions", settings, heading="flags")
  with loading.reading(task):
    data = dataset_lib.check(task.load_data(request.data_dir, cache_dir))
  if data.num_classes is None:
    raise InputError(
      f"The labels of {task.name} are no classes, whose numbers at the clients are what "
      "is measured here: choose another task."
    )
  drawn = []
  for spec in specs:
    split = loading.split_over_clients(data, spec, num_clients, request.partition_seed)
    counts = partitions.class_counts(split, data.train_y, data.num_classes)
    # Of examples, as in the column beside them; `counts` are of labels, of which a
    # sequence has several.
    sizes = [len(client) for client in split.clients]
    found = heterogeneity.summarize(counts)._replace(
      min_size=min(sizes), median_size=float(np.median(sizes)), max_size=max(sizes)
    )
    drawn.append(((spec, *found, len(split.left_over)), counts))
  counted = "labels" if data.train_y.ndim > 1 else "examples"
  with folder.alone():
    # Another one may have begun since.
    folder.check_begun_with("partitions", settings, heading="flags")
    folder.begin({"flags": settings, "note": data.note})
    rows = [row for row, _ in drawn]
    with durable_files.new_file(folder.file("table.csv"), "w", newline="") as f:
      csv.writer(f).writerows([_COLUMNS, *rows])
    for (spec, *_), counts in drawn:
      path = folder.file(re.sub(r"[^\w.-]+", "_", spec))
      title = f"{task.name}{f' ({data.note})' if data.note else ''}: {spec}"
      heterogeneity.draw_heat_map(counts, f"{path}.png", title, counted)
      heterogeneity.draw_columns(counts, f"{path}_columns.png", title, counted)
    text = table(rows)
    # Last, as the papers' programs take it for the sign that all is there.
    with durable_files.new_file(folder.file("table.md"), "w") as f:
      f.write(text + "\n")
  print(text)


def table(rows: Sequence[Sequence[Any]]) -> str:
  """The rows, below their head, as a Markdown table."""
  head = [name.replace("_", " ") for name in _COLUMNS]
  body = [[v if isinstance(v, str) else f"{v:,}" for v in row] for row in rows]
  return markdown.table(head, body, right=range(1, len(head)))
