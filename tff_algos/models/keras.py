"""Keras models as pure functions of their weights.

Keras 2 keeps weights in variables, and a client must train a copy of its own. So the
variables are exchanged for tensors while the model is traced: the graph that comes out
reads its weights from arguments, and random layers draw from the step's seed.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Callable, Optional

import numpy as np
import tensorflow as tf

from tff_algos.models import functional

_STATEFUL = re.compile(r"(?!Stateless).*(Random|TruncatedNormal|Multinomial|PyFunc)")

# Tracing exchanges attributes of layers that are shared by all threads.
_TRACING = threading.RLock()


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
  Weights that are not trainable are constants of the model.

  Args:
    keras_model: A built model; its current weights are the initial weights.
    example_spec: Shape and dtype of one stored example.
    loss: `(y, predictions) -> (B,)`.
    metrics: Name to a metric as `Model` takes them; default: accuracy.
    preprocess: Stored batch -> float batch; default: uint8 pictures to 0..1.

  Raises:
    ValueError: The model is not built, has no trainable weight, does not take the
      examples, or holds what local training cannot respect: a layer whose statistics
      move (BatchNormalization), a regularizer, a constraint, a weight that cannot be
      replaced, or a random operation with a state of its own.
  """
  if not keras_model.built:
    raise ValueError(
      f"The Keras model {keras_model.name!r} is not built yet: give it an Input layer "
      "or call model.build((None, ...)) first."
    )
  for module in _layers(keras_model):
    if isinstance(module, tf.keras.layers.BatchNormalization):
      raise ValueError(
        f"Layer {module.name!r} is a BatchNormalization, whose moving statistics cannot "
        "be averaged over clients: use tf.keras.layers.GroupNormalization instead."
      )
  if keras_model.losses:
    raise ValueError(
      f"The Keras model {keras_model.name!r} has a regularization loss, which local "
      "training would leave out: make the model without."
    )
  trainable = list(keras_model.trainable_variables)
  bound = [v.name for v in trainable if getattr(v, "constraint", None) is not None]
  if bound:
    raise ValueError(
      f"Weight {bound[0]!r} of the Keras model {keras_model.name!r} has a constraint, "
      "which local training would not apply: leave it out."
    )
  slots = _find_slots(keras_model)
  frozen = {v.ref(): tf.constant(v.numpy()) for v in keras_model.non_trainable_variables}
  lost = [v.name for v in trainable if v.ref() not in slots]
  if lost:
    raise ValueError(
      f"Weight {lost[0]!r} of the Keras model {keras_model.name!r} is not an attribute "
      "of any of its layers, so it cannot be replaced by a client's own: keep weights "
      "in layer attributes."
    )

  def predict(weights, x, training: bool, seed: tf.Tensor) -> tf.Tensor:
    values = {v.ref(): tf.convert_to_tensor(w) for v, w in zip(trainable, weights)}
    values.update(frozen)
    with _replaced(slots, values), _stateless_randomness(keras_model, seed):
      return keras_model(x, training=training)

  metric_options: dict[str, Any] = {} if metrics is None else dict(metrics=metrics)
  model = functional.Model(
    initial_weights=tuple(np.asarray(v.numpy(), np.float32) for v in trainable),
    weight_names=tuple(v.name.rsplit(":", 1)[0] for v in trainable),
    example_spec=example_spec,
    predict=predict,
    example_losses=loss,
    preprocess=preprocess,
    **metric_options,
  )
  _check_pure(model, keras_model.name)
  return model


def reinitialize(keras_model: tf.keras.Model, seed: int) -> None:
  """Draws every weight anew with its layer's own initializer and a stateless seed.

  Keras draws initial weights from global state; this makes them a pure function of
  `seed` and of the place of the weight in the model. A weight whose layer names no
  initializer for it (attribute `<weight>_initializer`) keeps its value.
  """
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
      initializer = type(initializer).from_config(config)
      drawn = initializer(value.shape, dtype=value.dtype)
      if name == "bias" and getattr(module, "unit_forget_bias", False):
        # An LSTM's gates: input, forget, cell, output.
        gates = tf.split(drawn, 4)
        drawn = tf.concat([gates[0], tf.ones_like(gates[1]), *gates[2:]], 0)
      value.assign(drawn)


def _initializer_of(module: tf.keras.layers.Layer, name: str) -> Any:
  """The initializer of a weight; None where the layer names none."""
  # `kernel` has `kernel_initializer`, `recurrent_kernel` has `recurrent_initializer`.
  for stem in (name.lstrip("_"), name.lstrip("_").replace("_kernel", "")):
    initializer = getattr(module, f"{stem}_initializer", None)
    if initializer is not None:
      return initializer
  return None


