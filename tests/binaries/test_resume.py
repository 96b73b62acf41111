"""Runs of train.py that are broken off, gone on with, or refused to be gone on with."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import signal
import textwrap
from typing import NamedTuple

import numpy as np
import pytest
from programs import Done
from training import (
  SMALL,
  assert_refused,
  at_round,
  keras_weights,
  metrics,
  place,
  read_json,
  without_seconds,
)

_ROUNDS = 5
_STOP = "os.kill(os.getpid(), signal.SIGTERM)"


class Unbroken(NamedTuple):
  """A run that was not disturbed."""

  folder: pathlib.Path
  run_dir: pathlib.Path
  flags: list[str]
  done: Done


@pytest.fixture(scope="module")
def unbroken(run_forked, tmp_path_factory) -> Unbroken:
  folder = tmp_path_factory.mktemp("unbroken")
  run_dir, where = place(folder)
  flags = [*SMALL, *where, f"--rounds={_ROUNDS}"]
  return Unbroken(folder, run_dir, flags, run_forked(*flags, "--resume", cwd=folder))


@pytest.mark.thorough
def test_where_there_is_no_run_yet_one_begins_and_says_so(unbroken):
  assert unbroken.done.status == 0
  assert f"{unbroken.run_dir} holds no run: one begins there." in unbroken.done.out
  assert unbroken.done.err == ""


@pytest.mark.thorough
def test_without_a_header_it_is_a_warning(run_forked, tmp_path):
  run_dir, where = place(tmp_path)
  flags = [*SMALL, *where, "--rounds=1", "--quiet"]
  done = run_forked(*flags, "--resume", cwd=tmp_path)
  assert done.err == f"Warning: {run_dir} holds no run: one begins there.\n"
  assert run_forked(*flags, "--resume", cwd=tmp_path).err == ""


def _assert_same_rounds(run_dir: pathlib.Path, unbroken: Unbroken) -> None:
  assert unbroken.done.status == 0, unbroken.done
  found = without_seconds(metrics(run_dir))[:_ROUNDS]
  assert found == without_seconds(metrics(unbroken.run_dir))


def _sessions(run_dir: pathlib.Path) -> list[dict]:
  return read_json(run_dir / "config.json")["sessions"]


def _rounds_of(sessions: list[dict]) -> list[tuple]:
  return [(session["first_round"], session["last_round"]) for session in sessions]


def _times(folder: pathlib.Path) -> dict[pathlib.Path, int]:
  return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


# --- Signals ------------------------------------------------------------------------


@pytest.mark.parametrize(
  "code",
  [
    "os.kill(os.getpid(), signal.SIGINT)",
    # As `timeout` and `uv run` do: to the program, and then to its whole group.
    pytest.param(f"{_STOP}; os.killpg(0, signal.SIGTERM)", marks=pytest.mark.thorough),
    # The second where the rounds have ended and the summary is not written yet.
    pytest.param(
      f"{_STOP}; progress._SAME_SIGNAL_SECONDS = 60; from experiments.export import "
      "keras_files as files; keep = files.keep; "
      f"files.keep = lambda *given: ({_STOP}, keep(*given))",
      marks=pytest.mark.thorough,
    ),
  ],
  ids=["Ctrl-C", "SIGTERM twice", "SIGTERM again at the end"],
)
def test_signal_stops_the_run_after_its_round_and_resume_goes_on(
  unbroken, run_forked, tmp_path, code
):
  run_dir, where = place(tmp_path)
  flags = [*SMALL, *where, "--rounds=5000", "--checkpoint_every=0"]
  status, out, err = run_forked(*flags, cwd=tmp_path, before=at_round(2, code))
  # EX_TEMPFAIL: the same command goes on. The signal came before the third round.
  assert status == 75
  assert err.startswith("\nstopping after this round; once more to stop now, which may ")
  assert err.count("\n") == 2
  assert len(metrics(run_dir)) == 3
  assert os.listdir(run_dir / "checkpoints") != []
  summary = read_json(run_dir / "summary.json")
  assert (summary["rounds"], summary["stopped_early"]) == (3, True)
  assert (run_dir / "accuracy.png").exists()
  assert f"--run_dir={run_dir} --resume" in out.splitlines()[-1]
  stopped = keras_weights(run_dir / "model.keras")

  flags = [*SMALL, *where, f"--rounds={_ROUNDS}", "--resume"]
  done = run_forked(*flags, cwd=tmp_path)
  assert (done.status, done.err) == (0, "")
  assert "holds no run" not in done.out
  _assert_same_rounds(run_dir, unbroken)
  for name in ("model.keras", "best_model.keras"):
    found, expected = (keras_weights(p / name) for p in (run_dir, unbroken.run_dir))
    assert len(found) == 8
    for key, array in expected.items():
      np.testing.assert_array_equal(found[key], array)
      assert (array != stopped[key]).any()  # It was written again.
  summary = read_json(run_dir / "summary.json")
  assert (summary["rounds"], summary["stopped_early"]) == (_ROUNDS, False)
  assert _rounds_of(_sessions(run_dir)) == [(1, 3), (4, _ROUNDS)]


@pytest.mark.thorough
def test_second_ctrl_c_after_more_than_a_second_ends_the_run(
  unbroken, run_forked, tmp_path
):
  run_dir, where = place(tmp_path)
  flags = [*SMALL, *where, f"--rounds={_ROUNDS}", "--checkpoint_every=1"]
  ctrl_c = "os.kill(os.getpid(), signal.SIGINT)"
  code = f"{ctrl_c}; time.sleep(1.1); {ctrl_c}; time.sleep(60)"
  status, _, err = run_forked(*flags, cwd=tmp_path, before=at_round(2, code))
  assert status == 130
  assert "Traceback" not in err
  assert len(metrics(run_dir)) == 2
  assert not (run_dir / "summary.json").exists()
  # The second round was not saved.
  done = run_forked(f"--run_dir={run_dir}", "--resume", cwd=tmp_path)
  assert (done.status, done.err) == (0, "")
  _assert_same_rounds(run_dir, unbroken)
  assert _rounds_of(_sessions(run_dir)) == [(1, None), (2, _ROUNDS)]


def test_killed_run_is_resumed_from_its_checkpoint(unbroken, run_forked, tmp_path):
  run_dir, where = place(tmp_path)
  flags = [*SMALL, *where, f"--rounds={_ROUNDS}", "--checkpoint_every=2"]
  code = "os.kill(os.getpid(), signal.SIGKILL)"
  done = run_forked(*flags, cwd=tmp_path, before=at_round(3, code))
  assert done.status == -signal.SIGKILL
  assert not (run_dir / "summary.json").exists()
  assert len(metrics(run_dir)) == 3
  done = run_forked(*flags, "--resume", cwd=tmp_path)
  assert (done.status, done.err) == (0, "")
  _assert_same_rounds(run_dir, unbroken)
  # The second session says where it went on: the killed one cannot say how far it came.
  assert _rounds_of(_sessions(run_dir)) == [(1, None), (3, _ROUNDS)]


def test_run_that_cannot_go_on_is_left_as_it_is(unbroken, run_forked, tmp_path):
  """The model files may be all that is left of it."""
  run_dir = tmp_path / "run"
  shutil.copytree(unbroken.run_dir, run_dir)
  for path in run_dir.glob("checkpoints/*/records.json"):
    path.write_bytes(b"")
  before = {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}
  flags = [f"--run_dir={run_dir}", "--resume", "--rounds=6"]
  done = run_forked(*flags, f"--cache_dir={unbroken.folder}/cache", cwd=tmp_path)
  assert done.status == 2
  assert done.err.endswith("begin anew, in another folder.\n")
  after = {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}
  assert after == before and run_dir / "model.keras" in after


# --- The folder knows the run -------------------------------------------------------


def test_the_folder_alone_is_enough_to_go_on(run_forked, tmp_path):
  """Bit for bit, with an algorithm and settings that are no defaults."""
  flags = [
    *("--algorithm=scaffold", "--scaffold_option=I", "--learning_rate=0.03"),
    *("--task=digits_cnn", "--num_clients=6", "--clients_per_round=2", "--epochs=2"),
    *("--partition=shards:shards_per_client=2", "--partition_seed=5", "--seed=7"),
    *("--rounds=5", "--eval_every=2", "--target_accuracy=0.5", "--threads=1"),
  ]
  whole, where = place(tmp_path, "whole")
  done = run_forked(*flags, *where, cwd=tmp_path)
  assert (done.status, done.err) == (0, "")
  run_dir, where = place(tmp_path)
  done = run_forked(*flags, *where, cwd=tmp_path, before=at_round(1, _STOP))
  assert done.status == 75
  before = read_json(run_dir / "config.json")
  assert before["flags"]["hparams"] == {
    **{"option": "I", "learning_rate": 0.03, "epochs": 2}
  }

  done = run_forked(f"--run_dir={run_dir}", "--resume", cwd=tmp_path)
  assert (done.status, done.err) == (0, "")
  assert done.out.startswith("scaffold on digits_cnn: loading")
  assert without_seconds(metrics(run_dir)) == without_seconds(metrics(whole))
  after, expected = (read_json(path / "config.json") for path in (run_dir, whole))
  for heading in ("hparams", "data", "model"):
    assert after[heading] == expected[heading]
  for config in (after, expected):
    assert config["flags"].pop("run_dir")
  assert after["flags"] == expected["flags"]
  summaries = [read_json(path / "summary.json") for path in (run_dir, whole)]
  kept = [
    {k: v for k, v in s.items() if "seconds" not in k and "memory" not in k}
    for s in summaries
  ]
  assert kept[0] == kept[1]

  # Nothing of the first session is lost.
  first, second = after["sessions"]
  assert [first] == before["sessions"]
  assert (first["first_round"], first["last_round"]) == (1, 2)
  assert "--algorithm=scaffold" in first["command"]
  assert (second["first_round"], second["last_round"]) == (3, 5)
  assert second["command"][1:] == [f"--run_dir={run_dir}", "--resume"]


@pytest.mark.thorough
def test_the_folder_may_be_named_in_a_file_of_flags(unbroken, run_forked, tmp_path):
  run_dir = tmp_path / "run"
  shutil.copytree(unbroken.run_dir, run_dir)
  (tmp_path / "flags").write_text(f"--run_dir={run_dir}\n--resume\n")
  flags = [*("--flagfile=flags", "--rounds=6"), f"--cache_dir={unbroken.folder}/cache"]
  done = run_forked(*flags, cwd=tmp_path)
  assert (done.status, done.err) == (0, "")
  assert len(metrics(run_dir)) == 6
  _assert_same_rounds(run_dir, unbroken)


@pytest.mark.thorough
def test_only_a_given_algorithm_or_task_can_differ(run_forked, tmp_path):
  """Its flags are those of the run's algorithm, not of the default one."""
  run_dir, where = place(tmp_path)
  flags = ["--algorithm=fedgg", "--fedgg_mu=0.5", "--task=own_tasks:good", "--rounds=1"]
  assert run_forked(*flags, *where, cwd=tmp_path).status == 0
  resume = [f"--run_dir={run_dir}", "--resume"]
  done = run_forked(*resume, "--fedgg_mu=0.25", cwd=tmp_path)
  assert_refused(done, "mu=0.5, not 0.25")
  done = run_forked(*resume, "--algorithm=fedavg", cwd=tmp_path)
  assert_refused(done, "algorithm='fedgg', not 'fedavg'")
  done = run_forked(*resume, "--task=own_tasks:batch_norm", cwd=tmp_path)
  assert_refused(done, "task='own_tasks:good', not 'own_tasks:batch_norm'")
  done = run_forked(*resume, "--fedgg_mu=0.5", "--rounds=2", cwd=tmp_path)
  assert (done.status, done.err) == (0, "")
  assert len(metrics(run_dir)) == 2


