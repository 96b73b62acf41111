"""Trackers of train.py, by modules that write down how they are called."""

from __future__ import annotations

import json
import sys
import types
import warnings

import pytest
from training import metrics, place, read_json

from experiments import trackers
from experiments.run_folder.folder import RunFolder

_SMALL = ("--num_clients=4", "--clients_per_round=2", "--epochs=1", "--partition=iid")

_STUB = """
import json, os, types

def _note(*call):
  with open(os.environ["CALLS"], "a") as f:
    f.write(json.dumps(["{name}", *call]) + "\\n")
"""
_MLFLOW = """
def start_run(run_id=None, run_name=None):
  _note("start", run_id, run_name)
  return types.SimpleNamespace(info=types.SimpleNamespace(run_id="m1"))
def log_params(params): _note("settings", json.loads(json.dumps(params)))
def log_metrics(values, step): _note("round", step, values)
def log_dict(values, name): _note("summary", values)
def log_artifact(path): _note("file", path)
def end_run(status): _note("end", status)
"""
_WANDB = """
class _Run:
  id = "w1"
  summary = types.SimpleNamespace(update=lambda values: _note("summary", values))
  def log(self, values, step): _note("round", step, values)
  def save(self, path, base_path, policy): _note("file", path)
  def finish(self, exit_code): _note("end", exit_code)
def init(id, resume, name, config):
  _note("start", id, name)
  return _Run()
"""


_FAILING = """
def {failing}(*args, **kwargs): raise ConnectionError("no service\\nat all")
"""


@pytest.fixture(scope="module")
def tracked(fork_program, tmp_path_factory):
  """Of round 1 MLflow is told, of 2 W&B too, of 3 MLflow alone, and of 4 both again."""
  folder = tmp_path_factory.mktemp("tracked")
  for name, code in (("mlflow", _MLFLOW), ("wandb", _WANDB)):
    (folder / f"{name}.py").write_text(_STUB.format(name=name) + code)
  run_dir, places = place(folder)
  calls = folder / "calls"
  before = f"import os; os.environ['CALLS'] = {str(calls)!r}"

  def train(*flags):
    calls.write_text("")
    done = fork_program(
      *("train.py", *_SMALL, *places, *flags),
      cwd=folder, paths=[str(folder)], before=before,
    )  # fmt: skip
    return done, [json.loads(line) for line in calls.open()]

  found = []
  for flags in (
    ["--tracker=mlflow", "--rounds=1"],
    ["--tracker=mlflow,wandb,tensorboard", "--rounds=2", "--resume"],
    ["--tracker=mlflow", "--rounds=3", "--resume"],
    ["--tracker=mlflow,wandb", "--rounds=4", "--resume"],
  ):
    done, told = train(*flags)
    assert done.status == 0, done
    found.append((told, list(run_dir.glob("tensorboard/*"))))
  return run_dir, found, train


def _of(calls, tracker, kind):
  return [call[2:] for call in calls if call[:2] == [tracker, kind]]


def test_a_tracker_is_told_of_settings_rounds_and_the_end(tracked):
  run_dir, ((calls, events), *_), _ = tracked
  assert _of(calls, "mlflow", "start") == [[None, "run"]]
  [[settings]] = _of(calls, "mlflow", "settings")
  assert settings["flags.num_clients"] == 4 and settings["hparams.epochs"] == 1
  [[step, values]] = _of(calls, "mlflow", "round")
  assert step == 1
  accuracy = float(metrics(run_dir)[0]["test_accuracy"])
  assert values["test_accuracy"] == pytest.approx(accuracy)
  files = [path for [path] in _of(calls, "mlflow", "file")]
  assert str(run_dir / "summary.json") in files
  assert calls[-1] == ["mlflow", "end", "FINISHED"]
  assert not events  # It was not asked for.


@pytest.mark.parametrize(
  "summary, status",
  [
    ({"stopped_early": False}, "FINISHED"),
    ({"stopped_early": True}, "KILLED"),
    (None, "FAILED"),
  ],
)
def test_mlflow_is_told_how_a_run_has_ended(monkeypatch, summary, status):
  """One that was stopped has a summary too, and is to go on."""
  ended: list[str] = []
  mlflow = types.SimpleNamespace(
    start_run=lambda run_id: run_id, log_dict=lambda *_: None, end_run=ended.append
  )
  monkeypatch.setitem(sys.modules, "mlflow", mlflow)
  tracker = trackers._MLflow()
  tracker.start("run", {}, "m1")
  tracker.end(summary, [])
  assert ended == [status]


