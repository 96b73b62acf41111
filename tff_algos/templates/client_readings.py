"""Where a round's clients have their examples and the seeds of their draws from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Optional, Protocol

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos import client_arrays, client_data
from tff_algos.errors import InputError, check_whole_number
from tff_algos.models.functional import ExampleSpec

SEED_TYPE = (np.int32, [2])

# No client has as many examples.
_ALL = np.iinfo(np.int32).max


class Read(NamedTuple):
  """What is known of the clients, each a value placed at them.

  Attributes:
    examples: `client_data.Examples`.
    seeds: int32 (2,), the key of all of a client's draws in this round.
    has_examples: bool, whether the examples are the client's own; None: of every client.
  """

  examples: Any
  seeds: Any
  has_examples: Optional[Any] = None


class ClientReading(Protocol):
  """What `process.next` is handed for each client, and how its clients read it.

  Attributes:
    input_type: The type D of what a client is handed.
    is_told_the_round: Whether the number of rounds done is broadcast for it.
    is_told_seeds: Whether a client's draws are of more than its examples, which noise
      that is to hide these must be.
  """

  input_type: tff.Type
  is_told_the_round: bool
  is_told_seeds: bool

  def read(self, client_inputs: Any, round_num: Any) -> Read:
    """The clients' examples and seeds, inside a federated computation.

    Args:
      client_inputs: {D}@CLIENTS.
      round_num: int32@SERVER, the number of rounds done.
    """


class FromFiles:
  """Clients are handed the path of their file, and a seed: `ClientInput`."""

  is_told_the_round, is_told_seeds = False, True

  def __init__(self, spec: ExampleSpec):
    """Makes the reading.

    Raises:
      InputError: The examples are text.
    """
    client_arrays.check_is_of_numbers("inputs", spec.x)
    client_arrays.check_is_of_numbers("labels", spec.y)
    self.input_type = tff.to_type(client_data.CLIENT_INPUT_TYPE)

    @tff.tensorflow.computation(self.input_type)
    def load(client_input: client_data.ClientInput) -> tuple[tf.Tensor, tf.Tensor]:
      return tf.io.read_file(client_input.path), client_input.path

    @tff.tensorflow.computation(load.type_signature.result)
    def parse(loaded: tuple[tf.Tensor, tf.Tensor]) -> client_data.Examples:
      content, path = loaded
      return client_data.parse(content, path, spec)

    self._load, self._parse = load, parse
    self.examples_type = parse.type_signature.result

  def read(self, client_inputs: Any, round_num: Any) -> Read:
    """See `ClientReading`."""
    del round_num
    # Reading by itself: a runtime may then do all else for several clients at once.
    loaded = tff.federated_map(self._load, client_inputs)
    return Read(tff.federated_map(self._parse, loaded), client_inputs.seed)


class FromDatasets:
  """Clients are handed a data set; its content, the round and one seed make their keys.

  A client without examples is given one of zeros to work on, so that no client work has
  to do without, and its result is dropped.
  """

  is_told_the_round, is_told_seeds = True, False

  def __init__(
    self,
    spec: ExampleSpec,
    element_spec: Any = None,
    seed: int = 0,
    labels: Optional[range] = None,
  ):
    """Makes the reading.

    Args:
      spec: What the model's examples are.
      element_spec: What the data sets' elements are, as `dataset.element_spec` has it: a
        pair or a mapping of x and y, of an example or of a batch. Default: `(x, y)` of an
        example.
      seed: The seed of all draws, >= 0.
      labels: Those that the model takes, as `Model.labels()`; None: they are not looked
        at. On another, a round fails.

    Raises:
      InputError: The elements are not such.
    """
    if element_spec is None:
      element_spec = (spec.x, spec.y)
    batched = is_batched(spec, element_spec)
    element_type = tff.types.tensorflow_to_type(element_spec)
    self.input_type = tff.SequenceType(element_type)

    @tff.tensorflow.computation(self.input_type)
    def read(
      dataset: tf.data.Dataset,
    ) -> tuple[client_data.Examples, tf.Tensor, tf.Tensor]:
      examples = _all_of(dataset, batched)
      examples = with_labels_of(examples, labels)
      has_examples = tf.shape(examples.y)[0] > 0
      key = content_key(examples)
      missing = tf.cast(tf.logical_not(has_examples), tf.int32)
      padded = (_with_zeros(v, missing) for v in examples)
      return client_data.Examples(*padded), key, has_examples

    @tff.tensorflow.computation(SEED_TYPE, np.int32)
    def fold(key: tf.Tensor, round_num: tf.Tensor) -> tf.Tensor:
      return _fold(key, seed, round_num)

    self._read, self._fold = read, fold

  def read(self, client_inputs: Any, round_num: Any) -> Read:
    """See `ClientReading`."""
    examples, key, has_examples = tff.federated_map(self._read, client_inputs)
    told = tff.federated_broadcast(round_num)
    return Read(examples, tff.federated_map(self._fold, (key, told)), has_examples)


def is_batched(spec: ExampleSpec, element_spec: Any) -> bool:
  """Whether elements of data sets are batches of examples rather than examples.

  Raises:
    InputError: They are neither.
  """
  what = (
    f"The elements of the clients' data sets are {element_spec}, but the model takes "
    f"(x, y), or a mapping of x and y, with x {spec.x.dtype.name} {spec.x.shape} and y "
    f"{spec.y.dtype.name} {spec.y.shape}, or batches of these: map the data sets so."
  )
  if isinstance(element_spec, Mapping) and element_spec.keys() == {"x", "y"}:
    given = element_spec["x"], element_spec["y"]
  elif isinstance(element_spec, tuple) and len(element_spec) == 2:
    given = element_spec
  else:
    raise InputError(what)
  if not all(isinstance(v, tf.TensorSpec) for v in given):
    raise InputError(what)
  if any(v.dtype != s.dtype or v.shape.rank is None for v, s in zip(given, spec)):
    raise InputError(what)
  if all(v.shape == s.shape for v, s in zip(given, spec)):
    return False
  if all(v.shape.rank and v.shape[1:] == s.shape for v, s in zip(given, spec)):
    return True
  raise InputError(what)


def _all_of(dataset: tf.data.Dataset, is_batched: bool) -> client_data.Examples:
  """All examples of a data set, of which there may be none."""

  def no_example(spec: tf.TensorSpec) -> tf.Tensor:
    return tf.zeros([0, *(spec.shape[1:] if is_batched else spec.shape)], spec.dtype)

  whole = dataset.rebatch(_ALL) if is_batched else dataset.batch(_ALL)
  none = tf.data.Dataset.from_tensors(
    tf.nest.map_structure(no_example, dataset.element_spec)
  )
  element = whole.concatenate(none).take(1).get_single_element()
  return as_examples(element)


def as_examples(element: Any) -> client_data.Examples:
  """An element of which `is_batched` has said what it is."""
  x, y = (element["x"], element["y"]) if isinstance(element, Mapping) else element
  return client_data.Examples(x, y)


def with_labels_of(
  examples: client_data.Examples, taken: Optional[range]
) -> client_data.Examples:
  """The examples, of which none has another label when this is run.

  A loss may take such without a word: pFedGP's does, and TensorFlow's own on GPUs.

  Args:
    examples: The examples.
    taken: What `Model.labels()` gives; None: they are not looked at.
  """
  if taken is None:
    return examples
  y = tf.cast(examples.y, tf.int64)  # A bound may be beyond 8 bits.
  is_other = (y < taken.start) | (y >= taken.stop)
  what = (
    "The examples of a client have labels that are not among "
    f"{taken.start}..{taken.stop - 1}, which the model takes: give its last layer one "
    "output for each class, or number the labels from 0:"
  )
  none = tf.debugging.Assert(
    tf.logical_not(tf.reduce_any(is_other)), [what, tf.boolean_mask(y, is_other)]
  )
  with tf.control_dependencies([none]):
    return client_data.Examples(examples.x, tf.identity(examples.y))


def _with_zeros(value: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
  zeros = tf.zeros(tf.concat([[number], tf.shape(value)[1:]], 0), value.dtype)
  return tf.concat([value, zeros], 0)


def content_key(examples: client_data.Examples) -> tf.Tensor:
  """int32 (2,), a digest of a client's examples in their order."""
  content = tf.strings.join([tf.io.serialize_tensor(v) for v in examples])
  # Any key, but always the same.
  number = tf.strings.to_hash_bucket_strong(content, np.iinfo(np.int64).max, [1, 2])
  return tf.bitcast(number, tf.int32)


def _fold(key: tf.Tensor, seed: int, round_num: tf.Tensor) -> tf.Tensor:
  fold_in = tf.random.experimental.stateless_fold_in
  return fold_in(fold_in(key, seed), round_num)


def dataset_seed(
  examples: tuple[Any, Any], round_num: int, seed: int = 0
) -> np.ndarray[Any, np.dtype[np.int32]]:
  """The key of a client's draws in a round over data sets; see `over_datasets`.

  With it in the client's `ClientInput`, a round over files is the same, up to rounding
  where clients are worked on in blocks.

  Args:
    examples: All of the client's, x (n, ...) and y (n, ...), in the dtypes of the model.
    round_num: The number of rounds done.
    seed: That of `over_datasets`.

  Returns:
    int32 (2,).

  Raises:
    InputError: `round_num` or `seed` is no whole number from 0 to 2^31 - 1.
  """
  most = np.iinfo(np.int32).max
  round_num = check_whole_number("round_num", round_num, 0, most)
  seed = check_whole_number("seed", seed, 0, most)
  key = content_key(client_data.Examples(*map(tf.convert_to_tensor, examples)))
  folded: np.ndarray[Any, np.dtype[np.int32]] = _fold(key, seed, round_num).numpy()
  return folded
