"""Loaders of the data sets.

The small archives have the publishers' formats. Picture number i of a split is filled
with a value that tells i, so that a picture can be told however TFDS orders them.
"""

from __future__ import annotations

import collections
import contextlib
import gzip
import hashlib
import http.server
import io
import os
import pathlib
import shlex
import socket
import subprocess
import tarfile
import threading
import time
import zipfile

import numpy as np
import pytest
import requests
import scipy.io
import tensorflow as tf
import tensorflow_datasets as tfds
from PIL import Image
from tensorflow_datasets.core.utils import gcs_utils
from tensorflow_datasets.image_classification import mnist

from tasks.datasets import (
  dataset,
  digits,
  import_archives,
  picture_files,
  picture_folder,
  tfds_images,
)
from tasks.rows import parts
from tff_algos.errors import InputError

_TRAIN, _TEST = 20, 6


# --- Dataset ------------------------------------------------------------------------


def _arrays(**changes) -> dataset.Dataset:
  good = dataset.Dataset(
    train_x=np.zeros((4, 2, 2, 1), np.uint8),
    train_y=np.array([0, 1, 2, 2], np.int32),
    test_x=np.zeros((2, 2, 2, 1), np.uint8),
    test_y=np.array([0, 2], np.int32),
    num_classes=3,
  )
  return good._replace(**changes)


def test_check_returns_a_good_dataset():
  good = _arrays()
  for found, given in zip(dataset.check(good), good):
    assert found is given
  assert good.note == ""


def test_check_takes_sequences_and_groups():
  good = _arrays(
    train_x=np.zeros((4, 3), np.int32),
    train_y=np.array([[0, 1, -1]] * 4, np.int32),
    test_x=np.zeros((2, 3), np.int32),
    test_y=np.array([[2, -1, -1]] * 2, np.int32),
    train_groups=np.array([1, 0, 0, 2], np.int32),
  )
  for found, given in zip(dataset.check(good), good):
    assert found is given


def test_check_casts_numbers_as_pandas_has_them():
  groups = np.array([1, 0, 0, 2])
  given = _arrays(
    train_x=np.arange(8.0).reshape(4, 2) / 7,
    train_y=np.array([0, 1, 2, 2]),
    test_x=np.ones((2, 2), np.float16),
    test_y=np.array([0, 1], np.uint8),
    train_groups=groups,
  )
  found = dataset.check(given)
  assert {found.train_x.dtype, found.test_x.dtype} == {np.dtype(np.float32)}
  labels = found.train_y, found.test_y, found.train_groups
  assert {part.dtype for part in labels} == {np.dtype(np.int32)}
  np.testing.assert_array_equal(found.train_x, np.float32(given.train_x))
  np.testing.assert_array_equal(found.train_groups, groups)
  whole = given._replace(train_x=np.arange(8).reshape(4, 2), test_x=np.ones((2, 2), int))
  assert dataset.check(whole).train_x.dtype == np.int32


@pytest.mark.parametrize("shape", [(), (2,), (2, 3)])
def test_labels_that_are_no_classes_are_numbers_of_any_shape(shape):
  whole = np.arange(4 * np.prod(shape, dtype=int)).reshape(4, *shape) - 2
  for given, dtype in ((whole / 7, np.float32), (whole, np.int32)):
    labels = dict(train_y=given, test_y=given[:2], num_classes=None)
    found = dataset.check(_arrays(**labels))
    assert found.train_y.dtype == found.test_y.dtype == dtype
    np.testing.assert_array_equal(found.train_y, given.astype(dtype))


