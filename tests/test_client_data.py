"""Client files: what is written is what a client computation reads, or it stops."""

from __future__ import annotations

import json
import os
import pathlib
import tempfile
import warnings

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from tff_algos import client_arrays, client_data
from tff_algos.errors import DamagedError, InputError, InputWarning
from tff_algos.models.functional import ExampleSpec

_DTYPES = (np.uint8, np.float32, np.int32)
_SPEC = ExampleSpec(tf.TensorSpec([2, 3], tf.uint8), tf.TensorSpec([], tf.int32))
_EXAMPLE_BYTES = 2 * 3 + 4


def _examples(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
  rng = np.random.default_rng(seed)
  x = rng.integers(0, 256, (n, 2, 3)).astype(np.uint8)
  return x, rng.integers(0, 10, n).astype(np.int32)


def _assert_same(found, expected):
  """Bit for bit, NaN too."""
  for a, b in zip(found, expected):
    assert (a.dtype, a.shape) == (b.dtype, b.shape)
    assert a.tobytes() == b.tobytes()


# --- Writing and reading ------------------------------------------------------------


@st.composite
def _populations(draw):
  """A spec, and up to five clients' arrays of any bits."""
  shapes = st.lists(st.integers(1, 3), max_size=3).map(tuple)
  parts = [(draw(st.sampled_from(_DTYPES)), draw(shapes)) for _ in range(2)]
  sizes = draw(st.lists(st.integers(1, 20), min_size=1, max_size=5))
  clients = {
    f"client {i}": tuple(
      draw(st_numpy.arrays(np.uint8, n * int(np.prod(s)) * d().itemsize))
      .view(d)
      .reshape(n, *s)
      for d, s in parts
    )
    for i, n in enumerate(sizes)
  }
  for x, _ in clients.values():
    if x.dtype == np.float32:  # In which NaN is refused.
      x[~np.isfinite(x)] = 0
  return ExampleSpec(*(tf.TensorSpec(s, d) for d, s in parts)), clients


@pytest.mark.filterwarnings("ignore:The labels of")
@settings(max_examples=60, deadline=None)
@given(_populations())
def test_what_is_written_is_read(population):
  spec, clients = population
  with tempfile.TemporaryDirectory() as folder:
    written = client_data.write_clients(folder, clients, spec)
    opened = client_data.ClientDirectory(folder)
    for directory in (written, opened):
      assert directory.ids == tuple(clients)
      assert len(directory) == len(clients)
      np.testing.assert_array_equal(
        directory.num_examples, [len(y) for _, y in clients.values()]
      )
      for place, (client, examples) in enumerate(clients.items()):
        assert directory.place(client) == place
        _assert_same(directory.examples(client, spec), examples)


def test_file_is_their_number_then_all_inputs_then_all_labels(tmp_path):
  x, y = _examples(5)
  directory = client_data.write_clients(str(tmp_path), {"a": (x, y)}, _SPEC)
  content = pathlib.Path(directory.path("a")).read_bytes()
  number = (5).to_bytes(8, "little")
  assert content == number + x.tobytes() + y.astype("<i4").tobytes()


def test_arrays_that_are_not_contiguous_are_written_in_their_order(tmp_path):
  x, y = _examples(8)
  strided = x[::-2].transpose(0, 2, 1), y[::-2]
  spec = ExampleSpec(tf.TensorSpec([3, 2], tf.uint8), _SPEC.y)
  directory = client_data.write_clients(str(tmp_path), {"a": strided}, spec)
  _assert_same(directory.examples("a", spec), map(np.ascontiguousarray, strided))


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.float64])
def test_other_dtypes_are_read_as_they_were_written(tmp_path, dtype):
  spec = ExampleSpec(tf.TensorSpec([3], dtype), tf.TensorSpec([], tf.int32))
  x = (np.arange(12).reshape(4, 3) % 2).astype(dtype)
  data = {"c": (x, np.arange(4, dtype=np.int32))}
  clients = client_data.write_clients(str(tmp_path), data, spec)
  _assert_same(clients.examples("c", spec), data["c"])


