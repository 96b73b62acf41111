"""Import of archives into TFDS's download cache."""

from __future__ import annotations

import hashlib
import os
import pathlib

import pytest
import tensorflow_datasets as tfds
from tensorflow_datasets.core.download import resource
from tensorflow_datasets.image_classification import mnist

from tasks.datasets import import_archives, tfds_images

_CONTENT = {"images.gz": b"pictures", "labels.gz": b"the labels"}


@pytest.fixture
def builder(monkeypatch, tmp_path):
  """A data set whose publisher offers the two files of `_CONTENT`."""
  infos = {
    f"https://example.org/data/{name}": tfds.download.checksums.UrlInfo(
      size=tfds.core.utils.Size(len(content)),
      checksum=hashlib.sha256(content).hexdigest(),
      filename=name,
    )
    for name, content in _CONTENT.items()
  }
  monkeypatch.setattr(mnist.MNIST, "url_infos", infos)
  return tfds_images.find_builder("mnist", str(tmp_path / "tfds"))


@pytest.fixture
def folder(tmp_path) -> pathlib.Path:
  """The user's folder with both files."""
  root = tmp_path / "mine"
  root.mkdir()
  for name, content in _CONTENT.items():
    (root / name).write_bytes(content)
  return root


def _cached(tmp_path: pathlib.Path) -> list[str]:
  return sorted(
    str(path.relative_to(tmp_path / "tfds"))
    for path in (tmp_path / "tfds").rglob("*")
    if path.is_file()
  )


def _import_fails(builder, folder) -> list[str]:
  with pytest.raises(import_archives.ArchiveError) as caught:
    import_archives.import_archives(builder, folder)
  for problem in caught.value.problems:
    assert "\n" not in problem
  return list(caught.value.problems)


def test_imported_archives_are_where_tfds_looks(builder, folder):
  assert len(import_archives.missing_archives(builder)) == 2
  imported = import_archives.import_archives(builder, folder)
  assert import_archives.missing_archives(builder) == []
  assert [source for _, source in imported] == [folder / name for name in _CONTENT]
  # TFDS's own download manager finds them; a download would fail.
  manager = tfds.download.DownloadManager(
    download_dir=os.path.join(builder.data_dir_root, "downloads"),
    url_infos=builder.url_infos,
  )
  for (url, info), content in zip(builder.url_infos.items(), _CONTENT.values()):
    path = manager.download(url)
    assert path.read_bytes() == content
    assert resource.read_info_file(path)["original_fname"] == info.filename


def test_files_are_recognised_whatever_their_names(builder, folder):
  (folder / "images.gz").rename(folder / "download (1)")
  (folder / "labels.gz").rename(folder / "images.gz")
  imported = import_archives.import_archives(builder, folder)
  assert [source.name for _, source in imported] == ["download (1)", "images.gz"]
  for archive, _ in imported:
    assert archive.path.read_bytes() == _CONTENT[archive.file_name]


def test_second_import_needs_no_files(builder, folder, tmp_path):
  import_archives.import_archives(builder, folder)
  (tmp_path / "empty").mkdir()
  again = import_archives.import_archives(builder, tmp_path / "empty")
  assert [source for _, source in again] == [None, None]


@pytest.mark.parametrize("content", [b"pict", b"PICTURES"], ids=["cut", "changed"])
def test_damaged_file_in_the_cache_is_replaced(content, builder, folder):
  first, _ = import_archives.import_archives(builder, folder)
  first.archive.path.write_bytes(content)
  again = import_archives.import_archives(builder, folder)
  assert [source for _, source in again] == [folder / "images.gz", None]
  assert first.archive.path.read_bytes() == b"pictures"


def test_file_that_was_cut_short_in_the_cache_is_missing(builder, folder):
  first, _ = import_archives.import_archives(builder, folder)
  first.archive.path.write_bytes(b"pict")
  assert import_archives.missing_archives(builder) == [first.archive]


def test_what_tfds_noted_of_a_file_that_is_gone_is_not_kept(builder, folder):
  """It may be cut short too, or of another name."""
  archive = import_archives.import_archives(builder, folder)[0].archive
  note = archive.path.with_name(f"{archive.path.name}.INFO")
  for noted in ("", note.read_text().replace("images.gz", "older.gz")):
    archive.path.unlink()
    note.write_text(noted)
    import_archives.import_archives(builder, folder)
    assert resource.read_info_file(archive.path)["original_fname"] == "images.gz"


