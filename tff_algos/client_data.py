"""Client data on disk: one file for each client, read inside the client computation.

A process is handed the *path* of a client's file, never its examples, so nothing but the
path crosses a TFF boundary. Paths are whatever TensorFlow's file system reads.

A file is the number of examples as int64, then all inputs, then all labels, as raw
little-endian bytes; their sizes follow from the model's `ExampleSpec`. A folder's list of
clients has the CRC-32 of each file.
"""

from __future__ import annotations

import contextlib
import json
import os
import uuid
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Optional

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tff_algos import client_arrays, durable_files
from tff_algos.errors import DamagedError, InputError
from tff_algos.models.functional import ExampleSpec, check_example_spec

_MANIFEST = "clients.json"
_SUFFIX = ".client"
_HEADER_BYTES = 8
# A folder of a million files is slow on many file systems.
_FILES_IN_FOLDER = 1000
_READ_AT_ONCE = 1 << 20

# Part of every name that a cache gives to client files: count it up when they change.
FORMAT = 3


class ClientInput(NamedTuple):
  """What `process.next` takes for each client of the cohort (`D` in the docs).

  Attributes:
    path: String scalar, the client's data file; UTF-8 bytes where it is not ASCII.
    seed: int32 (2,), the key of every random draw of this client in this round.
  """

  path: str | bytes
  seed: npt.NDArray[np.int32]


# What `tff.to_type` makes the TFF type of a `ClientInput` of: types, not values.
CLIENT_INPUT_TYPE = ClientInput(
  path=np.str_,  # type: ignore[arg-type]
  seed=(np.int32, [2]),  # type: ignore[arg-type]
)


class Examples(NamedTuple):
  """A client's examples as tensors: x (n, ...), y (n, ...)."""

  x: tf.Tensor
  y: tf.Tensor


def read(path: tf.Tensor, spec: ExampleSpec) -> Examples:
  """Reads one client's file as tensors; runs inside a computation.

  Raises:
    tf.errors.InvalidArgumentError: When run, if the file is empty or its length does not
      fit the model's example.
  """
  return parse(tf.io.read_file(path), path, spec)


def parse(content: tf.Tensor, path: tf.Tensor, spec: ExampleSpec) -> Examples:
  """The examples that a client's file holds; what is left of `read` after reading.

  Args:
    content: The file's content, a string scalar.
    path: Where it was, a string scalar, for messages.
    spec: The model's example.

  Raises:
    tf.errors.InvalidArgumentError: As `read`.
  """
  # Few operations: for a client with few examples, each costs as much as a step.
  raw = tf.io.decode_raw(content, tf.uint8)
  # By the length alone, which is the same for all clients that a runtime vectorises. Not
  # `tf.strings.length`, which is wrong beyond 2 GiB.
  length = tf.size(raw, tf.int64) - _HEADER_BYTES
  x_bytes, y_bytes = (s.shape.num_elements() * s.dtype.size for s in spec)
  n = length // (x_bytes + y_bytes)
  written = tf.io.decode_raw(content, tf.int64, fixed_length=_HEADER_BYTES)[0]
  # Not `==`: in the graphs that TFF traces it compares identities.
  fits = tf.debugging.Assert(
    (written > 0) & tf.equal(written * (x_bytes + y_bytes), length),
    ["Not a client file of this model's examples, or an empty one:", path],
  )
  end = _HEADER_BYTES + n * x_bytes
  with tf.control_dependencies([fits]):
    x, y = raw[_HEADER_BYTES:end], raw[end:]
  return Examples(_from_bytes(x, spec.x), _from_bytes(y, spec.y))


