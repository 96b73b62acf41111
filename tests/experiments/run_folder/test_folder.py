"""A folder of results: to whom it belongs, what differs, and its sessions."""

from __future__ import annotations

import copy
import json
import os

import numpy as np
import pytest
import tensorflow as tf

from experiments.run_folder import folder as folder_lib
from experiments.run_folder import provenance
from experiments.run_folder.folder import RunFolder
from tff_algos.errors import InputError, UnsupportedComputationError, WorkerLostError

_MANIFEST = {
  "flags": {"task": "a", "seed": 0, "rounds": 3, "devices": ("CPU:0",)},
  "hparams": {"epochs": 1, "batch_size": None},
  "data": {"examples": 10},
}
_VERSIONS = {"python": "3.11.1", "numpy": "1.25.2"}


@pytest.fixture
def software(monkeypatch):
  """What a session says it was made by; a test may change it."""
  now = {"command": ["x.py"], "git_commit": "abc", "versions": dict(_VERSIONS)}
  monkeypatch.setattr(provenance, "session", lambda: copy.deepcopy(now))
  return now


def test_the_machine_names_its_gpus(monkeypatch):
  """Of two that TensorFlow sees, one without a name of its own."""
  gpus = [tf.config.PhysicalDevice(f"/physical_device:GPU:{k}", "GPU") for k in range(2)]
  monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: gpus)
  details = {gpus[0].name: {"device_name": "Babbage 1"}, gpus[1].name: {}}
  monkeypatch.setattr(
    tf.config.experimental, "get_device_details", lambda gpu: details[gpu.name]
  )
  assert provenance.machine()["gpus"] == ["Babbage 1", gpus[1].name]


@pytest.fixture
def begun(software, tmp_path) -> RunFolder:
  folder = RunFolder(str(tmp_path / "run"))
  with folder.alone():
    folder.begin(_MANIFEST)
  return folder


def _changed(heading: str, **settings) -> dict:
  return {**_MANIFEST, heading: {**_MANIFEST[heading], **settings}}


# --- What is there ------------------------------------------------------------------


def test_new_or_empty_folder_holds_nothing(tmp_path):
  for name in (".", "absent"):
    folder = RunFolder(str(tmp_path / name))
    assert folder.read() is None
    assert folder.check(_MANIFEST) is False


def test_folder_that_was_killed_before_it_had_settings_holds_nothing(begun, tmp_path):
  (tmp_path / "new").mkdir()
  (tmp_path / "new/config.json.unfinished").write_text('{"fl')
  folder = RunFolder(str(tmp_path / "new"))
  assert folder.read() is None
  folder.begin(_MANIFEST)
  assert os.listdir(folder.path) == ["config.json"]
  (tmp_path / "new/notes.txt").write_text("mine")
  (tmp_path / "new/config.json").rename(tmp_path / "new/config.json.unfinished")
  with pytest.raises(InputError, match="is not empty"):
    folder.read()


def test_folder_of_another_program_or_of_other_settings_is_refused_at_once(tmp_path):
  folder = RunFolder(str(tmp_path), flag="--out")
  folder.check_begun_with("liars", {"liars": 0.1})
  for held in (_MANIFEST, {"settings": {"distance": "l2", "task": "a"}}, {"settings": 3}):
    (tmp_path / "config.json").write_text(json.dumps(held))
    with pytest.raises(InputError, match=r"of another program: choose another --out\.$"):
      folder.check_begun_with("liars", {"liars": 0.1, "task": "a"})
  (tmp_path / "config.json").write_text(json.dumps({"settings": {"liars": 0.1}}))
  folder.check_begun_with("liars", {"liars": 0.1, "task": "a"})  # It is of older times.
  with pytest.raises(InputError, match=r"holds results with liars=0\.1, not 0\.2: "):
    folder.check_begun_with("liars", {"liars": 0.2})