def test_a_resumed_run_goes_on_with_its_tracked_run(tracked):
  run_dir, (_, (calls, events), *_), _ = tracked
  assert _of(calls, "mlflow", "start") == [["m1", None]]
  assert [step for step, _ in _of(calls, "mlflow", "round")] == [2]
  # What is new is told of the rounds before, too.
  assert _of(calls, "wandb", "start") == [[None, "run"]]
  assert [step for step, _ in _of(calls, "wandb", "round")] == [1, 2]
  [[summary]] = _of(calls, "wandb", "summary")
  assert summary["rounds"] == 2 and _of(calls, "wandb", "end") == [[0]]
  known = {"mlflow": ["m1", None], "wandb": ["w1", None]}
  assert read_json(run_dir / "trackers.json") == known
  assert len(events) == 1


def test_a_tracker_that_was_left_out_is_told_those_rounds_later(tracked):
  _, (*_, (third, _), (fourth, _)), _ = tracked
  assert [step for step, _ in _of(third, "mlflow", "round")] == [3]
  assert not _of(third, "wandb", "start")
  assert [step for step, _ in _of(fourth, "wandb", "round")] == [3, 4]
  assert [step for step, _ in _of(fourth, "mlflow", "round")] == [4]


def test_trackers_of_an_older_run_are_gone_on_with(tmp_path, monkeypatch):
  """Its file had the ids alone."""
  calls = []
  mlflow = types.SimpleNamespace(
    start_run=lambda run_id: calls.append(run_id),
    log_metrics=lambda values, step: calls.append(step),
    end_run=lambda status: None,
  )
  monkeypatch.setitem(sys.modules, "mlflow", mlflow)
  (tmp_path / trackers.IDS).write_text('{"mlflow": "m1"}')
  with trackers.track(
    RunFolder(str(tmp_path)), {"flags": {"tracker": ["mlflow"]}}
  ) as tracked:
    tracked.start([{"round": 1}])
    tracked.write({"round": 2})
  assert calls == ["m1", 2]


def test_a_run_that_cannot_go_on_opens_no_tracked_run(tracked):
  """It was finished, and would be one that has failed."""
  run_dir, _, train = tracked
  for path in run_dir.glob("checkpoints/*/records.json"):
    path.write_bytes(b"")
  done, calls = train("--tracker=mlflow,wandb", "--rounds=5", "--resume")
  assert done.status == 2 and done.err.endswith("begin anew, in another folder.\n")
  assert calls == []


def test_damaged_ids_are_named_before_anything_is_lost(tracked):
  run_dir, _, train = tracked
  ids = run_dir / "trackers.json"
  before = ids.read_text()
  ids.write_text("{")
  done, calls = train("--tracker=mlflow,wandb", "--rounds=5", "--resume")
  ids.write_text(before)
  assert done.status == 2 and "trackers.json is damaged: remove it" in done.err
  assert calls == [] and (run_dir / "model.keras").exists()


def _run_failing(fork_program, tmp_path, failing):
  """One of two rounds, of a service one of whose functions fails."""
  code = _STUB.format(name="mlflow") + _MLFLOW + _FAILING.format(failing=failing)
  (tmp_path / "mlflow.py").write_text(code)
  run_dir, places = place(tmp_path)
  calls = tmp_path / "calls"
  calls.write_text("")
  done = fork_program(
    *("train.py", *_SMALL, *places, "--tracker=mlflow", "--rounds=2"),
    cwd=tmp_path,
    paths=[str(tmp_path)],
    before=f"import os; os.environ['CALLS'] = {str(calls)!r}",
  )
  return run_dir, done, [json.loads(line) for line in calls.open()]


def test_a_service_that_begins_no_run_is_said_before_anything_is_written(
  fork_program, tmp_path
):
  run_dir, done, calls = _run_failing(fork_program, tmp_path, "log_params")
  said = "--tracker=mlflow begins no run (ConnectionError: no service): see to what"
  assert done.status == 2 and said in done.err
  assert not list(run_dir.iterdir())
  assert calls[-1] == ["mlflow", "end", "FAILED"]  # Not open for the next of a sweep.