@pytest.mark.parametrize(
  "program, words",
  [
    ("train.py", ["--run_dir={}", "--resume"]),
    ("forgetting.py", ["--run_dir={}", "--resume"]),
    ("evaluate.py", ["--run={}"]),
  ],
)
def test_a_setting_that_was_spoilt_by_hand_is_named(
  fork_program, write_run, tmp_path, program, words
):
  folder = write_run(tmp_path / "run", flags={"dropout": "0.1"})
  words = [word.format(folder) for word in words]
  done = fork_program(program, *words, cwd=tmp_path)
  said = f'{folder}/config.json: flags.dropout must be a number; found "0.1": correct it'
  assert_refused(done, said)


@pytest.mark.parametrize("words", [["--noresume"], ["--resume=false"]])
def test_a_folder_that_is_not_to_be_gone_on_with_is_refused(unbroken, run_forked, words):
  before = _times(unbroken.folder)
  flags = [f"--run_dir={unbroken.run_dir}", f"--cache_dir={unbroken.folder}/cache"]
  done = run_forked(*flags, *words, cwd=unbroken.folder)
  assert_refused(done, str(unbroken.run_dir))
  assert _times(unbroken.folder) == before


# --- What differs -------------------------------------------------------------------


@pytest.mark.parametrize(
  "changed",
  [
    "--seed=4",
    "--learning_rate=0.2",
    "--algorithm=fedgg",
    "--clients_per_round=4",
    "--partition_seed=1",
    "--eval_every=2",
    "--epochs=2",
    "--rounds=1",
  ],
)
def test_resuming_with_another_setting_is_refused(unbroken, run_forked, changed):
  before = _times(unbroken.folder)
  done = run_forked(*unbroken.flags, changed, "--resume", cwd=unbroken.folder)
  name, _, value = changed.lstrip("-").partition("=")
  assert_refused(done, str(unbroken.run_dir), name)
  assert value in done.err
  assert _times(unbroken.folder) == before


