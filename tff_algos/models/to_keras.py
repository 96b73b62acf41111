"""Trained weights as a Keras model that others can open.

A `Model` of `from_keras` is a function of its weights and of preprocessed inputs. What is
made here is a Keras model again: it holds weights, and takes inputs as they are stored.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from numpy.typing import NDArray

from tff_algos import graphs
from tff_algos.errors import InputError, first_line
from tff_algos.models import functional, keras_exchange

#: The most that a prediction may differ, as a part of the largest, or of 1.
TOLERANCE = 1e-4
# The same of layers that compute in half precision, which has eight binary digits.
_HALF_TOLERANCE = 2**-5

_DISCRETIZATION = tf.keras.layers.Discretization
_COMPARED = 4
_HALF = ("float16", "bfloat16")
_MIXED = ("mixed_float16", "mixed_bfloat16")
# The class of tf.keras.Model(inputs, outputs).
_FUNCTIONAL = tf.keras.Sequential.__bases__[0]


class KerasSource(NamedTuple):
  """What `from_keras` made a `Model` of.

  Attributes:
    keras_model: The Keras model, whose layers the `Model` runs.
    trainable: Its variables that are trained, in the order of the `Model`'s weights.
    constants: The values of its others and of tensors that layers hold, by reference.
    slots: Where variables and tensors were kept then, as `find_slots` gives them.
  """

  keras_model: tf.keras.Model
  trainable: list[tf.Variable]
  constants: Mapping[Any, tf.Tensor]
  slots: Mapping[Any, list[keras_exchange.Slot]]

  def frozen_arrays(self) -> list[NDArray[Any]]:
    """The constants that are floating-point: random layers have counters among them."""
    return [t.numpy() for t in self.constants.values() if t.dtype.is_floating]


def to_keras(model: functional.Model, weights: functional.Weights) -> tf.keras.Model:
  """Makes a Keras model with these weights, of the layers of the one `model` is made of.

  It is a new one: the Keras model that was given to `from_keras` is left as it is. It
  takes inputs as they are stored, such as uint8 pictures, for it begins with the model's
  `preprocess` as a layer, and gives what the model predicts, such as logits. Inputs of
  another dtype are cast, so pictures in 0..1 would become 0, but for whole ones. Layers
  of a mixed precision compute in float32, which every format and device knows.

  A layer of your own class is copied by its `get_config`, and a file of the model opens
  only where that class is known; unless it has a method

      standard_layer(weights: list[np.ndarray]) -> tuple[tf.keras.layers.Layer, list]

  which is given the layer's weights, and gives a layer of Keras's own that does the same,
  and the weights that this is to have.

  Args:
    model: What `from_keras` has made.
    weights: One float array for each of `model.initial_weights`, such as
      `process.get_model_weights(state).trainable`.

  Returns:
    A built model of one input (B, ...) of the dtype of `model.example_spec.x`.

  Raises:
    InputError: `model` is not of `from_keras`, has other weights than these, or cannot be
      copied: its `preprocess` is a function, a layer has no `get_config`, the Keras model
      is a class of its own, or the copy predicts something else, as where a layer was
      changed after it was made by what its `get_config` does not have.
  """
  functional.check_model(model)
  source = model.keras_source
  if source is None:
    raise InputError(
      "This Model was not made by from_keras, so there is no Keras model to put its "
      "weights into: make it by from_keras."
    )
  weights = functional.check_weights(model, weights)
  values = {ref: np.asarray(value) for ref, value in source.constants.items()}
  values.update((v.ref(), np.asarray(w)) for v, w in zip(source.trainable, weights))
  spec = model.example_spec.x
  inputs = tf.keras.Input(spec.shape, dtype=spec.dtype, name="inputs")
  try:
    copy = _Copy(values, source.slots)
    outputs = copy.of(source.keras_model)(_preprocessed(model, inputs))
    copied = tf.keras.Model(inputs, outputs, name=source.keras_model.name)
  except InputError:
    raise
  except ValueError as error:  # As Keras says of what it cannot make again.
    why, _, _ = first_line(error).partition(". ")
    raise InputError(
      f"The Keras model {source.keras_model.name!r} cannot be copied ({why}): make it of "
      "layers alone, and these of what Keras knows by name."
    ) from error
  _check_copy(model, weights, copied)
  return copied


def example_inputs(keras_model: tf.keras.Model, number: int) -> NDArray[Any]:
  """Inputs as they could be stored, at random, the same each time: (number, ...).

  Pictures have all pixels 0..255, symbols are those that every embedding has.
  """
  [spec] = keras_model.inputs
  dtype, shape = spec.dtype, [number, *spec.shape[1:]]
  draw = np.random.default_rng(0)
  layers = keras_model._flatten_layers()
  embeddings = [x for x in layers if isinstance(x, tf.keras.layers.Embedding)]
  limit = min((x.input_dim for x in embeddings), default=256 if dtype == tf.uint8 else 2)
  if dtype.is_integer:
    return draw.integers(0, limit, shape).astype(dtype.as_numpy_dtype)
  # Some of them may be symbols, which the model casts.
  numbers = draw.uniform(0, limit, shape) if embeddings else draw.normal(size=shape)
  return numbers.astype(dtype.as_numpy_dtype)


def difference(found: NDArray[Any], expected: NDArray[Any]) -> float:
  """The largest of two arrays of predictions, as a part of the largest expected, or of 1.

  Infinite where their shapes differ, where what is NaN or infinite in one is something
  else in the other, and where truth values differ.
  """
  if found.shape != expected.shape:
    return math.inf
  if expected.dtype == bool:
    return 0.0 if np.array_equal(found, expected) else math.inf
  compared = np.isfinite(found) & np.isfinite(expected)
  if not np.array_equal(found[~compared], expected[~compared], equal_nan=True):
    return math.inf
  found, expected = found[compared], expected[compared]
  largest = np.max(np.abs(expected), initial=1.0)
  return float(np.max(np.abs(found - expected), initial=0.0) / largest)


def check_built(keras_model: tf.keras.Model) -> None:
  """Raises `InputError` unless it is a Keras model that has its weights."""
  if not isinstance(keras_model, tf.keras.Model):
    found = type(keras_model).__name__
    raise InputError(f"The Keras model is a {found}: give a tf.keras.Model.")
  if not keras_model.built:
    raise InputError(
      f"The Keras model {keras_model.name!r} is not built yet: give it an Input layer "
      "or call model.build((None, ...)) first."
    )


def keras_weights(keras_model: tf.keras.Model) -> tff.learning.models.ModelWeights:
  """A Keras model's trained weights, as a process's `set_model_weights` takes them.

  So training begins with a model that `to_keras` made or that was trained in Keras, but
  for the algorithms that `set_model_weights` names; for these, as for all, `from_keras`
  takes a trained model over with its weights.
  What is frozen is not among them: those are constants of the process's `Model`.

  Args:
    keras_model: A model of the layers that `from_keras` was given, frozen where those
      are.

  Returns:
    The arrays of its trainable variables in their order, and no others.

  Raises:
    InputError: It is no Keras model, or not built yet.
  """
  check_built(keras_model)
  trained = tuple(v.numpy() for v in keras_model.trainable_variables)
  return tff.learning.models.ModelWeights(trained, ())


def _check_copy(
  model: functional.Model, weights: functional.Weights, copied: tf.keras.Model
) -> None:
  """Raises `InputError` if the copy predicts something else than the model.

  Nothing is compared of what draws in inference too, as a dropout may.
  """
  own_layers = keras_exchange.layers_of(model.keras_source.keras_model)
  is_half = any(layer.compute_dtype in _HALF for layer in own_layers)
  tolerance = _HALF_TOLERANCE if is_half else TOLERANCE
  inputs = example_inputs(copied, _COMPARED)

  def predict(x: tf.Tensor) -> Any:
    return model.predict(weights, model.preprocess(x), False, tf.zeros([2], tf.int32))

  traced = tf.function(predict, autograph=False).get_concrete_function(
    tf.TensorSpec(inputs.shape, inputs.dtype)
  )
  if graphs.draws_by_seeds(traced.graph.as_graph_def()):
    return
  # On a GPU layers of other kinds round further apart, and embeddings give 0 for numbers
  # that they lack.
  with tf.device("CPU"):
    try:
      expected = predict(tf.constant(inputs))
    # It takes fewer than these inputs' kind has, or is for GPUs only.
    except (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError):
      return
    found = copied(inputs, training=False)
  both = map(tf.nest.flatten, (found, expected))
  if max(difference(a.numpy(), b.numpy()) for a, b in zip(*both)) > tolerance:
    kinds = set(map(type, own_layers))
    names = sorted(
      kind.__name__ for kind in kinds if kind.__module__.partition(".")[0] != "keras"
    )
    raise InputError(
      f"A copy of the Keras model {copied.name!r} predicts something else than it does: "
      f"let the get_config or the standard_layer of {', '.join(names) or 'its layers'} "
      "have all that was set since the layer was made."
    )


def _preprocessed(model: functional.Model, inputs: Any) -> Any:
  """The inputs behind the layer that does what `model.preprocess` does."""
  if getattr(model.preprocess, "_is_graph_network", False):
    slots = keras_exchange.find_slots(keras_exchange.layers_of(model.preprocess))
    return _Copy({}, slots).of(model.preprocess)(inputs)
  if isinstance(model.preprocess, tf.keras.layers.Layer):
    return _from_config(model.preprocess)(inputs)
  if model.preprocess is not functional.scale_pictures:
    raise InputError(
      "The preprocess of this Model is a function, which a Keras model cannot hold: pass "
      "a layer, such as tf.keras.layers.Rescaling, as preprocess of from_keras."
    )
  if inputs.dtype == tf.float32:
    return inputs
  scale = 1 / 255 if inputs.dtype == tf.uint8 else 1.0
  # Not of a global policy's dtype, whatever that is.
  return tf.keras.layers.Rescaling(scale, dtype="float32", name="stored_to_float")(inputs)


class _Copy:
  """Copies of layers, which have other weights and are of Keras's own classes."""

  def __init__(
    self, values: Mapping[Any, Any], slots: Mapping[Any, list[keras_exchange.Slot]]
  ):
    self._values, self._slots = values, slots
    # By identity, as a layer may be at several places; with the weights it is to have.
    self._made: dict[int, tuple[tf.keras.layers.Layer, list[Any]]] = {}
    # Of the same class, and so of the same parts, which a configuration has not frozen.
    self._copies: list[tuple[tf.keras.layers.Layer, tf.keras.layers.Layer]] = []

  def of(self, network: tf.keras.Model) -> tf.keras.Model:
    """Copies a whole Keras model."""
    copied = self._network(network)
    for layer, weights in self._made.values():
      if weights:
        with _unfrozen(layer):
          layer.set_weights(weights)
    copies: dict[int, dict[str, Any]] = {}
    for original, layer in self._copies:
      for part, of_copy in zip(original._flatten_layers(), layer._flatten_layers()):
        of_copy._trainable = part._trainable
        copies[id(vars(part))] = vars(of_copy)
    for ref, slots in self._slots.items():
      for attributes, name, _ in slots:
        if isinstance(ref.deref(), tf.Tensor) and id(attributes) in copies:
          kept = self._values.get(ref, ref.deref())
          copies[id(attributes)][name] = tf.constant(np.asarray(kept))
    for layer in copied._flatten_layers():
      # What an adapted layer computes with, it makes of its weights.
      if isinstance(layer, tf.keras.layers.Normalization):
        layer.finalize_state()
    return copied

  def _network(self, network: tf.keras.Model) -> tf.keras.Model:
    has_own_call = type(network).call not in (tf.keras.Sequential.call, _FUNCTIONAL.call)
    if not network._is_graph_network or has_own_call:
      raise InputError(
        f"The Keras model {network.name!r} is a class of its own, which cannot be "
        "copied: make it of layers, by tf.keras.Sequential or tf.keras.Model(inputs, "
        "outputs)."
      )
    return tf.keras.models.clone_model(network, clone_function=self._layer)

  def _layer(self, layer: tf.keras.layers.Layer) -> tf.keras.layers.Layer:
    if id(layer) not in self._made:
      self._made[id(layer)] = self._new(layer)
    return self._made[id(layer)][0]

  def _new(self, layer: tf.keras.layers.Layer) -> tuple[tf.keras.layers.Layer, list[Any]]:
    if isinstance(layer, tf.keras.Model):
      return self._network(layer), []
    with _unfrozen(layer):
      weights = [np.asarray(self._values.get(v.ref(), v)) for v in layer.weights]
    if hasattr(layer, "standard_layer"):
      return _unbuilt(layer, *layer.standard_layer(weights))
    copied = _from_config(layer)
    self._copies.append((layer, copied))
    return copied, [] if isinstance(layer, _DISCRETIZATION) else weights


