"""What arrays must be like to be examples of a client, or of the evaluation."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tff_algos.errors import InputError, InputWarning
from tff_algos.models.functional import ExampleSpec

if TYPE_CHECKING:
  from tff_algos.client_data import ClientDirectory


def check_clients(clients: Any) -> None:
  """Raises `InputError` unless it is a mapping of names, and of one at least."""
  if not isinstance(clients, Mapping):
    raise InputError(
      f"The clients are a {type(clients).__name__}: give a mapping of each client's name "
      "to its inputs and labels, {name: (x, y)}."
    )
  if not clients:
    raise InputError("There are no clients to write: give at least one.")
  for client in clients:
    if not isinstance(client, str):
      raise InputError(
        f"A client is named {client!r}, a {type(client).__name__}: names are text, such "
        f"as {str(client)!r}."
      )


def pair(owner: str, examples: Any) -> tuple[Any, Any]:
  """Inputs and labels; raises `InputError` unless they are a pair. `owner` as below."""
  if isinstance(examples, (tuple, list)) and len(examples) == 2:
    return examples[0], examples[1]
  raise InputError(
    f"Of {owner} there is a {type(examples).__name__}, not a pair (x, y): give all its "
    "inputs and all its labels, as two arrays."
  )


def as_stored(
  owner: str, x: npt.ArrayLike, y: npt.ArrayLike, spec: ExampleSpec
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
  """Inputs and labels as arrays of the dtypes of `spec`.

  Args:
    owner: Whose they are, as messages say it: "client 'a'".
    x: Inputs (n, ...).
    y: Labels (n, ...).
    spec: What one stored example is like.

  Raises:
    InputError: There are none, or they do not fit `spec`.
  """
  # An array would have whatever number is under the mask.
  if any(isinstance(v, np.ma.MaskedArray) and np.any(v.mask) for v in (x, y)):
    raise InputError(
      f"The examples of {owner} are masked in places: leave these out, or fill them by "
      "the array's filled()."
    )
  given = {"inputs": x, "labels": y}
  try:
    x, y = np.asarray(x), np.asarray(y)
  except ValueError as error:
    raise InputError(
      f"The examples of {owner} make no array: give all the same shape."
    ) from error
  for (what, value), array in zip(given.items(), (x, y)):
    if not array.ndim:
      raise InputError(
        f"The {what} of {owner} are no array but of type {type(value).__name__}: give "
        "an array with a row for each example."
      )
  if len(y) == 0:
    raise InputError(f"{_upper(owner)} is empty: leave it out or give it examples.")
  if len(x) != len(y):
    raise InputError(
      f"{_upper(owner)} has {len(x)} inputs but {len(y)} labels: they must be as many."
    )
  return _cast(owner, "inputs", x, spec.x), _cast(owner, "labels", y, spec.y)


def dtypes_and_shapes(spec: ExampleSpec) -> list[list[Any]]:
  """Dtype and shape of x and of y, as JSON holds them."""
  return [[part.dtype.name, part.shape.as_list()] for part in (spec.x, spec.y)]


def check_example(clients: ClientDirectory, takes: list[list[Any]]) -> None:
  """Raises `InputError` if files would be read as other numbers than were written.

  Args:
    clients: Who has the files.
    takes: What is read, as `dtypes_and_shapes` has it.
  """
  if clients.example not in (None, takes):
    raise InputError(
      f"The examples in {clients.folder} were written with the dtypes and shapes "
      f"{clients.example} of x and y, but are to be read with {takes}: give the "
      "ExampleSpec that they were written with, or write them with that of the model."
    )


def check_label(owner: str, label: int, taken: range) -> None:
  """Raises `InputError` if a model, which takes those of `taken`, has no such label.

  Args:
    owner: Whose label it is; the message begins with it.
    label: The label.
    taken: What `Model.labels()` gives.
  """
  if label not in taken:
    raise InputError(
      f"{owner} has the label {label}, but the model has {taken.stop} outputs and takes "
      f"{taken.start}..{taken.stop - 1}: give its last layer one output for each class, "
      "or number the labels from 0."
    )


def check_finite(owner: str, x: npt.NDArray[Any]) -> None:
  """Raises `InputError` if an input is NaN or infinite; `owner` as of `as_stored`."""
  bad = not_finite(x)
  if len(bad):
    raise InputError(
      f"The inputs of {owner} hold NaN or infinite numbers in {len(bad):,} of "
      f"{len(x):,} examples, number {bad[0]} the first: leave these out, or give them "
      "other values."
    )


def warn_of_labels(bad: Mapping[str, npt.NDArray[np.intp]]) -> None:
  """Warns of labels by owner that `not_finite` found, as a loss may leave those out."""
  found = {owner: places[0] for owner, places in bad.items() if len(places)}
  if found:
    owner, place = next(iter(found.items()))
    more = f", and of {len(found) - 1:,} more," if len(found) > 1 else ""
    warnings.warn(
      f"The labels of {owner}{more} hold NaN or infinite numbers, number {place} the "
      "first: unless the loss leaves such examples out, its value is NaN, and the result "
      "of a client that has one counts for nothing.",
      InputWarning,
      stacklevel=3,
    )


def not_finite(array: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
  """Which rows of a numeric array (n, ...) hold a number that is NaN or infinite."""
  # Of the sum, for one pass and no array of the size of the data; a sum of finite numbers
  # may overflow too.
  kind = array.dtype.kind
  # "V" are TensorFlow's own, such as bfloat16.
  may_be = kind in "fc" or (kind == "V" and tf.as_dtype(array.dtype).is_floating)
  with np.errstate(all="ignore"):
    if not may_be or np.isfinite(array.sum()):
      return np.array([], np.intp)
  return np.flatnonzero(~np.isfinite(array).reshape(len(array), -1).all(axis=1))


def cast_and_held(
  array: npt.NDArray[Any], dtype: tf.DType
) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
  """Numbers in another dtype, and which of them it holds: a float holds them rounded."""
  is_cut = array.dtype.kind == "c" and not dtype.is_complex
  with np.errstate(all="ignore"):
    cast = (array.real if is_cut else array).astype(dtype.as_numpy_dtype)
    if dtype.is_integer or dtype.is_bool or is_cut:
      return cast, np.asarray(cast == array)
    return cast, np.isfinite(cast) | ~np.isfinite(array)


def check_is_of_numbers(what: str, spec: tf.TensorSpec) -> None:
  """Raises `InputError` for text, whose bytes would be Python's addresses."""
  if spec.dtype == tf.string:
    raise InputError(
      f"By the ExampleSpec the {what} are text, but examples are numbers: give numbers "
      "in its place, such as those of a vocabulary."
    )


