"""Values of TFF types as flat lists of tensors, and what callers may give for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Optional

import numpy as np
import numpy.typing as npt
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos import client_arrays, client_data
from tff_algos.errors import InputError, UnsupportedComputationError

Struct = tff.structure.Struct
_CLIENT_INPUT = tff.to_type(client_data.CLIENT_INPUT_TYPE)


def specs_of(t: tff.Type) -> list[tf.TensorSpec]:
  """What the leaves of a type are as tensors."""
  if isinstance(t, tff.TensorType):
    return [tf.TensorSpec(t.shape, t.dtype)]
  if isinstance(t, tff.SequenceType):
    return [tf.TensorSpec([], tf.variant)]
  if isinstance(t, tff.StructType):
    return [s for _, e in tff.structure.iter_elements(t) for s in specs_of(e)]
  raise UnsupportedComputationError(f"The in_process runtime has no values of type {t}.")


def is_ragged_shape(shape: tf.TensorShape) -> bool:
  """Whether the first dimension is unknown."""
  return bool(shape.rank) and shape[0] is None


def pack(t: tff.Type, leaves: Iterator[Any]) -> Any:
  """The value of a type, made of its leaves."""
  if isinstance(t, tff.StructType):
    return Struct([(n, pack(e, leaves)) for n, e in tff.structure.iter_elements(t)])
  return next(leaves)


def map_struct(function: Callable[..., Any], value: Any) -> Any:
  """A structure of the same names with `function` of each leaf."""
  if isinstance(value, Struct):
    elements = tff.structure.iter_elements(value)
    return Struct([(n, map_struct(function, v)) for n, v in elements])
  return function(value)


def flatten(t: tff.Type, value: Any) -> list[Any]:
  """The leaves of a value from outside or from a trace, in the order of its type."""
  return flattener(t)(value)


def flattener(t: tff.Type) -> Callable[[Any], list[Any]]:
  """`flatten` for the values of a type, of which there may be many."""
  if isinstance(t, tff.StructType):
    elements = list(tff.structure.iter_elements(t))
    names = [name for name, _ in elements]
    parts = [flattener(element) for _, element in elements]
    if all(isinstance(element, tff.TensorType) for _, element in elements):
      return lambda value: _elements(value, names, t)

    def flat(value: Any) -> list[Any]:
      leaves: list[Any] = []
      for name, part, element in zip(names, parts, _elements(value, names, t)):
        try:
          leaves += part(element)
        except TypeError as error:
          raise TypeError(f"{name}: {error}" if name else str(error)) from None
      return leaves

    return flat
  if isinstance(t, tff.SequenceType):
    wanted = tf.nest.flatten(_element_specs(t.element))
    return lambda value: [_variant(value, t, wanted)]
  return lambda value: [value]


def _element_specs(t: tff.Type) -> Any:
  """What a data set's `element_spec` is to be; flattens in the same order."""
  if not isinstance(t, tff.StructType):
    return specs_of(t)
  elements = [(name, _element_specs(e)) for name, e in tff.structure.iter_elements(t)]
  # A mapping flattens by its keys, a named tuple in the order of its fields.
  kind = t.python_container or dict
  is_mapping = issubclass(kind, Mapping) and all(name for name, _ in elements)
  return dict(elements) if is_mapping else [specs for _, specs in elements]


def _variant(value: Any, t: tff.SequenceType, wanted: list[tf.TensorSpec]) -> Any:
  if tf.is_tensor(value):
    return value
  if not isinstance(value, tf.data.Dataset):
    raise TypeError(
      f"The in_process runtime takes a tf.data.Dataset for a value of type {t}; found "
      f"{type(value).__name__}: where files are given, as by tff_algos.simulate, take "
      "the process as it was before over_datasets."
    )
  found = tf.nest.flatten(value.element_spec)
  if len(found) != len(wanted) or not all(map(_is_like, wanted, found)):
    # TensorFlow would tell of an operation deep in the computation.
    raise TypeError(
      f"Expected a data set of elements {t.element}; found one of {value.element_spec}: "
      "map it to these, or build the computation for its element_spec, as over_datasets "
      "can."
    )
  check_ends(value)
  return tf.data.experimental.to_variant(value)