def _from_bytes(raw: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
  shape = spec.shape.as_list()
  if spec.dtype == tf.bool:  # Which `bitcast` does not know.
    return tf.cast(tf.reshape(raw, [-1, *shape]), tf.bool)
  if spec.dtype.size == 1:
    return tf.bitcast(tf.reshape(raw, [-1, *shape]), spec.dtype)
  return tf.bitcast(tf.reshape(raw, [-1, *shape, spec.dtype.size]), spec.dtype)


class ClientDirectory:
  """The clients of one federated data set, in a folder on disk.

  Attributes:
    ids: The clients' names in their order.
    num_examples: int64 (N,), how many examples each has.
    example: What `client_arrays.dtypes_and_shapes` gives of an example; None in folders
      that are older than it.
  """

  def __init__(self, folder: str | os.PathLike[str]):
    """Opens a folder that `write_clients` made.

    Raises:
      FileNotFoundError: The folder holds no client data.
      DamagedError: Its list of clients is not what was written.
    """
    manifest = os.path.join(folder, _MANIFEST)
    if not tf.io.gfile.exists(manifest):
      raise FileNotFoundError(
        f"No client data in {folder}: there is no {_MANIFEST}; write them with "
        "tff_algos.write_clients."
      )
    self.folder = os.fspath(folder)
    try:
      with tf.io.gfile.GFile(manifest) as f:
        content = json.load(f)
      self.ids: tuple[str, ...] = tuple(content["ids"])
      self.num_examples = np.asarray(content["num_examples"], np.int64)
      extremes = content.get("extreme_labels", ())
      self._extreme_labels = [(int(label), client) for label, client in extremes]
      self.example: Any = content.get("example")
      # None in folders that are older than checksums.
      self._checksums: Optional[list[int]] = content.get("checksums")
      num_checksums = len(self.ids if self._checksums is None else self._checksums)
      self._places = {client: i for i, client in enumerate(self.ids)}
    except (ValueError, KeyError, TypeError, OverflowError) as error:
      raise DamagedError(
        f"{manifest} does not hold what write_clients wrote: write the clients again."
      ) from error
    # What a file was like when its content was found to be what was written.
    self._checked: dict[str, Optional[_Stamp]] = {}
    num_clients = len(self.ids)
    if len(self._places) < num_clients or self.num_examples.shape != (num_clients,):
      raise DamagedError(
        f"{manifest} names a client twice, or has not one number of examples for each: "
        "write the clients again."
      )
    if num_checksums != num_clients:
      raise DamagedError(
        f"{manifest} has not one checksum for each client: write the clients again."
      )

  def __len__(self) -> int:
    return len(self.ids)

  @property
  def has_checksums(self) -> bool:
    """Whether the files' contents are known, which of older folders they are not."""
    return self._checksums is not None

  def digest(self) -> str:
    """Of the clients' names, their order and what is said of their examples."""
    return client_arrays.fingerprint(self.ids, self.num_examples, self._checksums)

  def in_memory(self) -> ClientDirectory:
    """The same clients, their files copied into this process's memory.

    For the in_process runtime, where the files are on a file system that takes long to
    open them: each is opened once, and never in a round. They stay until the process
    ends.

    Raises:
      DamagedError: One cannot be read.
    """
    folder = f"ram://tff_algos/{uuid.uuid4().hex}"
    for place in range(len(self)):
      path = os.path.join(folder, _file_name(place))
      if place % _FILES_IN_FOLDER == 0:
        tf.io.gfile.makedirs(os.path.dirname(path))
      try:
        tf.io.gfile.copy(os.path.join(self.folder, _file_name(place)), path)
      except tf.errors.OpError:
        self.check_files([self.ids[place]], again=True)  # Which says what is wrong.
        raise
    manifest = os.path.join(self.folder, _MANIFEST)
    tf.io.gfile.copy(manifest, os.path.join(folder, _MANIFEST))
    return ClientDirectory(folder)

  def check_files(
    self, clients: Iterable[str], when: str = "", *, again: bool = False
  ) -> None:
    """Looks whether clients' files hold what `write_clients` wrote.

    A file is read once, and a local one again when it was changed since. Those of folders
    older than checksums only have to be there.

    Args:
      clients: The clients, such as a cohort.
      when: For messages, such as " in round 7".
      again: Whether to read all of them, also those that were found right.

    Raises:
      DamagedError: One does not, or cannot be read.
    """
    for client in clients:
      path = self.path(client)
      stamp = None
      if "://" not in path:
        with contextlib.suppress(OSError):
          stamp = _stamp(path)
      if not again and client in self._checked and self._checked[client] == stamp:
        continue
      problem = self._problem(client, path)
      if problem:
        self._checked.pop(client, None)
        raise DamagedError(
          f"The examples of client {client!r} cannot be read{when}: {path} {problem}; "
          "put the file back, or write the clients again."
        )
      self._checked[client] = stamp

  def _problem(self, client: str, path: str) -> str:
    """What is wrong with a client's file; "" for nothing."""
    place = self._places[client]
    try:
      # TensorFlow takes far longer to open a local file.
      with tf.io.gfile.GFile(path, "rb") if "://" in path else open(path, "rb") as f:
        header = f.read(_HEADER_BYTES)
        checksum = zlib.crc32(header)
        while self._checksums is not None and (content := f.read(_READ_AT_ONCE)):
          checksum = zlib.crc32(content, checksum)
    except (FileNotFoundError, tf.errors.NotFoundError):
      return "is not there"
    except OSError as error:
      return f"cannot be opened ({error.strerror})"
    except tf.errors.OpError as error:
      return f"cannot be opened ({error.message})"
    is_right = header == np.int64(self.num_examples[place]).tobytes() and (
      self._checksums is None or checksum == self._checksums[place]
    )
    return "" if is_right else "does not hold what was written to it"

  def path(self, client: str) -> str:
    """The client's data file.

    Raises:
      InputError: There is no such client.
    """
    return os.path.join(self.folder, _file_name(self.place(client)))

  def place(self, client: str) -> int:
    """The client's position in `ids`; raises `InputError` if there is no such client."""
    if client not in self._places:
      raise InputError(
        f"There is no client {client!r} in {self.folder}: give a name of its ids, such "
        f"as {', '.join(map(repr, self.ids[:3]))}."
      )
    return self._places[client]

  def check_labels(self, taken: range) -> None:
    """Looks whether a model takes all labels, by what `write_clients` noted of them.

    Labels that are no integers, and those of folders older than this check, pass.

    Args:
      taken: The labels that the model takes, `Model.labels()`.

    Raises:
      InputError: A client has another label.
    """
    for label, client in self._extreme_labels:
      owner = f"Client {client!r} in {self.folder}"
      client_arrays.check_label(owner, label, taken)

  def examples(
    self, client: str, spec: ExampleSpec
  ) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """The client's examples as arrays, x (n, ...) and y (n, ...).

    Raises:
      InputError: There is no such client, or its examples were written with another spec.
    """
    check_example_spec(spec)
    client_arrays.check_example(self, client_arrays.dtypes_and_shapes(spec))
    x, y = read(tf.constant(self.path(client)), spec)
    return x.numpy(), y.numpy()


# Of a file that stays the same: its size, when it was changed, and which it is, as files
# that swap their names keep both.
_Stamp = tuple[int, int, int]


def _stamp(path: str) -> _Stamp:
  found = os.stat(path)
  return found.st_size, found.st_mtime_ns, found.st_ino


def _file_name(place: int) -> str:
  return f"{place // _FILES_IN_FOLDER:04d}/{place:07d}{_SUFFIX}"


def write_clients(
  folder: str | os.PathLike[str],
  clients: Mapping[str, tuple[npt.ArrayLike, npt.ArrayLike]],
  spec: ExampleSpec,
) -> ClientDirectory:
  """Writes `{client: (x, y)}` as client files, in the place of those of the folder.

  The list of clients is written last, so that a folder that was cut short is none. Files
  of a larger population that was there before stay, and are read by nobody.

  Args:
    folder: Where to write; made if it does not exist.
    clients: For each client its inputs (n, ...) and labels (n, ...), with n > 0: arrays
      or lists of numbers, which are cast to the dtypes of `spec` where no more than
      rounding is lost.
    spec: Shape and dtype of one example; arrays of another shape are refused.

  Warns:
    InputWarning: A label is NaN or infinite.

  Raises:
    InputError: It is no such mapping, `spec` is no `ExampleSpec`, a client's name is no
      text, a client is empty, an input is NaN or infinite, or an array does not fit
      `spec`: its shape, or a value that the dtype cannot hold, such as a fraction where
      the labels are int32.
    OSError: The disk is full, or fails.
  """
  check_example_spec(spec)
  client_arrays.check_clients(clients)
  bad_labels = {}
  for client, examples in clients.items():
    pair = client_arrays.pair(owner := f"client {client!r}", examples)
    x, y = client_arrays.as_stored(owner, *pair, spec)
    client_arrays.check_finite(owner, x)
    bad_labels[owner] = client_arrays.not_finite(y)
  client_arrays.warn_of_labels(bad_labels)
  manifest = os.path.join(folder, _MANIFEST)
  if tf.io.gfile.exists(manifest):  # It would not fit the new files.
    tf.io.gfile.remove(manifest)
  num_examples: list[int] = []
  checksums: list[int] = []
  extreme_labels: list[tuple[int, str]] = []
  for place, (client, examples) in enumerate(clients.items()):
    # Once more, as all clients' casts together may be too much for the memory.
    x, y = client_arrays.as_stored(f"client {client!r}", *examples, spec)
    path = os.path.join(folder, _file_name(place))
    if place % _FILES_IN_FOLDER == 0:
      with durable_files.writing(os.path.dirname(path)):
        tf.io.gfile.makedirs(os.path.dirname(path))
    checksum = 0
    with durable_files.writing(path), tf.io.gfile.GFile(path, "wb") as f:
      for part in (np.int64(len(y)), x, y):
        raw = part.tobytes()
        f.write(raw)
        checksum = zlib.crc32(raw, checksum)
    num_examples.append(len(y))
    checksums.append(checksum)
    if spec.y.dtype.is_integer:
      labels = [(int(label), client) for label in (y.min(), y.max())]
      extreme_labels = _extremes([*extreme_labels, *labels])
  example = client_arrays.dtypes_and_shapes(spec)
  noted = dict(checksums=checksums, extreme_labels=extreme_labels, example=example)
  content = dict(ids=list(clients), num_examples=num_examples, **noted)
  if "://" in manifest:
    with tf.io.gfile.GFile(manifest, "w") as f:
      f.write(json.dumps(content))
  else:
    os.sync()  # Far faster for many files than one by one.
    with durable_files.new_file(manifest, "w") as f:
      f.write(json.dumps(content))
  return ClientDirectory(folder)


def _extremes(labels: list[tuple[int, str]]) -> list[tuple[int, str]]:
  """The lowest and the highest label, each with the first client that has it."""
  return [choose(labels, key=lambda pair: pair[0]) for choose in (min, max)]