def test_more_clients_than_one_folder_holds(tmp_path):
  clients = {str(i): _examples(1 + i % 2, seed=i) for i in range(2003)}
  client_data.write_clients(str(tmp_path), clients, _SPEC)
  directory = client_data.ClientDirectory(str(tmp_path))
  folders = sorted(path for path in tmp_path.iterdir() if path.is_dir())
  assert [len(list(folder.iterdir())) for folder in folders] == [1000, 1000, 3]
  assert len({directory.path(client) for client in directory.ids}) == 2003
  for client in ("0", "999", "1000", "1001", "1999", "2000", "2002"):
    _assert_same(directory.examples(client, _SPEC), clients[client])


@pytest.mark.parametrize("how", ["written there", "copied there"])
def test_another_file_system_of_tensorflow(how, tmp_path):
  # `ram` stands for gs, s3 and so on, which need a network.
  data = {f"c{i}": _examples(1 + i, seed=i) for i in range(3)}
  if how == "written there":
    clients = client_data.write_clients(f"ram://{tmp_path}", data, _SPEC)
  else:
    clients = client_data.write_clients(str(tmp_path), data, _SPEC).in_memory()
    for path in tmp_path.rglob("*"):
      if path.is_file():
        path.unlink()
  assert clients.ids == tuple(data)
  assert clients.path("c1").startswith("ram://")
  np.testing.assert_array_equal(clients.num_examples, [1, 2, 3])
  for client, examples in data.items():
    _assert_same(clients.examples(client, _SPEC), examples)


def test_copies_in_memory_do_not_mix(tmp_path):
  one, other = (
    client_data.write_clients(
      str(tmp_path / str(k)), {"c": _examples(4, seed=k)}, _SPEC
    ).in_memory()
    for k in range(2)
  )
  _assert_same(one.examples("c", _SPEC), _examples(4, seed=0))
  _assert_same(other.examples("c", _SPEC), _examples(4, seed=1))


def test_unknown_client_is_refused_and_some_that_there_are_named(tmp_path):
  clients = {name: _examples(1) for name in "acde"}
  directory = client_data.write_clients(str(tmp_path), clients, _SPEC)
  for look_up in (directory.path, directory.place):
    with pytest.raises(
      InputError, match=r"^There is no client 'b' in .* 'a', 'c', 'd'\.$"
    ):
      look_up("b")


# --- Arrays of other number types ---------------------------------------------------

_LARGEST = float(np.finfo(np.float32).max)


def _write_and_read(folder, x, y, x_dtype, y_dtype=tf.int32):
  spec = ExampleSpec(tf.TensorSpec([], x_dtype), tf.TensorSpec([], y_dtype))
  clients = client_data.write_clients(str(folder), {"c": (x, y)}, spec)
  return clients.examples("c", spec)


@pytest.mark.parametrize(
  "given, dtype, stored",
  [
    (np.array([0.1, -2.5, 1e-60]), np.float32, np.float32([0.1, -2.5, 0])),
    (np.array([2**24 + 1, 3]), np.float32, np.float32([2**24, 3])),
    (np.array([-(2**31), 2**31 - 1]), np.int32, np.int32([-(2**31), 2**31 - 1])),
    (np.array([0, 255]), np.uint8, np.uint8([0, 255])),
    (np.array([3.0, -0.0]), np.uint8, np.uint8([3, 0])),
    (np.array([1, 7], ">i4"), np.int32, np.int32([1, 7])),
    (np.array([True, False]), np.int32, np.int32([1, 0])),
    (np.array([1, 0]), np.bool_, np.array([True, False])),
    ([0.5, 2], np.float32, np.float32([0.5, 2])),
    ([4, 5], np.int64, np.int64([4, 5])),
  ],
)
def test_numbers_are_cast_where_only_rounding_is_lost(tmp_path, given, dtype, stored):
  labels = list(range(len(stored)))
  x, y = _write_and_read(tmp_path / "inputs", given, labels, dtype)
  _assert_same((x, y), (stored, np.int32(labels)))
  x, y = _write_and_read(tmp_path / "labels", labels, given, tf.int32, dtype)
  _assert_same((x, y), (np.int32(labels), stored))


@pytest.mark.filterwarnings("ignore:The labels of")
def test_labels_that_are_no_numbers_are_kept(tmp_path):
  """They may say that there is none."""
  labels = np.float32([np.nan, np.inf, 1])
  _, y = _write_and_read(tmp_path, [1, 2, 3], labels, tf.float32, tf.float32)
  _assert_same([y], [labels])


