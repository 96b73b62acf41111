"""Keras models as pure functions of their weights.

Keras 2 keeps weights in variables, and a client must train a copy of its own. So the
variables are exchanged for tensors while the model is traced: the graph that comes out
reads its weights from arguments, holds those that are not trained as constants, and
random layers draw from the step's seed.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Callable, Optional

import numpy as np
import tensorflow as tf

from tff_algos import graphs
from tff_algos.errors import InputError, InputWarning, check_whole_number, first_line
from tff_algos.models import functional, losses
from tff_algos.models.to_keras import KerasSource

# Tracing exchanges attributes of layers that are shared by all threads.
_TRACING = threading.RLock()

_LAYER_NORM = tf.keras.layers.LayerNormalization
_Layers = Sequence[tf.keras.layers.Layer]
# An attribute of a layer: the layer's attributes, and its name among them.
_Slot = tuple[dict[str, Any], str]
# The same, and what stands there while the model is traced.
_Replacement = tuple[dict[str, Any], str, Any]


def from_keras(
  keras_model: tf.keras.Model,
  example_spec: functional.ExampleSpec,
  *,
  loss: Callable[..., tf.Tensor] = functional.sparse_cross_entropy,
  metrics: Optional[Mapping[str, Callable[..., functional.MetricValue]]] = None,
  preprocess: Callable[[tf.Tensor], tf.Tensor] = functional.scale_pictures,
) -> functional.Model:
  """Makes a `Model` of a built Keras model that returns logits.

  Dropout and the other random layers draw statelessly from the seed of the local step.

  What is not trained is a constant of the model: weights of layers with
  `trainable=False`, and tensors that a layer holds, such as the mean and the variance of
  an adapted `Normalization`. It is part of the computations, so it is in no message, no
  state and no count of `Model`. Values and `trainable` are those at this call: whatever
  the Keras model learns, loads or adapts to later does not reach the `Model`. The layers
  must stay the same, for they are traced whenever a process is built.

  Args:
    keras_model: A built model; its current weights are the initial weights.
    example_spec: Shape and dtype of one stored example.
    loss: `(y, predictions) -> (B,)`, the loss of each example by itself.
    metrics: Name to a metric as `Model` takes them; default: accuracy.
    preprocess: Stored batch -> float batch, a function or, so that `to_keras` can take
      it along, a Keras layer; default: uint8 pictures to 0..1.

  Warns:
    InputWarning: The model ends in a softmax or sigmoid, and `loss` takes logits; or
      `loss` makes of an example what depends on the others of its batch.

  Raises:
    InputError: The model is not built, has no trainable weight, does not take the
      examples, gives several outputs to a loss that takes logits, or holds what local
      training cannot respect: a layer whose statistics move (BatchNormalization that is
      not frozen), a regularizer, a constraint, a weight or tensor that cannot be
      replaced, a random operation with a state of its own; or `loss` does not fit. When
      it is traced, if layers have come or gone since.
  """
  _check_built(keras_model)
  layers = _layers(keras_model)
  for layer in layers:
    if isinstance(layer, tf.keras.layers.BatchNormalization) and layer.trainable:
      raise InputError(
        f"Layer {layer.name!r} is a BatchNormalization, whose moving statistics cannot "
        "be averaged over clients: use tf.keras.layers.GroupNormalization instead, or "
        "freeze the layer by trainable=False."
      )
  if keras_model.losses:
    raise InputError(
      f"The Keras model {keras_model.name!r} has a regularization loss, which local "
      "training would leave out: make the model without."
    )
  trainable = list(keras_model.trainable_variables)
  if keras_model.weights and not trainable:
    raise InputError(
      f"Every weight of the Keras model {keras_model.name!r} is frozen, so there is "
      "nothing to train: set trainable=True for at least one layer that has weights."
    )
  bound = [v.name for v in trainable if getattr(v, "constraint", None) is not None]
  if bound:
    raise InputError(
      f"Weight {bound[0]!r} of the Keras model {keras_model.name!r} has a constraint, "
      "which local training would not apply: leave it out."
    )
  slots = _find_slots(layers)
  lost = [v.name for v in trainable if v.ref() not in slots]
  if lost:
    raise InputError(
      f"Weight {lost[0]!r} of the Keras model {keras_model.name!r} is not an attribute "
      "of any of its layers, so it cannot be replaced by a client's own: keep weights "
      "in layer attributes."
    )
  trained = {v.ref() for v in trainable}
  held = {ref: tf.constant(ref.deref().numpy()) for ref in slots if ref not in trained}
  constants = _Constants(held)
  # It decides how a BatchNormalization works, not only what is trained.
  flags = [(vars(layer), "_trainable", vars(layer)["_trainable"]) for layer in layers]
  # Fused, it is an operation that with oneDNN must not have two batch sizes at once.
  flags += [(vars(v), "_fused", False) for v in layers if isinstance(v, _LAYER_NORM)]

  def predict(
    weights: functional.Weights, x: tf.Tensor, training: bool, seed: tf.Tensor
  ) -> tf.Tensor:
    if _layers(keras_model) != layers:
      raise InputError(
        f"The Keras model {keras_model.name!r} has other layers than when from_keras "
        "took it: call from_keras after the last change."
      )
    values = {v.ref(): tf.convert_to_tensor(w) for v, w in zip(trainable, weights)}
    values.update(constants.here())
    filled = [(*slot, values[ref]) for ref in slots for slot in slots[ref]]
    with _replaced([*filled, *flags, *_stateless_generators(layers, seed)]):
      return keras_model(x, training=training)

  metric_options: dict[str, Any] = {} if metrics is None else dict(metrics=metrics)
  model = functional.Model(
    initial_weights=tuple(np.asarray(v.numpy(), np.float32) for v in trainable),
    weight_names=tuple(v.name.rsplit(":", 1)[0] for v in trainable),
    example_spec=example_spec,
    predict=predict,
    example_losses=loss,
    preprocess=preprocess,
    keras_source=KerasSource(keras_model, trainable, held),
    **metric_options,
  )
  traced = _trace(model, keras_model.name, training=True)
  _check_pure(traced, keras_model.name)
  takes_logits = losses.takes_logits(loss)
  if takes_logits and tf.nest.is_nested(given := traced.structured_outputs):
    raise InputError(
      f"The Keras model {keras_model.name!r} gives a {type(given).__name__} of outputs, "
      "but the loss takes one tensor, the logits: make a model whose output is that "
      "alone, or pass a loss= that takes them."
    )
  losses.check(model, traced.structured_outputs)
  last = ""
  if takes_logits:  # In training, a dropout may come after them.
    outputs = _trace(model, keras_model.name, training=False).outputs
    last = graphs.last_operation(outputs[0])
  if last in graphs.NOT_LOGITS:
    warnings.warn(
      f"The Keras model {keras_model.name!r} ends in a {last.lower()}, but its outputs "
      "are taken for logits, of which the loss takes the softmax: leave the last "
      "activation out, or pass a loss= of probabilities.",
      InputWarning,
      stacklevel=2,
    )
  return model


def reinitialize(keras_model: tf.keras.Model, seed: int) -> None:
  """Draws what is trained anew, with each layer's own initializer and a stateless seed.

  Keras draws initial weights from global state; this makes them a pure function of
  `seed` and of the place of the weight in the model. Frozen weights, such as a pretrained
  base's, keep their values, and so does a weight whose layer names no initializer for it
  (attribute `<weight>_initializer`).

  Raises:
    InputError: The model is not built, or the seed is no whole number of at least 0.
  """
  check_whole_number("seed", seed, 0)
  _check_built(keras_model)
  trained = {v.ref() for v in keras_model.trainable_variables}
  place = 0
  for module in _layers(keras_model):
    for name, value in list(vars(module).items()):
      initializer = _initializer_of(module, name)
      if not isinstance(value, tf.Variable) or initializer is None:
        continue
      config = initializer.get_config()
      if "seed" in config:
        generated = np.random.SeedSequence([seed, place]).generate_state(1)[0]
        config["seed"] = int(generated) % (2**31 - 1)
      place += 1
      if value.ref() not in trained:
        continue
      drawn = type(initializer).from_config(config)(value.shape, dtype=value.dtype)
      if name == "bias" and getattr(module, "unit_forget_bias", False):
        # An LSTM's gates: input, forget, cell, output.
        gates = tf.split(drawn, 4)
        drawn = tf.concat([gates[0], tf.ones_like(gates[1]), *gates[2:]], 0)
      value.assign(drawn)


def _check_built(keras_model: tf.keras.Model) -> None:
  if not isinstance(keras_model, tf.keras.Model):
    found = type(keras_model).__name__
    raise InputError(f"The Keras model is a {found}: give a tf.keras.Model.")
  if not keras_model.built:
    raise InputError(
      f"The Keras model {keras_model.name!r} is not built yet: give it an Input layer "
      "or call model.build((None, ...)) first."
    )


def _initializer_of(module: tf.keras.layers.Layer, name: str) -> Any:
  """The initializer of a weight; None where the layer names none."""
  # `kernel` has `kernel_initializer`, `recurrent_kernel` has `recurrent_initializer`.
  for stem in (name.lstrip("_"), name.lstrip("_").replace("_kernel", "")):
    initializer = getattr(module, f"{stem}_initializer", None)
    if initializer is not None:
      return initializer
  return None


def _layers(keras_model: tf.keras.Model) -> list[tf.keras.layers.Layer]:
  """The model, its layers, their cells and so on, in a fixed order."""
  # `submodules` would also walk Keras's caches, which it cannot sort (dropout in RNNs).
  return list(keras_model._flatten_layers())


def _find_slots(layers: _Layers) -> dict[Any, list[_Slot]]:
  """Where variables and eager tensors are kept: ref -> [(attribute dict, name)]."""
  slots: dict[Any, list[_Slot]] = {}
  for layer in layers:
    attributes = vars(layer)
    for name, value in attributes.items():
      is_value = _is_eager(value) and value.dtype != tf.resource
      if isinstance(value, tf.Variable) or is_value:
        slots.setdefault(value.ref(), []).append((attributes, name))
  return slots


def _is_eager(value: Any) -> bool:
  return isinstance(value, tf.Tensor) and hasattr(value, "numpy")


class _Constants:
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
def _replaced(replacements: Iterable[_Replacement]) -> Iterator[None]:
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
    self,
    shape: Any,
    mean: Any = 0.0,
    stddev: Any = 1.0,
    dtype: Any = None,
    nonce: Any = None,
  ) -> tf.Tensor:
    del nonce
    return tf.random.stateless_normal(
      shape, self._next_seed(), mean, stddev, dtype or tf.float32
    )

  def random_uniform(
    self,
    shape: Any,
    minval: Any = 0.0,
    maxval: Any = None,
    dtype: Any = None,
    nonce: Any = None,
  ) -> tf.Tensor:
    del nonce
    maxval = 1.0 if maxval is None else maxval
    return tf.random.stateless_uniform(
      shape, self._next_seed(), minval, maxval, dtype or tf.float32
    )

  def truncated_normal(
    self,
    shape: Any,
    mean: Any = 0.0,
    stddev: Any = 1.0,
    dtype: Any = None,
    nonce: Any = None,
  ) -> tf.Tensor:
    del nonce
    return tf.random.stateless_truncated_normal(
      shape, self._next_seed(), mean, stddev, dtype or tf.float32
    )


def _stateless_generators(layers: _Layers, seed: tf.Tensor) -> Iterator[_Replacement]:
  for place, layer in enumerate(layers):
    if "_random_generator" in vars(layer):
      own_seed = tf.random.experimental.stateless_fold_in(seed, place)
      yield vars(layer), "_random_generator", _StatelessGenerator(own_seed)


def _trace(model: functional.Model, name: str, *, training: bool) -> Any:
  """The forward pass as a concrete function, in a graph as TFF's are."""

  def forward(weights: functional.Weights, x: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    return model.predict(weights, model.preprocess(x), training, seed)

  spec = model.example_spec.x
  try:
    with tf.Graph().as_default():
      return tf.function(forward, autograph=False).get_concrete_function(
        tuple(tf.TensorSpec(w.shape, tf.float32) for w in model.initial_weights),
        tf.TensorSpec([None, *spec.shape], spec.dtype),
        tf.TensorSpec([2], tf.int32),
      )
  except AttributeError as error:
    if "assign" not in str(error):
      raise
    raise InputError(
      f"The Keras model {name!r} changes a weight of its own during training, which "
      "cannot be averaged over clients: use layers without moving statistics."
    ) from error
  except (ValueError, TypeError) as error:
    raise InputError(
      f"The Keras model {name!r} does not take examples of shape "
      f"{tuple(spec.shape)}: {first_line(error)}"
    ) from error


def _check_pure(traced: Any, name: str) -> None:
  """What the graph takes from outside, or draws by itself, is an error now."""
  stateful = graphs.drawing_operations(traced.graph.as_graph_def())
  captured = [t for t in traced.captured_inputs if _is_eager(t)]
  is_variable = any(t.dtype == tf.resource for t in captured)
  if is_variable or stateful:
    what = "a variable" if is_variable else f"the stateful operation {stateful[0]}"
    raise InputError(
      f"The Keras model {name!r} uses {what} that cannot be replaced, so its training "
      "step is no pure function: keep weights in layer attributes and use Keras's own "
      "random layers."
    )
  if captured:
    raise InputError(
      f"The Keras model {name!r} or its preprocess uses a tensor of shape "
      f"{tuple(captured[0].shape)} that TFF cannot take along: make it an "
      "attribute of a layer, or a NumPy array in preprocess."
    )
