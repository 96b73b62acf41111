"""Runs of `train.py` as one page for a browser.

The page has the runs' table, curves, megabytes and settings, asks no network for
anything, and is one file.
"""

from __future__ import annotations

import base64
import datetime
import json
import math
import os
import pathlib
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional

from experiments.markdown import count, three_digits
from experiments.report.repeats import group, group_labels
from experiments.run_folder.folder import completed
from experiments.run_folder.reading import (
  PARTITION,
  Run,
  default_metric,
  is_accuracy,
  labels,
)
from tff_algos import durable_files
from tff_algos.simulation import records

_TEMPLATE = "template.html"
_MARK = "REPORT_DATA"
# More points than a chart has pixels only make the page large.
_MOST_POINTS = 1000
# What a run is called or says elsewhere, and what does not change its numbers.
_NOT_SETTINGS = ("run_dir", "hparams", "cache_dir")
_NOTHING = "\N{EN DASH}"
_SPACE = "\N{NO-BREAK SPACE}"


def write(
  runs: Sequence[Run], path: str, *, title: str = "", target: Optional[float] = None
) -> None:
  """Writes the page.

  Args:
    runs: As `reading.read_runs` returns them.
    path: The file.
    title: Its heading; "" for one that says what it is.
    target: The test accuracy whose first round the table gives, 0..1; None: each run's
      own.
  """
  page = render(runs, title=title, target=target)
  os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
  with durable_files.new_file(path, "w") as f:
    f.write(page)


def render(
  runs: Sequence[Run], *, title: str = "", target: Optional[float] = None
) -> str:
  """The page as HTML; the arguments are those of `write`.

  What a run's files say only enters as JSON in which no "<" is left, and the page's
  script only makes text of it, so that no name can be markup or a program.
  """
  template = pathlib.Path(__file__).with_name(_TEMPLATE).read_text(encoding="utf-8")
  data = json.dumps(describe(runs, title=title, target=target), allow_nan=False)
  return template.replace(_MARK, data.replace("<", "\\u003c"), 1)


def describe(
  runs: Sequence[Run], *, title: str = "", target: Optional[float] = None
) -> dict[str, Any]:
  """What the page shows, as JSON can hold it; the arguments are those of `write`.

  Returns:
    title and made: Sentences.
    columns: The heads of the table; its cells are in the runs' "row", each as its text
      and what it is sorted by, a string, a number or None.
    runs: Each with name and label; row; curve, lists of round, megabytes and test
      accuracy in percent, or test loss, where it was measured; loss, lists of round and
      training loss, None where that is not finite; best, or None; bytes, lists of
      direction, part and bytes; details, lists of a heading and of pairs of texts.
    groups: The runs that are comparable, each with title; of_loss, whether their curves
      are of test loss, as none has an accuracy; runs, places in "runs"; settings, each
      with its label and runs, which differ in their seeds only; splits, each with its
      text, runs and picture (a data URI or "").
  """
  by_task: dict[str, list[int]] = {}
  for place, run in enumerate(runs):
    by_task.setdefault(_comparable(run), []).append(place)
  groups = []
  details: dict[int, list] = {}
  labels_of: dict[int, str] = {}
  measured: dict[int, Run] = {}
  for task, places in by_task.items():
    metric = default_metric(runs[place] for place in places)
    measured.update((place, runs[place].of_metric(metric)) for place in places)
    settings = {place: _settings(runs[place]) for place in places}
    labels_of.update(zip(places, labels([runs[place] for place in places])))
    differing = _differing(settings.values())
    for place in places:
      details[place] = _details(runs[place], settings[place], differing)
    groups.append(
      {
        "title": task,
        "of_loss": not is_accuracy(metric),
        "runs": places,
        "settings": _repeats(runs, places),
        "splits": _splits(runs, places),
      }
    )
  now = datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
  runs = [measured[place] for place in range(len(runs))]
  rows = [_row(run, target) for run in runs]
  used = [name for name in rows[0] if any(row[name][0] != _NOTHING for row in rows)]
  return {
    "title": title or "Runs of federated learning",
    "made": f"{count(len(runs), 'run')} on {count(len(groups), 'task')}, {now}",
    "columns": used,
    "runs": [
      {
        "name": run.name,
        "label": labels_of[place],
        "row": [row[name] for name in used],
        "best": _best(run),
        "curve": _thin(list(zip(run.rounds, run.megabytes, run.values))),
        "loss": _thin(
          [
            (record["round"], _finite(_training_loss(record)))
            for record in run.records
            if "train_loss" in record
          ]
        ),
        "bytes": _parts(run),
        "details": details[place],
      }
      for place, (run, row) in enumerate(zip(runs, rows))
    ],
    "groups": groups,
  }


