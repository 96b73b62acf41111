"""The trainer of a TFX pipeline, which trains federated.

TFX's Trainer component is given this file (`Trainer(module_file=...)`) and calls
`run_fn`. The examples that come in are TFRecords of `tf.train.Example`, as ExampleGen
writes them; each says whose it is, so that every client trains on its own. What goes out
is a SavedModel for TensorFlow Serving and TFX's Evaluator.

TFX itself is not needed to run it: any object with the attributes below will do.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import tff_algos

# Names of the features of an example: bytes, float [NUM_FEATURES], int64.
CLIENT, INPUTS, LABEL = "client", "inputs", "label"
NUM_FEATURES, NUM_CLASSES = 8, 2


def run_fn(fn_args: Any) -> None:
  """Trains, and writes the model.

  Args:
    fn_args: As `tfx.components.FnArgs`: `train_files` and `eval_files`, patterns of
      paths; `train_steps`, here the rounds; `serving_model_dir`; and `custom_config`, a
      mapping with "clients_per_round" and, if not 0, "seed".
  """
  options = fn_args.custom_config or {}
  runtime = tff_algos.create_runtime()  # Before any model.
  spec = tff_algos.ExampleSpec(
    tf.TensorSpec([NUM_FEATURES], tf.float32), tf.TensorSpec([], tf.int32)
  )
  keras_model = _build_network()
  seed = options.get("seed", 0)
  tff_algos.reinitialize(keras_model, seed)
  model = tff_algos.from_keras(keras_model, spec)
  hparams = tff_algos.FedAvgHparams(epochs=2, batch_size=16, learning_rate=0.1)
  with tempfile.TemporaryDirectory() as folder, runtime:
    by_client = read_clients(fn_args.train_files)
    clients = tff_algos.write_clients(folder, by_client, spec)
    process = tff_algos.build_fed_avg(model, hparams)
    settings = tff_algos.Settings(
      rounds=fn_args.train_steps,
      clients_per_round=options["clients_per_round"],
      seed=seed,
      eval_every=fn_args.train_steps,
    )
    held_out = list(read_clients(fn_args.eval_files).values())
    x, y = (np.concatenate(parts) for parts in zip(*held_out))
    evaluate = tff_algos.build_evaluation(model, x, y)
    result = tff_algos.simulate(process, clients, settings, evaluate=evaluate)
    weights = process.get_model_weights(result.state).trainable
  print(f"accuracy of eval_files: {result.records[-1]['test_accuracy']:.4f}")
  write_model(tff_algos.to_keras(model, weights), fn_args.serving_model_dir)


def _build_network() -> tf.keras.Model:
  return tf.keras.Sequential(
    [
      tf.keras.layers.Input([NUM_FEATURES]),
      tf.keras.layers.Dense(16, "relu"),
      tf.keras.layers.Dense(NUM_CLASSES),
    ]
  )


def read_clients(patterns: Sequence[str]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
  """The examples of files, by client: inputs (n, NUM_FEATURES), labels (n,).

  Args:
    patterns: Of paths of TFRecords; those that end in .gz are compressed.

  Raises:
    ValueError: There are none.
  """
  features = {
    CLIENT: tf.io.FixedLenFeature([], tf.string),
    INPUTS: tf.io.FixedLenFeature([NUM_FEATURES], tf.float32),
    LABEL: tf.io.FixedLenFeature([], tf.int64),
  }
  found: dict[str, tuple[list[np.ndarray], list[int]]] = {}
  for path in sorted(tf.io.gfile.glob(list(patterns))):
    compression = "GZIP" if path.endswith(".gz") else ""
    for record in tf.data.TFRecordDataset(path, compression):
      one = tf.io.parse_single_example(record, features)
      xs, ys = found.setdefault(one[CLIENT].numpy().decode(), ([], []))
      xs.append(one[INPUTS].numpy())
      ys.append(int(one[LABEL]))
  if not found:
    raise ValueError(f"There are no examples in files like {', '.join(patterns)}.")
  return {client: (np.array(xs), np.array(ys)) for client, (xs, ys) in found.items()}


def write_model(keras_model: tf.keras.Model, path: str) -> None:
  """Writes a SavedModel whose `serving_default` takes serialized `tf.train.Example`s.

  Of an example it reads the inputs alone.
  """
  features = {INPUTS: tf.io.FixedLenFeature([NUM_FEATURES], tf.float32)}

  @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="examples")])
  def serve(examples):
    inputs = tf.io.parse_example(examples, features)[INPUTS]
    logits = keras_model(inputs, training=False)
    return {
      "probabilities": tf.nn.softmax(logits),
      "class": tf.argmax(logits, axis=-1, output_type=tf.int32),
    }

  keras_model.save(path, save_format="tf", signatures={"serving_default": serve})
