"""The formats of an exported model: each is written, and can be asked for predictions."""

from __future__ import annotations

import os
import tempfile
import types
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

# Its public converter raises it, and has no public name for it.
from tensorflow.lite.python.convert_phase import ConverterError

from experiments.export import keras_files, signatures
from tasks.models.group_norm import GroupNorm
from tff_algos.errors import InputError, first_line

# Stored inputs (n, ...) -> logits (n, ...).
Predict = Callable[[np.ndarray], np.ndarray]


class Format(NamedTuple):
  """How a model is taken out.

  Attributes:
    suffix: How the name of a file ends; "" for a folder.
    write: `(Keras model, path)`; it may change how the Keras model computes.
    read: `path -> Predict`.
  """

  suffix: str
  write: Callable[[tf.keras.Model, str], None]
  read: Callable[[str], Predict]


def _read_keras(path: str) -> Predict:
  keras_model = tf.keras.models.load_model(path, compile=False)
  return lambda inputs: keras_model(inputs, training=False).numpy()


def _write_saved_model(keras_model: tf.keras.Model, path: str) -> None:
  for layer in keras_model._flatten_layers():
    # Fused, oneDNN refuses it over several axes.
    if isinstance(layer, tf.keras.layers.LayerNormalization):
      layer._fused = False
  _save(signatures.predicting(keras_model), path)


def _save(exported: signatures.Exported, path: str) -> None:
  tf.saved_model.save(exported.module, path, signatures=exported.signatures)


def _read_saved_model(path: str) -> Predict:
  loaded = tf.saved_model.load(path)  # Which owns the variables.

  def predict(inputs: np.ndarray) -> np.ndarray:
    serve = loaded.signatures[signatures.SERVING]
    return serve(inputs=tf.constant(inputs))["logits"].numpy()

  return predict


# --- TensorFlow Lite ------------------------------------------------------------------


def _write_tflite(keras_model: tf.keras.Model, path: str) -> None:
  """With operations of TensorFlow Lite's own alone, so that any device runs it."""
  _use_convertible_operations(keras_model)
  try:
    content = _convert(signatures.predicting(keras_model))
  except ConverterError:
    # Loops, as those of recurrent layers, need to know the size of a batch.
    try:
      content = _convert(signatures.predicting(keras_model, batch=1))
    except ConverterError as error:
      raise _refused("tflite", "saved_model", error) from error
  _write_file(path, content)


def _write_tflite_training(keras_model: tf.keras.Model, path: str) -> None:
  """With operations of TensorFlow too, as Lite has none that take gradients."""
  _use_convertible_operations(keras_model)
  try:
    content = _convert(signatures.training(keras_model), is_training=True)
  except ConverterError as error:
    raise _refused("tflite_training", "tflite", error) from error
  _write_file(path, content)


def _refused(name: str, other: str, error: Exception) -> InputError:
  reason = first_line(error)[:200]
  return InputError(
    f"TensorFlow Lite cannot hold this model ({reason}): choose --format={other}, not "
    f"{name}."
  )


def _use_convertible_operations(keras_model: tf.keras.Model) -> None:
  for layer in keras_model._flatten_layers():
    # Keras's own broadcasts to shapes that Lite does not know, and fails when it is run.
    if isinstance(layer, tf.keras.layers.GroupNormalization) and _is_of_pictures(layer):
      layer.call = types.MethodType(GroupNorm.call, layer)
    # Else the converter makes it an operation of Lite's that goes on from where the last
    # call ended, so that predictions would depend on those before.
    if isinstance(layer, (tf.keras.layers.LSTM, tf.keras.layers.GRU)):
      layer._could_use_gpu_kernel = False


def _is_of_pictures(layer: tf.keras.layers.GroupNormalization) -> bool:
  shape = layer.input_shape
  return layer.axis in (-1, 3) and len(shape) == 4 and None not in shape[1:]


def _convert(exported: signatures.Exported, *, is_training: bool = False) -> bytes:
  with tempfile.TemporaryDirectory() as folder:
    _save(exported, folder)
    names = list(exported.signatures)
    converter = tf.lite.TFLiteConverter.from_saved_model(folder, signature_keys=names)
    if is_training:
      converter.target_spec.supported_ops = [
        tf.lite.OpsSet.TFLITE_BUILTINS,
        tf.lite.OpsSet.SELECT_TF_OPS,
      ]
      converter.experimental_enable_resource_variables = True
    return converter.convert()


def _write_file(path: str, content: bytes) -> None:
  with open(path, "wb") as f:
    f.write(content)


def _read_tflite(path: str) -> Predict:
  return _lite_predict(tf.lite.Interpreter(path), signatures.SERVING)


def _lite_predict(interpreter: Any, signature: str) -> Predict:
  run = interpreter.get_signature_runner(signature)
  [size, *_] = run.get_input_details()["inputs"]["shape_signature"]

  def predict(inputs: np.ndarray) -> np.ndarray:
    number = len(inputs) if size == -1 else size
    batches = [inputs[k : k + number] for k in range(0, len(inputs), number)]
    try:
      return np.concatenate([run(inputs=batch)["logits"] for batch in batches])
    except RuntimeError as error:  # The converter takes some that cannot be run.
      raise _refused("one of Lite's", "saved_model", error) from error

  return predict


def _read_tflite_training(path: str) -> Predict:
  """Predictions after a step of no length, and what it saved is restored in another."""
  trained, restored = tf.lite.Interpreter(path), tf.lite.Interpreter(path)
  infer = _lite_predict(trained, "infer")

  def predict(inputs: np.ndarray) -> np.ndarray:
    steps = infer(inputs).shape[1:-1]
    trained.get_signature_runner("train")(
      inputs=inputs,
      labels=np.zeros([len(inputs), *steps], np.int32),
      learning_rate=np.float32(0),
    )
    with tempfile.TemporaryDirectory() as folder:
      # Text that is not bytes reaches the operation as garbage.
      place = np.array(os.path.join(folder, "weights"), np.bytes_)
      trained.get_signature_runner("save")(checkpoint_path=place)
      restored.get_signature_runner("restore")(checkpoint_path=place)
    return _lite_predict(restored, "infer")(inputs)

  return predict


FORMATS: Mapping[str, Format] = {
  "keras": Format(".keras", keras_files.save, _read_keras),
  "saved_model": Format("", _write_saved_model, _read_saved_model),
  "tflite": Format(".tflite", _write_tflite, _read_tflite),
  "tflite_training": Format(".tflite", _write_tflite_training, _read_tflite_training),
}
