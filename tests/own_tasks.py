"""A user's own tasks; most have something wrong."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tasks import registry
from tasks.datasets import dataset
from tff_algos.models import keras

layers = tf.keras.layers


def data(*labels):
  def load(data_dir, cache_dir):
    x = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int32)
    y[: len(labels)] = labels
    return dataset.Dataset(x, y, x, y, num_classes=2)

  return load


def model(*stack):
  return lambda shape, num_classes: tf.keras.Sequential(
    [layers.Input(shape), *(build() for build in stack)]
  )


def dense(size=2):
  return lambda: layers.Dense(size)


good = registry.Task(
  "own",
  "Two classes.",
  data(),
  model(dense()),
  partition="iid",
  num_clients=4,
  clients_per_round=2,
  rounds=2,
  hparams=dict(epochs=1, batch_size=5),
)
batch_norm = good._replace(build_keras_model=model(layers.BatchNormalization, dense()))
nested_batch_norm = good._replace(
  build_keras_model=model(
    lambda: tf.keras.Sequential([layers.Dense(3), layers.BatchNormalization()]),
    dense(),
  )
)
labels_outside = good._replace(load_data=data(0, 2))
negative_labels = good._replace(load_data=data(-1))
few_outputs = good._replace(build_keras_model=model(dense(1)))
wrong_shape = good._replace(
  build_keras_model=lambda shape, num_classes: model(dense())((5,), num_classes)
)
not_flat = good._replace(build_keras_model=model(lambda: layers.Reshape((4, 1)), dense()))
not_built = good._replace(
  build_keras_model=lambda *_: tf.keras.Sequential([layers.Dense(2)])
)
own_loss = good._replace(
  make_model=lambda keras_model, spec: keras.from_keras(
    keras_model,
    spec,
    loss=lambda y, logits: tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits),
  )
)
no_accuracy = good._replace(
  make_model=lambda keras_model, spec: keras.from_keras(keras_model, spec, metrics={})
)


def _logistic(y, logits):
  y = tf.cast(y, tf.float32)[:, tf.newaxis]
  return tf.nn.sigmoid_cross_entropy_with_logits(y, logits)[:, 0]


one_output = few_outputs._replace(
  make_model=lambda keras_model, spec: keras.from_keras(
    keras_model,
    spec,
    loss=_logistic,
    metrics={
      "accuracy": lambda y, logits: tf.cast((logits[:, 0] > 0) == (y > 0), tf.float32)
    },
  )
)
one_output_by_classes = few_outputs._replace(
  make_model=lambda keras_model, spec: keras.from_keras(keras_model, spec, loss=_logistic)
)
own_preprocess = good._replace(
  make_model=lambda keras_model, spec: keras.from_keras(
    keras_model, spec, preprocess=lambda x: 2 * x
  )
)
two_metrics = good._replace(
  make_model=lambda keras_model, spec: keras.from_keras(
    keras_model,
    spec,
    metrics={
      "first": lambda y, logits: tf.cast(tf.equal(y, 0), tf.float32),
      "half": lambda y, logits: tf.fill(tf.shape(y), 0.5),
    },
  )
)
no_hparam = good._replace(hparams=dict(epochs=0))


def _load_none(data_dir, cache_dir):
  return len(None)


broken_loader = good._replace(load_data=_load_none)


def _load_damaged(data_dir, cache_dir):
  raise OSError("the archive's checksum is wrong")


damaged = good._replace(load_data=_load_damaged)
name_of_a_path = good._replace(name="../../outside")
not_a_task = 7