def test_files_of_cast_arrays_are_those_of_arrays_that_fit(tmp_path):
  x, y = _examples(6)
  for name, examples in (
    ("fits", (x, y)),
    ("numpy", (x.astype(np.float64), y.astype(np.int64))),
    ("lists", (x.tolist(), y.tolist())),
  ):
    client_data.write_clients(str(tmp_path / name), {"a": examples}, _SPEC)
  fits, *others = (
    {p.relative_to(tmp_path / name): p.read_bytes() for p in path.rglob("*.*")}
    for name, path in ((n, tmp_path / n) for n in ("fits", "numpy", "lists"))
  )
  assert len(fits) == 2
  assert others == [fits, fits]


@pytest.mark.parametrize(
  "given, dtype, value",
  [
    ([0, 256], tf.uint8, "256"),
    ([-1, 0], tf.uint8, "-1"),
    ([0, 2**31], tf.int32, "2147483648"),
    (np.array([0, 2**63], np.uint64), tf.int64, "9223372036854775808"),
    ([0.0, 1.5], tf.int32, "1.5"),
    ([0.25, 1.0], tf.uint8, "0.25"),
    ([np.nan, 1.0], tf.int32, "nan"),
    ([np.inf, 1.0], tf.int32, "inf"),
    ([2 * _LARGEST, 1.0], tf.float32, "6.8"),
    ([70000, 1], tf.float16, "70000"),
    ([2, 1], tf.bool, "2"),
  ],
)
def test_value_that_the_type_cannot_hold_is_refused(tmp_path, given, dtype, value):
  for what in ("inputs", "labels"):
    folder, both = tmp_path / what, [([0, 1], tf.int32), (given, dtype)]
    (y, y_dtype), (x, x_dtype) = both if what == "inputs" else both[::-1]
    with pytest.raises(InputError) as caught:
      _write_and_read(folder, x, y, x_dtype, y_dtype)
    text = str(caught.value)
    assert f"The {what} of client 'c' hold {value}" in text
    assert f"no {dtype.name}: change" in text
    assert not folder.exists()


# --- Labels that a model does not take ------------------------------------------------


def _with_labels(folder, dtype=tf.int32, **labels) -> client_data.ClientDirectory:
  spec = ExampleSpec(tf.TensorSpec([], tf.float32), tf.TensorSpec([], dtype))
  data = {client: (np.zeros(len(y)), y) for client, y in labels.items()}
  return client_data.write_clients(str(folder), data, spec)


@pytest.mark.parametrize(
  "taken, client, label",
  [
    (range(9), "c", 9),
    (range(2), "c", 9),
    (range(1, 10), "b", 0),
    (range(1), "c", 9),
    (range(10), None, None),
    (range(-1, 12), None, None),
  ],
)
def test_label_that_a_model_does_not_take_is_refused_with_its_client(
  tmp_path, taken, client, label
):
  written = _with_labels(tmp_path, a=[1, 3], b=[4, 0, 0], c=[9, 2], d=[9, 0])
  opened = client_data.ClientDirectory(str(tmp_path))
  for clients in (written, opened, opened.in_memory()):
    if client is None:
      clients.check_labels(taken)
      continue
    with pytest.raises(InputError) as caught:
      clients.check_labels(taken)
    text = str(caught.value)
    assert f"Client {client!r} in {clients.folder} has the label {label}," in text
    assert f"takes {taken[0]}..{taken[-1]}:" in text
    assert "\n" not in text


@pytest.mark.parametrize("dtype", [tf.int64, tf.uint8])
def test_labels_of_other_integers_are_looked_at_too(tmp_path, dtype):
  clients = _with_labels(tmp_path, dtype, a=[1, 3], b=[9, 0])
  with pytest.raises(InputError, match=r"Client 'b' in .* has the label 9,"):
    clients.check_labels(range(9))
  clients.check_labels(range(10))


def test_labels_that_are_no_integers_or_not_noted_are_taken(tmp_path):
  spec = ExampleSpec(tf.TensorSpec([], tf.float32), tf.TensorSpec([], tf.float32))
  data = {"a": ([1.0], [7.5])}
  client_data.write_clients(str(tmp_path / "real"), data, spec).check_labels(range(2))
  _with_labels(tmp_path / "old", a=[7])
  manifest = tmp_path / "old" / "clients.json"
  manifest.write_text(json.dumps({"ids": ["a"], "num_examples": [1]}))
  client_data.ClientDirectory(str(tmp_path / "old")).check_labels(range(2))


