"""What a Keras model holds, exchanged while it is traced.

Weights for the arguments of a graph, what is not trained for constants, and generators of
random numbers for ones that draw from a seed.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Optional

import tensorflow as tf
from keras.src.engine import base_layer, base_layer_v1, training, training_v1
from keras.src.mixed_precision.autocast_variable import AutoCastVariable
from keras.src.utils import version_utils

# Tracing exchanges attributes of layers that are shared by all threads.
_TRACING = threading.RLock()

Layers = Sequence[tf.keras.layers.Layer]
_Replacement = tuple[dict[str, Any], str, Any]


class Slot(NamedTuple):
  """Where a layer keeps a variable or an eager tensor.

  Attributes:
    attributes: The layer's.
    name: Of the one among them.
    cast_to: What Keras casts it to where the layer is called, in mixed precision.
  """

  attributes: dict[str, Any]
  name: str
  cast_to: Optional[str]

  def filled(self, value: tf.Tensor) -> _Replacement:
    """What stands there while the model is traced."""
    if self.cast_to is not None:
      value = tf.cast(value, self.cast_to)
    return self.attributes, self.name, value


def layers_of(keras_model: tf.keras.Model) -> list[tf.keras.layers.Layer]:
  """The model, its layers, their cells and so on, in a fixed order."""
  # `submodules` would also walk Keras's caches, which it cannot sort (dropout in RNNs).
  return list(keras_model._flatten_layers())


def restore_classes(layers: Layers) -> None:
  """Undoes what TFF does to the classes of layers by making others in its graphs.

  Keras then has the classes derive from those of TensorFlow 1, and a model of them, made
  before, says that it is in an invalid state.
  """
  for kind in {type(layer) for layer in layers}:
    for new, old in (
      (base_layer.Layer, base_layer_v1.Layer),
      (training.Model, training_v1.Model),
    ):
      version_utils.swap_class(kind, new, old, True)


def find_slots(layers: Layers) -> dict[Any, list[Slot]]:
  """Where variables and eager tensors are kept, by reference."""
  slots: dict[Any, list[Slot]] = {}
  for layer in layers:
    attributes = vars(layer)
    for name, value in attributes.items():
      if isinstance(value, tf.Variable) or is_held(value):
        is_cast = isinstance(value, AutoCastVariable)
        slot = Slot(attributes, name, layer.compute_dtype if is_cast else None)
        slots.setdefault(value.ref(), []).append(slot)
  return slots


def is_eager(value: Any) -> bool:
  """Whether it is a tensor that has a value."""
  return isinstance(value, tf.Tensor) and hasattr(value, "numpy")


def is_held(value: Any) -> bool:
  """Whether it is a tensor of numbers, which a layer may compute with."""
  return is_eager(value) and value.dtype != tf.resource


class Constants:
  """The eager tensors of a model, as tensors of whatever graph it is traced into.

  TFF's graphs cannot capture eager tensors. As constants at the place of their use they
  would be copied with each function that calls the model: FedReg with a frozen base of
  18 MB took 7 GB.
  """

  def __init__(self, eager: dict[Any, tf.Tensor]):
    self._eager = eager

  def here(self) -> dict[Any, tf.Tensor]:
    """The tensors by reference, in the graph around all functions being traced."""
    if not self._eager:
      return {}
    with tf.init_scope():
      if tf.executing_eagerly():
        return self._eager
      graph = tf.compat.v1.get_default_graph()
      for already_made in graph.get_collection(self):
        return dict(already_made)
      made: dict[Any, tf.Tensor] = {}
      for ref, value in self._eager.items():
        made[ref] = tf.constant(value.numpy())
      graph.add_to_collection(self, made)
      return made


@contextlib.contextmanager
def replaced(replacements: Iterable[_Replacement]) -> Iterator[None]:
  """Has the values stand in the layers' attributes, for one thread at a time."""
  with _TRACING:
    before = []
    try:
      for attributes, name, value in replacements:
        before.append((attributes, name, attributes[name]))
        attributes[name] = value
      yield
    finally:
      for attributes, name, value in reversed(before):
        attributes[name] = value


class _StatelessGenerator:
  """Stands in for a Keras layer's random generator; draws from one step's seed."""

  def __init__(self, seed: tf.Tensor):
    self._seed = seed
    self._draws = 0

  def _next_seed(self) -> tf.Tensor:
    self._draws += 1
    return tf.random.experimental.stateless_fold_in(self._seed, self._draws)

  def make_seed_for_stateless_op(self) -> tf.Tensor:
    return self._next_seed()

  def dropout(self, inputs: tf.Tensor, rate: Any, noise_shape: Any = None) -> tf.Tensor:
    return tf.nn.experimental.stateless_dropout(
      inputs, rate=rate, seed=self._next_seed(), noise_shape=noise_shape
    )

  def random_normal(
    self, shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = None
  ) -> tf.Tensor:
    return tf.random.stateless_normal(
      shape, self._next_seed(), mean, stddev, dtype or tf.float32
    )

  def random_uniform(
    self, shape: Any, minval: Any = 0.0, maxval: Any = None, dtype: Any = None
  ) -> tf.Tensor:
    maxval = 1.0 if maxval is None else maxval
    return tf.random.stateless_uniform(
      shape, self._next_seed(), minval, maxval, dtype or tf.float32
    )


def stateless_generators(layers: Layers, seed: tf.Tensor) -> Iterator[_Replacement]:
  """What stands in for the layers' generators in the local step of this seed, `(2,)`."""
  for place, layer in enumerate(layers):
    if "_random_generator" in vars(layer):
      own_seed = tf.random.experimental.stateless_fold_in(seed, place)
      yield vars(layer), "_random_generator", _StatelessGenerator(own_seed)
