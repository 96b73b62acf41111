"""Keras models as pure functions of their weights.

Keras 2 keeps weights in variables, and a client must train a copy of its own. So the
variables are exchanged for tensors while the model is traced: the graph that comes out
reads its weights from arguments, holds those that are not trained as constants, and
random layers draw from the step's seed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from tff_algos import graphs
from tff_algos.errors import InputError, InputWarning, check_whole_number, first_line
from tff_algos.models import functional, keras_exchange, losses
from tff_algos.models.to_keras import KerasSource, check_built

_LAYER_NORM = tf.keras.layers.LayerNormalization


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

  Under the policy "mixed_bfloat16" of `tf.keras.mixed_precision` layers compute in
  bfloat16; weights, gradients and what they predict are float32 all the same.

  Args:
    keras_model: A built model; its current weights are the initial weights.
    example_spec: Shape and dtype of one stored example.
    loss: `(y, predictions) -> (B,)`, the loss of each example by itself.
    metrics: Name to a metric as `Model` takes them; default: accuracy.
    preprocess: Stored batch -> float batch, a function or, so that `to_keras` can take
      it along, a Keras layer; default: uint8 pictures to 0..1.

  Warns:
    InputWarning: The model ends in a softmax or sigmoid, and `loss` takes logits; or
      `loss` or a metric makes of an example what depends on the others of its batch.

  Raises:
    InputError: The model is not built, has no trainable weight, does not take the
      examples, trains what is not float32 or computes in float16, gives several outputs
      to a loss that takes logits, or holds what local training cannot respect: a layer
      whose statistics move (BatchNormalization that is not frozen), a regularizer, a
      constraint, a weight or tensor that cannot be replaced, tensors compared by `==`, a
      random operation with a state of its own, a look-up table, an embedding of uint8
      inputs that `preprocess` scales; or `loss` does not fit. When it is traced, if
      layers have come or gone since.
  """
  check_built(keras_model)
  layers = keras_exchange.layers_of(keras_model)
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
  _check_precision(keras_model.name, layers, trainable)
  slots = keras_exchange.find_slots(layers)
  lost = [v.name for v in trainable if v.ref() not in slots]
  if lost:
    raise InputError(
      f"Weight {lost[0]!r} of the Keras model {keras_model.name!r} is not an attribute "
      "of any of its layers, so it cannot be replaced by a client's own: keep weights "
      "in layer attributes."
    )
  trained = {v.ref() for v in trainable}
  held = {ref: tf.constant(ref.deref().numpy()) for ref in slots if ref not in trained}
  constants = keras_exchange.Constants(held)
  # It decides how a BatchNormalization works, not only what is trained.
  flags = [(vars(layer), "_trainable", vars(layer)["_trainable"]) for layer in layers]
  # Fused, it is an operation that with oneDNN must not have two batch sizes at once.
  flags += [(vars(v), "_fused", False) for v in layers if isinstance(v, _LAYER_NORM)]

  def predict(
    weights: functional.Weights, x: tf.Tensor, training: bool, seed: tf.Tensor
  ) -> tf.Tensor:
    if keras_exchange.layers_of(keras_model) != layers:
      raise InputError(
        f"The Keras model {keras_model.name!r} has other layers than when from_keras "
        "took it: call from_keras after the last change."
      )
    values = {v.ref(): tf.convert_to_tensor(w) for v, w in zip(trainable, weights)}
    values.update(constants.here())
    filled = [slot.filled(values[ref]) for ref in slots for slot in slots[ref]]
    generators = keras_exchange.stateless_generators(layers, seed)
    keras_exchange.restore_classes(layers)
    with keras_exchange.replaced([*filled, *flags, *generators]):
      outputs = keras_model(x, training=training)
    # A loss has few digits in half precision.
    return tf.nest.map_structure(_in_float32, outputs)

  metric_options: dict[str, Any] = {} if metrics is None else dict(metrics=metrics)
  model = functional.Model(
    initial_weights=tuple(np.asarray(v.numpy(), np.float32) for v in trainable),
    weight_names=tuple(v.name.rsplit(":", 1)[0] for v in trainable),
    example_spec=example_spec,
    predict=predict,
    example_losses=loss,
    preprocess=preprocess,
    keras_source=KerasSource(keras_model, trainable, held, slots),
    **metric_options,
  )
  if isinstance(preprocess, tf.keras.layers.Layer) and not preprocess.built:
    # Else it would hold tensors of a trace.
    preprocess.build((None, *example_spec.x.shape))
  if example_spec.x.dtype == tf.uint8 and preprocess is functional.scale_pictures:
    _check_embeds_nothing(keras_model, layers)
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
    InputError: The model is not built, the seed is no whole number of at least 0, or what
      is trained is drawn by a function, which takes no seed.
  """
  check_whole_number("seed", seed, 0)
  check_built(keras_model)
  trained = {v.ref() for v in keras_model.trainable_variables}
  place = 0
  for module in keras_exchange.layers_of(keras_model):
    for name, value in list(vars(module).items()):
      initializer = _initializer_of(module, name)
      if not isinstance(value, tf.Variable) or initializer is None:
        continue
      if not hasattr(initializer, "get_config"):
        if value.ref() not in trained:
          continue
        raise InputError(
          f"Layer {module.name!r} of the Keras model draws its {name} by a function, "
          "which takes no seed: give an initializer of tf.keras.initializers, or draw "
          "such weights yourself and leave reinitialize out."
        )
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


def _check_embeds_nothing(
  keras_model: tf.keras.Model, layers: keras_exchange.Layers
) -> None:
  """Of inputs that are scaled to 0..1 an embedding would take its first row alone."""
  for layer in layers:
    if not isinstance(layer, tf.keras.layers.Embedding):
      continue
    taken = getattr(layer, "input", None)  # None where it has been called twice.
    if any(taken is given for given in keras_model.inputs or ()):
      raise InputError(
        f"Layer {layer.name!r} of the Keras model {keras_model.name!r} embeds the "
        "inputs, but uint8 examples are scaled to 0..1 as pictures are: store them as "
        "int32, or give preprocess=tf.identity."
      )


def _in_float32(output: tf.Tensor) -> tf.Tensor:
  is_half = output.dtype in (tf.bfloat16, tf.float16)
  return tf.cast(output, tf.float32) if is_half else output


def _check_precision(
  name: str, layers: keras_exchange.Layers, trainable: Sequence[tf.Variable]
) -> None:
  """Local training adds in float32, and does not scale losses."""
  trained = {weight.ref() for weight in trainable}
  for layer in layers:
    own = {v.ref() for v in vars(layer).values() if isinstance(v, tf.Variable)}
    policy = layer.compute_dtype, layer.variable_dtype
    if own & trained and policy == ("float16", "float32"):
      raise InputError(
        f"Layer {layer.name!r} of the Keras model {name!r} computes in float16, in "
        "which small gradients are 0 unless the loss is scaled, as it is not here: make "
        "the model under the policy mixed_bfloat16 or float32."
      )
  for weight in trainable:
    if weight.dtype != tf.float32:
      raise InputError(
        f"Weight {weight.name!r} of the Keras model {name!r} is {weight.dtype.name}: "
        "what is trained must be float32."
      )


def _initializer_of(module: tf.keras.layers.Layer, name: str) -> Any:
  """The initializer of a weight; None where the layer names none."""
  # `kernel` has `kernel_initializer`, `recurrent_kernel` has `recurrent_initializer`.
  for stem in (name.lstrip("_"), name.lstrip("_").replace("_kernel", "")):
    initializer = getattr(module, f"{stem}_initializer", None)
    if initializer is not None:
      return initializer
  return None


def _trace(model: functional.Model, name: str, *, training: bool) -> Any:
  """The forward pass as a concrete function, in a graph as TFF's are."""

  def forward(weights: functional.Weights, x: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    with graphs.refusing_equality(f"The Keras model {name!r} or its preprocess"):
      return model.predict(weights, model.preprocess(x), training, seed)

  spec = model.example_spec.x
  try:
    with tf.Graph().as_default():
      return tf.function(forward, autograph=False).get_concrete_function(
        model.weight_specs,
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
    if isinstance(error, InputError):
      raise
    raise InputError(
      f"The Keras model {name!r} does not take examples of shape "
      f"{tuple(model.example_spec.x.shape)}: {_cause(error)}"
    ) from error


def _cause(error: Exception) -> str:
  """What a layer says, and not only which, as in the first line of Keras's error."""
  lines = [line for line in str(error).splitlines() if line.strip()]
  if len(lines) < 2 or not lines[0].startswith(
    "Exception encountered when calling layer"
  ):
    return first_line(error)
  said = lines[1].strip()
  layer = lines[0].removeprefix("Exception encountered when calling ").rstrip(".")
  if "symbolic" not in said:
    return f"{layer}: {said}"
  return (
    f"{layer} decides in Python by a tensor, and is traced here without AutoGraph: use "
    "tf.cond, tf.where or tf.while_loop, or decorate its call with tf.function."
  )


def _check_pure(traced: Any, name: str) -> None:
  """What the graph takes from outside, or draws by itself, is an error now."""
  stateful = graphs.drawing_operations(traced.graph.as_graph_def())
  captured = [t for t in traced.captured_inputs if keras_exchange.is_eager(t)]
  operations = traced.graph.get_operations()
  tables = [op.name for op in operations if op.type.startswith("LookupTable")]
  if tables:
    raise InputError(
      f"The Keras model {name!r} looks up in a table ({tables[0]}), which TFF cannot "
      "take along: apply that layer to the data before they are written for the clients."
    )
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
      "attribute of a layer of the model, or a NumPy array in preprocess; a layer with "
      "numbers of its own, such as Normalization, must be the model's first instead."
    )