def _comparable(run: Run) -> str:
  """The task and what is to be known of its data: runs of another are not comparable."""
  task, note = str(run.flags.get("task", "unknown task")), run.data.get("note")
  return f"{task} ({note})" if note else task


def _split(run: Run) -> str:
  return str(run.flags.get("partition", "unknown split"))


def _finite(value: Optional[float]) -> Optional[float]:
  return value if value is not None and math.isfinite(value) else None


def _best(run: Run) -> Optional[float]:
  return (max if is_accuracy(run.metric) else min)(run.values, default=None)


def _training_loss(record: Mapping[str, Any]) -> float:
  """NaN also where no client's result was taken, for which older runs have 0."""
  is_empty = record.get("num_examples") == 0
  return math.nan if is_empty else record.get("train_loss", 0.0)


def _thin(points: list[tuple]) -> list[tuple]:
  """At most about `_MOST_POINTS` of them, the last always."""
  step = math.ceil(len(points) / _MOST_POINTS) or 1
  return points[-1::-step][::-1]


def _row(run: Run, target: Optional[float]) -> dict[str, tuple[str, Any]]:
  """Column to the cell's text and what it is sorted by."""
  summary = run.summarize(target)

  def number(value: Optional[float], form: str) -> tuple[str, Optional[float]]:
    value = _finite(value)
    return (_NOTHING if value is None else form.format(value), value)

  def percent(value: Optional[float]) -> tuple[str, Optional[float]]:
    return number(None if value is None else 100 * value, f"{{:.2f}}{_SPACE}%")

  planned, done = run.flags.get("rounds", len(run.records)), len(run.records)
  memory = run.peak_memory
  total = summary["bytes_down"] + summary["bytes_up"]
  return {
    "run": (run.name, run.name),
    "algorithm": (str(run.flags["algorithm"]),) * 2,
    "task": (_comparable(run),) * 2,
    "best accuracy": percent(summary.get("best_accuracy")),
    "least test loss": number(summary.get("best_loss"), "{:.4g}"),
    "in round": number(summary[f"best_{run.metric.removeprefix('test_')}_round"], "{}"),
    "final accuracy": percent(summary.get("final_accuracy")),
    "final test loss": number(summary.get("final_loss"), "{:.4g}"),
    "rounds": (str(done) if planned == done else f"{done} of {planned}", done),
    "rounds to target": _to_target(summary),
    "megabytes": number(total / 1e6, f"{{:{three_digits(total / 1e6)}}}"),
    "seconds a round": number(
      summary["median_seconds_per_round"] if run.records else None, "{:.3g}"
    ),
    "peak memory": number(
      None if memory is None else memory / 1e9, f"{{:.2f}}{_SPACE}GB"
    ),
    "split": (_split(run),) * 2,
  }


def _to_target(summary: Mapping[str, Any]) -> tuple[str, Optional[int]]:
  if "rounds_to_target" not in summary:
    return _NOTHING, None
  when = summary["rounds_to_target"]
  place = f"({100 * summary['target_accuracy']:g}{_SPACE}%)"
  return (f"not{_SPACE}reached {place}" if when is None else f"{when} {place}"), when


def _parts(run: Run) -> list[tuple[str, str, int]]:
  """Direction, part and bytes, of which rounds from before parts were counted are one."""
  summary = run.summarize()
  both = {way: summary[f"bytes_{way}"] for way in ("down", "up")}
  by_part = {}
  for way, parts in summary["bytes_by_part"].items():
    rest = both[way] - sum(parts.values())
    by_part[way] = {**parts, "parts not counted": rest} if rest else parts
  return records.large_parts(by_part, 1e-3 * sum(both.values()))


