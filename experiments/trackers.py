"""Where a run's rounds are told besides its folder: MLflow, Weights & Biases.

TensorBoard's events are the folder's own (`tff_algos.simulation.records`).
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Optional, Protocol

from experiments.run_folder.folder import RunFolder
from tff_algos import durable_files
from tff_algos.errors import InputError, InputWarning, first_line

TENSORBOARD = "tensorboard"
#: Kept in the run's folder: of each tracker the tracked run, with which a resumed run
#: goes on, and how many rounds it was told where it was told no more.
IDS = "trackers.json"

_FILES = (
  *("config.json", "metrics.csv", "summary.json"),
  *("accuracy.png", "loss.png", "traffic.png"),
)


class Tracker(Protocol):
  """One service."""

  def start(self, name: str, manifest: Mapping[str, Any], known: Optional[str]) -> str:
    """Begins the tracked run, or goes on with the one that is known; its id."""

  def write(self, values: Mapping[str, float], step: int) -> None:
    """Adds the numbers of a round."""

  def end(self, summary: Optional[Mapping[str, Any]], files: Sequence[str]) -> None:
    """Ends it with summary and files; without, where the run has failed."""


class _MLflow:
  """Where `MLFLOW_TRACKING_URI` says, by default the folder mlruns/."""

  def __init__(self):
    self._mlflow, self._run = importlib.import_module("mlflow"), None

  def start(self, name: str, manifest: Mapping[str, Any], known: Optional[str]) -> str:
    if known is not None:  # Parameters are there, and may not be changed.
      self._run = self._mlflow.start_run(run_id=known)
      return known
    self._run = self._mlflow.start_run(run_name=name)
    self._mlflow.log_params(_settings(manifest))
    return str(self._run.info.run_id)

  def write(self, values: Mapping[str, float], step: int) -> None:
    self._mlflow.log_metrics(dict(values), step=step)

  def end(self, summary: Optional[Mapping[str, Any]], files: Sequence[str]) -> None:
    if self._run is None:  # The one that is open is another's.
      return
    if summary is not None:
      self._mlflow.log_dict(dict(summary), "summary.json")
    for path in files:
      self._mlflow.log_artifact(path)
    is_stopped = summary is not None and summary["stopped_early"]
    failed = "KILLED" if is_stopped else "FAILED"
    self._mlflow.end_run("FINISHED" if summary and not is_stopped else failed)


class _Wandb:
  """As its own settings and environment variables say."""

  def __init__(self):
    self._wandb = importlib.import_module("wandb")
    self._run: Any = None

  def start(self, name: str, manifest: Mapping[str, Any], known: Optional[str]) -> str:
    self._run = self._wandb.init(
      id=known, resume="allow", name=name, config=_settings(manifest)
    )
    return str(self._run.id)

  def write(self, values: Mapping[str, float], step: int) -> None:
    self._run.log(dict(values), step=step)

  def end(self, summary: Optional[Mapping[str, Any]], files: Sequence[str]) -> None:
    if self._run is None:
      return
    if summary is not None:
      self._run.summary.update(dict(summary))
    for path in files:
      self._run.save(path, base_path=os.path.dirname(path), policy="now")
    self._run.finish(exit_code=0 if summary is not None else 1)


_TRACKERS: dict[str, type] = {"mlflow": _MLflow, "wandb": _Wandb}
NAMES = (TENSORBOARD, *_TRACKERS)


def check(names: Sequence[str]) -> None:
  """Raises `InputError` for a tracker that there is not, or is not installed."""
  for name in names:
    if names.count(name) > 1:
      raise InputError(f"--tracker names {name} twice: give each once.")
    if name not in NAMES:
      raise InputError(
        f"There is no tracker {name!r}: choose of {', '.join(NAMES)}, or none by "
        "--tracker=."
      )
    if name not in _TRACKERS:
      continue
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:  # A folder of that name, as W&B makes one.
      raise InputError(
        f"--tracker={name} needs the package {name}, which is not installed: `uv pip "
        f"install {name}`, or leave it out."
      )


class _Known(NamedTuple):
  """A tracked run, and how many rounds it was told; None: it is told all."""

  id: Optional[str]
  told: Optional[int] = None


class Tracked:
  """The trackers of a run that goes on."""

  def __init__(self, folder: RunFolder, manifest: Mapping[str, Any]):
    self._folder, self._manifest = folder, manifest
    self._open: dict[str, Tracker] = {}
    self._known = self._read_known()

  def _read_known(self) -> dict[str, _Known]:
    path = self._folder.file(IDS)
    if not os.path.exists(path):
      return {}
    try:
      with open(path, encoding="utf-8") as f:
        # Older files have the id alone.
        return {
          name: _Known(*([value] if isinstance(value, str) else value))
          for name, value in json.load(f).items()
        }
    except (ValueError, TypeError, AttributeError) as error:
      raise InputError(
        f"{path} is damaged: remove it, and --tracker begins new runs."
      ) from error

  def start(self, done: Sequence[Mapping[str, Any]]) -> None:
    """Begins or goes on; each is told those of the run's rounds that it was not told.

    Raises:
      InputError: A service does not take the run; nothing was written.
    """
    known = {
      name: k._replace(told=len(done) if k.told is None else k.told)
      for name, k in self._known.items()
    }
    for name in self._manifest["flags"]["tracker"]:
      if name in _TRACKERS:
        title = os.path.basename(os.path.abspath(self._folder.path))
        try:
          tracker: Tracker = _TRACKERS[name]()
          try:
            old = known.get(name, _Known(None, 0))
            run_id = tracker.start(title, self._manifest, old.id)
          except Exception:
            _give_up(tracker)
            raise
        except Exception as error:
          raise InputError(
            f"--tracker={name} begins no run ({_said(error)}): see to what {name} is "
            "told by its environment variables, or leave it out."
          ) from error
        self._open[name] = tracker
        known[name] = old._replace(id=run_id)
    self._known = known
    self._write_known()
    for name in sorted(self._open):
      for record in done[known[name].told :]:
        self._write([name], record)
    for name in self._open:
      self._known[name] = known[name]._replace(told=None)
    self._write_known()

  def write(self, record: Mapping[str, Any]) -> None:
    """Adds a round; a tracker that does not take it is told no more."""
    self._write(self._open, record)

  def _write(self, names: Iterable[str], record: Mapping[str, Any]) -> None:
    values = {k: float(v) for k, v in record.items() if k != "round" and v is not None}
    for name in sorted(self._open.keys() & names):
      try:
        self._open[name].write(values, record["round"])
      except Exception as error:
        _give_up(self._open.pop(name))
        _warn(name, f"round {record['round']}", error)
        self._known[name] = self._known[name]._replace(told=record["round"] - 1)
        self._write_known()

  def _write_known(self) -> None:
    if self._known:
      path = self._folder.file(IDS)
      with durable_files.new_file(path, "w") as f:
        json.dump(self._known, f)

  def end(self, summary: Optional[Mapping[str, Any]]) -> None:
    """Ends what is open; with files where there is a summary."""
    paths = [self._folder.file(name) for name in _FILES] if summary else []
    while self._open:
      name, tracker = self._open.popitem()
      try:
        tracker.end(summary, [path for path in paths if os.path.exists(path)])
      except Exception as error:
        _give_up(tracker)
        _warn(name, "the end", error)


@contextlib.contextmanager
def track(folder: RunFolder, manifest: Mapping[str, Any]) -> Iterator[Tracked]:
  """The trackers of a run; those that it has not ended have failed with it."""
  tracked = Tracked(folder, manifest)
  try:
    yield tracked
  finally:
    tracked.end(None)


def _give_up(tracker: Tracker) -> None:
  """Ends what may have begun; else the process's next run would be taken for this one."""
  with contextlib.suppress(Exception):
    tracker.end(None, [])


def _warn(name: str, what: str, error: Exception) -> None:
  """The run goes on: its folder has all that the service lacks."""
  warnings.warn(
    f"{name} did not take {what} ({_said(error)}), and is told no more of this run.",
    InputWarning,
    stacklevel=2,
  )


def _said(error: Exception) -> str:
  return f"{type(error).__name__}: {first_line(error)}"


def _settings(manifest: Mapping[str, Any]) -> dict[str, Any]:
  """Flags and hyper-parameters, as heading.name."""
  return {
    f"{heading}.{name}": value
    for heading in ("flags", "hparams")
    for name, value in manifest[heading].items()
  }