@pytest.mark.parametrize(
  "changes, match",
  [
    ({"train_y": np.array([0, 1, 2, 3], np.int32)}, "label 3: with 3 classes"),
    ({"test_y": np.array([-1, 2], np.int32)}, "label -1"),
    ({"train_y": np.array([0, 1, 2], np.int32)}, "4 examples but train_y 3 labels"),
    (
      {"test_x": np.zeros((0, 2, 2, 1), np.uint8), "test_y": np.zeros(0, np.int32)},
      "the test split is empty",
    ),
    ({"train_x": np.array([["a"]] * 4)}, "train_x has dtype <U1: give numbers"),
    ({"train_x": np.full((4, 1), 1e39)}, "train_x holds 1e.39, which is no float32"),
    ({"train_y": np.array([0.5, 1, 2, 2])}, "float64: give whole .* num_classes is None"),
    ({"train_y": np.array([0, 1, 2, 2**31])}, "holds 2147483648, which is no int32"),
    ({"train_x": np.zeros((4, 2, 2, 1))}, "must be alike"),
    ({"test_x": np.zeros((2, 3, 2, 1), np.uint8)}, "must be alike"),
    (
      {"test_x": np.float32([[1, 2], [np.nan, 3]])},
      "the test split hold NaN or infinite numbers in 1 of 2 examples, number 1 ",
    ),
    ({"train_x": np.float32([[1, np.inf]] * 4)}, "the train split .* in 4 of 4 examples"),
    ({"test_x": np.zeros((2, 2, 2, 1), np.float32)}, "must be alike"),
    ({"test_y": np.zeros((2, 5), np.int32)}, "a test label int32 of .* must be alike"),
    (
      {"test_y": np.zeros(2), "num_classes": None},
      "a train label is int32 .* a test label float32",
    ),
    ({"train_y": np.array(["a"] * 4), "num_classes": None}, "<U1: give numbers"),
    ({"train_y": np.full((4, 2), -1, np.int32)}, "a sequence without a label"),
    ({"test_y": np.array([[0, 1], [-1, -1]], np.int32)}, "a sequence without a label"),
    ({"train_y": np.array([[0, -2]] * 4, np.int32)}, "label -2: .* lie in -1..2"),
    ({"train_y": np.zeros((4, 2, 2), np.int32)}, "one axis, or two for sequences"),
    ({"train_groups": np.zeros(4)}, "train_groups has dtype float64"),
    ({"train_groups": np.zeros(3, np.int32)}, "train_groups: groups must be 4 integers"),
    ({"train_groups": np.array([0, 2, 2, 0], np.int32)}, "without gaps"),
    ({"train_groups": np.array([0, 1, 2, 2**31 - 1], np.int32)}, "without gaps"),
    ({"train_groups": np.array([0, -1, 1, 0], np.int32)}, "without gaps"),
    ({"train_groups": [0, 1, 2, 0]}, "train_groups is no array .* of type list"),
    ({"train_x": [[0.0]] * 4}, "train_x is no array of examples but of type list"),
    ({"test_y": np.int32(0)}, "test_y is no array of examples but of type int32"),
    ({"train_y": None}, "train_y is no array of examples but of type NoneType"),
    ({"num_classes": 0}, "num_classes is 0: it must be"),
    ({"num_classes": 3.5}, "num_classes is 3.5: it must be"),
  ],
)
def test_check_refuses(changes, match):
  with pytest.raises(InputError, match=match):
    dataset.check(_arrays(**changes))


def test_check_refuses_another_thing():
  with pytest.raises(InputError, match=r"^load_data must give .*Dataset; found a tuple"):
    dataset.check((1, 2))


# --- Digits -------------------------------------------------------------------------