# --- What is refused ----------------------------------------------------------------


@pytest.mark.parametrize(
  "x, y, match",
  [
    (np.zeros((2, 3, 2), np.uint8), np.zeros(2, np.int32), r"inputs .*\(3, 2\) each"),
    (np.zeros((2, 6), np.uint8), np.zeros(2, np.int32), "inputs of client 'bad'"),
    (np.zeros((2, 2, 3), complex), np.zeros(2, np.int32), "complex128 .*has uint8"),
    (np.zeros((2, 2, 3), np.uint8), ["a", "b"], "<U1 .* from 0\\.$"),
    ([np.zeros((2, 3)), np.zeros((1, 3))], [0, 1], "'bad' make no array"),
    (np.uint8(1), np.int32([1]), "inputs of client 'bad' are no array but of type uint8"),
    (np.zeros((2, 2, 3), np.uint8), np.zeros((2, 1), np.int32), "their argmax"),
    (np.zeros((2, 2, 3), np.uint8), np.zeros(3, np.int32), "2 inputs but 3 labels"),
    (np.zeros((0, 2, 3), np.uint8), np.zeros(0, np.int32), "'bad' is empty"),
    (
      np.ma.masked_equal(np.eye(2, 6, dtype=np.uint8).reshape(2, 2, 3), 1),
      np.zeros(2, np.int32),
      "examples of client 'bad' are masked in places: ",
    ),
    (np.zeros((2, 2, 3), np.uint8), np.ma.masked_equal([0, 1], 1), "'bad' are masked"),
  ],
)
def test_arrays_that_do_not_fit_are_refused_before_anything_is_written(
  tmp_path, x, y, match
):
  folder = tmp_path / "clients"
  clients = {"good": _examples(3), "bad": (x, y)}
  with pytest.raises(ValueError, match=match):
    client_data.write_clients(str(folder), clients, _SPEC)
  assert not folder.exists()


def test_text_is_refused(tmp_path):
  spec = _SPEC._replace(x=tf.TensorSpec([], tf.string))
  words = np.array(["a", "b"], object), np.zeros(2, np.int32)
  with pytest.raises(ValueError, match="inputs of client 'c' are text, but examples are"):
    client_data.write_clients(str(tmp_path), {"c": words}, spec)
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", [np.int64(7), 7, ("a", 7), b"a"])
def test_names_that_are_no_text_are_refused_and_what_is_there_is_left(tmp_path, name):
  client_data.write_clients(str(tmp_path), {"good": _examples(3)}, _SPEC)
  with pytest.raises(ValueError, match="names are text"):
    client_data.write_clients(str(tmp_path), {name: _examples(2)}, _SPEC)
  assert client_data.ClientDirectory(str(tmp_path)).ids == ("good",)


_PAIR = (np.zeros((2, 2, 3), np.uint8), np.zeros(2, np.int32))


@pytest.mark.parametrize(
  "clients, match",
  [
    ([_PAIR], "^The clients are a list: give a mapping"),
    ({"c": _PAIR[0]}, "^Of client 'c' there is a ndarray, not a pair"),
    ({"c": dict(x=_PAIR[0], y=_PAIR[1])}, "^Of client 'c' there is a dict, not a pair"),
    ({"c": (*_PAIR, np.ones(2))}, "^Of client 'c' there is a tuple, not a pair"),
    (
      {"c": tf.data.Dataset.from_tensor_slices(_PAIR)},
      "^Of client 'c' there is a .*Dataset, not a pair",
    ),
  ],
)
def test_what_is_no_mapping_of_pairs_is_refused(tmp_path, clients, match):
  with pytest.raises(InputError, match=match):
    client_data.write_clients(str(tmp_path / "clients"), clients, _SPEC)
  assert not list(tmp_path.iterdir())


