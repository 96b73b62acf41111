"""The folders that `train.py` has written, for the programs that show runs.

Nothing here needs TensorFlow, so that they start at once.
"""

from __future__ import annotations

import collections
import csv
import dataclasses
import itertools
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional

from experiments.run_folder.folder import CHECKPOINTS, CONFIG, read_manifest, sessions_of
from tff_algos.errors import InputError
from tff_algos.simulation import records

PARTITION = "partition.png"


@dataclasses.dataclass(frozen=True)
class Run:
  """What a folder says of its run.

  Attributes:
    folder: Its path.
    name: Its last part, or what tells it from the other runs that were read with it.
    flags: The settings, as config.json has them; the next three likewise.
    hparams: All hyper-parameters.
    data: Of the data set: note, clients, examples, ...
    model: Number of weights, layers, ..., as far as config.json says.
    code: Digests of own algorithms and tasks, by heading; {} where there are none.
    sessions: Of each: command, versions, machine, git_commit; the last one last.
    records: One of each round; a cell that metrics.csv leaves blank is not in it.
    has_ended: Whether summary.json is of these rounds; else it goes on or was cut short.
    target: The test accuracy to reach, 0..1; None for none.
    privacy: The sentence on differential privacy; "" for none.
    peak_memory: Bytes; None if the run has not ended.
    metric: The column of metrics.csv that is read as values.
    rounds: The rounds with a finite value.
    values: One for each of them, an accuracy in percent.
    megabytes: Down and up, all clients, from the start to each of them.
  """

  folder: str
  name: str
  flags: dict[str, Any]
  hparams: dict[str, Any]
  data: dict[str, Any]
  model: dict[str, Any]
  code: dict[str, Any]
  sessions: list[dict[str, Any]]
  records: list[dict[str, Any]]
  has_ended: bool
  target: Optional[float]
  privacy: str
  peak_memory: Optional[int]
  metric: str
  rounds: list[int]
  values: list[float]
  megabytes: list[float]

  def of_metric(self, metric: str) -> Run:
    """The same run with the values of another column."""
    return dataclasses.replace(self, metric=metric, **_measured(self.records, metric))

  def summarize(self, target: Optional[float] = None) -> dict[str, Any]:
    """The rounds in a few numbers, by the run's metric.

    Args:
      target: The accuracy to reach, 0..1; None: the run's own. Of another metric than
        accuracy there is none.

    Returns:
      As `records.summarize`, of the rounds that metrics.csv has: a run that has not
      ended has no summary.json.
    """
    target = self.target if target is None else target
    of_accuracy = target if is_accuracy(self.metric) else None
    return records.summarize(self.records, metric=self.metric, target=of_accuracy)


def default_metric(runs: Iterable[Run]) -> str:
  """test_accuracy, or test_loss where that was measured and in no run the accuracy."""
  measured = {name for run in runs for record in run.records for name in record}
  of_loss = "test_loss" in measured and "test_accuracy" not in measured
  return "test_loss" if of_loss else "test_accuracy"


def is_accuracy(metric: str) -> bool:
  """Whether it is a share, which is shown in percent, such as client_accuracy_p50."""
  return "accuracy" in metric


def read_runs(paths: Iterable[str]) -> list[Run]:
  """Reads runs and tells them apart.

  Args:
    paths: Folders of runs, and folders that hold such, however deep.

  Returns:
    Each run once, in the order of `paths` and, within one, of the alphabet.

  Raises:
    InputError: A folder holds none, or one that cannot be read.
  """
  found: dict[str, tuple[str, str]] = {}
  for path in paths:
    for folder in _find(path):
      name = os.path.basename(os.path.abspath(folder))
      if not os.path.samefile(folder, path):
        name = os.path.relpath(folder, path)
      found.setdefault(os.path.realpath(folder), (folder, name))
  runs = [dataclasses.replace(read_run(f), name=name) for f, name in found.values()]
  names = collections.Counter(run.name for run in runs)
  return [
    dataclasses.replace(run, name=run.folder) if names[run.name] > 1 else run
    for run in runs
  ]


def labels(runs: Sequence[Run]) -> list[str]:
  """What runs in one picture are called.

  Returns:
    The algorithm, and where several runs have the same, their names without the folders
    that all of these are in; of runs of several tasks the task too.
  """
  algorithms = [str(run.flags["algorithm"]) for run in runs]
  again = [algorithms.count(algorithm) > 1 for algorithm in algorithms]
  names = [run.name for run, is_again in zip(runs, again) if is_again]
  start = os.path.commonprefix(names).rfind("/") + 1  # noqa: RUF071 - whole folders
  found = [
    run.name[start:] if is_again else algorithm
    for run, algorithm, is_again in zip(runs, algorithms, again)
  ]
  tasks = [str(run.flags.get("task", "unknown task")) for run in runs]
  if len(set(tasks)) == 1:
    return found
  return [f"{label}, {task}" for label, task in zip(found, tasks)]


