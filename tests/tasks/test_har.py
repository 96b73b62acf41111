"""UCI HAR: an archive of a few windows in the publisher's layout, and the real one.

Reading t of channel k of window i is i + 0.01 * k + 0.0001 * t, in the test split with
the other sign.
"""

from __future__ import annotations

import io
import pathlib
import shutil
import zipfile

import numpy as np
import pytest

from tasks import registry
from tasks.datasets import har
from tasks.datasets.dataset import DataMissingError
from tff_algos.errors import InputError

_TOP = "UCI HAR Dataset"
_CHANNELS = (
  "body_acc_x",
  "body_acc_y",
  "body_acc_z",
  "body_gyro_x",
  "body_gyro_y",
  "body_gyro_z",
  "total_acc_x",
  "total_acc_y",
  "total_acc_z",
)
# The publisher's numbers of activities and volunteers.
_Y = {"train": [5, 1, 2, 6, 3, 4, 5], "test": [6, 1, 5]}
_SUBJECTS = {"train": [1, 1, 3, 3, 3, 30, 30], "test": [2, 2, 24]}
_UNUSED = {
  "README.txt": "not data\n",
  "activity_labels.txt": "1 WALKING\n",
  "train/X_train.txt": "not windows\n",
}
_GYRO = "train/Inertial Signals/body_gyro_y_train.txt"


def _windows(split: str) -> np.ndarray:
  i = np.arange(len(_Y[split]))[:, np.newaxis, np.newaxis]
  t, k = np.arange(128)[:, np.newaxis], np.arange(9)
  return (i + 0.01 * k + 0.0001 * t) * (1 if split == "train" else -1)


def _published(number: float) -> str:
  """As the publisher prints numbers: two spaces or a sign, three digits of exponent."""
  digits, exponent = f"{number: .7e}".split("e")
  return f" {digits}e{int(exponent):+04d}"


def _files() -> dict[str, bytes]:
  files = dict(_UNUSED)
  for split in ("train", "test"):
    files[f"{split}/y_{split}.txt"] = "".join(f"{y}\n" for y in _Y[split])
    files[f"{split}/subject_{split}.txt"] = "".join(f"{s}\n" for s in _SUBJECTS[split])
    for k, channel in enumerate(_CHANNELS):
      files[f"{split}/Inertial Signals/{channel}_{split}.txt"] = "".join(
        "".join(map(_published, window)) + "\n" for window in _windows(split)[..., k]
      )
  return {name: text.encode() for name, text in files.items()}


def _write_folder(folder: pathlib.Path, files: dict[str, bytes]) -> pathlib.Path:
  for name, content in files.items():
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
  return folder


def _zip(files: dict[str, bytes]) -> bytes:
  buffer = io.BytesIO()
  with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
    for name, content in files.items():
      archive.writestr(name, content)
  return buffer.getvalue()


def _packed(files: dict[str, bytes]) -> bytes:
  """The archive as published, with what a Macintosh adds."""
  return _zip(
    {
      "__MACOSX/UCI HAR Dataset/train/y_train.txt": b"\0",
      **{f"{_TOP}/{name}": content for name, content in files.items()},
    }
  )


def _assert_right(data) -> None:
  np.testing.assert_allclose(data.train_x, _windows("train"), atol=1e-6)
  np.testing.assert_allclose(data.test_x, _windows("test"), atol=1e-6)
  assert data.train_x.dtype == data.test_x.dtype == np.float32
  assert data.train_y.dtype == data.test_y.dtype == np.int32
  assert list(data.train_y) == [4, 0, 1, 5, 2, 3, 4]
  assert list(data.test_y) == [5, 0, 4]
  assert data.num_classes == 6


# --- Where the data may be ----------------------------------------------------------


def test_channels_have_the_documented_order():
  assert har.CHANNELS == _CHANNELS


@pytest.mark.parametrize("place", ["", _TOP])
def test_folder_is_read(tmp_path, place):
  _write_folder(tmp_path / _TOP, _files())
  _assert_right(har.load(tmp_path / place))


@pytest.mark.parametrize("place", ["", "har.zip"])
@pytest.mark.parametrize("pack", ["published", "without a top folder", "packed twice"])
def test_archive_is_read_without_unpacking(tmp_path, pack, place):
  content = _zip(_files()) if pack == "without a top folder" else _packed(_files())
  if pack == "packed twice":
    content = _zip({"UCI HAR Dataset.names": b"a text", "UCI HAR Dataset.zip": content})
  (tmp_path / "har.zip").write_bytes(content)
  (tmp_path / "another.zip").write_bytes(_zip({"train/y_train.csv": b"1\n"}))
  _assert_right(har.load(tmp_path / place))
  assert {path.name for path in tmp_path.iterdir()} == {"har.zip", "another.zip"}


def test_folder_in_the_home_folder(tmp_path, monkeypatch):
  monkeypatch.setenv("HOME", str(tmp_path))
  _write_folder(tmp_path / "data", _files())
  _assert_right(har.load("~/data"))