def test_folder_of_a_run_is_not_written_over(unbroken, run_forked):
  before = _times(unbroken.folder)
  done = run_forked(*unbroken.flags, cwd=unbroken.folder)
  assert_refused(done, str(unbroken.run_dir), "--resume")
  assert _times(unbroken.folder) == before


def test_finished_run_resumed_does_nothing_more(unbroken, run_forked, tmp_path):
  run_dir, where = place(tmp_path)
  shutil.copytree(unbroken.run_dir, run_dir)
  rows = metrics(run_dir)
  done = run_forked(*unbroken.flags, *where, "--resume", cwd=tmp_path)
  assert (done.status, done.err) == (0, "")
  assert metrics(run_dir) == rows
  assert read_json(run_dir / "summary.json")["stopped_early"] is False


@pytest.mark.parametrize("lost", [["checkpoints"], ["checkpoints", "summary.json"]])
def test_run_without_its_checkpoints_is_left_as_it_is(
  unbroken, run_forked, tmp_path, lost
):
  """Whether it has ended or not; its rounds would be made, and written, once more."""
  run_dir = tmp_path / "run"
  shutil.copytree(unbroken.run_dir, run_dir, ignore=shutil.ignore_patterns(*lost))
  config = read_json(run_dir / "config.json")
  config["flags"]["checkpoint_every"] = _ROUNDS - 1
  (run_dir / "config.json").write_text(json.dumps(config))
  before = {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}
  flags = [f"--run_dir={run_dir}", "--resume", f"--rounds={_ROUNDS + 1}"]
  done = run_forked(*flags, f"--cache_dir={unbroken.folder}/cache", cwd=tmp_path)
  assert_refused(done, f"{run_dir} holds {_ROUNDS} rounds without their checkpoints")
  after = {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}
  assert after == before


