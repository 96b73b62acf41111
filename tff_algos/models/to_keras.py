"""Trained weights as a Keras model that others can open.

A `Model` of `from_keras` is a function of its weights and of preprocessed inputs. What is
made here is a Keras model again: it holds weights, and takes inputs as they are stored.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.errors import InputError
from tff_algos.models import functional, keras_exchange

_DISCRETIZATION = tf.keras.layers.Discretization


class KerasSource(NamedTuple):
  """What `from_keras` made a `Model` of.

  Attributes:
    keras_model: The Keras model, whose layers the `Model` runs.
    trainable: Its variables that are trained, in the order of the `Model`'s weights.
    constants: The values of its others and of tensors that layers hold, by reference.
  """

  keras_model: tf.keras.Model
  trainable: list[tf.Variable]
  constants: Mapping[Any, tf.Tensor]


def to_keras(model: functional.Model, weights: functional.Weights) -> tf.keras.Model:
  """Makes a Keras model with these weights, of the layers of the one `model` is made of.

  It is a new one: the Keras model that was given to `from_keras` is left as it is. It
  takes inputs as they are stored, such as uint8 pictures, for it begins with the model's
  `preprocess` as a layer, and gives what the model predicts, such as logits. Inputs of
  another dtype are cast, so pictures in 0..1 would become 0, but for whole ones.

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
      copied: its `preprocess` is a function, a layer has no `get_config`, or the Keras
      model is a class of its own.
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
  outputs = _Copy(values).of(source.keras_model)(_preprocessed(model, inputs))
  return tf.keras.Model(inputs, outputs, name=source.keras_model.name)


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


def _preprocessed(model: functional.Model, inputs: Any) -> Any:
  """The inputs behind the layer that does what `model.preprocess` does."""
  if getattr(model.preprocess, "_is_graph_network", False):
    return _Copy({}).of(model.preprocess)(inputs)
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
  return tf.keras.layers.Rescaling(scale, name="stored_to_float")(inputs)


class _Copy:
  """Copies of layers, which have other weights and are of Keras's own classes."""

  def __init__(self, values: Mapping[Any, Any]):
    self._values = values
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
    for original, layer in self._copies:
      for part, of_copy in zip(original._flatten_layers(), layer._flatten_layers()):
        of_copy._trainable = part._trainable
    for layer in copied._flatten_layers():
      # What an adapted layer computes with, it makes of its weights.
      if isinstance(layer, tf.keras.layers.Normalization):
        layer.finalize_state()
    return copied

  def _network(self, network: tf.keras.Model) -> tf.keras.Model:
    if not network._is_graph_network:
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


def _from_config(layer: tf.keras.layers.Layer) -> tf.keras.layers.Layer:
  try:
    config = layer.get_config()
    if isinstance(layer, _DISCRETIZATION):  # What it is adapted to is not among these.
      config.update(num_bins=None, bin_boundaries=list(layer.bin_boundaries))
    return type(layer).from_config(config)
  except (NotImplementedError, TypeError) as error:  # As Keras says of such a class.
    raise InputError(
      f"The layer {layer.name!r} cannot be copied: give its class {type(layer).__name__} "
      "a get_config that has what it is made from, or a standard_layer."
    ) from error