def test_plain_tuple_in_the_place_of_the_spec_is_refused(tmp_path):
  folder = tmp_path / "clients"
  with pytest.raises(InputError, match=r"ExampleSpec there is a tuple: give "):
    client_data.write_clients(str(folder), {"c": _PAIR}, tuple(_SPEC))
  assert not folder.exists()
  directory = client_data.write_clients(str(folder), {"c": _PAIR}, _SPEC)
  with pytest.raises(InputError, match=r"ExampleSpec there is a tuple: give "):
    directory.examples("c", tuple(_SPEC))


@pytest.mark.parametrize(
  "dtype",
  [np.float16, np.float32, np.float64, np.complex64, tf.bfloat16.as_numpy_dtype],
)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_inputs_that_are_not_finite_are_refused_with_their_client(tmp_path, dtype, value):
  x = np.zeros((5, 2, 3), dtype)
  x[[1, 4], 1, 2] = value
  spec = ExampleSpec(tf.TensorSpec([2, 3], dtype), _SPEC.y)
  clients = {"good": (np.ones_like(x), range(5)), "bad": (x, range(5))}
  with pytest.raises(InputError) as caught:
    client_data.write_clients(str(tmp_path / "clients"), clients, spec)
  text = str(caught.value)
  assert text.startswith(
    "The inputs of client 'bad' hold NaN or infinite numbers in 2 of"
  )
  assert "5 examples, number 1 the first:" in text and "\n" not in text
  assert not (tmp_path / "clients").exists()


def test_labels_that_are_not_finite_are_warned_of_and_written(tmp_path):
  """A loss may leave them out."""
  spec = ExampleSpec(tf.TensorSpec([2], tf.float32), tf.TensorSpec([], tf.float32))
  x, y = np.ones([3, 2], np.float32), np.array([1, np.nan, np.inf], np.float32)
  bad = np.array([np.nan, 1, 1], np.float32)
  clients = {"good": (x, np.ones(3)), "bad": (x, bad), "worse": (x, y)}
  words = "The labels of client 'bad', and of 1 more, hold NaN .*, number 0 the first"
  with pytest.warns(InputWarning, match=words):
    written = client_data.write_clients(tmp_path, clients, spec)
  np.testing.assert_array_equal(written.examples("bad", spec)[1], bad)
  np.testing.assert_array_equal(written.examples("worse", spec)[1], y)


def test_finite_inputs_whose_sum_is_not_are_written(tmp_path):
  x, _ = _write_and_read(tmp_path, np.float32([_LARGEST] * 4), range(4), tf.float32)
  assert (x == np.float32(_LARGEST)).all()


@pytest.mark.parametrize(
  "content",
  [
    "",
    "[]",
    '{"ids": ["a"]}',
    '{"ids": ["a", "b"], "num_examples": [1]}',
    '{"ids": ["a", "a"], "num_examples": [1, 2]}',
    '{"ids": ["a"], "num_examples": ["many"]}',
    '{"ids": ["a"], "num_examples": [1], "checksums": [1, 2]}',
    '{"ids": ["a"], "num_examples": [1], "checksums": 7}',
    '{"ids": [["a"]], "num_examples": [1]}',
    '{"ids": ["a"], "num_examples": [1e30]}',
    '{"ids": ["a"], "num_examples": [1], "extreme_labels": null}',
    '{"ids": ["a"], "num_examples": [1], "extreme_labels": [[0]]}',
    '{"ids": ["a"], "num_examples": [1], "extreme_labels": [["0a", "a"]]}',
  ],
)
def test_list_of_clients_that_is_none_is_refused(tmp_path, content):
  (tmp_path / "clients.json").write_text(content)
  with pytest.raises(DamagedError, match=r"clients\.json.*write the clients again"):
    client_data.ClientDirectory(str(tmp_path))


def test_folder_may_be_a_path(tmp_path):
  written = client_data.write_clients(tmp_path, {"a": _examples(3)}, _SPEC)
  opened = client_data.ClientDirectory(tmp_path)
  assert written.folder == opened.folder == str(tmp_path)
  _assert_same(opened.examples("a", _SPEC), _examples(3))


def test_no_clients_are_refused(tmp_path):
  with pytest.raises(ValueError, match="no clients to write"):
    client_data.write_clients(str(tmp_path), {}, _SPEC)


@pytest.mark.parametrize("exists", [True, False])
def test_folder_without_a_list_of_clients_is_refused(tmp_path, exists):
  folder = tmp_path if exists else tmp_path / "nothing"
  with pytest.raises(FileNotFoundError, match=r"tff_algos\.write_clients") as caught:
    client_data.ClientDirectory(str(folder))
  assert str(folder) in str(caught.value)