@pytest.mark.thorough
def test_run_killed_before_its_first_checkpoint_begins_anew(
  unbroken, run_forked, tmp_path
):
  run_dir = tmp_path / "run"
  lost = shutil.ignore_patterns("checkpoints", "summary.json")
  shutil.copytree(unbroken.run_dir, run_dir, ignore=lost)
  flags = [f"--run_dir={run_dir}", "--resume", f"--cache_dir={unbroken.folder}/cache"]
  done = run_forked(*flags, cwd=tmp_path)
  assert (done.status, done.err) == (0, "")
  _assert_same_rounds(run_dir, unbroken)
  assert _rounds_of(_sessions(run_dir)) == [(1, _ROUNDS), (1, _ROUNDS)]


# A task of one's own, which may change behind its name.
_MINE = """
  import numpy as np
  import tensorflow as tf

  from tasks import registry
  from tasks.datasets import dataset

  def load(data_dir, cache_dir):
    draw = np.random.default_rng(0)
    x = draw.integers(1, 255, size=(60, 4, 4, 1), dtype=np.uint8)
    y = draw.integers(2, size=60, dtype=np.int32)
    train_x, test_x, train_y, test_y = x[:40], x[40:], y[:40], y[40:]
    # Here.
    return dataset.Dataset(train_x, train_y, test_x, test_y, num_classes=2)

  def build(shape, num_classes):
    layers = tf.keras.layers
    return tf.keras.Sequential(
      [
        layers.Input(shape),
        layers.Flatten(),
        layers.Dense(3, activation="relu"),
        layers.Dense(num_classes),
      ]
    )

  task = registry.Task(
    "mine", "Noise.", load, build, partition="iid", num_clients=4, clients_per_round=2,
    rounds=2, hparams=dict(epochs=1, batch_size=5, learning_rate=0.1, momentum=0.0),
  )
"""