def test_folder_of_somebody_else_is_refused(tmp_path):
  (tmp_path / "notes.txt").write_text("mine")
  folder = RunFolder(str(tmp_path), flag="--out")
  with pytest.raises(InputError, match=r"is not empty .* choose another --out\.$"):
    folder.read()


def test_home_may_be_a_tilde(monkeypatch, tmp_path):
  monkeypatch.setenv("HOME", str(tmp_path))
  assert RunFolder("~/run").path == str(tmp_path / "run")


@pytest.mark.parametrize(
  "content",
  [
    "",
    "[1]",
    '{"flags": [1]}',
    '{"hparams": 3}',
    '{"data": "x"}',
    '{"sessions": 3}',
    '{"sessions": [3]}',
    '{"sessions": [{"command": 3}]}',
    '{"sessions": [{"versions": [1]}]}',
  ],
)
def test_manifest_that_is_not_of_this_program_is_refused(tmp_path, content):
  (tmp_path / "config.json").write_text(content)
  with pytest.raises(InputError) as caught:
    RunFolder(str(tmp_path)).read()
  said = str(caught.value)
  assert said.startswith(f"{tmp_path} holds a config.json that is not of this program: ")
  assert said.endswith("choose another --run_dir.") and "\n" not in said


# --- What differs -------------------------------------------------------------------


def test_same_settings_are_no_difference(begun):
  # JSON has no tuples: what was written is compared, not what was given.
  assert begun.check(_MANIFEST) is True


def test_numbers_of_numpy_are_those_of_python(begun):
  flags = {"seed": np.int64(0), "rounds": np.int32(3)}
  assert begun.check(_changed("flags", **flags))
  with pytest.raises(InputError, match="with rounds=3, not 4: "):
    begun.check(_changed("flags", rounds=np.int64(4)))


def test_difference_is_said_by_name_with_both_values(begun):
  with pytest.raises(InputError) as caught:
    begun.check(_changed("hparams", batch_size=5))
  assert f"{begun.path} holds results with batch_size=None, not 5: " in str(caught.value)
  assert "choose another --run_dir." in str(caught.value)


def test_edited_code_is_said_to_be_put_back(tmp_path):
  folder = RunFolder(str(tmp_path))
  folder.begin({**_MANIFEST, "algorithm": {"mine": "4f", "hers": "00"}})
  edited = {"mine": "a0", "hers": "00"}
  told = "another version of mine: put that back as it was, or choose another --run_dir."
  others = _changed("hparams", batch_size=5)
  for manifest, also in ((_MANIFEST, ""), (others, "batch_size=None, not 5; ")):
    with pytest.raises(InputError) as caught:
      folder.check({**manifest, "algorithm": edited})
    assert str(caught.value) == f"{folder.path} holds results with {also}{told}"


def test_more_than_four_differences_are_counted(begun):
  manifest = {
    "flags": {"task": "b", "seed": 1, "rounds": 4, "devices": ["CPU:1"]},
    "hparams": {"epochs": 2, "batch_size": 5},
  }
  with pytest.raises(InputError) as caught:
    begun.check(manifest)
  said = str(caught.value)
  assert "task='a', not 'b'; seed=0, not 1; rounds=3, not 4; devices[0]=" in said
  assert "; and 2 more: go on with" in said


def test_free_setting_may_differ_under_its_heading_alone(software, tmp_path):
  folder = RunFolder(str(tmp_path))
  folder.begin({"flags": {"n": 1, "m": 1}, "hparams": {"n": 1}})
  free = {"flags.n"}
  assert folder.check({"flags": {"n": 2, "m": 1}}, free=free)
  with pytest.raises(InputError, match="with m=1, not 2: "):
    folder.check({"flags": {"n": 2, "m": 2}}, free=free)
  with pytest.raises(InputError, match="with n=1, not 2: "):
    folder.check({"hparams": {"n": 2}}, free=free)


def test_what_an_older_version_did_not_write_is_not_compared(begun):
  assert begun.check({**_MANIFEST, "model": {"num_weights": 3}})
  assert begun.check(_changed("data", client_files="0123"))