def check_ends(dataset: tf.data.Dataset) -> None:
  """Raises `InputError` for a data set without an end."""
  if int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY:
    raise InputError(
      "A data set without an end was given, with which no round would end: leave out its "
      "repeat(), or take(n) of it."
    )


def _is_like(wanted: tf.TensorSpec, found: Any) -> bool:
  return (
    isinstance(found, tf.TensorSpec)
    and found.dtype == wanted.dtype
    and wanted.shape.is_compatible_with(found.shape)
  )


def _elements(value: Any, names: list[Optional[str]], t: tff.Type) -> list[Any]:
  # What most clients give, told fast.
  is_named = isinstance(value, tuple) and getattr(value, "_fields", ()) == (*names,)
  if is_named and len(value) == len(names):
    return list(value)
  fields = _fields(value)
  if fields is not None and all(names) and all(name for name, _ in fields):
    given = dict(fields)
    if given.keys() != set(names):
      raise _unlike(t, f"one of [{', '.join(map(str, given))}]")
    return [given[name] for name in names]
  if fields is None and not isinstance(value, Iterable):
    raise _unlike(t, type(value).__name__)
  elements = list(value) if fields is None else [v for _, v in fields]
  if len(elements) != len(names):
    raise _unlike(t, f"{len(elements)} elements")
  return elements


def _unlike(t: tff.StructType, found: str) -> TypeError:
  said = f"Expected a value of type {t}; found {found}"
  if t == _CLIENT_INPUT:
    said += (
      ": give tff_algos.ClientInput(path, seed) of clients that write_clients has "
      "written, or build over_datasets(process) for data sets"
    )
  return TypeError(f"{said}.")


def _fields(value: Any) -> Optional[list[tuple[Optional[str], Any]]]:
  """The names and values of what is a structure; None of anything else."""
  if isinstance(value, Struct):
    return list(tff.structure.iter_elements(value))
  if isinstance(value, Mapping):
    return list(value.items())
  if hasattr(value, "__attrs_attrs__"):
    return [(a.name, getattr(value, a.name)) for a in value.__attrs_attrs__]
  return list(zip(value._fields, value)) if hasattr(value, "_fields") else None


def of_clients(value: Any, t: tff.FederatedType) -> Sequence[Any] | npt.NDArray[Any]:
  """The clients' values that were given for an argument.

  Raises:
    TypeError: It is no list; a structure's fields, say, would pass for clients.
  """
  if _fields(value) is None and isinstance(value, (list, tuple, np.ndarray)):
    return value
  raise TypeError(
    f"An argument of type {t} takes a list with one value for each client; found "
    f"{type(value).__name__}."
  )


def as_tensors(specs: list[tf.TensorSpec], leaves: list[Any]) -> list[tf.Tensor]:
  """Leaves as tensors of their dtypes.

  Raises:
    TypeError: As `fitting`.
  """
  return [tf.convert_to_tensor(fitting(s, v), s.dtype) for s, v in zip(specs, leaves)]


def fitting(spec: tf.TensorSpec, leaf: Any) -> Any:
  """A leaf for a tensor of `spec`; numbers of another dtype are cast to its own.

  Raises:
    TypeError: It has another shape, or its dtype does not hold it. TensorFlow alone would
      cut it to what does.
  """
  array = leaf if isinstance(leaf, _WITH_SHAPE) else np.asarray(leaf)
  shape = spec.shape
  # Equal ones are told much faster.
  if not (shape == array.shape or shape.is_compatible_with(array.shape)):
    raise _unfit(spec, f"one of shape {tuple(array.shape)}")
  if spec.dtype in (tf.string, array.dtype):
    return leaf
  if not (_is_number(spec.dtype) and _is_number(tf.as_dtype(array.dtype))):
    raise _unfit(spec, f"{leaf!r}")
  array = np.asarray(array)
  cast, is_held = client_arrays.cast_and_held(array, spec.dtype)
  if not is_held.all():
    raise _unfit(spec, f"{array[~is_held][0]}, which is no {spec.dtype.name}")
  return cast