def test_digits_are_scikit_learns():
  data = digits.load()
  assert data.train_x.shape == (1437, 8, 8, 1)
  assert data.test_x.shape == (360, 8, 8, 1)
  assert (data.num_classes, data.note) == (10, "")
  # How many of each digit the publisher counts.
  published = [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
  test_counts = np.bincount(data.test_y)
  assert list(np.bincount(data.train_y) + test_counts) == published
  assert np.all(np.abs(test_counts - np.array(published) / 5) < 1)
  levels = {round(value * 255 / 16) for value in range(17)}
  assert set(np.unique(data.train_x)) == levels


def test_digits_split_is_always_the_same():
  for first, second in zip(digits.load()[:4], digits.load()[:4]):
    np.testing.assert_array_equal(first, second)


# --- TFDS: small archives of the publishers' formats --------------------------------


def _labels(count: int, num_classes: int) -> np.ndarray:
  """Of many classes not the first, which a split need not have."""
  return (np.arange(count) * 3 + 1) % num_classes


def _pictures(count: int, *shape: int) -> np.ndarray:
  values = np.arange(count, dtype=np.uint8) + 1
  return np.broadcast_to(values.reshape(-1, *[1] * len(shape)), (count, *shape)).copy()


def _idx_images(count: int) -> bytes:
  return gzip.compress(bytes(16) + _pictures(count, 28, 28).tobytes())


def _idx_labels(labels: np.ndarray) -> bytes:
  return gzip.compress(bytes(8) + labels.astype(np.uint8).tobytes())


def _mnist_files() -> dict[str, bytes]:
  return {
    "train-images-idx3-ubyte.gz": _idx_images(_TRAIN),
    "train-labels-idx1-ubyte.gz": _idx_labels(_labels(_TRAIN, 10)),
    "t10k-images-idx3-ubyte.gz": _idx_images(_TEST),
    "t10k-labels-idx1-ubyte.gz": _idx_labels(_labels(_TEST, 10)),
  }


def _emnist_files(name: str, num_classes: int, first: int) -> dict[str, bytes]:
  buffer = io.BytesIO()
  with zipfile.ZipFile(buffer, "w") as archive:
    for split, count in (("train", _TRAIN), ("test", _TEST)):
      start = f"gzip/emnist-{name}-{split}"
      archive.writestr(f"{start}-images-idx3-ubyte.gz", _idx_images(count))
      labels = _labels(count, num_classes) + first
      archive.writestr(f"{start}-labels-idx1-ubyte.gz", _idx_labels(labels))
  return {"gzip.zip": buffer.getvalue()}


def _cifar_files(files: dict[str, bytes], name: str) -> dict[str, bytes]:
  buffer = io.BytesIO()
  with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
    for path, content in files.items():
      member = tarfile.TarInfo(path)
      member.size = len(content)
      archive.addfile(member, io.BytesIO(content))
  return {name: buffer.getvalue()}


def _cifar_rows(count: int, *labels: np.ndarray) -> bytes:
  columns = [label.astype(np.uint8)[:, np.newaxis] for label in labels]
  return np.hstack([*columns, _pictures(count, 3072)]).tobytes()


def _cifar10_files() -> dict[str, bytes]:
  rows = _cifar_rows(_TRAIN, _labels(_TRAIN, 10))
  one_fifth = len(rows) // 5
  files = {
    f"data_batch_{i + 1}.bin": rows[i * one_fifth : (i + 1) * one_fifth] for i in range(5)
  }
  files["test_batch.bin"] = _cifar_rows(_TEST, _labels(_TEST, 10))
  files["batches.meta.txt"] = "\n".join(f"class{i}" for i in range(10)).encode()
  return _cifar_files(
    {f"cifar-10-batches-bin/{name}": content for name, content in files.items()},
    "cifar-10-binary.tar.gz",
  )


def _cifar100_files() -> dict[str, bytes]:
  files = {
    f"{split}.bin": _cifar_rows(count, _labels(count, 20), _labels(count, 100))
    for split, count in (("train", _TRAIN), ("test", _TEST))
  }
  for name, count in (("coarse", 20), ("fine", 100)):
    lines = "\n".join(f"{name}{i}" for i in range(count))
    files[f"{name}_label_names.txt"] = lines.encode()
  return _cifar_files(
    {f"cifar-100-binary/{name}": content for name, content in files.items()},
    "cifar-100-binary.tar.gz",
  )


def _svhn_files() -> dict[str, bytes]:
  files = {}
  for split, count in (("train", _TRAIN), ("test", _TEST), ("extra", 2)):
    labels = _labels(count, 10)
    buffer = io.BytesIO()
    scipy.io.savemat(
      buffer,
      {
        "X": np.moveaxis(_pictures(count, 32, 32, 3), 0, -1),
        # The publisher writes the digit 0 as 10.
        "y": np.where(labels == 0, 10, labels)[:, np.newaxis].astype(np.uint8),
      },
    )
    files[f"{split}_32x32.mat"] = buffer.getvalue()
  return files


_SETS = {
  "mnist": (_mnist_files, (28, 28, 1), 10),
  "cifar10": (_cifar10_files, (32, 32, 3), 10),
  "cifar100": (_cifar100_files, (32, 32, 3), 100),
  "svhn_cropped": (_svhn_files, (32, 32, 3), 10),
  # The publisher counts letters from 1, digits from 0.
  "emnist/letters": (lambda: _emnist_files("letters", 26, 1), (28, 28, 1), 26),
  "emnist/digits": (lambda: _emnist_files("digits", 10, 0), (28, 28, 1), 10),
}


@pytest.fixture
def publish(monkeypatch, tmp_path):
  """Makes small archives the published ones; returns the folder that holds them."""

  def publish_set(name: str) -> pathlib.Path:
    builder_class = tfds.builder_cls(name.partition("/")[0])
    files = _SETS[name][0]()
    folder = tmp_path / "archives"
    folder.mkdir()
    infos = {}
    for url in builder_class.url_infos:
      file_name = url.rpartition("/")[2]
      (folder / file_name).write_bytes(files[file_name])
      infos[url] = _url_info(file_name, files[file_name])
    monkeypatch.setattr(builder_class, "url_infos", infos)
    monkeypatch.setattr(mnist, "_TRAIN_EXAMPLES", _TRAIN)
    monkeypatch.setattr(mnist, "_TEST_EXAMPLES", _TEST)
    for config in mnist.EMNIST.builder_configs.values():
      monkeypatch.setattr(config, "train_examples", _TRAIN)
      monkeypatch.setattr(config, "test_examples", _TEST)
    return folder

  return publish_set


def _url_info(file_name: str, content: bytes) -> tfds.download.checksums.UrlInfo:
  return tfds.download.checksums.UrlInfo(
    size=tfds.core.utils.Size(len(content)),
    checksum=hashlib.sha256(content).hexdigest(),
    filename=file_name,
  )


@pytest.fixture
def no_network(monkeypatch):
  def refuse(*args, **kwargs):
    raise requests.ConnectionError("no network in this test")

  monkeypatch.setattr(requests, "get", refuse)
  monkeypatch.setattr(requests.Session, "get", refuse)


def _import(name: str, folder: pathlib.Path, data_dir: pathlib.Path) -> None:
  builder = tfds_images.find_builder(name, str(data_dir))
  import_archives.import_archives(builder, folder)


def _assert_split(x, y, count: int, shape: tuple[int, ...], num_classes: int) -> None:
  assert x.shape == (count, *shape)
  assert (x.dtype, y.dtype) == (np.uint8, np.int32)
  numbers = x[:, 0, 0, 0].astype(int) - 1
  assert sorted(numbers) == list(range(count))
  np.testing.assert_array_equal(x, _pictures(count, *shape)[numbers])
  np.testing.assert_array_equal(y, _labels(count, num_classes)[numbers])


@pytest.mark.parametrize("name", _SETS)
def test_tfds_set_is_prepared_from_the_download_cache(
  name, publish, no_network, tmp_path, capsys
):
  _, shape, num_classes = _SETS[name]
  _import(name, publish(name), tmp_path / "tfds")
  data = tfds_images.load(name, str(tmp_path / "tfds"))
  _assert_split(data.train_x, data.train_y, _TRAIN, shape, num_classes)
  _assert_split(data.test_x, data.test_y, _TEST, shape, num_classes)
  assert (data.num_classes, data.note) == (num_classes, "")
  assert capsys.readouterr().out == ""


def test_tfds_set_that_another_process_has_made_meanwhile(
  publish, no_network, tmp_path, monkeypatch
):
  """TFDS cannot give its own unfinished folder the name that is taken."""
  _import("mnist", publish("mnist"), tmp_path / "tfds")
  original = tfds.core.DatasetBuilder.download_and_prepare
  calls = []

  def beside_another(builder, **options):
    calls.append(builder)
    if len(calls) == 1:
      tfds_images.prepare(tfds_images.find_builder("mnist", str(tmp_path / "tfds")))
      raise FileExistsError("Cannot rename: the destination exists already.")
    original(builder, **options)

  monkeypatch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", beside_another)
  data = tfds_images.load("mnist", str(tmp_path / "tfds"))
  assert len(calls) == 2
  _, shape, num_classes = _SETS["mnist"]
  _assert_split(data.test_x, data.test_y, _TEST, shape, num_classes)


@pytest.mark.parametrize("before", [False, True])
def test_whether_tfds_asks_googles_bucket_is_as_before(monkeypatch, tmp_path, before):
  monkeypatch.setattr(gcs_utils, "_is_gcs_disabled", before)
  tfds_images.find_builder("mnist", str(tmp_path))
  assert gcs_utils._is_gcs_disabled is before


def test_tfds_prepared_data_need_no_archives_and_keep_their_order(
  publish, no_network, tmp_path
):
  _import("mnist", publish("mnist"), tmp_path / "tfds")
  first = tfds_images.load("mnist", str(tmp_path / "tfds"))
  for path in (tmp_path / "tfds/downloads").glob("*.gz*"):
    path.unlink()
  second = tfds_images.load("mnist", str(tmp_path / "tfds"))
  for one, two in zip(first[:4], second[:4]):
    np.testing.assert_array_equal(one, two)


def test_tfds_prepared_data_that_lack_their_records_are_not_ready(
  publish, no_network, tmp_path
):
  _import("mnist", publish("mnist"), tmp_path / "tfds")
  builder = tfds_images.find_builder("mnist", str(tmp_path / "tfds"))
  tfds_images.prepare(builder)
  tfds_images.prepare(builder)
  [records] = pathlib.Path(builder.data_dir).glob("mnist-test.*")
  records.unlink()
  with pytest.raises(dataset.DataMissingError, match=f"no {records.name}.*: delete"):
    tfds_images.prepare(builder)


def test_tfds_missing_data_without_network_fails_at_once(no_network, tmp_path):
  start = time.monotonic()
  with pytest.raises(dataset.DataMissingError) as caught:
    tfds_images.load("cifar10", str(tmp_path / "my data"))
  assert time.monotonic() - start < 10
  message = str(caught.value)
  assert "\n" not in message
  for part in (
    str(tmp_path / "my data/cifar10/3.0.2"),
    str(tmp_path / "my data/downloads"),
    "cifar-10-binary.tar.gz",
    "www.cs.toronto.edu cannot be reached",
    "python binaries/import_data.py --dataset=cifar10 --from=DIR --data_dir=",
    f"--data_dir='{tmp_path}/my data'`",
    "tfds build cifar10",
  ):
    assert part in message
  assert not (tmp_path / "my data").exists()


def test_tfds_names_only_the_archives_that_are_missing(publish, no_network, tmp_path):
  folder = publish("mnist")
  _import("mnist", folder, tmp_path / "tfds")
  cached = next((tmp_path / "tfds/downloads").glob("*t10k-labels*.gz"))
  cached.write_bytes(cached.read_bytes()[:-1])  # Cut short.
  with pytest.raises(dataset.DataMissingError, match="t10k-labels") as caught:
    tfds_images.load("mnist", str(tmp_path / "tfds"))
  assert "train-images" not in str(caught.value)


# --- TFDS: downloads ----------------------------------------------------------------


@pytest.fixture
def serve(monkeypatch):
  """Serves MNIST's archives from a folder on this machine; None answers 404."""
  monkeypatch.setenv("no_proxy", "127.0.0.1")
  servers = []

  def start(folder: pathlib.Path | None) -> str:
    class Handler(http.server.BaseHTTPRequestHandler):
      def do_GET(self):
        path = folder / self.path.rpartition("/")[2] if folder else None
        self.send_response(200 if path else 404)
        content = path.read_bytes() if path else b""
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        # Whoever only asked whether we are there does not read on.
        with contextlib.suppress(ConnectionError):
          self.wfile.write(content)

      def log_message(self, *args):
        pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    servers.append(server)
    return f"http://127.0.0.1:{server.server_port}/"

  yield start
  for server in servers:
    server.shutdown()
    server.server_close()


def _move_mnist(monkeypatch, root: str) -> None:
  """Makes `root` the place that MNIST is downloaded from."""
  monkeypatch.setattr(mnist.MNIST, "URL", root)
  infos = {
    root + url.rpartition("/")[2]: info for url, info in mnist.MNIST.url_infos.items()
  }
  monkeypatch.setattr(mnist.MNIST, "url_infos", infos)


def test_tfds_set_is_downloaded_if_it_can_be(publish, serve, monkeypatch, tmp_path):
  _move_mnist(monkeypatch, serve(publish("mnist")))
  data = tfds_images.load("mnist", str(tmp_path / "tfds"))
  _assert_split(data.train_x, data.train_y, _TRAIN, (28, 28, 1), 10)


def test_tfds_wrong_download_is_one_sentence(publish, serve, monkeypatch, tmp_path):
  folder = publish("mnist")
  (folder / "t10k-labels-idx1-ubyte.gz").write_bytes(b"not what was published")
  _move_mnist(monkeypatch, serve(folder))
  with pytest.raises(dataset.DataMissingError, match="wrong checksum") as caught:
    tfds_images.load("mnist", str(tmp_path / "tfds"))
  assert "\n" not in str(caught.value)


def test_tfds_answer_other_than_ok_is_named(serve, monkeypatch, tmp_path):
  _move_mnist(monkeypatch, serve(None))
  with pytest.raises(dataset.DataMissingError, match="HTTP status 404"):
    tfds_images.load("mnist", str(tmp_path / "tfds"))


def test_tfds_silent_server_is_given_up(monkeypatch, tmp_path):
  monkeypatch.setenv("no_proxy", "127.0.0.1")
  monkeypatch.setattr(tfds_images, "_PROBE_TIMEOUTS", (0.2, 0.2))
  with socket.create_server(("127.0.0.1", 0)) as server:  # Accepts, never answers.
    _move_mnist(monkeypatch, f"http://127.0.0.1:{server.getsockname()[1]}/")
    with pytest.raises(dataset.DataMissingError, match="cannot be reached: ReadTime"):
      tfds_images.load("mnist", str(tmp_path / "tfds"))


def test_tfds_builder_never_asks_googles_bucket(monkeypatch, tmp_path):
  def ask(path):
    raise AssertionError(f"asked for {path}")

  monkeypatch.setattr(gcs_utils, "exists", ask)
  tfds_images.find_builder("mnist", str(tmp_path))
  assert gcs_utils._is_gcs_disabled is False


# --- TFDS: wrong names and damaged data ---------------------------------------------


@pytest.mark.parametrize(
  "name, match",
  [
    ("mnits", "no data set 'mnits': did you mean mnist"),
    ("qqqqqqqq", "no data set 'qqqqqqqq': tfds.list_builders"),
    ("emnist/leters", "'emnist/leters': BuilderConfig leters not found"),
    ("mnist:9.9.9", "'mnist:9.9.9': Dataset mnist cannot be loaded at version"),
    ("huggingface:mnist", "'huggingface:mnist': No module named 'datasets'"),
    ("ag_news_subset", "no picture classification set"),
    ("imagenette", r"shape \(None, None, 3\)"),
  ],
)
def test_tfds_refuses_a_name(name, match, tmp_path):
  with pytest.raises(ValueError, match=match) as caught:
    tfds_images.load(name, str(tmp_path))
  assert "\n" not in str(caught.value)


@pytest.mark.parametrize("damage", ["cut", "no info"])
def test_tfds_damaged_prepared_data_are_named(damage, publish, no_network, tmp_path):
  _import("mnist", publish("mnist"), tmp_path / "tfds")
  tfds_images.load("mnist", str(tmp_path / "tfds"))
  prepared = tmp_path / "tfds/mnist/3.0.1"
  if damage == "cut":
    record = next(prepared.glob("mnist-train.tfrecord*"))
    record.write_bytes(record.read_bytes()[:-100])
  else:
    (prepared / "dataset_info.json").unlink()
  with pytest.raises(dataset.DataMissingError, match="cannot be read") as caught:
    tfds_images.load("mnist", str(tmp_path / "tfds"))
  assert str(prepared.parent) in str(caught.value)
  assert "\n" not in str(caught.value)


# --- Folders of pictures ------------------------------------------------------------


def _write_picture(path: pathlib.Path, value: int, height=4, width=5) -> None:
  path.parent.mkdir(parents=True, exist_ok=True)
  picture = np.full((height, width, 3), value, np.uint8)
  encode = tf.io.encode_png if path.suffix == ".png" else tf.io.encode_jpeg
  path.write_bytes(encode(picture).numpy())


@pytest.fixture
def folder(tmp_path) -> pathlib.Path:
  """Three classes; a picture's value is 10 * its label + its number (+ 100: test)."""
  root = tmp_path / "pictures"
  for split, count in (("train", 3), ("test", 2)):
    for label, name in enumerate(("ant", "bee", "cat")):
      for i in range(count):
        suffix = ".jpg" if i == 0 else ".png"
        value = 10 * label + i + 100 * (split == "test")
        _write_picture(root / split / name / f"{i}{suffix}", value)
  (root / "README.md").write_text("not a picture")
  (root / "train/ant/list.txt").write_text("not a picture")
  return root


def test_picture_folder_counts_classes_in_alphabetical_order(folder):
  data = picture_folder.load(folder, num_classes=3, note="three animals")
  assert data.train_x.shape == (9, 4, 5, 3)
  assert data.test_x.shape == (6, 4, 5, 3)
  assert (data.num_classes, data.note) == (3, "three animals")
  for x, y, start in ((data.train_x, data.train_y, 0), (data.test_x, data.test_y, 100)):
    assert (x.dtype, y.dtype) == (np.uint8, np.int32)
    # JPEG keeps a picture of one grey value to within one.
    np.testing.assert_allclose((x[:, 0, 0, 0] - start + 1) // 10, y)
  values = sorted(data.train_x[:, 0, 0, 0])
  np.testing.assert_allclose(values, [0, 1, 2, 10, 11, 12, 20, 21, 22], atol=1)


def test_picture_folder_order_does_not_depend_on_the_place(folder, tmp_path):
  first = picture_folder.load(folder)
  second = picture_folder.load(folder.rename(tmp_path / "moved"))
  for one, two in zip(first[:4], second[:4]):
    np.testing.assert_array_equal(one, two)


@pytest.fixture
def count_decoding(monkeypatch):
  calls = []
  original = tfds.ImageFolder

  def counted(root):
    calls.append(root)
    return original(root)

  monkeypatch.setattr(tfds, "ImageFolder", counted)
  return calls


def test_picture_folder_reads_its_cache(folder, tmp_path, count_decoding):
  cache = tmp_path / "new/cache"
  first = picture_folder.load(folder, cache_dir=cache, note="one")
  second = picture_folder.load(folder, cache_dir=cache, note="two")
  assert len(count_decoding) == 1
  for one, two in zip(first[:4], second[:4]):
    np.testing.assert_array_equal(one, two)
  assert (second.num_classes, second.note) == (3, "two")
  assert [path.suffix for path in cache.iterdir()] == [".npz"]


@pytest.mark.parametrize("change", ["time", "more", "fewer", "renamed"])
def test_picture_folder_cache_follows_the_files(change, folder, tmp_path, count_decoding):
  picture_folder.load(folder, cache_dir=tmp_path / "cache")
  path = folder / "train/bee/1.png"
  if change == "time":
    os.utime(path, ns=(1, 1))
  elif change == "more":
    _write_picture(folder / "train/bee/9.png", 19)
  elif change == "fewer":
    path.unlink()
  else:
    path.rename(path.with_name("8.png"))
  data = picture_folder.load(folder, cache_dir=tmp_path / "cache")
  assert len(count_decoding) == 2
  assert len(data.train_x) == 9 + (change == "more") - (change == "fewer")


def test_picture_folder_damaged_cache_is_made_anew(folder, tmp_path, count_decoding):
  first = picture_folder.load(folder, cache_dir=tmp_path / "cache")
  [cached] = (tmp_path / "cache").iterdir()
  whole = cached.read_bytes()
  for content in (b"", whole[: len(whole) // 2], b"no zip file"):
    cached.write_bytes(content)
    again = picture_folder.load(folder, cache_dir=tmp_path / "cache")
    np.testing.assert_array_equal(again.train_x, first.train_x)
    assert len(cached.read_bytes()) == len(whole)
  assert len(count_decoding) == 4


def test_a_changed_byte_of_a_cache_changes_no_array(tmp_path):
  """As headers of arrays are read before the checksums of what they are in."""
  path = tmp_path / "cache.npz"
  pictures = (np.arange(12_000) % 251).astype(np.uint8).reshape(20, 20, 30)
  arrays = [pictures, np.int32([1, 0]), pictures, np.int32([0, 1])]
  picture_files.write_cache(path, arrays)
  whole = path.read_bytes()
  damaged = 0
  # The first header, some of what is in the arrays, and the list at the end.
  for place in (*range(200), *range(200, len(whole), 97), *range(-600, 0)):
    for flipped in (1 << place % 7, 127):
      content = bytearray(whole)
      content[place] ^= flipped
      path.write_bytes(content)
      found = picture_files.read_cache(path)
      damaged += found is None
      for array, other in zip(found or (), arrays):
        np.testing.assert_array_equal(array, other, strict=True)
  assert damaged > 2 * (128 + len(whole) // 97)


def test_picture_folder_failed_write_leaves_no_file(folder, tmp_path, monkeypatch):
  def fail(file, **arrays):
    file.write(b"half")
    raise OSError(28, "No space left on device")

  monkeypatch.setattr(np, "savez", fail)
  with pytest.raises(ValueError, match=r"cannot be cached in .*No space left"):
    picture_folder.load(folder, cache_dir=tmp_path / "cache")
  assert list((tmp_path / "cache").iterdir()) == []


def test_picture_folder_cache_dir_that_is_a_file(folder, tmp_path):
  (tmp_path / "cache").write_text("")
  with pytest.raises(ValueError, match="name another cache folder"):
    picture_folder.load(folder, cache_dir=tmp_path / "cache")


@pytest.mark.parametrize("split", ["train", "test"])
def test_picture_folder_names_the_first_odd_picture(split, folder):
  odd = folder / split / "cat/1.png"
  _write_picture(odd, 0, height=6)
  with pytest.raises(ValueError, match="must have the same size") as caught:
    picture_folder.load(folder)
  assert str(odd) in str(caught.value)
  assert "6x5" in str(caught.value)
  assert "4x5" in str(caught.value)


def test_picture_folder_names_a_test_split_of_another_size(folder):
  for path in (folder / "test").glob("*/*"):
    _write_picture(path, 0, height=6)
  with pytest.raises(ValueError, match=f"{folder}/test/.* has 6x5 pixels but"):
    picture_folder.load(folder)


def test_picture_folder_pads_no_smaller_pictures(folder):
  # The largest of each split are as large, so that nothing but the padding would differ.
  for split in ("train", "test"):
    _write_picture(next((folder / split).glob("*/*")), 0, height=6)
  with pytest.raises(ValueError, match="must have the same size"):
    picture_folder.load(folder)


def test_picture_folder_names_a_file_that_is_no_picture(folder):
  (folder / "train/bee/0.jpg").write_bytes(b"not a picture")
  with pytest.raises(ValueError, match=r"train/bee/0.jpg cannot be decoded"):
    picture_folder.load(folder)


def test_picture_folder_names_a_gif_of_another_name(folder):
  picture = np.zeros((2, 2, 3), np.uint8)
  Image.fromarray(picture).save(folder / "train/bee/0.jpg", format="gif")
  with pytest.raises(InputError, match=r"train/bee/0.jpg is a GIF, whatever its name"):
    picture_folder.load(folder)


@pytest.mark.parametrize("name", ["3.bmp", "3.GIF", "3.webp"])
def test_picture_folder_leaves_no_picture_out(folder, name):
  """Of a class that has others, or of one that has no others and would be empty."""
  (folder / "train/bee" / name).write_bytes(b"a picture")
  with pytest.raises(InputError, match=f"train/bee/{name} is none of the pictures"):
    picture_folder.load(folder)


def test_picture_folder_leaves_out_what_is_hidden(folder):
  """As the file in which a Mac keeps what it knows of a picture that is gone."""
  before = len(picture_folder.load(folder).train_y)
  (folder / "train/bee/._3.gif").write_bytes(b"of a Mac")
  assert len(picture_folder.load(folder).train_y) == before


@pytest.mark.parametrize("place", ["train/ant/2.png", "train/ant"])
def test_picture_folder_names_what_is_not_utf_8(folder, place):
  for split in ("train", "test"):
    path = folder / place.replace("train", split)
    if path.exists():
      path.rename(path.with_name(os.fsdecode(b"\xff\xe9.png")))
  with pytest.raises(InputError, match=r"\\udcff\\udce9\.png.* is not UTF-8: rename"):
    picture_folder.load(folder)


def test_picture_folder_refuses_wrong_classes(folder):
  with pytest.raises(ValueError, match="3 class folders: 10 are expected"):
    picture_folder.load(folder, num_classes=10)
  (folder / "test/dog").mkdir()
  with pytest.raises(ValueError, match="test holds the class folder dog"):
    picture_folder.load(folder)


def test_picture_folder_refuses_an_empty_split(folder):
  for path in (folder / "test").glob("*/*"):
    path.unlink()
  with pytest.raises(ValueError, match="test holds no picture"):
    picture_folder.load(folder)


def test_picture_folder_refuses_other_folders_with_classes(folder):
  (folder / "other/aaa").mkdir(parents=True)
  with pytest.raises(ValueError, match="other folders beside train/ and test/"):
    picture_folder.load(folder)


@pytest.mark.parametrize("top", ["", "all/", "./all"])
def test_picture_folder_tells_how_to_unpack(top, folder, tmp_path):
  place = tmp_path / "with a space"
  place.mkdir()
  with tarfile.open(place / "pictures.tar", "w") as archive:
    archive.add(folder, arcname=top or ".", filter=_as_tar_names_it(top))
  with pytest.raises(dataset.DataMissingError, match=r"pictures.tar") as caught:
    picture_folder.load(place)
  assert "\n" not in str(caught.value)
  command = shlex.split(str(caught.value).split("`")[1])
  subprocess.run(command, check=True)
  assert picture_folder.load(place).num_classes == 3


def _as_tar_names_it(top):
  """Python leaves out the "./" that GNU tar keeps."""

  def renamed(member):
    if top.startswith("./"):
      member.name = f"./{member.name}"
    return member

  return renamed


def test_picture_folder_that_is_the_archive(folder, tmp_path):
  with tarfile.open(tmp_path / "pictures.tar", "w") as archive:
    archive.add(folder, arcname=".")
  with pytest.raises(dataset.DataMissingError, match="run `tar -xf"):
    picture_folder.load(tmp_path / "pictures.tar")


@pytest.mark.parametrize("content", [None, b"no archive"])
def test_picture_folder_without_pictures(content, tmp_path):
  if content:
    (tmp_path / "x.tar").write_bytes(content)
  with pytest.raises(dataset.DataMissingError, match="name a folder that does"):
    picture_folder.load(tmp_path)


@pytest.mark.parametrize(
  "file, said",
  [
    ("train/cat/1.jpg", "JPEG CIFAR-{}"),
    ("train/cat/1.JPG", "JPEG CIFAR-{}"),
    ("test/cat/1.Jpeg", "JPEG CIFAR-{}"),
    ("train/cat/1.png", "CIFAR-{} from a folder of pictures"),
    ("cifar10.tar", "CIFAR-{} from a folder of pictures"),
    ("cifar-10.tar.gz", None),
  ],
)
@pytest.mark.parametrize("num_classes", [10, 100])
def test_cifar_says_what_its_pictures_are(monkeypatch, tmp_path, file, said, num_classes):
  """JPEG's are not the publishers' pixels; what TFDS prepares is."""
  (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
  (tmp_path / file).touch()
  monkeypatch.setattr(picture_folder, "load", _of_counts(50_000, 10_000))
  monkeypatch.setattr(tfds_images, "load", lambda *given: given)
  found = parts.cifar(num_classes)(str(tmp_path), str(tmp_path / "cache"))
  if said is None:
    assert found == (f"cifar{num_classes}", str(tmp_path))
  else:
    assert (found.num_classes, found.note) == (num_classes, said.format(num_classes))


def _of_counts(num_train, num_test):
  def load(folder, *, num_classes, note, cache_dir):
    del folder, cache_dir
    x, y = np.zeros((60_000, 0), np.uint8), np.zeros(60_000, np.int32)
    both = x[:num_train], y[:num_train], x[:num_test], y[:num_test]
    return dataset.Dataset(*both, num_classes, note)

  return load


def test_cifar_in_part_says_so(monkeypatch, tmp_path):
  """As an archive that was cut short unpacks."""
  (tmp_path / "train/cat").mkdir(parents=True)
  (tmp_path / "train/cat/1.jpg").touch()
  monkeypatch.setattr(picture_folder, "load", _of_counts(50_000, 9_910))
  expected = "JPEG CIFAR-10, 50,000 + 9,910 pictures of 50,000 + 10,000"
  assert parts.cifar(10)(str(tmp_path), str(tmp_path / "cache")).note == expected


def test_cifar_that_is_the_archive_says_how_to_unpack_it(folder, tmp_path):
  with tarfile.open(tmp_path / "cifar10.tar", "w") as archive:
    archive.add(folder, arcname=".")
  with pytest.raises(dataset.DataMissingError, match="run `tar -xf"):
    parts.cifar(10)(str(tmp_path / "cifar10.tar"), str(tmp_path / "cache"))
  (folder / "train").rename(tmp_path / "gone")
  with pytest.raises(dataset.DataMissingError, match="does not hold train/ and test/"):
    parts.cifar(10)(str(folder), str(tmp_path / "cache"))


def test_what_tfds_has_prepared_is_taken_whatever_is_beside_it(monkeypatch, tmp_path):
  (tmp_path / "cifar10/3.0.2").mkdir(parents=True)
  (tmp_path / "other.tar").touch()
  monkeypatch.setattr(tfds_images, "load", lambda *given: given)
  assert parts.cifar(10)(str(tmp_path), "cache") == ("cifar10", str(tmp_path))


# --- Real data ----------------------------------------------------------------------


@pytest.mark.real_data
def test_real_mnist(shared_data_dir, no_network, tmp_path):
  archives = shared_data_dir / "mnist"
  if not archives.is_dir():
    pytest.skip(f"no real MNIST: {archives} is missing")
  _import("mnist", archives, tmp_path)
  data = tfds_images.load("mnist", str(tmp_path))
  assert data.train_x.shape == (60000, 28, 28, 1)
  assert data.test_x.shape == (10000, 28, 28, 1)
  assert data.train_x.dtype == np.uint8
  # The published counts of each digit, and the mean that everybody normalises with.
  assert list(np.bincount(data.train_y)) == [
    *(5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)
  ]
  assert list(np.bincount(data.test_y)) == [
    *(980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009)
  ]
  assert data.train_x.mean() / 255 == pytest.approx(0.1307, abs=5e-5)


def test_real_cifar10_jpeg(shared_data_dir, tmp_path):
  path = shared_data_dir / "cifar10_jpeg/CIFAR-10-images.tar"
  if not path.is_file():
    pytest.skip(f"no real JPEG CIFAR-10: {path} is missing")
  taken: collections.Counter[str] = collections.Counter()
  with tarfile.open(path) as archive:
    for member in archive:
      place = os.path.dirname(member.name)
      if member.isfile() and place.count("/") == 1 and taken[place] < 1:
        taken[place] += 1
        archive.extract(member, tmp_path)
  data = picture_folder.load(tmp_path, num_classes=10)
  # CIFAR-10's own numbering.
  names = [
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
  ]
  for split, x, y in (
    ("train", data.train_x, data.train_y),
    ("test", data.test_x, data.test_y),
  ):
    assert x.shape == (10, 32, 32, 3)
    assert sorted(y) == list(range(10))
    for picture, label in zip(x, y):
      [source] = (tmp_path / split / names[label]).iterdir()
      # Another decoder; decoders may round differently.
      expected = np.asarray(Image.open(source).convert("RGB"), int)
      assert np.abs(picture - expected).mean() < 2
