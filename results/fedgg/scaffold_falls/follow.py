"""Looks into the rounds in which SCAFFOLD, weighting clients by examples, falls.

  python results/fedgg/scaffold_falls/follow.py DATA_DIR

The run is FedGG's Table 1_beside's, of JPEG CIFAR-10 and beta = 0.5. Where a round loses
more than five points of test accuracy, and in the round before, each client is trained
again from what it had received. `clients.csv` gets a row for each: its examples, the
lengths of its update and of the correction `c - c_i` of its steps, the loss of its own
examples before and after, the test accuracy of its model, and of the mean of the others.
`classes.csv` gets how many test examples of each class the model before and after the
round finds (recall) and how often it says the class. `rounds.csv` gets every round's
accuracy, and the lengths of the control variate `c` that it began with and of what is
left of the corrections in the mean by examples, `sum p_i (c - c_i)`, which is 0 in the
uniform mean. `again.csv` has, of the first fall and the round before, the two clients
with the longest updates, trained again with other draws of shuffles and augmentation:
with the corrections, without them, and with them at half the learning rate.
"""

from __future__ import annotations

import collections
import csv
import dataclasses
import os
import sys
from typing import Any

import numpy as np
import tensorflow as tf

import tff_algos
from tasks import loading
from tasks import registry as tasks
from tff_algos.client_work import tree_math
from tff_algos.diagnostics import forgetting
from tff_algos.models.functional import Weights
from tff_algos.simulation import evaluation
from tff_algos.simulation.loop import RoundStart

ROUNDS, SEED, FALL, DRAWS = 83, 0, 0.05, 8


