"""Checkpoints are all or nothing, whenever the process dies."""

from __future__ import annotations

import os
import shutil

import numpy as np
import pytest
import tree

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
    self.folder = str(folder)
    self.store = ClientStateStore(np.float32(0))

  def save(self, round_num: int):
    self.store.put([round_num, 100], [np.float32(round_num), np.float32(-round_num)])
    checkpoints.save(
      self.folder, _state(round_num), self.store, round_num, _records(round_num)
    )


def _restore(folder):
  store = ClientStateStore(np.float32(0))
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


def _client_files(folder) -> set[str]:
  return set(os.listdir(folder / "client_states"))


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


def test_newest_replaces_the_one_before_and_what_only_that_needed(tmp_path):
  run = _Run(tmp_path)
  run.save(2)
  of_round_2 = _client_files(tmp_path)
  run.save(4)
  _assert_holds(tmp_path, [2, 4])
  run.save(10)
  _assert_holds(tmp_path, [2, 4, 10])
  folders = [name for name in os.listdir(tmp_path) if name != "client_states"]
  assert len(folders) == 1
  # One file for each of the clients 2, 4, 10 and 100; that of client 2 is the first.
  assert len(_client_files(tmp_path)) == 4
  assert len(_client_files(tmp_path) & of_round_2) == 1


class _Killed(BaseException):
  """Stands for a process that ends at once."""


def _kill(*_, **__):
  raise _Killed


# What is called between the first client file and the last tidying up.
_MOMENTS = {
  "writing client files": (np, "savez"),
  "before the folder": (os, "makedirs"),
  "writing records": (checkpoints.json, "dump"),
  "renaming": (os, "replace"),
}


@pytest.mark.parametrize("moment", _MOMENTS)
def test_crash_before_the_rename_leaves_the_checkpoint_before(
  tmp_path, monkeypatch, moment
):
  run = _Run(tmp_path)
  run.save(2)
  run.save(4)
  with monkeypatch.context() as patched:
    patched.setattr(*_MOMENTS[moment], _kill)
    with pytest.raises(_Killed):
      run.save(6)
  assert checkpoints.exists(str(tmp_path))
  _assert_holds(tmp_path, [2, 4])


def _dies_at_call(monkeypatch, owner, name: str, number: int):
  """The call of that number ends the process; those before are as ever."""
  original, calls = getattr(owner, name), []

  def call(*arguments, **options):
    calls.append(arguments)
    if len(calls) == number:
      raise _Killed
    return original(*arguments, **options)

  monkeypatch.setattr(owner, name, call)


@pytest.mark.parametrize(
  "owner, name, number",
  [(np, "savez", 2), (np, "savez", 3), (shutil, "rmtree", 1), (os, "replace", 1)],
)
def test_crash_at_a_later_file_leaves_the_checkpoint_before(
  tmp_path, monkeypatch, owner, name, number
):
  """Client 6's file is written when that of client 100 or the server's is not."""
  run = _Run(tmp_path)
  run.save(2)
  run.save(4)
  with monkeypatch.context() as patched:
    _dies_at_call(patched, owner, name, number)
    with pytest.raises(_Killed):
      run.save(6)
  _assert_holds(tmp_path, [2, 4])


@pytest.mark.parametrize("owner, name", [(shutil, "rmtree"), (os, "remove")])
def test_crash_after_the_rename_leaves_the_new_checkpoint(
  tmp_path, monkeypatch, owner, name
):
  run = _Run(tmp_path)
  run.save(2)
  run.save(4)
  replace = os.replace

  def replace_then_kill(*arguments):
    replace(*arguments)
    patched.setattr(owner, name, _kill)

  with monkeypatch.context() as patched:
    patched.setattr(os, "replace", replace_then_kill)
    with pytest.raises(_Killed):
      run.save(6)
  _assert_holds(tmp_path, [2, 4, 6])


def test_next_save_after_a_crash_tidies_up(tmp_path, monkeypatch):
  """The run goes on from the checkpoint, in another process, and meets its remains."""
  run = _Run(tmp_path)
  run.save(2)
  with monkeypatch.context() as patched:
    patched.setattr(os, "replace", _kill)
    with pytest.raises(_Killed):
      run.save(4)
  resumed = _Run(tmp_path)
  checkpoints.restore(str(tmp_path), _state(0), resumed.store)
  resumed.save(4)
  _assert_holds(tmp_path, [2, 4])
  assert sorted(os.listdir(tmp_path)) == ["client_states", "round_0000004"]
  assert len(_client_files(tmp_path)) == 3


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
      checkpoints.restore(str(tmp_path), other, ClientStateStore(np.float32(0)))
  with pytest.raises(ValueError, match="belongs to another run"):
    checkpoints.restore(str(tmp_path), _state(0), ClientStateStore(np.float64(0)))


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
  best = best_round.Best(1, 0.1 + 0.2, weights)
  found = _save_with_best(tmp_path, best)
  assert found[:2] == best[:2]
  for a, b in zip(found.weights, weights):
    np.testing.assert_array_equal(a, b)
    assert a.dtype == b.dtype


@pytest.mark.parametrize("best", [None, best_round.Best(1, 0.5, None)])
def test_best_round_without_weights_is_not_kept(tmp_path, best):
  assert _save_with_best(tmp_path, best) is None