def _unfrozen(layer: tf.keras.layers.Layer) -> contextlib.AbstractContextManager[None]:
  """Has its weights in the order that they have where no part of it is frozen."""
  parts = layer._flatten_layers()
  return keras_exchange.replaced([(vars(part), "_trainable", True) for part in parts])


def _unbuilt(
  layer: tf.keras.layers.Layer, standard: tf.keras.layers.Layer, weights: list[Any]
) -> tuple[tf.keras.layers.Layer, list[Any]]:
  # In a functional model, Keras would look for its call without an end.
  if isinstance(standard, tf.keras.Model) and standard.inputs is not None:
    raise InputError(
      f"The standard_layer of {layer.name!r} is a model that has inputs already: leave "
      "out its Input."
    )
  return standard, weights


def _in_float32(config: Any) -> Any:
  """A configuration of the same layer, and of those in it, without mixed precision."""
  if isinstance(config, list):
    return [_in_float32(value) for value in config]
  if not isinstance(config, dict):
    return config
  if config.get("class_name") == "Policy" and config["config"]["name"] in _MIXED:
    return "float32"
  return {name: _in_float32(value) for name, value in config.items()}


def _from_config(layer: tf.keras.layers.Layer) -> tf.keras.layers.Layer:
  try:
    config = _in_float32(layer.get_config())
    if isinstance(layer, _DISCRETIZATION):  # What it is adapted to is not among these.
      config.update(num_bins=None, bin_boundaries=list(layer.bin_boundaries))
    return type(layer).from_config(config)
  except (NotImplementedError, TypeError) as error:  # As Keras says of such a class.
    raise InputError(
      f"The layer {layer.name!r} cannot be copied: give its class {type(layer).__name__} "
      "a get_config that has what it is made from, or a standard_layer."
    ) from error