def test_volunteers_are_read(tmp_path):
  train, test = har.read(_write_folder(tmp_path, _files()))
  assert list(train.subjects) == _SUBJECTS["train"]
  assert list(test.subjects) == _SUBJECTS["test"]
  assert train.subjects.dtype == np.int32


@pytest.mark.parametrize(
  "counts, note",
  [
    ((7352, 2947), ""),
    ((7415, 2996), "HAPT windows"),
    ((7415, 2947), "7,415 + 2,947 windows, not UCI HAR's"),
  ],
)
def test_note_tells_where_the_windows_are_from(monkeypatch, counts, note):
  def read(data_dir):
    del data_dir
    return tuple(
      har.Split(np.zeros((n, 1), np.float32), np.zeros(n, np.int32), np.ones(n, np.int32))
      for n in counts
    )

  monkeypatch.setattr(har, "read", read)
  assert har.load(None).note == note


def test_task_loads_it(tmp_path):
  """The split of the task needs more windows than these few."""
  _write_folder(tmp_path / _TOP, _files())
  loaded = registry.load(
    registry.get("har_lstm"),
    data_dir=str(tmp_path),
    cache_dir=str(tmp_path / "cache"),
    partition="iid",
    num_clients=2,
    partition_seed=0,
    model_seed=0,
  )
  assert loaded.note == "7 + 3 windows, not UCI HAR's"
  assert loaded.model.num_weights == 5_822
  assert sorted(loaded.clients.num_examples) == [3, 4]
  x, _ = loaded.clients.examples("client_0", loaded.model.example_spec)
  # Windows are no pictures: nothing is scaled.
  np.testing.assert_array_equal(loaded.model.preprocess(x), x)


# --- What cannot be loaded ----------------------------------------------------------


def _assert_one_sentence(caught, *words: str) -> None:
  message = str(caught.value)
  assert "\n" not in message
  for word in ("https://archive.ics.uci.edu/dataset/240", *words):
    assert word in message


def test_no_folder_is_named():
  with pytest.raises(DataMissingError, match="name the folder") as caught:
    har.load(None)
  _assert_one_sentence(caught)


@pytest.mark.parametrize("content", [None, "empty", "other files", "another archive"])
def test_data_are_not_there(tmp_path, content):
  folder = tmp_path / "data"
  if content:
    folder.mkdir()
  if content == "other files":
    (folder / "train").mkdir()
    (folder / "train/X_train.txt").write_text("1\n")
  if content == "another archive":
    (folder / "a.zip").write_bytes(_zip({"train/x.txt": b"1\n"}))
  with pytest.raises(DataMissingError, match="holds neither") as caught:
    har.load(folder)
  _assert_one_sentence(caught, str(folder))


@pytest.mark.parametrize("name", sorted(_files().keys() - _UNUSED.keys()))
def test_every_missing_file_is_named(tmp_path, name):
  files = _files()
  del files[name]
  _write_folder(tmp_path, files)
  with pytest.raises(DataMissingError, match=name) as caught:
    har.load(tmp_path)
  _assert_one_sentence(caught, str(tmp_path))


def test_missing_split_is_named_in_an_archive(tmp_path):
  files = {name: text for name, text in _files().items() if "test" not in name}
  (tmp_path / "har.zip").write_bytes(_packed(files))
  with pytest.raises(DataMissingError, match=r"lacks test/y_test.txt and 10 other") as c:
    har.load(tmp_path)
  _assert_one_sentence(c, str(tmp_path / "har.zip"))


