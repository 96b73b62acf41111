"""Follows each client's local training in FedReg with modified gradients.

  python results/fedreg/modified_gradients/follow.py DATA_DIR

Before each round of a run of FedReg with modified gradients its clients train from the
same model by it, by FedReg and by FedAvg. `clients.csv` gets a row for each client of
each round: the mean losses of its own examples before and after, the lengths of its
updates, and the cosine between the gradient of its first local step and the gradient
whose direction is taken away from it (FedReg, Section 3.3). `rounds.csv` gets one for
each round, with the accuracy of the mean of the ten local models by each algorithm, and
by FedReg with modified gradients without the longest update. `steps.csv` gets one for
each local step, by FedReg with and without modified gradients, of the client with the
longest update of all rounds: the batch's loss and gradient, at 0.4 of the way from the
global to the local model, and what the client has become after the step.
"""

from __future__ import annotations

import csv
import os
import sys
from typing import Any

import numpy as np
import tensorflow as tf

import tff_algos
from tasks import loading
from tasks import registry as tasks
from tff_algos import client_data
from tff_algos.algorithms import fed_reg
from tff_algos.client_data import ClientInput, Examples
from tff_algos.client_work import gradients, local_training, tree_math
from tff_algos.client_work.pseudo_data import PseudoData
from tff_algos.diagnostics import forgetting
from tff_algos.models.functional import Weights
from tff_algos.simulation import evaluation
from tff_algos.simulation.loop import RoundStart

ROUNDS, SEED = 25, 1
SGD: dict[str, Any] = dict(epochs=40, batch_size=10, learning_rate=0.1)
FEDREG: dict[str, Any] = dict(gamma=0.4, pseudo_step=0.03)
NO_SEED = tf.constant([0, 0])  # The model has no random layers.