def _cast(
  owner: str, what: str, array: npt.NDArray[Any], expected: tf.TensorSpec
) -> npt.NDArray[Any]:
  shape, dtype = tuple(expected.shape.as_list()), expected.dtype.as_numpy_dtype
  check_is_of_numbers(f"{what} of {owner}", expected)
  kinds = expected.dtype.is_bool, expected.dtype.is_integer, expected.dtype.is_floating
  is_number = any(kinds) and array.dtype.kind in "biuf"
  if array.shape[1:] != shape or not (is_number or array.dtype == dtype):
    remedy = "reshape them, or change the ExampleSpec"
    if array.dtype.kind not in "biufc":
      remedy = "give numbers, of classes those from 0"
    elif what == "labels" and shape == () and array.ndim == 2:
      remedy = "give each as one number, of one-hot ones their argmax"
    raise InputError(
      f"The {what} of {owner} are {array.dtype} {array.shape[1:]} each, but the "
      f"ExampleSpec has {expected.dtype.name} {shape}: {remedy}."
    )
  if array.dtype == dtype:
    return array
  cast, is_held = cast_and_held(array, expected.dtype)
  if not is_held.all():
    raise InputError(
      f"The {what} of {owner} hold {array[~is_held][0]}, which is no "
      f"{expected.dtype.name}: change such values, or the ExampleSpec's dtype."
    )
  return cast


def fingerprint(*parts: object) -> str:
  """A short name for a data set that changes when any part does.

  Args:
    *parts: Arrays (their bytes count) and anything else (its `repr` counts).
  """
  digest = hashlib.sha256()
  for part in parts:
    if isinstance(part, np.ndarray):
      digest.update(f"{part.dtype}{part.shape};".encode())
      digest.update(np.ascontiguousarray(part).data)
    else:
      text = repr(part)
      digest.update(f"{len(text)}:{text}".encode())
  return digest.hexdigest()[:16]


def _upper(sentence: str) -> str:
  return sentence[0].upper() + sentence[1:]