def _fail_at_second_client(monkeypatch):
  gfile = tf.io.gfile.GFile

  def open_or_fail(path, mode="r"):
    if path.endswith("1.client"):
      raise OSError("no space left")
    return gfile(path, mode)

  monkeypatch.setattr(tf.io.gfile, "GFile", open_or_fail)


@pytest.mark.parametrize("had_data", [False, True])
def test_writing_cut_short_leaves_no_list_of_clients(tmp_path, monkeypatch, had_data):
  """Also over older data: their list would not fit the files any more."""
  if had_data:
    old = {client: _examples(4, seed=1) for client in "abc"}
    client_data.write_clients(str(tmp_path), old, _SPEC)
  with monkeypatch.context() as patched:
    _fail_at_second_client(patched)
    with pytest.raises(OSError, match="no space left"):
      client_data.write_clients(
        str(tmp_path), {client: _examples(2) for client in "xyz"}, _SPEC
      )
  with pytest.raises(FileNotFoundError):
    client_data.ClientDirectory(str(tmp_path))


def test_place_that_is_no_folder_is_named(tmp_path):
  (tmp_path / "taken").write_text("")
  with pytest.raises(NotADirectoryError) as caught:
    client_data.write_clients(tmp_path / "taken", {"a": _examples(2)}, _SPEC)
  assert caught.value.filename == str(tmp_path / "taken/0000")


# --- Files that are not what was written ----------------------------------------------


def _population(folder) -> client_data.ClientDirectory:
  """Three clients of four examples each."""
  data = {client: _examples(4, seed=i) for i, client in enumerate("abc")}
  return client_data.write_clients(str(folder), data, _SPEC)


def _flip(path: pathlib.Path):
  content = bytearray(path.read_bytes())
  content[-9] ^= 1
  path.write_bytes(content)


def _swap(path: pathlib.Path):
  """With the next client's, both as long as before."""
  other = path.with_name("0000002.client")
  path.rename(path.with_name("x"))
  other.rename(path)
  path.with_name("x").rename(other)


_BREAKS = {
  "gone": (pathlib.Path.unlink, "is not there"),
  "empty": (lambda path: path.write_bytes(b""), "does not hold"),
  "cut": (lambda path: path.write_bytes(path.read_bytes()[:-1]), "does not hold"),
  "longer": (lambda path: path.write_bytes(path.read_bytes() + b"?"), "does not hold"),
  "one bit": (_flip, "does not hold what was written to it"),
  "swapped": (_swap, "does not hold what was written to it"),
  "a folder": (lambda path: (path.unlink(), path.mkdir()), "cannot be opened (Is a"),
}
each_break = pytest.mark.parametrize("kind", _BREAKS)


def _assert_found(clients, path, words, **options):
  with pytest.raises(DamagedError) as caught:
    clients.check_files(clients.ids, " in round 7", **options)
  text = str(caught.value)
  told = f"The examples of client 'b' cannot be read in round 7: {path} {words}"
  assert text.startswith(told) and "\n" not in text


@each_break
@pytest.mark.parametrize("was_right_before", [False, True])
def test_file_that_is_not_what_was_written_is_found(tmp_path, kind, was_right_before):
  clients = _population(tmp_path)
  if was_right_before:
    clients.check_files(clients.ids)
  path = pathlib.Path(clients.path("b"))
  damage, words = _BREAKS[kind]
  damage(path)
  clients.check_files("a")
  for _ in range(2):
    _assert_found(clients, path, words)


@each_break
def test_file_of_another_file_system_is_looked_at_too(tmp_path, kind):
  if kind in ("gone", "a folder"):
    clients = _population(tmp_path).in_memory()
    tf.io.gfile.remove(clients.path("b"))
    _assert_found(clients, clients.path("b"), "is not there")
    return
  _population(tmp_path)
  damage, words = _BREAKS[kind]
  damage(tmp_path / "0000" / "0000001.client")
  clients = client_data.ClientDirectory(str(tmp_path)).in_memory()
  _assert_found(clients, clients.path("b"), words)


