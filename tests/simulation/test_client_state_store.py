"""Client states in memory and on disk."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import types
from typing import Any, NamedTuple

import numpy as np
import pytest
import tree
from hypothesis import given, settings
from hypothesis import strategies as st

from tff_algos.errors import DamagedError, InputError
from tff_algos.simulation.client_state_store import ClientStateStore


class _State(NamedTuple):
  is_known: Any
  model: Any


def _state(value: float) -> _State:
  is_known = np.bool_(value > 0)
  model = (np.full((2, 3), value, np.float32), np.int32(value))
  return _State(is_known, model)


def _assert_same(found, expected):
  assert type(found) is type(expected)
  for a, b in zip(tree.flatten(found), tree.flatten(expected)):
    np.testing.assert_array_equal(a, b)
    assert np.asarray(a).dtype == np.asarray(b).dtype


def test_every_client_starts_with_the_initial_state():
  store = ClientStateStore(_state(0))
  for found in store.get([3, 0, 3]):
    _assert_same(found, _state(0))


@pytest.mark.parametrize("place", ["client 3", -1, 1.0])
def test_what_is_no_place_is_refused(place):
  """Else a name would give the initial state."""
  with pytest.raises(InputError, match="found by its place"):
    ClientStateStore(np.zeros(2)).get([place])


def test_what_was_put_since_a_save_is_gone_when_it_is_restored(tmp_path):
  store = ClientStateStore(_state(0), path=str(tmp_path / "states.sqlite"))
  store.put([1], [_state(1)])
  digest = store.save(1)
  store.put([1, 2], [_state(5), _state(6)])
  store.restore(1, digest)
  assert store.save(2) == digest
  for place, value in ((1, 1), (2, 0)):
    _assert_same(store.get([place])[0], _state(value))


def test_states_come_back_to_their_clients():
  store = ClientStateStore(_state(0))
  store.put([4, 1], [_state(4), _state(1)])
  store.put([1, 7], [_state(11), _state(7)])
  expected = {4: 4, 1: 11, 7: 7, 2: 0}
  for place, value in expected.items():
    _assert_same(store.get([place])[0], _state(value))
  for found, place in zip(store.get([7, 2, 1, 4]), [7, 2, 1, 4]):
    _assert_same(found, _state(expected[place]))


@settings(max_examples=50)
@given(st.lists(st.dictionaries(st.integers(0, 9), st.integers(1, 99), max_size=4)))
def test_store_is_a_dictionary_with_a_default(rounds):
  store, expected = ClientStateStore(np.int64(-1)), {}
  for states in rounds:
    store.put(list(states), [np.int64(v) for v in states.values()])
    expected.update(states)
  assert store.get(range(10)) == [expected.get(place, -1) for place in range(10)]


def _store(tmp_path, initial=None, **settings) -> ClientStateStore:
  initial = _state(0) if initial is None else initial
  return ClientStateStore(initial, path=str(tmp_path / "states.sqlite"), **settings)


def _assert_holds(store, expected: dict[int, float]):
  for place in range(10):
    _assert_same(store.get([place])[0], _state(expected.get(place, 0)))


# In memory, and with room for one state of 29 bytes or for three of them.
every_size = pytest.mark.parametrize("memory_bytes", [10**6, 1, 90])


@every_size
def test_restored_store_is_the_saved_one(tmp_path, memory_bytes):
  store = _store(tmp_path, memory_bytes=memory_bytes)
  store.put([4, 1], [_state(4), _state(1)])
  digest = store.save(3)
  _assert_holds(store, {4: 4, 1: 1})
  other = _store(tmp_path, memory_bytes=memory_bytes)
  other.put([9], [_state(9)])
  other.restore(3, digest)
  _assert_holds(other, {4: 4, 1: 1})


@pytest.mark.parametrize("memory_bytes", [10**6, 40])
def test_states_may_grow_where_their_types_say_so(tmp_path, memory_bytes):
  """From none; without types a longer one is taken for another algorithm's."""
  nothing = np.zeros(0, np.float32)
  vector = types.SimpleNamespace(shape=(None,))
  grows = dict(types=vector, memory_bytes=memory_bytes)
  store = _store(tmp_path, nothing, **grows)
  for place in range(6):
    store.put([place], [np.arange(place, dtype=np.float32)])
    # Of 20 bytes at most, so that two have room.
    assert len(store._kept) <= (6 if memory_bytes > 40 else 40 // max(1, 4 * place))
  digest = store.save(1)
  store = _store(tmp_path, nothing, **grows)
  store.restore(1, digest)
  for place, found in enumerate(store.get(range(6))):
    _assert_same(found, np.arange(place, dtype=np.float32))
  assert len(store._kept) == (6 if memory_bytes > 40 else 2)
  store = _store(tmp_path, nothing)
  with pytest.raises(InputError, match="client 1, holds other arrays"):
    store.restore(1, digest)


_rounds = st.lists(st.dictionaries(st.integers(0, 9), st.integers(1, 99), max_size=4))


@settings(max_examples=50, deadline=None)
@given(rounds=_rounds, every=st.integers(1, 3), room=st.sampled_from([1, 3, 100]))
def test_the_two_last_saves_are_there_whatever_came_since(
  tmp_path_factory, rounds, every, room
):
  tmp_path = tmp_path_factory.mktemp("states")
  memory = dict(memory_bytes=29 * room)
  store, expected, saves = _store(tmp_path, **memory), {}, []
  for round_num, states in enumerate(rounds, 1):
    store.put(list(states), [_state(v) for v in states.values()])
    expected.update(states)
    _assert_holds(store, expected)
    if round_num % every == 0:
      saves.append((round_num, store.save(round_num), dict(expected)))
  del store  # As a process that was killed: what is not committed is not there.
  for round_num, digest, held in saves[-2:]:
    other = _store(tmp_path, **memory)
    other.restore(round_num, digest)
    _assert_holds(other, held)
  for round_num, digest, held in saves[-1:]:  # And it can be gone on with.
    other = _store(tmp_path, **memory)
    other.restore(round_num, digest)
    other.put([0], [_state(500)])
    again = other.save(round_num + 1)
    other = _store(tmp_path, **memory)
    other.restore(round_num + 1, again)
    _assert_holds(other, {**held, 0: 500})


def test_a_run_that_went_back_to_the_save_before_goes_on_with_other_clients(tmp_path):
  """What clients had in the save that was given up is none of theirs in the next one."""
  store = _store(tmp_path)
  store.put([0, 1], [_state(1), _state(1)])
  before = store.save(1)
  store.put([1, 2], [_state(2), _state(2)])
  store.save(2)
  store = _store(tmp_path)
  store.restore(1, before)
  store.put([0], [_state(3)])
  again = store.save(2)
  other = _store(tmp_path)
  other.restore(2, again)
  _assert_holds(other, {0: 3, 1: 1, 2: 0})


def _rows(tmp_path, query: str) -> list:
  with contextlib.closing(sqlite3.connect(tmp_path / "states.sqlite")) as file:
    return list(file.execute(query))


def test_only_changed_states_are_written_and_old_ones_go(tmp_path):
  store = _store(tmp_path)
  for round_num, places in enumerate([[4, 1], [1, 2], [1], [1]], 1):
    store.put(places, [_state(round_num)] * len(places))
    store.save(round_num)
  assert _rows(tmp_path, "SELECT place, round FROM versions ORDER BY place, round") == [
    (1, 3),
    (1, 4),
    (2, 2),
    (4, 1),
  ]
  assert _rows(tmp_path, "SELECT count(*) FROM states") == [(4,)]


def test_states_written_several_times_between_saves_are_there_once(tmp_path):
  """As where there is room for one in memory."""
  store = _store(tmp_path, memory_bytes=1)
  for value in range(5):
    store.put([1, 2], [_state(value), _state(value + 0.5)])
  store.save(1)
  assert _rows(tmp_path, "SELECT count(*) FROM states") == [(2,)]
  _assert_holds(store, {1: 4, 2: 4.5})


@pytest.mark.parametrize("floats, page_bytes", [(2**14 - 1, 2**12), (2**14, 2**16)])
def test_large_states_have_large_pages(tmp_path, floats, page_bytes):
  store = _store(tmp_path, np.zeros(floats, np.float32))
  store.put([4], [np.ones(floats, np.float32)])
  store.save(1)
  assert _rows(tmp_path, "PRAGMA page_size") == [(page_bytes,)]


def test_a_save_is_synced_with_its_folder(tmp_path, monkeypatch):
  """Else a power cut may bring the journal back, which undoes the save."""
  opened = []
  connect = sqlite3.connect
  monkeypatch.setattr(
    sqlite3, "connect", lambda *a, **k: opened.append(connect(*a, **k)) or opened[-1]
  )
  store = _store(tmp_path)
  store.put([4], [_state(4)])
  store.save(1)
  extra = 3
  assert [f.execute("PRAGMA synchronous").fetchall() for f in opened] == [[(extra,)]]


def test_a_new_run_takes_the_place_of_what_an_unfinished_one_left(tmp_path):
  store = _store(tmp_path)
  store.put([4], [_state(4)])
  store.save(1)
  other = _store(tmp_path)
  other.put([5], [_state(5)])
  other.save(1)
  assert _rows(tmp_path, "SELECT place FROM versions") == [(5,)]


@pytest.mark.parametrize("empty", [(), {}, ((), ())])
def test_clients_without_a_state_leave_no_file(tmp_path, empty):
  store = _store(tmp_path, empty)
  store.put([1, 2], [empty, empty])
  assert store.get([1, 5]) == [empty, empty]
  assert store.save(1) is None
  assert os.listdir(tmp_path) == []


def test_what_has_no_room_goes_to_a_temporary_file_that_goes_too(monkeypatch, tmp_path):
  monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
  store = ClientStateStore(_state(0), memory_bytes=1)
  for place in range(5):
    store.put([place], [_state(place)])
  assert os.listdir(tmp_path)
  _assert_holds(store, {place: place for place in range(5)})
  del store
  assert os.listdir(tmp_path) == []


_OTHERS = {
  "shape": _State(np.bool_(False), (np.zeros((3, 2), np.float32), np.int32(0))),
  "dtype": _State(np.bool_(False), (np.zeros((2, 3)), np.int32(0))),
  "fewer": _State(np.bool_(False), (np.zeros((2, 3), np.float32),)),
  "more": _State(np.bool_(False), (*_state(0).model, np.int32(0))),
}


@pytest.mark.parametrize("kind", _OTHERS)
def test_states_of_another_model_are_refused(tmp_path, kind):
  store = _store(tmp_path)
  store.put([4], [_state(4)])
  digest = store.save(1)
  with pytest.raises(InputError, match=r"client 4.* belongs to another run"):
    _store(tmp_path, _OTHERS[kind]).restore(1, digest)


def _swap(file):
  (a, b) = file.execute("SELECT id FROM states").fetchall()
  values = dict(file.execute("SELECT id, value FROM states").fetchall())
  file.execute("UPDATE states SET value = ? WHERE id = ?", (values[b[0]], a[0]))
  file.execute("UPDATE states SET value = ? WHERE id = ?", (values[a[0]], b[0]))


def _flip(file):
  [(number, value)] = file.execute("SELECT id, value FROM states LIMIT 1").fetchall()
  flipped = bytes([value[-200] ^ 1])
  value = value[:-200] + flipped + value[-199:]
  file.execute("UPDATE states SET value = ? WHERE id = ?", (value, number))


_DAMAGES = {
  "swapped": _swap,
  "flipped": _flip,
  "deleted": lambda file: file.execute("DELETE FROM states WHERE id = 1"),
  "forgotten": lambda file: file.execute("DELETE FROM versions WHERE place = 4"),
  "other clients": lambda file: file.execute("UPDATE versions SET place = place + 1"),
}


@pytest.mark.parametrize("memory_bytes", [10**6, 1])
@pytest.mark.parametrize("damage", _DAMAGES)
def test_damage_is_met_at_once_or_when_it_is_read(tmp_path, damage, memory_bytes):
  store = _store(tmp_path)
  store.put([4, 1], [_state(4), _state(1)])
  digest = store.save(1)
  with contextlib.closing(sqlite3.connect(tmp_path / "states.sqlite")) as file:
    _DAMAGES[damage](file)
    file.commit()
  other = _store(tmp_path, memory_bytes=memory_bytes)
  with pytest.raises(DamagedError, match=r"states\.sqlite"):
    other.restore(1, digest)
    other.get([4, 1])


@pytest.mark.parametrize("content", [None, b"", b"no database at all" * 100])
def test_a_file_that_is_none_is_damage(tmp_path, content):
  store = _store(tmp_path)
  store.put([4], [_state(4)])
  digest = store.save(1)
  del store
  if content is None:
    os.remove(tmp_path / "states.sqlite")
  else:
    (tmp_path / "states.sqlite").write_bytes(content)
  with pytest.raises(DamagedError, match=r"states\.sqlite"):
    _store(tmp_path).restore(1, digest)


def test_a_description_of_the_tables_that_is_no_text_is_damage(tmp_path):
  store = _store(tmp_path)
  store.put([4], [_state(4)])
  digest = store.save(1)
  del store
  path = tmp_path / "states.sqlite"
  path.write_bytes(path.read_bytes().replace(b"TABLE versions", b"TABLE\xffversions"))
  with pytest.raises(DamagedError, match=r"states\.sqlite"):
    _store(tmp_path).restore(1, digest)


def test_nothing_is_left_of_a_damaged_save_where_one_without_states_is_gone_on_with(
  tmp_path,
):
  store = _store(tmp_path)
  store.put([0, 5], [_state(1), _state(6)])
  store.save(2)
  del store
  store = _store(tmp_path)
  with pytest.raises(DamagedError):
    store.restore(2, "of other states")
  store.restore(1, None)
  store.put([0], [_state(3)])
  digest = store.save(3)
  other = _store(tmp_path)
  other.restore(3, digest)
  for found, expected in zip(other.get([0, 5]), (3, 0)):
    _assert_same(found, _state(expected))


def test_those_used_last_are_kept_in_memory(tmp_path):
  store = _store(tmp_path, memory_bytes=2 * 29)
  store.put([1, 2], [_state(1), _state(2)])
  store.get([1])
  store.put([3], [_state(3)])
  assert list(store._kept) == [1, 3]
  store.put([1], [_state(4)])
  _assert_same(store.get([2])[0], _state(2))
  assert list(store._kept) == [1, 2]


def test_full_disk_undoes_all_since_the_last_save_and_no_later_one_hides_it(tmp_path):
  """SQLite then takes back the whole transaction, so that a save would lack states."""
  path = str(tmp_path / "states.sqlite")
  size = np.zeros(1000).nbytes

  def new_store():
    return ClientStateStore(np.zeros(1000), path=path, memory_bytes=2 * size)

  store = new_store()
  store.put([1], [np.ones(1000)])
  saved = store.save(1)
  [(pages,)] = store._file.execute("PRAGMA page_count")
  store._file.execute(f"PRAGMA max_page_count = {pages + 10}")
  with pytest.raises(OSError) as caught:
    for place in range(2, 20):
      store.put([place], [np.full(1000, place)])
  assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, path)
  store._file.execute("PRAGMA max_page_count = 10000")
  with pytest.raises(OSError) as again:
    store.save(2)
  assert again.value is caught.value
  assert os.listdir(tmp_path) == ["states.sqlite"]
  resumed = new_store()
  resumed.restore(1, saved)
  np.testing.assert_array_equal(resumed.get([1, 2]), [np.ones(1000), np.zeros(1000)])
