"""A federated program of TFF that can be killed at any time and goes on.

  python examples/federated_program.py --folder=/tmp/program --algorithm=scaffold

It trains on scikit-learn's digits, split unevenly over 20 clients. Run the same command
again after it was killed: it goes on after the last round that was saved, with the
numbers of a program that was never killed. `fedavg` is trained by TFF's own program
logic, `scaffold`, whose clients keep a state, by ours.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff
from absl import app, flags
from sklearn import datasets

import tff_algos
from tff_algos import partitions

_FOLDER = flags.DEFINE_string("folder", None, "Where all is kept.", required=True)
_ALGORITHM = flags.DEFINE_enum("algorithm", "fedavg", ["fedavg", "scaffold"], "Which.")
_ROUNDS = flags.DEFINE_integer("rounds", 10, "Rounds in all.", lower_bound=1)

_X, _Y = tf.TensorSpec([64], tf.float32), tf.TensorSpec([], tf.int32)
_SPEC = tff_algos.ExampleSpec(_X, _Y)
_CLIENTS, _PER_ROUND = 20, 5


def open_clients(folder: str) -> tff_algos.ClientDirectory:
  """The clients, which are written once: a program that goes on wants the same."""
  try:
    return tff_algos.ClientDirectory(folder)
  except FileNotFoundError:
    x, y = datasets.load_digits(return_X_y=True)
    split = partitions.partition("dirichlet:beta=0.5", y, num_clients=_CLIENTS, seed=0)
    examples = partitions.client_examples(split, x / 16, y)
    return tff_algos.write_clients(folder, examples, _SPEC)


def make_model() -> tff_algos.Model:
  """Logistic regression, from the same weights each time."""
  layers = [tf.keras.layers.Input([64]), tf.keras.layers.Dense(10)]
  keras_model = tf.keras.Sequential(layers)
  tff_algos.reinitialize(keras_model, seed=0)
  return tff_algos.from_keras(keras_model, _SPEC)


async def train(model: tff_algos.Model, clients: tff_algos.ClientDirectory) -> None:
  """Runs the program, or what is left of it."""

  def place(name: str) -> str:
    return os.path.join(_FOLDER.value, _ALGORITHM.value, name)

  common: dict[str, Any] = dict(
    train_data_source=tff_algos.ClientSource(clients, seed=0),
    train_per_round_clients=_PER_ROUND,
    train_total_rounds=_ROUNDS.value,
    program_state_manager=tff.program.FileProgramStateManager(place("state")),
    model_output_manager=tff.program.SavedModelFileReleaseManager(place("released")),
    train_metrics_manager=tff.program.CSVFileReleaseManager(
      place("metrics.csv"), key_fieldname="round"
    ),
  )
  if _ALGORITHM.value == "scaffold":
    process = tff_algos.build_scaffold(model, num_clients=len(clients))
    await tff_algos.train_with_client_states(train_process=process, **common)
  else:
    await tff.learning.programs.train_model(
      train_process=tff_algos.as_learning_process(tff_algos.build_fed_avg(model)),
      evaluation_manager=None,
      evaluation_periodicity=1,
      **common,
    )


def main(_: list[str]) -> None:
  """Runs the program on this machine."""
  runtime = tff_algos.create_runtime()  # Before any model: see docs/performance.md.
  clients = open_clients(os.path.join(_FOLDER.value, "clients"))
  model = make_model()
  tff.framework.set_default_context(runtime.federated_context())
  asyncio.run(train(model, clients))


if __name__ == "__main__":
  app.run(main)
