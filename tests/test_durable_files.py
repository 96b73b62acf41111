"""Files that are whole or not there."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import sqlite3
import subprocess
import sys
import time

import pytest
import tensorflow as tf

from tff_algos import durable_files


def test_a_new_file_takes_the_place_of_the_old(tmp_path):
  path = tmp_path / "file"
  path.write_text("old")
  with durable_files.new_file(str(path), "w") as file:
    file.write("new")
    file.flush()
    assert path.read_text() == "old"
  assert path.read_text() == "new"
  assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_what_fails_leaves_the_old_one_alone(tmp_path, error):
  path = tmp_path / "file"
  path.write_text("old")
  with pytest.raises(error), durable_files.new_file(str(path), "w") as file:
    file.write("half")
    raise error
  assert path.read_text() == "old"
  assert os.listdir(tmp_path) == ["file"]


def test_text_is_utf_8_whatever_the_language(tmp_path):
  code = (
    "import sys\nfrom tff_algos import durable_files\n"
    "with durable_files.new_file(sys.argv[1], 'w') as f:\n  f.write(chr(177))\n"
  )
  plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
  subprocess.run(
    [sys.executable, "-c", code, str(tmp_path / "text")],
    env={**os.environ, **plain},
    check=True,
    timeout=300,
  )
  assert (tmp_path / "text").read_bytes() == "\u00b1".encode()


def test_pipe_is_written_to_and_stays_one(tmp_path):
  """As a device does: `--out=/dev/stdout`."""
  path = tmp_path / "pipe"
  os.mkfifo(path)
  reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
  with durable_files.new_file(str(path), "w") as file:
    file.write("content")
  assert os.read(reader, 99) == b"content"
  os.close(reader)
  assert path.is_fifo() and os.listdir(tmp_path) == ["pipe"]


def _watched(monkeypatch) -> list[tuple[str, str]]:
  """What is synced and renamed from here on, in order, by the names of then."""
  happened: list[tuple[str, str]] = []
  fsync, replace = os.fsync, os.replace

  def sync(handle):
    name = os.readlink(f"/proc/self/fd/{handle}")
    happened.append(("sync", os.path.basename(name)))
    fsync(handle)

  def rename(source, target):
    happened.append(("rename", os.path.basename(target)))
    replace(source, target)

  monkeypatch.setattr(os, "fsync", sync)
  monkeypatch.setattr(os, "replace", rename)
  return happened


def test_content_reaches_the_disk_before_its_name_does(tmp_path, monkeypatch):
  happened = _watched(monkeypatch)
  with durable_files.new_file(str(tmp_path / "file")) as file:
    file.write(b"content")
  assert happened == [
    ("sync", "file.unfinished"),
    ("rename", "file"),
    ("sync", tmp_path.name),
  ]


def test_a_tree_is_synced_with_all_that_it_holds(tmp_path, monkeypatch):
  (tmp_path / "tree/inner").mkdir(parents=True)
  for name in ("tree/a", "tree/inner/b"):
    (tmp_path / name).write_text(name)
  happened = _watched(monkeypatch)
  durable_files.sync_tree(str(tmp_path / "tree"))
  assert sorted(name for _, name in happened) == ["a", "b", "inner", "tree"]
  happened.clear()
  durable_files.sync_tree(str(tmp_path / "tree/a"))
  assert happened == [("sync", "a")]


_FULL = "No space left on device"


@pytest.mark.parametrize(
  "error, number",
  [
    (OSError(errno.ENOSPC, _FULL), errno.ENOSPC),
    (OSError(errno.EDQUOT, "Disk quota exceeded", "/a/file.unfinished"), errno.EDQUOT),
    (PermissionError(errno.EACCES, "Permission denied", "/a/file"), errno.EACCES),
    (OSError(errno.EIO, "Input/output error", b"/a/other"), errno.EIO),
    (tf.errors.ResourceExhaustedError(None, None, f"/a/file; {_FULL}"), errno.ENOSPC),
    (OSError(f"Can't write data (error message = '{_FULL}', ...)"), errno.ENOSPC),
    (sqlite3.OperationalError("database or disk is full"), errno.ENOSPC),
    (sqlite3.OperationalError("disk I/O error"), errno.EIO),
  ],
)
def test_error_of_the_disk_names_what_was_written(error, number):
  with pytest.raises(OSError) as caught, durable_files.writing("/a/file"):
    raise error
  assert (caught.value.errno, caught.value.filename) == (number, "/a/file")
  assert caught.value.strerror == os.strerror(number)


@pytest.mark.parametrize(
  "error",
  [
    FileNotFoundError(errno.ENOENT, "No such file", "/a/file"),
    OSError(errno.ENOSPC, _FULL, "/b/file"),
    OSError(errno.ENOSPC, _FULL, "/ab/file"),
    tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor"),
    sqlite3.OperationalError("database is locked"),
    ValueError("inside"),
  ],
)
def test_any_other_error_stays_what_it_is(error):
  with pytest.raises(type(error)) as caught, durable_files.writing("/a/file"):
    raise error
  assert caught.value is error


def test_picture_is_whole_or_not_there(tmp_path):
  class Figure:
    def savefig(self, file, **options):
      file.write(b"half")
      raise OSError(errno.ENOSPC, _FULL)

  path = tmp_path / "a.png"
  with pytest.raises(OSError) as caught:
    durable_files.save_picture(Figure(), path)
  assert caught.value.filename == str(path)
  assert os.listdir(tmp_path) == []


_NAME = f"unfinished-{'0' * 32}"


def test_unfinished_folder_is_gone_unless_it_has_another_name(tmp_path):
  for fails in (False, True):
    with contextlib.ExitStack() as stack:
      stack.enter_context(contextlib.suppress(KeyError))
      folder = stack.enter_context(durable_files.unfinished_folder(str(tmp_path)))
      assert pathlib.Path(folder).parent == tmp_path
      if fails:
        raise KeyError
    assert not [*tmp_path.iterdir()]
  with durable_files.unfinished_folder(str(tmp_path)) as folder:
    pathlib.Path(folder, "a").touch()
    durable_files.replace(folder, str(tmp_path / "whole"))
  assert [p.name for p in tmp_path.rglob("*")] == ["whole", "a"]


def test_what_was_killed_leaves_goes_and_nothing_else(tmp_path):
  """Of days ago: what has the lock, what is young, and what a user calls so stay."""
  old = time.time() - 48 * 3600
  (tmp_path / _NAME / "inner").mkdir(parents=True)
  mine, young = tmp_path / "unfinished-thoughts", tmp_path / _NAME.replace("0", "1")
  mine.mkdir()
  young.mkdir()
  for path in (tmp_path / _NAME, mine):
    os.utime(path, (old, old))
  with durable_files.unfinished_folder(str(tmp_path)) as first:
    assert not (tmp_path / _NAME).exists()
    os.utime(first, (old, old))
    with durable_files.unfinished_folder(str(tmp_path)) as second:
      assert {*tmp_path.iterdir()} == {mine, young, *map(pathlib.Path, (first, second))}
  assert {*tmp_path.iterdir()} == {mine, young}