# Where these keep copies of a run's files.
_OF_TRACKERS = {"mlruns", "wandb"}


def _find(path: str) -> list[str]:
  found = []
  seen: set[str] = set()
  for folder, below, files in os.walk(path, followlinks=True):
    if os.path.realpath(folder) in seen:  # By a link, which may go round in circles.
      below.clear()
      continue
    seen.add(os.path.realpath(folder))
    is_run = {CONFIG, records.METRICS} <= set(files)
    below[:] = sorted({*below} - _OF_TRACKERS - ({CHECKPOINTS} if is_run else set()))
    if is_run:
      found.append(folder)
  if not found:
    raise InputError(
      f"{path} holds no run, a folder with {CONFIG} and {records.METRICS}: give folders "
      "that train.py has written, or folders of such."
    )
  return found


def read_run(folder: str) -> Run:
  """Reads a run's folder.

  Raises:
    InputError: It is none, or a file of it cannot be read.
  """
  manifest = read_manifest(folder, "give folders that train.py has written")
  try:
    inner: dict[str, Any] = {
      key: dict(manifest.get(key, {})) for key in ("flags", "hparams", "data")
    }
    inner["flags"]["algorithm"]  # Must be there, as what `summarize` takes must.
    # Older folders have the count by itself.
    model = manifest.get("model", {"num_weights": manifest.get("num_weights")})
    target = inner["flags"].get("target_accuracy")
    rounds = _read_metrics(folder)
    summary = {}
    if os.path.exists(os.path.join(folder, records.SUMMARY)):
      summary = _read_json(folder, records.SUMMARY)
    has_ended = summary.get("rounds") == len(rounds)
    if not has_ended:  # It is of fewer rounds, before the run was gone on with.
      summary = {}
    memory = summary.get("peak_memory_bytes")
    run = Run(
      folder=folder,
      name=os.path.basename(os.path.abspath(folder)),
      **inner,
      model=dict(model),
      code={key: manifest[key] for key in ("algorithm", "task") if key in manifest},
      sessions=sessions_of(manifest),
      records=rounds,
      has_ended=has_ended,
      target=None if target is None else float(target),
      privacy=privacy_line(summary["privacy"]) if "privacy" in summary else "",
      peak_memory=None if memory is None else int(memory),
      metric="test_accuracy",
      **_measured(rounds, "test_accuracy"),
    )
    run.summarize()
  except (OSError, ValueError, KeyError, TypeError, OverflowError, csv.Error) as error:
    said = f"no {error}" if isinstance(error, KeyError) else str(error)
    raise InputError(
      f"{folder} holds no run that can be read ({' '.join(said.split())}): give folders "
      "that train.py has written."
    ) from error
  return run


def _measured(rounds: Sequence[Mapping[str, Any]], metric: str) -> dict[str, Any]:
  """The fields of a `Run` that depend on the column."""
  scale = 100 if is_accuracy(metric) else 1
  sent = itertools.accumulate(r["bytes_down"] + r["bytes_up"] for r in rounds)
  measured = [
    (r["round"], scale * r[metric], total / 1e6)
    for r, total in zip(rounds, sent)
    if math.isfinite(r.get(metric, math.nan))
  ]
  columns = list(zip(*measured)) or [(), (), ()]
  return dict(zip(("rounds", "values", "megabytes"), map(list, columns)))


def _read_json(folder: str, name: str) -> dict[str, Any]:
  with open(os.path.join(folder, name), encoding="utf-8") as f:
    return dict(json.load(f))


def _read_metrics(folder: str) -> list[dict[str, Any]]:
  """The rounds; none where the run has only begun, or was killed then."""
  try:
    lines = records.read_lines(os.path.join(folder, records.METRICS))
  except FileNotFoundError:
    return []
  if not lines:
    return []
  head, *rows = lines
  for number, row in enumerate(rows, start=2):
    if len(row) != len(head):
      raise ValueError(
        f"line {number} of {records.METRICS} has {len(row)} cells, not {len(head)}"
      )
  read = [{n: _number(n, cell) for n, cell in zip(head, row) if cell} for row in rows]
  for due, record in enumerate(read, start=1):
    if record["round"] != due:
      raise ValueError(
        f"line {due + 1} of {records.METRICS} is of round {record['round']}, not {due}"
      )
  return read


def _number(name: str, cell: str) -> float:
  counts = name == "round" or name.startswith(("bytes_", "num_"))
  return int(cell) if counts else float(cell)


def privacy_line(privacy: Mapping[str, Any]) -> str:
  """What the "privacy" of summary.json says, as a sentence without its full stop."""
  if privacy["epsilon"] is None:
    return "without noise the examples have no differential privacy"
  return (
    f"privacy of one example: epsilon {privacy['epsilon']:,.4g} at delta "
    f"{privacy['delta']:g}, for the client that took part most often "
    f"({privacy['most_participations']} rounds)"
  )