def test_missing_file_is_no_copy_in_memory(tmp_path):
  clients = _population(tmp_path)
  os.unlink(clients.path("b"))
  with pytest.raises(DamagedError, match=r"client 'b' cannot be read: .* is not there"):
    clients.in_memory()


def test_file_is_read_once_but_when_it_changes_or_is_asked_for_again(
  tmp_path, monkeypatch
):
  clients, read = _population(tmp_path), []
  problem = client_data.ClientDirectory._problem

  def note(self, client, path):
    read.append(client)
    return problem(self, client, path)

  monkeypatch.setattr(client_data.ClientDirectory, "_problem", note)
  for _ in range(2):
    clients.check_files("ab")
  assert read == ["a", "b"]
  os.utime(clients.path("b"), ns=(1, 1))
  clients.check_files("abc")
  assert read == ["a", "b", "b", "c"]
  clients.check_files("ca", again=True)
  assert read == ["a", "b", "b", "c", "c", "a"]


def test_files_that_swap_their_names_are_found_though_they_are_of_one_time(tmp_path):
  """As what an archive gives back."""
  clients = _population(tmp_path)
  for client in clients.ids:
    os.utime(clients.path(client), ns=(1, 1))
  clients.check_files(clients.ids)
  path = pathlib.Path(clients.path("b"))
  _swap(path)
  _assert_found(clients, path, "does not hold what was written to it")


def test_folder_older_than_checksums_is_read(tmp_path):
  """Only missing files, and other numbers of examples, are found."""
  clients = _population(tmp_path)
  manifest = tmp_path / "clients.json"
  content = json.loads(manifest.read_text())
  del content["checksums"]
  manifest.write_text(json.dumps(content))
  old = client_data.ClientDirectory(str(tmp_path))
  path = pathlib.Path(clients.path("b"))
  _flip(path)
  old.check_files(old.ids)
  _BREAKS["empty"][0](path)
  _assert_found(old, path, "does not hold")
  path.unlink()
  _assert_found(old, path, "is not there")


# --- Reading inside a computation ---------------------------------------------------


@pytest.fixture(scope="module")
def read_in_computation(in_process):
  """`path -> (number of examples, sum of inputs, sum of labels)`, as TFF runs it."""

  @tff.tensorflow.computation(np.str_)
  def read(path):
    x, y = client_data.read(path, _SPEC)
    return tf.shape(x)[0], tf.reduce_sum(tf.cast(x, tf.int32)), tf.reduce_sum(y)

  return read


@pytest.mark.parametrize("n", [1, 7])
def test_reads_inside_a_computation(read_in_computation, tmp_path, n):
  x, y = _examples(n)
  directory = client_data.write_clients(str(tmp_path), {"a": (x, y)}, _SPEC)
  found = read_in_computation(directory.path("a"))
  assert tuple(map(int, found)) == (n, x.astype(np.int64).sum(), y.sum())


# With whole examples less or more, only the number at the head tells labels from inputs;
# the last one leaves less than that number.
@pytest.mark.parametrize(
  "change", [-1, -_EXAMPLE_BYTES, 1, _EXAMPLE_BYTES, -7 * _EXAMPLE_BYTES - 3]
)
def test_file_of_another_length_stops_the_computation(
  read_in_computation, tmp_path, change
):
  directory = client_data.write_clients(str(tmp_path), {"a": _examples(7)}, _SPEC)
  path = pathlib.Path(directory.path("a"))
  content = path.read_bytes()
  path.write_bytes(content[:change] if change < 0 else content + b"?" * change)
  error = tf.errors.InvalidArgumentError
  with pytest.raises(error, match="Not a client file") as caught:
    read_in_computation(str(path))
  assert str(path) in str(caught.value)


def test_number_of_examples_beyond_32_bits_is_not_cut_off(read_in_computation, tmp_path):
  directory = client_data.write_clients(str(tmp_path), {"a": _examples(1)}, _SPEC)
  path = pathlib.Path(directory.path("a"))
  path.write_bytes(np.int64(2**32 + 1).tobytes() + path.read_bytes()[8:])
  with pytest.raises(tf.errors.InvalidArgumentError, match="Not a client file"):
    read_in_computation(str(path))


def test_empty_file_stops_the_computation(read_in_computation, tmp_path):
  (tmp_path / "empty").write_bytes(b"")
  with pytest.raises(tf.errors.InvalidArgumentError, match="empty one"):
    read_in_computation(str(tmp_path / "empty"))