def _settings(run: Run) -> dict[str, str]:
  """Name to text of all that may make a run's numbers differ from another's."""
  every = completed("flags", run.flags)
  flags = {k: v for k, v in every.items() if k not in _NOT_SETTINGS}
  hparams = completed("hparams", run.hparams)
  return {name: _text(value) for name, value in {**flags, **hparams}.items()}


def _differing(settings: Iterable[Mapping[str, str]]) -> list[str]:
  """The names whose values are not the same in all, also where one has none."""
  settings = list(settings)
  names = list(dict.fromkeys(name for one in settings for name in one))
  return [name for name in names if len({one.get(name) for one in settings}) > 1]


def _text(value: Any) -> str:
  return value if value and isinstance(value, str) else json.dumps(value)


def _details(
  run: Run, settings: Mapping[str, str], differing: Sequence[str]
) -> list[tuple[str, list[tuple[str, str]]]]:
  """Headings with their pairs of texts; a heading without any is left out."""
  session = run.sessions[-1] if run.sessions else {}
  command = session.get("command") or []
  commands = [("command", shlex.join(["python", *map(str, command)]))] if command else []
  commit = session.get("git_commit")
  versions = dict(session.get("versions") or {})
  model = {"weights": run.model.get("num_weights"), **run.data}
  blank: tuple = (None, "", [])
  flags = {k: v for k, v in run.flags.items() if k not in _NOT_SETTINGS}
  # Of a round in which nobody took part there is none.
  lost = [
    r["round"]
    for r in run.records
    if not math.isfinite(_training_loss(r))
    and (r.get("num_examples", 1) or r.get("num_dropped"))
  ]
  said = []
  if lost:
    when = f"in {count(len(lost), 'round')}, the first of them {lost[0]}"
    said.append(("training loss", f"not finite {when}"))
  if run.privacy:
    said.append(("privacy", run.privacy))
  dropped = sum(r.get("num_dropped", 0) for r in run.records)
  if dropped:
    said.append(("clients dropped", f"{dropped:,}"))
  sections = [
    ("Unlike other runs", [(k, settings[k]) for k in differing if k in settings]),
    ("Worth knowing", said),
    ("Hyper-parameters", [(k, _text(v)) for k, v in run.hparams.items()]),
    ("Settings", [(k, _text(v)) for k, v in flags.items() if v not in blank]),
    ("Model and data", [(k, _text(v)) for k, v in model.items() if v not in blank]),
    (
      "Made by",
      [
        *commands,
        *([("commit", str(commit))] if commit else []),
        *((k, _text(v)) for k, v in versions.items()),
        ("folder", run.folder),
      ],
    ),
  ]
  return [(heading, pairs) for heading, pairs in sections if pairs]


def _repeats(runs: Sequence[Run], places: Sequence[int]) -> list[dict[str, Any]]:
  """The settings of a task's runs, each with its runs of several seeds."""
  place_of = {id(runs[place]): place for place in places}
  groups = group([runs[place] for place in places])
  return [
    {"label": label, "runs": [place_of[id(run)] for run in repeats.runs]}
    for label, repeats in zip(group_labels(groups), groups)
  ]


def _splits(runs: Sequence[Run], places: Sequence[int]) -> list[dict[str, Any]]:
  """The splits of a task's runs, each with its picture once."""
  found: dict[tuple[str, ...], dict[str, Any]] = {}
  for place in places:
    run = runs[place]
    names = ("num_clients", "partition_seed")
    key = (_split(run), *(_text(run.flags.get(name)) for name in names))
    text = f"{key[0]}, {key[1]} clients, seed {key[2]}"
    split = found.setdefault(key, {"text": text, "runs": [], "picture": ""})
    split["runs"].append(place)
    split["picture"] = split["picture"] or _picture(os.path.join(run.folder, PARTITION))
  return list(found.values())


def _picture(path: str) -> str:
  if not os.path.isfile(path):
    return ""
  content = base64.b64encode(pathlib.Path(path).read_bytes()).decode()
  return f"data:image/png;base64,{content}"