@pytest.fixture(scope="module")
def run_mine(fork_program, tmp_path_factory):
  """`(*flags, change) -> Done`: train.py on `_MINE`, with one text of it replaced."""

  def run(*flags: str, change: tuple[str, str] = ("", "")) -> Done:
    folder = tmp_path_factory.mktemp("mine")
    source = textwrap.dedent(_MINE)
    assert change[0] in source
    (folder / "mine.py").write_text(source.replace(*change) if change[0] else source)
    flags = ("--task=mine:task", *flags)
    return fork_program("train.py", *flags, cwd=folder, paths=[str(folder)])

  return run


@pytest.fixture(scope="module")
def mine(run_mine, tmp_path_factory) -> Unbroken:
  """Two rounds of it."""
  folder = tmp_path_factory.mktemp("mine")
  run_dir, where = place(folder)
  done = run_mine(*where)
  assert (done.status, done.err) == (0, "")
  return Unbroken(folder, run_dir, where, done)


@pytest.mark.parametrize(
  "change, differing, same",
  [
    (("# Here.", "train_x[7, 2, 1, 0] ^= 1"), ["client_files='"], ["test_set"]),
    pytest.param(
      *(("# Here.", "train_y[7] ^= 1"), ["client_files='"], ["test_set"]),
      marks=pytest.mark.thorough,
    ),
    (("# Here.", "test_x[3, 2, 1, 0] ^= 1"), ["test_set='"], ["client_files"]),
    pytest.param(
      *(("# Here.", "test_y[3] ^= 1"), ["test_set='"], ["client_files"]),
      marks=pytest.mark.thorough,
    ),
    pytest.param(
      ("x[40:], y[:40], y[40:]", "x[41:], y[:40], y[41:]"),
      ["test_examples=20, not 19"],
      [],
      marks=pytest.mark.thorough,
    ),
    (("epochs=1", "epochs=2"), ["epochs=1, not 2"], ["data"]),
    pytest.param(
      *(("learning_rate=0.1", "learning_rate=0.2"), ["learning_rate=0.1, not 0.2"], []),
      marks=pytest.mark.thorough,
    ),
    (("relu", "tanh"), ["relu", "tanh", "layers["], ["weights"]),
    (("# Here.", "# A remark."), ["version of mine: put"], ["client_files", "test_set"]),
    (("Dense(3", "Dense(5"), ["weights[0]='16x3', not '16x5'", "num_weights="], []),
  ],
  ids=lambda value: value[1] if isinstance(value, tuple) else "",
)
def test_task_that_is_another_behind_its_name_is_refused(
  mine, run_mine, change, differing, same
):
  before = _times(mine.run_dir)
  done = run_mine(*mine.flags, "--rounds=3", "--resume", change=change)
  assert_refused(done, str(mine.run_dir), *differing)
  for word in same:
    assert f"{word}=" not in done.err
  assert _times(mine.run_dir) == before