def main() -> None:
  """Runs SCAFFOLD and writes what is in the rounds that fall."""
  if len(sys.argv) != 2:
    sys.exit("follow.py takes one argument, the folder of the data set CIFAR-10.")
  runtime = tff_algos.create_runtime()
  task = tasks.get("cifar10_lenet_augmented")
  loaded = loading.load(
    task,
    data_dir=sys.argv[1],
    cache_dir=os.path.expanduser("~/.cache/tff_algos"),
    partition="dirichlet:beta=0.5,min_size=10",
    num_clients=10,
    partition_seed=0,
    model_seed=SEED,
  )
  model, clients = loaded.model, loaded.clients
  hparams = tff_algos.ScaffoldHparams(**task.hparams, client_weighting="examples")
  process = tff_algos.build_scaffold(model, hparams, num_clients=10)
  local_models = forgetting.build_local_models(model, process)
  halved = dataclasses.replace(hparams, learning_rate=hparams.learning_rate / 2)
  at_half_the_rate = forgetting.build_local_models(
    model, tff_algos.build_scaffold(model, halved, num_clients=10)
  )
  means = evaluation.build_means(model)
  test = tff_algos.build_evaluation(model, loaded.test_x, loaded.test_y)
  settings = tff_algos.Settings(rounds=ROUNDS, clients_per_round=10, seed=SEED)
  last: collections.deque[RoundStart] = collections.deque(maxlen=2)
  rounds: list[dict[str, Any]] = []
  client_rows: list[dict[str, Any]] = []
  class_rows: list[dict[str, Any]] = []
  again_rows: list[dict[str, Any]] = []
  fallen: list[int] = []

  def cohort(start: RoundStart) -> tuple[list[str], np.ndarray]:
    """Who takes part, in order, and each one's share of the examples."""
    places = settings.attendance(len(clients), start.rounds_done).taking_part
    counts = clients.num_examples[list(places)]
    return [clients.ids[place] for place in places], counts / counts.sum()

  def note(record: dict[str, Any]) -> None:
    start = last[-1]
    row = {name: record[name] for name in ("round", "train_loss", "test_accuracy")}
    row["control_variate"] = _length(start.state.variables.extra)
    corrections, (_, shares) = _corrections(start), cohort(start)
    row["left_of_corrections"] = _length(_mean(corrections, shares))
    rounds.append(row)
    _write("rounds.csv", rounds)
    if len(rounds) < 2 or rounds[-2]["test_accuracy"] - row["test_accuracy"] < FALL:
      return
    fallen.append(row["round"])
    for each in last:
      if each.rounds_done + 1 not in {row["round"] for row in client_rows}:
        look_into(each)
    _write("clients.csv", client_rows)
    _write("classes.csv", class_rows)
    _write("again.csv", again_rows)

  def look_into(start: RoundStart) -> None:
    server = start.state.variables
    trained = local_models(server, start.client_states, start.client_inputs)
    corrections, (names, shares) = _corrections(start), cohort(start)
    for i, client in enumerate(names):
      others = [k for k in range(len(trained)) if k != i]
      mean = _mean([trained[k] for k in others], shares[others] / shares[others].sum())
      x, y = clients.examples(client, model.example_spec)
      client_rows.append(
        {
          "round": start.rounds_done + 1,
          "client": client,
          "examples": len(y),
          "update": _length(tree_math.subtract(trained[i], server.model)),
          "correction": _length(corrections[i]),
          "own_loss_before": means(server.model, x, y)["loss"],
          "own_loss_after": means(trained[i], x, y)["loss"],
          "test_accuracy": test(trained[i])["accuracy"],
          "of_the_others": test(mean)["accuracy"],
        }
      )
    if len(fallen) == 1:
      lengths = [_length(tree_math.subtract(each, server.model)) for each in trained]
      for i in np.argsort(lengths)[-2:]:
        train_again(start, int(i), names[i])
    after = _mean(trained, shares)
    for when, weights in (("before", server.model), ("after", after)):
      said = predictions(weights)
      for label in range(10):
        class_rows.append(
          {
            "round": start.rounds_done + 1,
            "when": when,
            "class": label,
            "recall": float(np.mean(said[loaded.test_y == label] == label)),
            "said": int(np.sum(said == label)),
          }
        )

  def train_again(start: RoundStart, place: int, client: str) -> None:
    """Trains one client with its own draws, `draw` 0, and with others."""
    server = start.state.variables
    own, given = start.client_states[place], start.client_inputs[place]
    ways = {
      "as in the run": (local_models, own),
      "no correction": (local_models, server.extra),
      "half the rate": (at_half_the_rate, own),
    }
    x, y = clients.examples(client, model.example_spec)
    for way, (train, state) in ways.items():
      for draw in range(DRAWS):
        draws = given._replace(seed=given.seed + np.array([0, draw], np.int32))
        [trained] = train(server, [state], [draws])
        again_rows.append(
          {
            "round": start.rounds_done + 1,
            "client": client,
            "way": way,
            "draw": draw,
            "update": _length(tree_math.subtract(trained, server.model)),
            "own_loss_after": means(trained, x, y)["loss"],
            "test_accuracy": test(trained)["accuracy"],
          }
        )

  def predictions(weights: Weights) -> np.ndarray:
    return np.concatenate([predict(weights, x) for x in np.split(loaded.test_x, 20)])

  @tf.function(autograph=False)
  def predict(weights: Weights, x: tf.Tensor) -> tf.Tensor:
    outputs = model.predict(weights, model.preprocess(x), False, tf.zeros(2, tf.int32))
    return tf.argmax(outputs, axis=-1)

  with runtime:
    tff_algos.simulate(
      process,
      clients,
      settings,
      evaluate=test,
      before_round=last.append,
      on_round=note,
    )


def _corrections(start: RoundStart) -> list[Weights]:
  server_variate = start.state.variables.extra
  return [tree_math.subtract(server_variate, own) for own in start.client_states]


def _mean(models: list[Weights], shares: np.ndarray) -> Weights:
  return tuple(
    np.tensordot(shares, np.array([np.asarray(w) for w in parts], np.float64), 1).astype(
      np.float32
    )
    for parts in zip(*models)
  )


def _length(weights: Weights) -> float:
  return float(np.sqrt(sum(np.sum(np.square(w, dtype=np.float64)) for w in weights)))


def _write(name: str, rows: list[dict[str, Any]]) -> None:
  folder = os.path.dirname(os.path.abspath(__file__))
  with open(os.path.join(folder, name), "w", newline="", encoding="utf-8") as file:
    table = csv.DictWriter(file, list(rows[0]))
    table.writeheader()
    table.writerows(
      {k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()}
      for row in rows
    )


if __name__ == "__main__":
  main()
