"""Puts archives that the user already has into TFDS's download cache.

TFDS keeps a downloaded archive in `<data_dir>/downloads` under a name made of its URL
and its published SHA-256, with an `.INFO` file beside it. An archive that lies there in
this way is used instead of a download, so a data set can be prepared without a network.
"""

from __future__ import annotations

import hashlib
import os
import pathlib
import uuid
from typing import NamedTuple

import tensorflow_datasets as tfds
from tensorflow_datasets.core.download import resource

from tff_algos.errors import InputError

_BLOCK = 1 << 20


class Archive(NamedTuple):
  """A file that a data set's publisher offers.

  Attributes:
    url: where TFDS downloads it from.
    file_name: its name as published.
    size: bytes.
    sha256: published checksum, 64 lower-case hexadecimal digits.
    path: where TFDS's download cache keeps it.
  """

  url: str
  file_name: str
  size: int
  sha256: str
  path: pathlib.Path


class Imported(NamedTuple):
  """An archive that is in the cache.

  Attributes:
    archive: the archive.
    source: the user's file it was copied from; None: it was there before.
  """

  archive: Archive
  source: pathlib.Path | None


class ArchiveError(InputError):
  """Archives cannot be imported.

  Attributes:
    problems: one sentence for each problem.
  """

  def __init__(self, *problems: str):
    super().__init__("\n".join(problems))
    self.problems = problems


def published_archives(builder: tfds.core.DatasetBuilder) -> list[Archive]:
  """The archives of the data set with the checksums that TFDS publishes for them.

  The list is TFDS's for the whole data set: if its configurations use different
  archives, those of all of them. It is empty if TFDS knows no checksums.
  """
  downloads = pathlib.Path(builder.data_dir_root) / "downloads"
  return [
    Archive(
      url=url,
      file_name=info.filename or tfds.core.utils.basename_from_url(url),
      size=int(info.size),
      sha256=info.checksum.lower(),
      path=downloads / resource.get_dl_fname(url, info.checksum),
    )
    for url, info in sorted((builder.url_infos or {}).items())
  ]


def missing_archives(builder: tfds.core.DatasetBuilder) -> list[Archive]:
  """Those of `published_archives` that are not in TFDS's download cache."""
  return [a for a in published_archives(builder) if not _is_cached(a)]


def import_archives(
  builder: tfds.core.DatasetBuilder, folder: str | os.PathLike[str]
) -> list[Imported]:
  """Copies the data set's archives from `folder` into TFDS's download cache.

  A file is recognised by its size and SHA-256, whatever its name. Either all archives
  that were missing are in the cache afterwards, or the cache is as it was.

  Args:
    builder: the data set.
    folder: the folder that holds the files; its subfolders are not searched.

  Returns:
    One `Imported` for each archive of the data set.

  Raises:
    ArchiveError: `folder` is no folder, TFDS publishes no checksums, an archive is
      missing or wrong, or it cannot be copied.
  """
  folder = pathlib.Path(folder).expanduser()
  if not folder.is_dir():
    raise ArchiveError(f"{folder} is not a folder: name the one that holds archives.")
  archives = published_archives(builder)
  if not archives:
    raise ArchiveError(
      f"TFDS publishes no checksums for {builder.name}, so files for it cannot be "
      f"recognised: prepare it with `tfds build {builder.name}` instead."
    )
  result, problems = [], []
  try:
    files = _Files(folder)
    for archive in archives:
      source = None
      if not _is_cached(archive) or _sha256(archive.path) != archive.sha256:
        source = files.find(archive)
        if source is None:
          problems.append(files.describe_absence(archive))
      result.append(Imported(archive, source))
  except OSError as error:
    raise ArchiveError(
      f"{error.filename} cannot be read ({error.strerror}): make it readable."
    ) from error
  if problems:
    raise ArchiveError(*problems)
  try:
    _copy([(a, source) for a, source in result if source], builder.name)
  except OSError as error:
    raise ArchiveError(
      f"the archives cannot be copied to {archives[0].path.parent} "
      f"({error.strerror or error}): nothing was imported."
    ) from error
  return result