@pytest.mark.thorough
def test_client_files_that_somebody_has_changed_are_made_anew(mine, run_mine, tmp_path):
  """Before a run, also before it is gone on with."""
  run_dir, cache = tmp_path / "run", tmp_path / "cache"
  shutil.copytree(mine.run_dir, run_dir)
  shutil.copytree(mine.folder / "cache", cache)
  path = min(cache.rglob("*.client"))
  content = path.read_bytes()
  path.write_bytes(content[:-5] + bytes([content[-5] ^ 1]) + content[-4:])
  flags = [f"--run_dir={run_dir}", f"--cache_dir={cache}", "--rounds=3", "--resume"]
  done = run_mine(*flags)
  assert done.status == 0
  assert f"{path} does not hold what was written to it" in done.err
  assert done.err.endswith("The clients are written anew.\n")
  assert path.read_bytes() == content
  assert len(metrics(run_dir)) == 3


def _break_a_file(run_forked, folder, *flags: str):
  """Cuts a client's file after round 4 of a run; all clients are in each."""
  run_dir, where = place(folder)
  flags = (*SMALL, *where, "--clients_per_round=8", "--checkpoint_every=0", *flags)
  find = f"import pathlib; [path] = pathlib.Path({str(folder)!r}).rglob('*5.client')"
  cut = f"{find}; path.write_bytes(path.read_bytes()[:-1])"
  done = run_forked(*flags, "--rounds=6", cwd=folder, before=at_round(4, cut))
  assert done.status == 2
  [path] = folder.rglob("*5.client")
  words = f"cannot be read in round 5: {path} does not hold what was written to it; "
  assert words in done.err and "client '" in done.err
  assert done.err.count("\n") == 1
  assert len(metrics(run_dir)) == 4
  assert (run_dir / "checkpoints" / "round_0000004").is_dir()


@pytest.mark.parametrize(
  "flags",
  [
    ["--runtime=local_worker"],
    pytest.param(["--runtime=dask", "--workers=1"], marks=pytest.mark.thorough),
  ],
)
def test_client_file_that_breaks_in_a_run_ends_it_with_one_sentence(
  run_forked, tmp_path, flags
):
  _break_a_file(run_forked, tmp_path, *flags)


@pytest.mark.thorough
def test_run_that_a_broken_client_file_ended_is_gone_on_with(run_forked, tmp_path):
  """From its last round, which was no checkpoint's turn; the file is made anew."""
  _break_a_file(run_forked, tmp_path)
  (run_dir, where), (other, _) = place(tmp_path), place(tmp_path, "unbroken")
  flags = [*SMALL, *where, "--clients_per_round=8", "--checkpoint_every=0", "--rounds=6"]
  done = run_forked(*flags, "--resume", cwd=tmp_path)
  assert done.status == 0
  assert done.err.endswith("The clients are written anew.\n")
  done = run_forked(*flags, f"--run_dir={other}", cwd=tmp_path)
  assert (done.status, done.err) == (0, "")
  assert without_seconds(metrics(run_dir)) == without_seconds(metrics(other))
  assert [int(row["round"]) for row in metrics(run_dir)] == [1, 2, 3, 4, 5, 6]