def test_what_an_older_version_can_have_had_alone_is_compared(begun):
  assert begun.check(_changed("flags", loss_epsilon=0.0))
  with pytest.raises(InputError, match=r"with loss_epsilon=0.0, not 0.1: "):
    begun.check(_changed("flags", loss_epsilon=0.1))
  assert begun.check(_changed("flags", norm_limit=None, mixed_precision=False))
  with pytest.raises(InputError, match=r"with norm_limit=None, not 10: "):
    begun.check(_changed("flags", norm_limit=10))
  assert begun.check(_changed("hparams", server_dual="mean", a_new_one=2))
  with pytest.raises(InputError, match=r"with server_dual='mean', not 'sum': "):
    begun.check(_changed("hparams", server_dual="sum"))


@pytest.mark.parametrize(
  "before, now, differences",
  [
    ([1, 2, 3], [1, 5, 3], [("x[1]", 2, 5)]),
    ([1, 2], [1, 2, 3], [("x", [1, 2], [1, 2, 3])]),
    ({"a": 1, "b": 2}, {"a": 1, "b": 3}, [("x.b", 2, 3)]),
    ({"a": 1}, {"a": 1, "b": 3}, [("x.b", None, 3)]),
    ({"a": 1, "b": 3}, {"a": 1}, [("x.b", 3, None)]),
    ({"a": {"c": [0, 1]}}, {"a": {"c": [0, 2]}}, [("x.a.c[1]", 1, 2)]),
    ([1], {"a": 1}, [("x", [1], {"a": 1})]),
    (1, 1.0, []),
    (None, 0, [("x", None, 0)]),
    (False, None, [("x", False, None)]),
  ],
)
def test_difference_is_narrowed_to_what_differs(before, now, differences):
  found = folder_lib.differences({"h": {"x": before}}, {"h": {"x": now}})
  assert found == differences
  # And there is one the other way round too.
  assert bool(found) == bool(
    folder_lib.differences({"h": {"x": now}}, {"h": {"x": before}})
  )


# --- Sessions -----------------------------------------------------------------------


def test_sessions_are_added_and_nothing_of_earlier_ones_is_lost(begun, software):
  begun.note(first_round=1, last_round=2)
  software["command"] = ["y.py"]
  begun.begin(_changed("flags", rounds=9))
  begun.note(first_round=3)
  first, second = folder_lib.sessions_of(begun.read())
  assert (first["command"], first["first_round"], first["last_round"]) == (["x.py"], 1, 2)
  assert (second["command"], second["first_round"]) == (["y.py"], 3)
  assert "last_round" not in second
  assert begun.read()["flags"]["rounds"] == 9


def test_headings_of_another_program_stay(begun):
  begun.begin({**_MANIFEST, "forgetting": {"fisher": True}})
  begun.begin(_MANIFEST)
  assert begun.read()["forgetting"] == {"fisher": True}
  assert list(begun.read())[-2:] == ["forgetting", "sessions"]


def test_session_of_an_older_folder_is_the_first_of_the_list(software, tmp_path):
  old = {"command": ["old.py"], "git_commit": "abc", "versions": _VERSIONS}
  folder = RunFolder(str(tmp_path))
  content = {**_MANIFEST, "num_weights": 7, **old}
  (tmp_path / "config.json").write_text(json.dumps(content))
  assert folder_lib.sessions_of(folder.read()) == [{**old, "machine": None}]
  folder.begin({**_MANIFEST, "model": {"num_weights": 7}})
  held = folder.read()
  assert list(held) == [*_MANIFEST, "model", "sessions"]
  assert [session["command"] for session in held["sessions"]] == [["old.py"], ["x.py"]]


def test_other_software_is_told_once(begun, software, capsys):
  begun.begin(_MANIFEST)
  assert capsys.readouterr().err == ""
  software["versions"]["numpy"] = "1.26"
  software["git_commit"] = "abc+changes"
  begun.begin(_MANIFEST)
  [line] = capsys.readouterr().err.splitlines()
  assert "numpy 1.25.2 (now 1.26), commit abc (now abc+changes)" in line
  assert "python" not in line
  begun.begin(_MANIFEST)
  assert capsys.readouterr().err == ""