def _layers(keras_model) -> list[tf.keras.layers.Layer]:
  """The model, its layers, their cells and so on, in a fixed order."""
  # `submodules` would also walk Keras's caches, which it cannot sort (dropout in RNNs).
  return list(keras_model._flatten_layers())


def _find_slots(keras_model) -> dict[Any, list[tuple[dict, str]]]:
  """Where each variable is kept: variable ref -> [(attribute dict, name)]."""
  slots: dict[Any, list[tuple[dict, str]]] = {}
  for module in _layers(keras_model):
    attributes = vars(module)
    for name, value in attributes.items():
      if isinstance(value, tf.Variable):
        slots.setdefault(value.ref(), []).append((attributes, name))
  return slots


@contextlib.contextmanager
def _replaced(slots, values) -> Iterator[None]:
  with _TRACING:
    before = []
    try:
      for ref, value in values.items():
        for attributes, name in slots.get(ref, ()):
          before.append((attributes, name, attributes[name]))
          attributes[name] = value
      yield
    finally:
      for attributes, name, variable in before:
        attributes[name] = variable


class _StatelessGenerator:
  """Stands in for a Keras layer's random generator; draws from one step's seed."""

  def __init__(self, seed: tf.Tensor):
    self._seed = seed
    self._draws = 0

  def _next_seed(self) -> tf.Tensor:
    self._draws += 1
    return tf.random.experimental.stateless_fold_in(self._seed, self._draws)

  def make_seed_for_stateless_op(self):
    return self._next_seed()

  def dropout(self, inputs, rate, noise_shape=None):
    return tf.nn.experimental.stateless_dropout(
      inputs, rate=rate, seed=self._next_seed(), noise_shape=noise_shape
    )

  def random_normal(self, shape, mean=0.0, stddev=1.0, dtype=None, nonce=None):
    del nonce
    return tf.random.stateless_normal(
      shape, self._next_seed(), mean, stddev, dtype or tf.float32
    )

  def random_uniform(self, shape, minval=0.0, maxval=None, dtype=None, nonce=None):
    del nonce
    maxval = 1.0 if maxval is None else maxval
    return tf.random.stateless_uniform(
      shape, self._next_seed(), minval, maxval, dtype or tf.float32
    )

  def truncated_normal(self, shape, mean=0.0, stddev=1.0, dtype=None, nonce=None):
    del nonce
    return tf.random.stateless_truncated_normal(
      shape, self._next_seed(), mean, stddev, dtype or tf.float32
    )


@contextlib.contextmanager
def _stateless_randomness(keras_model, seed) -> Iterator[None]:
  with _TRACING:
    before = []
    try:
      for place, module in enumerate(_layers(keras_model)):
        attributes = vars(module)
        if "_random_generator" in attributes:
          before.append((attributes, attributes["_random_generator"]))
          attributes["_random_generator"] = _StatelessGenerator(
            tf.random.experimental.stateless_fold_in(seed, place)
          )
      yield
    finally:
      for attributes, generator in before:
        attributes["_random_generator"] = generator


def _check_pure(model: functional.Model, name: str) -> None:
  """Traces a training step once: a variable left in the graph is an error now."""

  def forward(weights, x, seed):
    return model.predict(weights, model.preprocess(x), True, seed)

  spec = model.example_spec.x
  try:
    traced = tf.function(forward, autograph=False).get_concrete_function(
      tuple(tf.TensorSpec(w.shape, tf.float32) for w in model.initial_weights),
      tf.TensorSpec([None, *spec.shape], spec.dtype),
      tf.TensorSpec([2], tf.int32),
    )
  except AttributeError as error:
    if "assign" not in str(error):
      raise
    raise ValueError(
      f"The Keras model {name!r} changes a weight of its own during training, which "
      "cannot be averaged over clients: use layers without moving statistics."
    ) from error
  except (ValueError, TypeError) as error:
    reason = str(error).strip().splitlines()[0]
    raise ValueError(
      f"The Keras model {name!r} does not take examples of shape "
      f"{tuple(spec.shape)}: {reason}"
    ) from error
  left = [t for t in traced.captured_inputs if t.dtype == tf.resource]
  graph = traced.graph.as_graph_def()
  operations = {node.op for node in graph.node}
  for function in graph.library.function:
    operations.update(node.op for node in function.node_def)
  stateful = sorted(filter(_STATEFUL.match, operations))
  if left or stateful:
    what = "a variable" if left else f"the stateful operation {stateful[0]}"
    raise ValueError(
      f"The Keras model {name!r} uses {what} that cannot be replaced, so its training "
      "step is no pure function: keep weights in layer attributes and use Keras's own "
      "random layers."
    )