@pytest.mark.thorough
def test_what_does_not_change_the_numbers_may_differ(mine, run_mine, tmp_path):
  whole, where = place(tmp_path, "whole")
  assert run_mine(*where, "--rounds=4").status == 0
  run_dir = tmp_path / "run"
  shutil.copytree(mine.run_dir, run_dir)
  flags = ["--rounds=4", "--threads=1", "--checkpoint_every=1", "--target_accuracy=0.5"]
  places = [f"--data_dir={tmp_path}", f"--cache_dir={tmp_path / 'other'}"]
  done = run_mine(f"--run_dir={run_dir}", *flags, *places, "--resume")
  assert (done.status, done.err) == (0, "")
  assert without_seconds(metrics(run_dir)) == without_seconds(metrics(whole))
  config = read_json(run_dir / "config.json")
  assert config["flags"]["data_dir"] == str(tmp_path)
  assert _rounds_of(config["sessions"]) == [(1, 2), (3, 4)]


# --- Other versions, and folders of older ones --------------------------------------


@pytest.mark.thorough
def test_other_software_is_told_once_and_recorded(mine, run_mine, tmp_path):
  run_dir = tmp_path / "run"
  shutil.copytree(mine.run_dir, run_dir)
  config = read_json(run_dir / "config.json")
  [session] = config["sessions"]
  now = dict(session, versions=dict(session["versions"]))
  session["versions"]["numpy"], session["git_commit"] = "1.0", "abc"
  (run_dir / "config.json").write_text(json.dumps(config))
  flags = [f"--run_dir={run_dir}", f"--cache_dir={mine.folder / 'cache'}", "--resume"]
  done = run_mine(*flags, "--rounds=3")
  assert done.status == 0
  [line] = done.err.splitlines()
  assert f"numpy 1.0 (now {now['versions']['numpy']})" in line
  assert f"commit abc (now {now['git_commit']})" in line
  assert str(run_dir) in line and "tensorflow" not in line
  old, new = _sessions(run_dir)
  assert (old["versions"]["numpy"], old["git_commit"]) == ("1.0", "abc")
  for name in ("versions", "git_commit"):
    assert new[name] == now[name]

  done = run_mine(*flags, "--rounds=4")
  assert (done.status, done.err) == (0, "")


def test_folder_of_an_older_version_is_gone_on_with(mine, run_mine, tmp_path):
  """Digests, layers and sessions are not there: what is, is compared, and kept."""
  run_dir = tmp_path / "run"
  shutil.copytree(mine.run_dir, run_dir)
  config = read_json(run_dir / "config.json")
  [session] = config.pop("sessions")
  del config["data"]["client_files"], config["data"]["test_set"], config["task"]
  config["num_weights"] = config.pop("model")["num_weights"]
  names = ("command", "versions", "machine", "git_commit")
  old = {name: session[name] for name in names}
  (run_dir / "config.json").write_text(json.dumps({**config, **old}))

  flags = [f"--run_dir={run_dir}", f"--cache_dir={mine.folder / 'cache'}", "--resume"]
  done = run_mine(*flags, "--rounds=3", change=("epochs=1", "epochs=2"))
  assert_refused(done, "epochs=1, not 2")
  done = run_mine(*flags, "--rounds=3")
  assert (done.status, done.err) == (0, "")
  assert len(metrics(run_dir)) == 3
  found = read_json(run_dir / "config.json")
  assert list(found) == ["flags", "hparams", "data", "model", "task", "sessions"]
  first, second = found["sessions"]
  assert first == old
  assert (second["first_round"], second["last_round"]) == (3, 3)
  # From now on the data are compared.
  assert found["data"] == read_json(mine.run_dir / "config.json")["data"]