def fitter(spec: tf.TensorSpec) -> Callable[[Any], Any]:
  """`fitting` for the leaves of many clients; fast for those that are just right."""
  shape = tuple(spec.shape.as_list()) if spec.shape.rank is not None else None
  if spec.dtype == tf.string and shape == ():
    return lambda leaf: leaf if isinstance(leaf, (str, bytes)) else fitting(spec, leaf)
  dtype = spec.dtype.as_numpy_dtype

  def fit(leaf: Any) -> Any:
    is_right = (
      isinstance(leaf, np.ndarray) and leaf.shape == shape and leaf.dtype == dtype
    )
    return leaf if is_right else fitting(spec, leaf)

  return fit


_WITH_SHAPE = (tf.Tensor, np.ndarray, np.generic)


def _is_number(dtype: tf.DType) -> bool:
  return bool(dtype.is_bool or dtype.is_integer or dtype.is_floating or dtype.is_complex)


def _unfit(spec: tf.TensorSpec, found: str) -> TypeError:
  t = tff.TensorType(spec.dtype.as_numpy_dtype, spec.shape)
  return TypeError(f"Expected a value of type {t}; found {found}.")


def flatten_tensors(t: tff.Type, value: Any) -> list[tf.Tensor]:
  """The leaves of a value as tensors."""
  return as_tensors(specs_of(t), flatten(t, value))


def to_numpy(tensor: tf.Tensor) -> Any:
  """An array, or a NumPy scalar."""
  # `numpy()` would copy an array that nothing else can change.
  return np.asarray(tensor) if tensor.shape.rank else tensor.numpy()


def to_portable(t: tff.Type, leaves: list[Any]) -> list[Any]:
  """Leaves as NumPy's arrays, scalars and bytes, for another process.

  Raises:
    UnsupportedComputationError: A data set cannot leave this process, as one that calls
      Python.
  """
  return [_to_portable(s, leaf) for s, leaf in zip(specs_of(t), leaves)]


def _to_portable(spec: tf.TensorSpec, leaf: Any) -> Any:
  if spec.dtype != tf.variant:
    leaf = fitting(spec, leaf)
    # Those that need no TensorFlow, as there may be many.
    if isinstance(leaf, str):
      return leaf.encode()
    if isinstance(leaf, np.ndarray) and leaf.dtype == spec.dtype.as_numpy_dtype:
      return leaf
    return to_numpy(tf.convert_to_tensor(leaf, spec.dtype))
  try:
    # With what it holds in memory. 2: refuse what has a state outside of the graph.
    graph = tf.raw_ops.DatasetToGraphV2(input_dataset=leaf, external_state_policy=2)
  except tf.errors.OpError as error:
    raise UnsupportedComputationError(
      "A client's tf.data.Dataset cannot be sent to a worker, as happens to those that "
      f"call Python: write client files, or use the in_process runtime ({error.message})."
    ) from error
  return graph.numpy()


def from_portable(t: tff.Type, leaves: list[Any]) -> list[Any]:
  """The leaves that `to_portable` was given, in this process."""
  return [
    tf.raw_ops.DatasetFromGraph(graph_def=leaf) if s.dtype == tf.variant else leaf
    for s, leaf in zip(specs_of(t), leaves)
  ]


def leaf_values(t: tff.Type, value: Any) -> list[Any]:
  """The placed values of an argument, in the order of the placed types."""
  if isinstance(t, tff.FederatedType):
    return [value]
  elements = list(tff.structure.iter_elements(t))
  values = _elements(value, [n for n, _ in elements], t)
  return [v for (_, e), x in zip(elements, values) for v in leaf_values(e, x)]
