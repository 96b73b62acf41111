"""Structures in .npz files: each array by its name, and as it was."""

from __future__ import annotations

import collections

import numpy as np
import pytest
import tensorflow as tf
import tree

from tff_algos.errors import InputError
from tff_algos.simulation import array_files

_State = collections.namedtuple("_State", "model extra round_num")


class _Model:
  """What a model says of its weights."""

  initial_weights = (np.zeros((2, 3), np.float32), np.zeros(3, np.float32))
  weight_names = ("dense/kernel", "dense/bias")


def _weights(value: float) -> tuple:
  return tuple(np.full_like(w, value) for w in _Model.initial_weights)


def _state() -> _State:
  """Two sets of weights, and two arrays that are none."""
  others = (np.zeros((2, 3)), np.ones(4))
  extra = {"duals": _weights(2), "others": others}
  return _State(_weights(1), extra, np.int32(7))


def _read(path) -> dict[str, np.ndarray]:
  with np.load(path) as file:
    return {name: file[name] for name in file.files}


def test_weights_have_their_names_wherever_they_are(tmp_path):
  path = tmp_path / "state.npz"
  _save(path, _state(), _Model())
  found = _read(path)
  assert list(found) == [
    *("model/dense/kernel", "model/dense/bias"),
    *("extra/duals/dense/kernel", "extra/duals/dense/bias"),
    *("extra/others/0", "extra/others/1"),
    "round_num",
  ]
  np.testing.assert_array_equal(found["extra/duals/dense/bias"], [2, 2, 2])
  assert found["round_num"] == 7


@pytest.mark.parametrize(
  "leaf", [tf.constant(1, tf.bfloat16).numpy(), np.array([b"a", b"bc"], object)]
)
def test_dtypes_that_would_not_come_back_are_refused(leaf):
  with pytest.raises(InputError, match=r"^model/1 of a state is of dtype \w+, which"):
    array_files.check_dtypes({"model": (np.float32(0), leaf)}, "a state")


@pytest.mark.parametrize(
  "leaf", [b"ab", np.bool_(True), np.float16([1, 2]), np.uint64(3)]
)
def test_dtypes_that_are_not_refused_come_back(tmp_path, leaf):
  array_files.check_dtypes(leaf, "a state")
  _save(tmp_path / "state.npz", leaf, None)
  [found] = _read(tmp_path / "state.npz").values()
  assert found.dtype == np.asarray(leaf).dtype
  np.testing.assert_array_equal(found, leaf)


def test_without_a_model_names_are_places():
  assert array_files.leaf_names(_state())[:2] == ["model/0", "model/1"]
  assert array_files.leaf_names(np.float32(0)) == ["value"]
  assert array_files.leaf_names(()) == []


def test_no_two_names_are_alike_and_each_can_be_written(tmp_path):
  """`file` is NumPy's own; two nested models may both have a `dense/kernel`."""
  model = _Model()
  model.weight_names = ("dense/kernel", "dense/kernel")
  value = {"file": np.zeros(1), "weights": _weights(1)}
  names = array_files.leaf_names(value, model)
  assert len(set(names)) == 3
  assert {"weights/dense/kernel", "file"} & set(names) == {"weights/dense/kernel"}
  path = str(tmp_path / "value.npz")
  _save(path, value, model)
  tree.map_structure(np.testing.assert_array_equal, _load(path, value), value)


def _save(path, value, model):
  with open(path, "wb") as file:
    array_files.save_structure(file, value, model)


def _load(path, like):
  with open(path, "rb") as file:
    return array_files.load_structure(file, like, str(path))


@pytest.mark.parametrize("has_names", [True, False])
def test_what_is_read_is_what_was_written_also_by_older_versions(tmp_path, has_names):
  """Those wrote the leaves without names, which NumPy then numbers."""
  path, state = str(tmp_path / "state.npz"), _state()
  if has_names:
    array_files.save_structure(path, state, _Model())
  else:
    np.savez(path, *tree.flatten(state))
    assert set(_read(path)) == {f"arr_{k}" for k in range(7)}
  found = _load(path, state)
  tree.assert_same_structure(found, state)
  for a, b in zip(tree.flatten(found), tree.flatten(state)):
    np.testing.assert_array_equal(a, b)
    assert a.dtype == b.dtype


@pytest.mark.parametrize("shape", [(2, 2), (2, 4), (1, 3), (3, 2), (6,), (2, 3, 1)])
def test_an_array_of_another_shape_is_of_another_run(tmp_path, shape):
  """Whether it has less room than what was written, or more."""
  path = str(tmp_path / "state.npz")
  _save(path, np.zeros((2, 3), np.float32), None)
  with pytest.raises(InputError, match="to another run, or is of another version of tff"):
    _load(path, np.zeros(shape, np.float32))
