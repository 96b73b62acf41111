"""Runs of train.py whose disk is full, or takes no more for another reason."""

from __future__ import annotations

import textwrap

import pytest
from programs import Done
from training import SMALL, metrics, place, tree, without_seconds

_FLAGS = [*SMALL, "--algorithm=scaffold", "--rounds=3", "--checkpoint_every=1"]


def _at_sync(name: str, number: int, error: str) -> str:
  """For `before` of a fork: the disk has no room for a file, as it says when synced."""
  return textwrap.dedent(
    f"""
    import errno, os

    fsync, calls = os.fsync, []

    def sync(handle):
      if os.readlink(f"/proc/self/fd/{{handle}}").endswith("/{name}"):
        calls.append(handle)
        if len(calls) == {number}:
          raise OSError(errno.{error}, os.strerror(errno.{error}))
      fsync(handle)

    os.fsync = sync
    """
  )


# SQLite itself finds no room, when it has written a half of what it will.
_IN_SQLITE = """
from tff_algos.simulation.client_state_store import ClientStateStore

new_file = ClientStateStore._new_file

def new_small_file(store):
  file = new_file(store)
  file.execute("PRAGMA max_page_count = 15")
  return file

ClientStateStore._new_file = new_small_file
"""

_NO_LARGE_FILES = """
import resource

resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
"""


@pytest.fixture(scope="module")
def unbroken(run_forked, tmp_path_factory) -> list[dict[str, str]]:
  folder = tmp_path_factory.mktemp("unbroken")
  run_dir, where = place(folder)
  done = run_forked(*_FLAGS, *where, cwd=folder)
  assert (done.status, done.err) == (0, "")
  return without_seconds(metrics(run_dir))


def _assert_is_one_sentence(done: Done, path: object, reason: str) -> None:
  assert done.status == 1
  assert done.err.startswith(f"{path}: {reason}; what was written before stays: ")
  assert done.err.count("\n") == 1 and "--resume" in done.err


@pytest.mark.parametrize(
  "before, name, reason, rounds",
  [
    pytest.param(
      _at_sync("server.npz", 2, "ENOSPC"),
      "checkpoints/round_0000002/server.npz",
      "No space left on device",
      [1],
      marks=pytest.mark.thorough,
    ),
    (_IN_SQLITE, "checkpoints/client_states.sqlite", "No space left on device", []),
    pytest.param(
      _at_sync("metrics.csv", 1, "EDQUOT"),
      "metrics.csv",
      "Disk quota exceeded",
      [2, 3],
      marks=pytest.mark.thorough,
    ),
    pytest.param(
      _at_sync("summary.json.unfinished", 1, "EROFS"),
      "summary.json",
      "Read-only file system",
      [2, 3],
      marks=pytest.mark.thorough,
    ),
  ],
  ids=["checkpoint", "client states", "metrics", "summary"],
)
def test_full_disk_is_a_sentence_and_with_room_the_run_goes_on(
  run_forked, unbroken, tmp_path, before, name, reason, rounds
):
  run_dir, where = place(tmp_path)
  done = run_forked(*_FLAGS, *where, cwd=tmp_path, before=before)
  _assert_is_one_sentence(done, run_dir / name, reason)
  files = tree(tmp_path)
  assert not [path for path in files if "unfinished" in path or "journal" in path]
  found = sorted(path.name for path in run_dir.glob("checkpoints/round_*"))
  assert found == [f"round_{number:07d}" for number in rounds]
  done = run_forked(*_FLAGS, *where, "--resume", cwd=tmp_path)
  assert (done.status, done.err) == (0, "")
  assert without_seconds(metrics(run_dir)) == unbroken


def test_client_files_without_room_are_a_sentence_and_no_half_folder(
  run_forked, tmp_path
):
  """Here the system itself refuses, to TensorFlow, which writes them."""
  _, where = place(tmp_path)
  done = run_forked(*_FLAGS, *where, cwd=tmp_path, before=_NO_LARGE_FILES)
  clients = tmp_path / "cache/clients"
  path = done.err.partition(": ")[0]
  assert path.startswith(str(clients)) and path.endswith(".client")
  _assert_is_one_sentence(done, path, "File too large")
  assert tree(tmp_path) == {"cache", "cache/clients"}