def _cut_line(content: bytes) -> bytes:
  lines = content.splitlines()
  return b"\n".join([lines[0], lines[1][: len(lines[1]) // 2], *lines[2:]])


@pytest.mark.parametrize(
  "name, damage, reason",
  [
    (_GYRO, lambda content: b"", "it is empty"),
    (_GYRO, lambda content: b"\n \n", "it is empty"),
    (_GYRO, _cut_line, "number of columns changed from 128 to 64"),
    (_GYRO, lambda content: content[: len(content) // 2], "number of columns changed"),
    (_GYRO, lambda content: content.partition(b"\n")[2], "6 lines, but .* 7 labels"),
    (_GYRO, lambda content: b"1.0\n" * 7, "1 numbers in a line instead of 128"),
    (_GYRO, lambda content: content.replace(b"e", b"x", 1), "could not convert"),
    (_GYRO, lambda content: b"#" + content, "could not convert"),
    (_GYRO, lambda content: b"\xff\xfe" + content, "could not convert"),
    (_GYRO, lambda content: b" nan" * 128 + content.partition(b"\n")[2], "columns"),
    (_GYRO, lambda content: (b" nan" * 128 + b"\n") * 7, "not finite"),
    ("train/y_train.txt", lambda content: b"5.5\n" * 7, "not whole"),
    ("train/y_train.txt", lambda content: content + b"1\n", None),
    ("test/subject_test.txt", lambda content: b"1\n", "1 lines, but there are 3 labels"),
  ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_damaged_file_is_named(tmp_path, name, damage, reason, packed):
  files = _files()
  files[name] = damage(files[name])
  if packed:
    (tmp_path / "har.zip").write_bytes(_packed(files))
  else:
    _write_folder(tmp_path, files)
  # A label too many is noticed at the next file.
  named = name if reason else "train/subject_train.txt"
  with pytest.raises(ValueError, match=reason or "7 lines, but there are 8") as caught:
    har.load(tmp_path)
  _assert_one_sentence(caught, f"{named} is damaged", str(tmp_path))


@pytest.mark.parametrize("label", [0, 7, -1])
def test_unknown_activity_is_named(tmp_path, label):
  files = _files()
  files["test/y_test.txt"] = f"1\n{label}\n3\n".encode()
  _write_folder(tmp_path, files)
  with pytest.raises(ValueError, match=f"holds the activity {label}") as caught:
    har.load(tmp_path)
  _assert_one_sentence(caught, "test/y_test.txt")


def test_archive_with_a_damaged_name_is_named(tmp_path):
  content = _packed(_files())
  # In the list of contents: the first name is said to be UTF-8, and is not.
  start = content.index(b"PK\x01\x02")
  damaged = bytearray(content)
  damaged[start + 9] |= 8
  damaged[start + 46] = 0xFF
  (tmp_path / "har.zip").write_bytes(damaged)
  with pytest.raises(InputError, match="cannot be read") as caught:
    har.load(tmp_path)
  _assert_one_sentence(caught, "har.zip")


@pytest.mark.parametrize("place", ["", "har.zip"])
def test_archive_cut_short_is_named(tmp_path, place):
  content = _packed(_files())
  (tmp_path / "har.zip").write_bytes(content[: len(content) // 2])
  with pytest.raises(ValueError, match="cannot be read") as caught:
    har.load(tmp_path / place)
  _assert_one_sentence(caught, str(tmp_path / "har.zip"))


def test_archive_with_a_flipped_byte_is_named(tmp_path):
  content = bytearray(_packed(_files()))
  with zipfile.ZipFile(io.BytesIO(content)) as archive:
    start = archive.getinfo(f"{_TOP}/{_GYRO}").header_offset
  content[start + 300] ^= 0xFF
  (tmp_path / "har.zip").write_bytes(content)
  with pytest.raises(ValueError, match="is damaged") as caught:
    har.load(tmp_path)
  _assert_one_sentence(caught, _GYRO)


def test_two_archives_are_not_chosen_from(tmp_path):
  (tmp_path / "a.zip").write_bytes(_packed(_files()))
  shutil.copy(tmp_path / "a.zip", tmp_path / "b.zip")
  with pytest.raises(ValueError, match=r"several.*a\.zip and .*b\.zip: name one"):
    har.load(tmp_path)
  _assert_right(har.load(tmp_path / "b.zip"))


def test_unreadable_file_is_named(tmp_path, monkeypatch):
  _write_folder(tmp_path, _files())
  read = pathlib.Path.read_bytes

  def refuse(path):
    if path.name.startswith("body_gyro_y"):
      raise PermissionError(13, "Permission denied")
    return read(path)

  monkeypatch.setattr(pathlib.Path, "read_bytes", refuse)
  with pytest.raises(ValueError, match="Permission denied") as caught:
    har.load(tmp_path)
  _assert_one_sentence(caught, _GYRO)


# --- Real data ----------------------------------------------------------------------


@pytest.mark.real_data
def test_real_windows(shared_data_dir):
  folder = shared_data_dir / "har"
  if not folder.is_dir():
    pytest.skip(f"no real HAR: {folder} is missing")
  train, test = har.read(folder)
  published = (len(train.y), len(test.y)) == (7352, 2947)
  if not published:
    assert har.load(folder).note == "HAPT windows"
    assert list(np.bincount(train.y)) == [1226, 1073, 987, 1293, 1423, 1413]
    assert list(np.bincount(test.y)) == [496, 471, 420, 508, 556, 545]
  # The publisher's 21 volunteers for training and 9 for testing.
  testers = {2, 4, 9, 10, 12, 13, 18, 20, 24}
  assert set(test.subjects) == testers
  assert set(train.subjects) == set(range(1, 31)) - testers
  for split in (train, test):
    assert split.x.shape == (len(split.y), 128, 9)
    assert split.x.dtype == np.float32
    body, gyro, total = split.x[..., :3], split.x[..., 3:6], split.x[..., 6:]
    assert np.abs(body).max() < 2
    assert 2 < np.abs(gyro).max() < 7
    assert np.abs(total).max() < 3
    # Gravity is 1 g, and who stands carries the telephone upright.
    standing = (total - body)[split.y == har.ACTIVITIES.index("standing")]
    gravity = standing.mean(axis=1)
    assert np.linalg.norm(gravity, axis=1).mean() == pytest.approx(1, abs=0.05)
    assert gravity[:, 0].mean() > 0.9
    # Walking shakes, sitting does not.
    shaking = np.linalg.norm(body.std(axis=1), axis=1)
    assert shaking[split.y < 3].min() > np.median(shaking[split.y >= 3])
