"""What the code of docs/ uses without making it: a model, clients, a process, a runtime.

The code of a page runs behind this, in a folder of its own.
"""

from __future__ import annotations

import asyncio  # noqa: F401 - of the pages
import datetime  # noqa: F401 - of the pages
import os

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import tff_algos

runtime = tff_algos.create_runtime().install()

_spec = tff_algos.ExampleSpec(tf.TensorSpec([3], tf.float32), tf.TensorSpec([], tf.int32))
_draw = np.random.default_rng(0)
_labels = np.arange(5, dtype=np.int32) % 2
_data = {f"c{i}": (_draw.normal(size=(5, 3)).astype("f"), _labels) for i in range(10)}
clients = tff_algos.write_clients("given", _data, _spec)
keras_model = tf.keras.Sequential([tf.keras.layers.Input([3]), tf.keras.layers.Dense(2)])
tff_algos.reinitialize(keras_model, seed=0)
model = tff_algos.from_keras(keras_model, _spec)
process = tff_algos.build_fed_avg(model)
settings = tff_algos.Settings(rounds=2, clients_per_round=3)

# A round by hand, over data sets.
state = process.initialize()
cohort = clients.ids[:2]
client_states = [process.initialize_client() for _ in cohort]
own_state = client_states[0]


def dataset_of(client: str) -> tf.data.Dataset:
  return tf.data.Dataset.from_tensor_slices(_data[client])


data = list(dataset_of("c0"))
client_data = tff.simulation.datasets.TestClientData(
  {name: {"x": x, "y": y} for name, (x, y) in _data.items()}
)
path = os.path.abspath("process")
tff_algos.save_process(process, path)

# A run's folder.
os.makedirs("runs/mine")
keras_model.save("runs/mine/model.keras")
pictures = _data["c0"][0]