def main() -> None:
  """Runs FedReg with modified gradients and writes what its clients do."""
  if len(sys.argv) != 2:
    sys.exit("follow.py takes one argument, the folder of the data set MNIST.")
  runtime = tff_algos.create_runtime()
  loaded = _load(sys.argv[1])
  model, clients = loaded.model, loaded.clients
  hparams = tff_algos.FedRegMgHparams(**SGD, **FEDREG)
  processes = {
    "fedreg_mg": tff_algos.build_fed_reg_mg(model, hparams),
    "fedreg": tff_algos.build_fed_reg(model, tff_algos.FedRegHparams(**SGD, **FEDREG)),
    "fedavg": tff_algos.build_fed_avg(model, tff_algos.FedAvgHparams(**SGD)),
  }
  local_models = {
    name: forgetting.build_local_models(model, process)
    for name, process in processes.items()
  }
  means = evaluation.build_means(model)
  test = tff_algos.build_evaluation(model, loaded.test_x, loaded.test_y)
  settings = tff_algos.Settings(rounds=ROUNDS, clients_per_round=10, seed=SEED)
  client_rows: list[dict[str, Any]] = []
  round_rows: list[dict[str, Any]] = []
  longest_yet = 0.0

  def hidden_gradient(weights: Weights, pseudo: PseudoData) -> Weights:
    share = 1 / tf.cast(tf.shape(pseudo.targets)[-1], tf.float32)
    return soft_gradient(weights, pseudo.x, share * tf.ones_like(pseudo.targets))

  def soft_gradient(weights: Weights, x: tf.Tensor, targets: tf.Tensor) -> Weights:
    def losses_at(weights: Weights) -> tf.Tensor:
      return model.soft_targets.losses(targets, model.predict(weights, x, True, NO_SEED))

    return gradients.mean_gradient(losses_at, weights)[0]

  @tf.function(autograph=False)
  def first_cosine(start: Weights, path: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    examples: Examples = client_data.read(path, model.example_spec)
    order = local_training.batch_order(seed, tf.shape(examples.y)[0], hparams.epochs)
    rows = order[0][: hparams.batch_size]
    x, y = tf.gather(examples.x, rows), tf.gather(examples.y, rows)
    g, _ = gradients.batch_gradient(model, start, x, y, seed)
    data = fed_reg.pseudo_data_of(model, start, examples, seed, hparams)
    hidden = hidden_gradient(start, data.rows(rows))
    lengths = tree_math.dot(g, g) * tree_math.dot(hidden, hidden)
    return tf.math.divide_no_nan(tree_math.dot(g, hidden), tf.sqrt(lengths))

  @tf.function(autograph=False, reduce_retracing=True)
  def step(
    start: Weights, weights: Weights, x: tf.Tensor, y: tf.Tensor, pseudo: PseudoData
  ) -> dict[str, tuple[tf.Tensor, tf.Tensor, tf.Tensor, Weights]]:
    """A step from the weights by each of the two: loss, gradients, new weights."""

    def between(share: float, weights: Weights) -> Weights:
      return tuple(a + share * (w - a) for w, a in zip(weights, start))

    def perturbed_losses(weights: Weights) -> tf.Tensor:
      predictions = model.predict(weights, pseudo.perturbed_x, True, NO_SEED)
      return model.example_losses(y, predictions)

    point, steps = between(hparams.gamma, weights), {}
    g, loss = gradients.batch_gradient(model, point, x, y, NO_SEED)
    modified = fed_reg.remove_component(g, hidden_gradient(point, pseudo))
    for name, direction in (("fedreg_mg", modified), ("fedreg", g)):
      moved = tree_math.add_scaled(weights, -hparams.learning_rate, direction)
      middle = between(0.5, moved)
      g_s = soft_gradient(middle, pseudo.x, pseudo.targets)
      g_p, _ = gradients.mean_gradient(perturbed_losses, middle)
      w_s, w_p = fed_reg.regularize(tree_math.subtract(moved, start), g_s, g_p)
      moved = tuple(w - w_s * s - w_p * p for w, s, p in zip(moved, g_s, g_p))
      lengths = [tf.sqrt(tree_math.dot(d, d)) for d in (g, direction)]
      steps[name] = loss, *lengths, moved
    return steps

  def follow_steps(
    place: int, given: ClientInput, start: Weights, number: int
  ) -> list[dict[str, Any]]:
    x, y = clients.examples(clients.ids[place], model.example_spec)
    examples, seed = Examples(tf.constant(x), tf.constant(y)), tf.constant(given.seed)
    start = tuple(tf.constant(w) for w in start)
    data = fed_reg.pseudo_data_of(model, start, examples, seed, hparams)
    order = local_training.batch_order(seed, tf.shape(y)[0], hparams.epochs)
    weights, rows = dict.fromkeys(("fedreg_mg", "fedreg"), start), []
    cuts = range(hparams.batch_size, len(y), hparams.batch_size)
    for epoch, shuffled in enumerate(order.numpy()):
      for batch in np.split(shuffled, cuts):
        x_batch, y_batch = tf.gather(examples.x, batch), tf.gather(examples.y, batch)
        for name, now in weights.items():
          pseudo = data.rows(tf.constant(batch))
          loss, g, direction, moved = step(start, now, x_batch, y_batch, pseudo)[name]
          weights[name] = moved
          rows.append(
            {
              "round": number,
              "client": clients.ids[place],
              "algorithm": name,
              "epoch": epoch + 1,
              "examples": len(batch),
              "loss": float(loss) / len(batch),
              "gradient_length": float(g),
              "direction_length": float(direction),
              "update_length": _distance(moved, start),
              "own_loss_after": means(moved, x, y)["loss"],
            }
          )
    return rows

  def follow(start: RoundStart) -> None:
    nonlocal longest_yet
    server = start.state.variables
    places = settings.attendance(len(clients), start.rounds_done).taking_part
    trained, lengths = {}, {}
    for name, local in local_models.items():
      trained[name] = local(server, start.client_states, start.client_inputs)
      lengths[name] = [_distance(weights, server.model) for weights in trained[name]]
    for i, (place, given) in enumerate(zip(places, start.client_inputs)):
      client = clients.ids[place]
      x, y = clients.examples(client, model.example_spec)
      path, seed = tf.constant(given.path), tf.constant(given.seed)
      row = {
        "round": start.rounds_done + 1,
        "client": client,
        "examples": len(y),
        "first_cosine": float(first_cosine(server.model, path, seed)),
        "loss_before": means(server.model, x, y)["loss"],
      }
      for name in processes:
        row[f"loss_after_{name}"] = means(trained[name][i], x, y)["loss"]
        row[f"update_length_{name}"] = lengths[name][i]
      client_rows.append(row)
    longest = int(np.argmax(lengths["fedreg_mg"]))
    if lengths["fedreg_mg"][longest] > longest_yet:
      longest_yet = lengths["fedreg_mg"][longest]
      number = start.rounds_done + 1
      given = start.client_inputs[longest]
      _write("steps.csv", follow_steps(places[longest], given, server.model, number))
    kept = [w for i, w in enumerate(trained["fedreg_mg"]) if i != longest]
    row = {
      f"accuracy_{name}": test(_mean(models))["accuracy"]
      for name, models in trained.items()
    }
    row["accuracy_without_longest"] = test(_mean(kept))["accuracy"]
    round_rows.append(row)

  def note(record: dict[str, Any]) -> None:
    kept = "round", "train_loss", "test_loss", "test_accuracy"
    round_rows[-1] = {**{name: record[name] for name in kept}, **round_rows[-1]}
    _write("clients.csv", client_rows)
    _write("rounds.csv", round_rows)

  with runtime:
    tff_algos.simulate(
      processes["fedreg_mg"],
      clients,
      settings,
      evaluate=test,
      before_round=follow,
      on_round=note,
    )


def _load(data_dir: str) -> loading.LoadedTask:
  task = tasks.get("mnist_two_class")
  return loading.load(
    task,
    data_dir=data_dir,
    cache_dir=os.path.expanduser("~/.cache/tff_algos"),
    partition=task.partition,
    num_clients=task.num_clients,
    partition_seed=0,
    model_seed=SEED,
    loss_epsilon=1e-30,
  )


def _distance(a: Weights, b: Weights) -> float:
  way = [np.subtract(p, q, dtype=np.float64) for p, q in zip(a, b)]
  return float(np.sqrt(sum(np.sum(w * w) for w in way)))


def _mean(models: list[Weights]) -> Weights:
  return tuple(np.mean(parts, axis=0, dtype=np.float32) for parts in zip(*models))


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
