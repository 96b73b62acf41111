"""Checkpoints are all or nothing, whenever the process dies."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sqlite3
import stat

import numpy as np
import pytest
import tree

from tff_algos.errors import InputError, InputWarning
from tff_algos.simulation import best_round, checkpoints
from tff_algos.simulation.client_state_store import ClientStateStore


def _state(value: float):
  return {"weights": (np.full(3, value, np.float32),), "round_num": np.int32(value)}


def _records(rounds: int) -> list[dict]:
  return [
    dict(round=r + 1, train_loss=0.1 * r, test_accuracy=None) for r in range(rounds)
  ]


class _Run:
  """Rounds in which the clients round_num and 100 take part."""

  def __init__(self, folder):
    self.folder, self.store = str(folder), _store(folder)

  def save(self, round_num: int):
    self.store.put([round_num, 100], [np.float32(round_num), np.float32(-round_num)])
    checkpoints.save(
      self.folder, _state(round_num), self.store, round_num, _records(round_num)
    )


def _store(folder, dtype=np.float32) -> ClientStateStore:
  return ClientStateStore(dtype(0), path=checkpoints.client_file(str(folder)))


def _restore(folder):
  store = _store(folder)
  return checkpoints.restore(str(folder), _state(0), store), store


def _assert_holds(folder, rounds: list[int]):
  """The checkpoint is that of the last of some rounds of a `_Run`."""
  found, store = _restore(folder)
  last = rounds[-1]
  assert found.round_num == last
  assert found.records == _records(last)
  tree.assert_same_structure(found.state, _state(last))
  for a, b in zip(tree.flatten(found.state), tree.flatten(_state(last))):
    np.testing.assert_array_equal(a, b)
    assert a.dtype == b.dtype
  assert store.get([*rounds, 100, 77]) == [*rounds, -last, 0]


def test_restored_checkpoint_is_the_saved_one(tmp_path):
  assert not checkpoints.exists(str(tmp_path / "none"))
  _Run(tmp_path).save(2)
  assert checkpoints.exists(str(tmp_path))
  _assert_holds(tmp_path, [2])


def test_without_a_checkpoint_there_is_nothing_to_restore(tmp_path):
  assert not checkpoints.exists(str(tmp_path))
  for folder in (tmp_path, tmp_path / "none"):
    with pytest.raises(FileNotFoundError, match="no checkpoint") as caught:
      _restore(folder)
    assert str(folder) in str(caught.value)


def test_the_two_last_are_kept_and_what_is_not_ours(tmp_path):
  run = _Run(tmp_path)
  (tmp_path / "notes.txt").write_text("mine")
  (tmp_path / "round_7").mkdir()
  # Of a run that was killed, and that saves other rounds now.
  (tmp_path / "round_0000003.unfinished").mkdir()
  for number, rounds in enumerate([2, 4, 10], 1):
    run.save(rounds)
    _assert_holds(tmp_path, [2, 4, 10][:number])
  assert sorted(os.listdir(tmp_path)) == [
    *("client_states.sqlite", "notes.txt", "round_0000004", "round_0000010", "round_7"),
  ]


# --- Processes that are killed -------------------------------------------------------


class _Killed(BaseException):
  """Stands for a process that ends at once."""


_CALLS = [
  *((os, name) for name in ("fsync", "replace", "makedirs")),
  *((shutil, name) for name in ("rmtree",)),
  *((checkpoints, name) for name in ("save_structure",)),
  *((ClientStateStore, name) for name in ("_write",)),
]


def _dies_at_call(patched, owner, name: str, number: int):
  """The call of that number ends the process; those before are as ever."""
  original, calls = getattr(owner, name), []

  def call(*arguments, **options):
    calls.append(arguments)
    if len(calls) == number:
      raise _Killed
    return original(*arguments, **options)

  patched.setattr(owner, name, call)


@pytest.mark.parametrize("owner, name", _CALLS)
def test_a_crash_at_any_call_leaves_a_whole_checkpoint(
  tmp_path, monkeypatch, owner, name
):
  """It is gone on with from there, in another process, which meets the remains."""
  killed = 0
  for number in range(1, 20):
    folder = tmp_path / str(number)
    run = _Run(folder)
    run.save(2)
    run.save(4)
    with monkeypatch.context() as patched:
      _dies_at_call(patched, owner, name, number)
      try:
        run.save(6)
        break
      except _Killed:
        killed += 1
    del run
    is_new = "round_0000006" in os.listdir(folder)
    _assert_holds(folder, [2, 4, 6] if is_new else [2, 4])
    resumed = _Run(folder)
    checkpoints.restore(str(folder), _state(0), resumed.store)
    if not is_new:
      resumed.save(6)
    resumed.save(8)
    _assert_holds(folder, [2, 4, 6, 8])
    assert sorted(os.listdir(folder)) == [
      *("client_states.sqlite", "round_0000006", "round_0000008"),
    ]
  assert killed


def test_all_is_on_the_disk_before_it_has_its_name_and_the_old_goes_after(
  tmp_path, monkeypatch
):
  """After a power cut what was synced is there, and what was not may be or not."""
  run = _Run(tmp_path)
  run.save(2)
  run.save(4)
  happened = []
  fsync, replace, rmtree = os.fsync, os.replace, shutil.rmtree

  def named(handle):
    happened.append(("sync", os.path.basename(os.readlink(f"/proc/self/fd/{handle}"))))
    fsync(handle)

  def renamed(source, target):
    happened.append(("rename", os.path.basename(target)))
    assert all(
      ("sync", name) in happened
      for name in [*os.listdir(source), os.path.basename(source)]
    )
    replace(source, target)

  def removed(path, **options):
    happened.append(("remove", os.path.basename(path)))
    rmtree(path, **options)

  monkeypatch.setattr(os, "fsync", named)
  monkeypatch.setattr(os, "replace", renamed)
  monkeypatch.setattr(shutil, "rmtree", removed)
  run.save(6)
  after = happened[happened.index(("rename", "round_0000006")) + 1 :]
  assert after == [("sync", tmp_path.name), ("remove", "round_0000002")]


# --- A disk that is full ----------------------------------------------------------------


def test_full_disk_leaves_the_checkpoints_as_they_were(tmp_path, monkeypatch):
  """At whichever sync the disk says so; and it is gone on with."""
  fsync, failed = os.fsync, 0
  for number in range(1, 20):
    folder, calls = tmp_path / str(number), []
    run = _Run(folder)
    run.save(2)
    run.save(4)
    before = sorted(os.listdir(folder))

    def sync(handle, number=number, calls=calls):
      calls.append(handle)
      if len(calls) == number and stat.S_ISREG(os.fstat(handle).st_mode):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
      fsync(handle)

    with monkeypatch.context() as patched:
      patched.setattr(os, "fsync", sync)
      try:
        run.save(6)
        if len(calls) < number:
          break
        continue  # It was a folder, of which not every file system tells.
      except OSError as error:
        failed += 1
        assert error.errno == errno.ENOSPC
        assert os.path.dirname(error.filename) == str(folder / "round_0000006")
    assert sorted(os.listdir(folder)) == before
    _assert_holds(folder, [2, 4])
  assert failed == 3  # server.npz, records.json, manifest.json


# --- Damage ---------------------------------------------------------------------------


def _cut(path):
  path.write_bytes(path.read_bytes()[:-7])


def _flip(path):
  content = bytearray(path.read_bytes())
  content[len(content) // 2] ^= 1
  path.write_bytes(content)


_DAMAGES = {
  "cut short": _cut,
  "flipped": _flip,
  "empty": lambda path: path.write_bytes(b""),
  "deleted": lambda path: path.unlink(),
}


@pytest.mark.parametrize("damage", _DAMAGES)
@pytest.mark.parametrize("name", ["server.npz", "records.json", "manifest.json"])
def test_a_damaged_checkpoint_is_passed_over(tmp_path, name, damage):
  run = _Run(tmp_path)
  run.save(2)
  run.save(4)
  _DAMAGES[damage](tmp_path / "round_0000004" / name)
  with pytest.warns(InputWarning, match="round_0000004.*damaged") as warned:
    _assert_holds(tmp_path, [2])
  assert "round_0000002" in str(warned[0].message)
  assert name in str(warned[0].message)


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_is_no_checkpoint_does_not_hide_one(tmp_path, kind):
  _Run(tmp_path).save(2)
  newest = tmp_path / "round_0000004"
  newest.touch() if kind == "file" else newest.mkdir()
  with pytest.warns(InputWarning, match="round_0000004"):
    _assert_holds(tmp_path, [2])


def _resumed_past(tmp_path, damaged: int) -> _Run:
  """A run that was saved after round 2 and another, goes on from the former."""
  run = _Run(tmp_path)
  run.save(2)
  run.save(damaged)
  _flip(tmp_path / f"round_{damaged:07d}" / "server.npz")
  resumed = _Run(tmp_path)
  with pytest.warns(InputWarning):
    checkpoints.restore(str(tmp_path), _state(0), resumed.store)
  return resumed


def test_a_run_goes_on_from_the_older_one_over_the_damaged_one(tmp_path):
  resumed = _resumed_past(tmp_path, 4)
  resumed.save(4)
  _assert_holds(tmp_path, [2, 4])
  resumed.save(6)
  _assert_holds(tmp_path, [2, 4, 6])


def test_a_later_damaged_one_takes_no_place_of_the_two_that_are_kept(tmp_path):
  _resumed_past(tmp_path, 10).save(4)
  names = sorted(p.name for p in tmp_path.glob("round_*"))
  assert names == ["round_0000002", "round_0000004"]
  _assert_holds(tmp_path, [2, 4])


def test_damaged_client_states_are_those_of_their_checkpoint(tmp_path):
  run = _Run(tmp_path)
  run.save(2)
  run.save(4)
  with contextlib.closing(sqlite3.connect(tmp_path / "client_states.sqlite")) as file:
    file.execute("DELETE FROM versions WHERE place = 4")
    file.commit()
  with pytest.warns(InputWarning, match=r"client_states.*damaged"):
    _assert_holds(tmp_path, [2])


def test_with_all_damaged_it_says_so(tmp_path):
  run = _Run(tmp_path)
  run.save(2)
  run.save(4)
  (tmp_path / "client_states.sqlite").unlink()
  with (
    pytest.warns(InputWarning),
    pytest.raises(InputError, match=r"last checkpoint .* begin anew"),
  ):
    _restore(tmp_path)


def test_client_states_are_left_alone_where_they_are_not_asked_for(tmp_path):
  _Run(tmp_path).save(2)
  (tmp_path / "client_states.sqlite").unlink()
  assert checkpoints.restore(str(tmp_path), _state(0)).round_num == 2


def test_checkpoint_of_another_model_is_refused(tmp_path):
  _Run(tmp_path).save(2)
  others = (
    {"weights": (np.zeros(4, np.float32),), "round_num": np.int32(0)},
    {"weights": (np.zeros(3),), "round_num": np.int32(0)},
    {"weights": (np.zeros(3, np.float32),) * 2, "round_num": np.int32(0)},
    {"weights": (), "round_num": np.int32(0)},
  )
  for other in others:
    with pytest.raises(ValueError, match="belongs to another run"):
      checkpoints.restore(str(tmp_path), other, _store(tmp_path))
  with pytest.raises(ValueError, match="belongs to another run"):
    checkpoints.restore(str(tmp_path), _state(0), _store(tmp_path, np.float64))


def test_many_leaves_keep_their_order(tmp_path):
  """`np.savez` names them arr_0, arr_1, ..., arr_10: not in the order of the words."""
  state = tuple(np.full(2, i, np.float32) for i in range(25))
  checkpoints.save(str(tmp_path), state, ClientStateStore(()), 1, _records(1))
  found = checkpoints.restore(str(tmp_path), state, ClientStateStore(())).state
  assert [int(v[0]) for v in found] == list(range(25))


def test_records_come_back_exactly(tmp_path):
  """Python writes floats so that they are read as the same numbers."""
  records = [
    dict(round=1, train_loss=0.1 + 0.2, seconds=1e-17, test_accuracy=float("nan")),
    dict(round=2, train_loss=float("inf"), bytes_down=2**60 + 1, test_accuracy=None),
  ]
  checkpoints.save(str(tmp_path), _state(2), ClientStateStore(()), 2, records)
  found = checkpoints.restore(str(tmp_path), _state(0), ClientStateStore(())).records
  assert repr(found) == repr(records)


# --- The best round -----------------------------------------------------------------


def _save_with_best(folder, best):
  store = ClientStateStore(())
  checkpoints.save(str(folder), _state(2), store, 2, _records(2), best=best)
  return checkpoints.restore(str(folder), _state(0), ClientStateStore(())).best


def test_best_round_comes_back_exactly(tmp_path):
  weights = (np.float32([[0.1, np.nan]]), np.float32([1e-30]))
  weights += tuple(np.full(2, k, np.float32) for k in range(10))  # "10" is before "2".
  best = best_round.Best(1, 0.1 + 0.2, weights)
  found = _save_with_best(tmp_path, best)
  assert found[:2] == best[:2]
  assert len(found.weights) == len(weights)
  for a, b in zip(found.weights, weights):
    np.testing.assert_array_equal(a, b)
    assert a.dtype == b.dtype


@pytest.mark.parametrize("best", [None, best_round.Best(1, 0.5, None)])
def test_best_round_without_weights_is_not_kept(tmp_path, best):
  assert _save_with_best(tmp_path, best) is None


@pytest.mark.parametrize("damage", _DAMAGES)
def test_a_checkpoint_whose_best_model_is_damaged_is_passed_over(tmp_path, damage):
  for done in (2, 4):
    best = best_round.Best(done, 0.5, (np.full(300, done, np.float32),))
    store = ClientStateStore(())
    checkpoints.save(str(tmp_path), _state(done), store, done, _records(done), best=best)
  _DAMAGES[damage](tmp_path / "round_0000004" / "best.npz")
  with pytest.warns(InputWarning, match=r"round_0000004/best\.npz is damaged"):
    found = checkpoints.restore(str(tmp_path), _state(0), ClientStateStore(()))
  assert (found.round_num, found.best.round_num) == (2, 2)