def test_missing_file_is_named_and_nothing_left(builder, folder, tmp_path):
  (folder / "labels.gz").unlink()
  [problem] = _import_fails(builder, folder)
  assert "labels.gz (10 bytes, from https://example.org/data/labels.gz)" in problem
  assert str(folder) in problem
  assert _cached(tmp_path) == []


def test_each_missing_file_has_its_sentence(builder, tmp_path):
  (tmp_path / "empty").mkdir()
  first, second = _import_fails(builder, tmp_path / "empty")
  assert first.startswith("images.gz")
  assert second.startswith("labels.gz")


def test_same_name_and_size_with_another_content_is_told(builder, folder, tmp_path):
  wrong = b"THE LABELS"
  (folder / "labels.gz").write_bytes(wrong)
  [problem] = _import_fails(builder, folder)
  assert f"{folder / 'labels.gz'} has that name and size" in problem
  assert hashlib.sha256(wrong).hexdigest() in problem
  assert hashlib.sha256(_CONTENT["labels.gz"]).hexdigest() in problem
  assert _cached(tmp_path) == []


def test_same_name_with_another_size_is_told(builder, folder):
  (folder / "labels.gz").write_bytes(b"half")
  [problem] = _import_fails(builder, folder)
  assert f"{folder / 'labels.gz'} has that name but 4 bytes" in problem


def test_unpacked_file_is_told(builder, folder):
  (folder / "labels.gz").unlink()
  (folder / "labels").write_bytes(b"the labels, unpacked")
  [problem] = _import_fails(builder, folder)
  assert "only labels, which looks unpacked" in problem


def test_file_that_changes_while_copied_leaves_nothing(
  builder, folder, tmp_path, monkeypatch
):
  copy = import_archives._copy_file

  def change_then_copy(source, target):
    if source.name == "labels.gz":
      source.write_bytes(b"other stuff")
    return copy(source, target)

  monkeypatch.setattr(import_archives, "_copy_file", change_then_copy)
  [problem] = _import_fails(builder, folder)
  assert "labels.gz changed while it was copied" in problem
  assert _cached(tmp_path) == []


@pytest.mark.parametrize(
  "place, call", [(import_archives, "_copy_file"), (resource, "write_info_file")]
)
@pytest.mark.parametrize("error", [OSError(28, "No space left"), KeyboardInterrupt()])
def test_interrupted_import_leaves_nothing(
  place, call, error, builder, folder, tmp_path, monkeypatch
):
  original = getattr(place, call)
  calls = []

  def fail_second(*args, **kwargs):
    calls.append(args)
    result = original(*args, **kwargs)
    if len(calls) == 2:
      raise error
    return result

  monkeypatch.setattr(place, call, fail_second)
  expected = (
    import_archives.ArchiveError if isinstance(error, OSError) else KeyboardInterrupt
  )
  with pytest.raises(expected):
    import_archives.import_archives(builder, folder)
  assert len(calls) == 2
  assert _cached(tmp_path) == []


def test_import_that_fails_leaves_archives_that_were_there(
  builder, folder, tmp_path, monkeypatch
):
  """Put into the cache by hand, which is the folder that is imported from."""
  downloads = tmp_path / "tfds/downloads"
  downloads.mkdir(parents=True)
  for archive in import_archives.published_archives(builder):
    (folder / archive.file_name).rename(archive.path)
  before = _cached(tmp_path)

  def fail(**options):
    raise OSError(28, "No space left")

  monkeypatch.setattr(resource, "write_info_file", fail)
  [problem] = _import_fails(builder, downloads)
  assert "nothing was imported" in problem
  assert _cached(tmp_path) == before and len(before) == 2


def test_data_dir_that_is_a_file(builder, folder, tmp_path):
  (tmp_path / "tfds").write_text("")
  [problem] = _import_fails(builder, folder)
  assert f"cannot be copied to {tmp_path / 'tfds/downloads'}" in problem


@pytest.mark.parametrize("kind", ["absent", "file"])
def test_folder_that_is_none(kind, builder, tmp_path):
  if kind == "file":
    (tmp_path / "x").write_text("")
  [problem] = _import_fails(builder, tmp_path / "x")
  assert f"{tmp_path / 'x'} is not a folder" in problem


def test_set_without_published_checksums(builder, folder, monkeypatch):
  monkeypatch.setattr(mnist.MNIST, "url_infos", None)
  [problem] = _import_fails(builder, folder)
  assert "TFDS publishes no checksums for mnist" in problem


def test_archives_are_on_the_disk_before_they_have_their_names(builder, folder, named):
  made = import_archives.import_archives(builder, folder)
  assert len(made) == 2
  assert len(named) >= 2 and all(is_on_disk for _, is_on_disk in named)