@pytest.mark.parametrize("old", [{}, {"versions": None, "git_commit": None}])
def test_software_that_is_not_known_is_not_told(begun, software, capsys, old):
  held = begun.read()
  held["sessions"] = [old]
  with open(begun.file("config.json"), "w") as f:
    json.dump(held, f)
  begun.begin(_MANIFEST)
  assert capsys.readouterr().err == ""


# --- One run at a time --------------------------------------------------------------


def test_another_is_kept_out_until_the_end(begun):
  another = RunFolder(begun.path)
  refused = pytest.raises(InputError, match="is being written by another run")
  with begun.alone(), refused, another.alone():
    pass
  with another.alone():
    pass


# --- What a mistake leaves ----------------------------------------------------------


@pytest.mark.parametrize("error", [InputError, UnsupportedComputationError])
def test_a_mistake_before_the_first_round_leaves_a_new_folder_empty(
  software, tmp_path, error
):
  folder = RunFolder(str(tmp_path))
  with pytest.raises(error), folder.begun(_MANIFEST, ["worker.log", "not_there"]):
    (tmp_path / "worker.log").write_text("begins")
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "clients").write_text("none")
    raise error("It cannot be.")
  assert list(tmp_path.iterdir()) == []


def _put_a_file_beside(folder):
  (folder / "mine.txt").write_text("kept")
  return ["mine.txt"]


def _begin_another_run_there(folder):
  RunFolder(str(folder)).begin(_changed("hparams", batch_size=5))
  return ["config.json"]


def _go_to_a_folder_where_another_run_is(folder):
  (folder.parent / "elsewhere" / "run").mkdir(parents=True)
  os.chdir(folder.parent / "elsewhere")
  RunFolder("run").begin(_MANIFEST)
  return []


def _damage(folder):
  (folder / "config.json").write_text("{")
  return ["config.json"]


@pytest.mark.parametrize(
  "change",
  [
    _put_a_file_beside,
    _begin_another_run_there,
    _go_to_a_folder_where_another_run_is,
    _damage,
  ],
)
def test_what_is_not_of_this_beginning_stays(software, tmp_path, monkeypatch, change):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "run").mkdir()
  with (
    pytest.raises(InputError, match="It cannot be"),
    RunFolder("run").begun(_MANIFEST, []),
  ):
    kept = change(tmp_path / "run")
    raise InputError("It cannot be.")
  assert [path.name for path in (tmp_path / "run").iterdir()] == kept
  others = tmp_path / "elsewhere" / "run"
  assert not others.exists() or (others / "config.json").exists()


def test_a_scheduler_that_does_not_answer_leaves_it_empty_but_no_workers_log_goes(
  software, tmp_path
):
  folder = RunFolder(str(tmp_path))
  with pytest.raises(WorkerLostError), folder.begun(_MANIFEST, []):
    raise WorkerLostError("No scheduler.")
  assert list(tmp_path.iterdir()) == []
  with pytest.raises(WorkerLostError), folder.begun(_MANIFEST, []):
    (tmp_path / "worker.log").write_text("why")
    raise WorkerLostError("See worker.log.")
  assert (tmp_path / "worker.log").read_text() == "why" and folder.read() is not None


@pytest.mark.parametrize(
  "error, rounds", [(InputError, True), (KeyboardInterrupt, False)]
)
def test_rounds_and_what_was_interrupted_stay(software, tmp_path, error, rounds):
  folder = RunFolder(str(tmp_path))
  with pytest.raises(error), folder.begun(_MANIFEST, []):
    if rounds:
      folder.note(first_round=1, last_round=None)
    raise error("It ends.")
  assert folder.read()["flags"] == {**_MANIFEST["flags"], "devices": ["CPU:0"]}