def test_the_open_run_of_another_is_not_ended(fork_program, tmp_path):
  _, done, calls = _run_failing(fork_program, tmp_path, "start_run")
  assert done.status == 2 and calls == []


@pytest.mark.parametrize(
  "failing, what",
  [
    ("log_metrics", "round 1"),
    pytest.param("log_dict", "the end", marks=pytest.mark.thorough),
  ],
)
def test_a_run_goes_on_without_a_service_that_fails(
  fork_program, tmp_path, failing, what
):
  run_dir, done, calls = _run_failing(fork_program, tmp_path, failing)
  assert done.status == 0, done
  said = f"mlflow did not take {what} (ConnectionError: no service), and is told no more"
  assert done.err.count(said) == 1
  assert len(metrics(run_dir)) == 2
  told = 0 if failing == "log_metrics" else 2
  assert len(_of(calls, "mlflow", "round")) == told
  known = read_json(run_dir / "trackers.json")["mlflow"]
  assert known == ["m1", told if what == "round 1" else None]
  assert calls[-1] == ["mlflow", "end", "FAILED"]


@pytest.mark.parametrize(
  "tracker, said",
  [
    ("wandb", "needs the package wandb, which is not installed"),
    ("tensorbord", "There is no tracker 'tensorbord'"),
    ("mlflow,mlflow", "--tracker names mlflow twice"),
  ],
)
def test_a_tracker_that_is_not_there_is_refused(run_forked, tmp_path, tracker, said):
  run_dir, places = place(tmp_path)
  (tmp_path / "wandb").mkdir()  # As W&B itself leaves one.
  before = "import sys; sys.modules.pop('wandb', None)"
  done = run_forked(f"--tracker={tracker}", *places, cwd=tmp_path, before=before)
  assert (done.status, done.out) == (2, "")
  assert said in done.err and done.err.count("\n") == 1
  assert not run_dir.exists()


# --- W&B, and ids, without a run --------------------------------------------------------


@pytest.fixture
def wandb(monkeypatch):
  """What W&B is asked: how runs begin, and how they end."""
  begun, ended = [], []
  run = types.SimpleNamespace(id="w1", finish=lambda exit_code: ended.append(exit_code))
  init = types.SimpleNamespace(init=lambda **given: begun.append(given) or run)
  monkeypatch.setitem(sys.modules, "wandb", init)
  return begun, ended


def test_wandb_goes_on_with_the_known_run(wandb):
  """`resume="allow"`: with another word W&B overwrites that run, or fails."""
  for known in (None, "w1"):
    trackers._Wandb().start("run", {"flags": {}, "hparams": {}}, known)
  begun = [(given["id"], given["resume"]) for given in wandb[0]]
  assert begun == [(None, "allow"), ("w1", "allow")]


def test_wandb_is_told_that_a_run_has_failed(wandb):
  tracker = trackers._Wandb()
  tracker.start("run", {"flags": {}, "hparams": {}}, None)
  tracker.end(None, [])
  assert wandb[1] == [1]


def test_tracked_run_is_known_before_it_is_told_of_rounds(monkeypatch, tmp_path):
  """A process that is killed meanwhile goes on with it."""
  ids = tmp_path / trackers.IDS

  def log_metrics(values, step):
    assert json.loads(ids.read_text()) == {"mlflow": ["m1", 0]}

  info = types.SimpleNamespace(run_id="m1")
  mlflow = types.SimpleNamespace(
    start_run=lambda run_name: types.SimpleNamespace(info=info),
    log_params=lambda params: None,
    log_metrics=log_metrics,
    end_run=lambda status: None,
  )
  monkeypatch.setitem(sys.modules, "mlflow", mlflow)
  manifest = {"flags": {"tracker": ["mlflow"]}, "hparams": {}}
  with warnings.catch_warnings():
    warnings.simplefilter("error")  # Of a tracker that fails there is one.
    with trackers.track(RunFolder(str(tmp_path)), manifest) as tracked:
      tracked.start([{"round": 1}])
