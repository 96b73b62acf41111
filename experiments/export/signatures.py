"""What an exported model computes: predictions, and local training.

Each is traced from a Keras model that takes stored inputs and gives logits, as
`tff_algos.to_keras` makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Optional

import tensorflow as tf

from tff_algos import graphs
from tff_algos.errors import InputError
from tff_algos.models import functional

#: The signature that TensorFlow Serving takes where a request names none.
SERVING = tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY


class Exported(NamedTuple):
  """What `tf.saved_model.save` takes.

  Attributes:
    module: Holds the variables.
    signatures: Functions by name.
  """

  module: tf.Module
  signatures: Mapping[str, Any]


def predicting(keras_model: tf.keras.Model, batch: Optional[int] = None) -> Exported:
  """One signature, `serving_default`.

  It takes `inputs`, (B, ...) as they are stored, and gives `logits`, `probabilities`,
  their softmax, and `class`, int32, the place of the largest; of a model with one output
  its `logits` alone, as only its loss knows what they say.

  Args:
    keras_model: The model.
    batch: B; None for any.
  """
  return Exported(_module(keras_model), {SERVING: _predict(keras_model, batch)})


def last_activation(keras_model: tf.keras.Model) -> str:
  """What makes probabilities of a model's outputs, such as "softmax"; "" for nothing.

  A run's folder does not say whether its loss took them for such, or for logits.
  """
  predict = tf.function(lambda x: keras_model(x, training=False), autograph=False)
  traced = predict.get_concrete_function(_input_spec(keras_model))
  last = graphs.last_operation(traced.outputs[0])
  return last.lower() if last in graphs.NOT_LOGITS else ""


def training(keras_model: tf.keras.Model) -> Exported:
  """Four signatures, those of TensorFlow's guide to training on a device.

  - `infer` is `serving_default` of `predicting`.
  - `train` takes `inputs`, `labels`, int32 (B, ...), and a scalar `learning_rate`; it
    takes one step of plain SGD on the mean cross-entropy of its batch, and gives that
    `loss`. Dropout and the like work as in training.
  - `save` and `restore` take a `checkpoint_path` on the device, and give `num_arrays`.

  Raises:
    InputError: The model has one output, not one for each class.
  """
  if keras_model.output_shape[-1] == 1:
    raise InputError(
      "The model has one output, and training on a device is by the cross-entropy of one "
      "for each class: export another format."
    )
  module = _module(keras_model)
  # With their places, as layers within different layers may have the same names.
  names = [f"{k}/{v.name}" for k, v in enumerate(keras_model.weights)]
  steps = keras_model.output_shape[1:-1]
  path = tf.TensorSpec([], tf.string, name="checkpoint_path")
  losses_of = (
    functional.sequence_cross_entropy if steps else functional.sparse_cross_entropy
  )

  @tf.function(
    input_signature=[
      _input_spec(keras_model),
      tf.TensorSpec([None, *steps], tf.int32, name="labels"),
      tf.TensorSpec([], tf.float32, name="learning_rate"),
    ]
  )
  def train(inputs, labels, learning_rate):
    variables = keras_model.trainable_variables
    with tf.GradientTape() as tape:
      logits = keras_model(inputs, training=True)
      loss = tf.reduce_mean(losses_of(labels, logits))
    for variable, gradient in zip(variables, tape.gradient(loss, variables)):
      variable.assign_sub(learning_rate * tf.convert_to_tensor(gradient))
    return {"loss": loss}

  # TensorFlow Lite drops SaveV2, for it has no result.
  @tf.function(input_signature=[path])
  def save(checkpoint_path):
    values = [v.read_value() for v in keras_model.weights]
    tf.raw_ops.Save(filename=checkpoint_path, tensor_names=names, data=values)
    return {"num_arrays": tf.constant(len(names))}

  @tf.function(input_signature=[path])
  def restore(checkpoint_path):
    for name, v in zip(names, keras_model.weights):
      found = tf.raw_ops.Restore(
        file_pattern=checkpoint_path, tensor_name=name, dt=v.dtype
      )
      v.assign(tf.ensure_shape(found, v.shape))
    return {"num_arrays": tf.constant(len(names))}

  signatures = dict(train=train, infer=_predict(keras_model), save=save, restore=restore)
  return Exported(module, signatures)


def _module(keras_model: tf.keras.Model) -> tf.Module:
  """What owns a model's variables; not the model itself, whose layers would be traced."""
  module = tf.Module()
  module.weights = keras_model.weights
  layers = keras_model._flatten_layers()
  generators = [getattr(layer, "_random_generator", None) for layer in layers]
  drawn_from = [getattr(generator, "_generator", None) for generator in generators]
  module.generators = [generator for generator in drawn_from if generator is not None]
  return module


def _input_spec(
  keras_model: tf.keras.Model, batch: Optional[int] = None
) -> tf.TensorSpec:
  [inputs] = keras_model.inputs
  return tf.TensorSpec([batch, *inputs.shape[1:]], inputs.dtype, name="inputs")


def _predict(
  keras_model: tf.keras.Model, batch: Optional[int] = None
) -> Callable[..., Any]:
  @tf.function(input_signature=[_input_spec(keras_model, batch)])
  def predict(inputs):
    logits = keras_model(inputs, training=False)
    if logits.shape[-1] == 1:  # What it says is known to the task's loss alone.
      return {"logits": logits}
    return {
      "logits": logits,
      "probabilities": tf.nn.softmax(logits),
      "class": tf.argmax(logits, axis=-1, output_type=tf.int32),
    }

  return predict