def test_missing_file_stops_the_computation(read_in_computation, tmp_path):
  with pytest.raises(tf.errors.NotFoundError, match="nothing"):
    read_in_computation(str(tmp_path / "nothing"))


# --- Names for data sets ------------------------------------------------------------

_PARTS = st.one_of(
  st.integers(-1000, 1000),
  st.text(max_size=4),
  st.floats(allow_nan=False),
  st.tuples(st.integers(0, 9), st.integers(0, 9)),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(_PARTS, max_size=4), st.lists(_PARTS, max_size=4))
def test_fingerprint_tells_lists_of_parts_apart(one, other):
  is_same = [repr(part) for part in one] == [repr(part) for part in other]
  found = client_arrays.fingerprint(*one) == client_arrays.fingerprint(*other)
  assert found == is_same


def test_fingerprint_sees_where_a_part_ends():
  assert client_arrays.fingerprint(1, 23) != client_arrays.fingerprint(12, 3)


def test_fingerprint_changes_with_any_part():
  x, y = np.arange(6, dtype=np.int32), np.ones(3, np.float32)
  changed_x, changed_y = x.copy(), y.copy()
  changed_x[-1] += 1
  changed_y[0] = np.nextafter(np.float32(1), np.float32(2))
  found = [
    client_arrays.fingerprint(*parts)
    for parts in (
      (),
      (x,),
      (y,),
      (x, y),
      (y, x),
      (x, y, y),
      (x, y, np.zeros(0)),
      (changed_x, y),
      (x, changed_y),
      (x.reshape(2, 3), y),
      (x.reshape(3, 2), y),
      (x.view(np.uint32), y),
      (x.astype(np.int64), y),
      (x[::-1], y),
      (x, y, "a"),
      (x, y, "b"),
      (list(x), y),
    )
  ]
  assert len(set(found)) == len(found)


def test_fingerprint_is_of_the_values_not_of_the_memory():
  x = np.arange(12).reshape(3, 4)
  turned = np.asfortranarray(x)
  assert client_arrays.fingerprint(turned, "a") == client_arrays.fingerprint(x, "a")
  assert client_arrays.fingerprint(x[:, ::2]) == client_arrays.fingerprint(
    x[:, ::2].copy()
  )


def test_fingerprint_is_a_short_name_for_a_file():
  name = client_arrays.fingerprint(np.zeros(3), "a")
  assert os.path.basename(name) == name
  assert 8 <= len(name) <= 64
  assert name.isalnum()
  assert json.loads(json.dumps(name)) == name


def test_large_file_is_read_to_its_end(tmp_path):
  """It has more than is read at once."""
  spec = ExampleSpec(tf.TensorSpec([400], tf.uint8), tf.TensorSpec([], tf.int32))
  x = np.random.default_rng(0).integers(0, 256, (6000, 400)).astype(np.uint8)
  clients = client_data.write_clients(
    tmp_path, {"a": (x, np.zeros(6000, np.int32))}, spec
  )
  clients.check_files(["a"])
  path = pathlib.Path(clients.path("a"))
  path.write_bytes(path.read_bytes()[:-1] + b"\1")
  with pytest.raises(DamagedError):
    clients.check_files(["a"])


def test_digest_is_of_what_the_files_hold(tmp_path):
  """Of other examples in the same numbers it is another one."""
  spec = ExampleSpec(tf.TensorSpec([2], tf.float32), tf.TensorSpec([], tf.int32))
  x, y = np.ones((3, 2), np.float32), np.zeros(3, np.int32)
  digests = [
    client_data.write_clients(tmp_path / name, {"a": (x, y), "b": (b, y)}, spec).digest()
    for name, b in (("one", x), ("again", x), ("other", x + 1))
  ]
  assert digests[0] == digests[1] != digests[2]


def test_of_complex_numbers_those_without_an_imaginary_part_are_held():
  """And NumPy, which warns where it cuts one off, has nothing to warn of."""
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    cast, is_held = client_arrays.cast_and_held(np.array([2 + 0j, 1 + 2j]), tf.float32)
  assert cast.dtype == np.float32 and cast[0] == 2
  assert is_held.tolist() == [True, False]