def _info_path(archive: Archive) -> pathlib.Path:
  return archive.path.with_name(archive.path.name + ".INFO")


def _is_cached(archive: Archive) -> bool:
  # TFDS looks only at the names. The size costs nothing and finds a file cut short.
  return (
    _info_path(archive).is_file()
    and archive.path.is_file()
    and archive.path.stat().st_size == archive.size
  )


class _Files:
  """The files of a folder, with checksums computed once and only where needed."""

  def __init__(self, folder: pathlib.Path):
    self._folder = folder
    self._sizes = {
      path: path.stat().st_size for path in sorted(folder.iterdir()) if path.is_file()
    }
    self._sha256: dict[pathlib.Path, str] = {}

  def find(self, archive: Archive) -> pathlib.Path | None:
    for path, size in self._sizes.items():
      if size == archive.size and self._checksum(path) == archive.sha256:
        return path
    return None

  def describe_absence(self, archive: Archive) -> str:
    """Says in one sentence what there is in place of the archive."""
    wanted = f"{archive.file_name} ({archive.size:,} bytes, from {archive.url})"
    by_name = {path.name.lower(): path for path in self._sizes}
    same = by_name.get(archive.file_name.lower())
    if same is None:
      unpacked = by_name.get(os.path.splitext(archive.file_name)[0].lower())
      hint = (
        f", only {unpacked.name}, which looks unpacked: the packed file is needed"
        if unpacked
        else ""
      )
      return f"{wanted} is missing: {self._folder} holds no file with its content{hint}."
    size = self._sizes[same]
    if size != archive.size:
      return (
        f"{wanted} is missing: {same} has that name but {size:,} bytes, so it is not "
        "the published file."
      )
    return (
      f"{wanted} is missing: {same} has that name and size but the SHA-256 "
      f"{self._checksum(same)} instead of {archive.sha256}, so it is not the published "
      "file."
    )

  def _checksum(self, path: pathlib.Path) -> str:
    if path not in self._sha256:
      self._sha256[path] = _sha256(path)
    return self._sha256[path]


def _sha256(path: pathlib.Path) -> str:
  digest = hashlib.sha256()
  with path.open("rb") as file:
    for block in iter(lambda: file.read(_BLOCK), b""):
      digest.update(block)
  return digest.hexdigest()


def _copy(chosen: list[tuple[Archive, pathlib.Path]], dataset_name: str) -> None:
  """Copies all or none: first under temporary names, renamed once all are there."""
  put: list[pathlib.Path] = []
  temporaries: list[pathlib.Path] = []
  try:
    for archive, source in chosen:
      archive.path.parent.mkdir(parents=True, exist_ok=True)
      temporary = archive.path.with_name(f"{archive.path.name}.{uuid.uuid4().hex}.tmp")
      temporaries.append(temporary)
      if _copy_file(source, temporary) != archive.sha256:
        raise ArchiveError(f"{source} changed while it was copied: import it again.")
    for (archive, _), temporary in zip(chosen, temporaries):
      info = _info_path(archive)
      # What is there now belongs to a file that is gone or was cut short.
      info.unlink(missing_ok=True)
      # A file that was there before may be the source itself.
      put += [info] if archive.path.is_file() else [archive.path, info]
      os.replace(temporary, archive.path)
      resource.write_info_file(
        url=archive.url,
        path=str(archive.path),
        dataset_name=dataset_name,
        original_fname=archive.file_name,
        url_info=tfds.download.checksums.UrlInfo(
          size=tfds.core.utils.Size(archive.size),
          checksum=archive.sha256,
          filename=archive.file_name,
        ),
      )
  except BaseException:
    for path in temporaries + put:
      if path.is_file():
        path.unlink()
    raise


def _copy_file(source: pathlib.Path, target: pathlib.Path) -> str:
  """Copies the content and returns its SHA-256."""
  digest = hashlib.sha256()
  with source.open("rb") as reader, target.open("xb") as writer:
    for block in iter(lambda: reader.read(_BLOCK), b""):
      digest.update(block)
      writer.write(block)
    writer.flush()
    os.fsync(writer.fileno())
  return digest.hexdigest()
