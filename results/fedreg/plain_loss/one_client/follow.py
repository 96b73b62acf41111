"""Follows each client's local training in rounds in which SCAFFOLD diverges.

  python results/fedreg/plain_loss/one_client/follow.py DATA_DIR

Before each of the last rounds of a run of SCAFFOLD with plain cross-entropy its clients
train from the same model, and control variates, by SCAFFOLD and by FedAvg, with either
loss. `clients.csv` gets a row for each client and each of these four, whose losses are
means over the client's own examples by the loss that it is trained with; `rounds.csv`
gets one for each round of the run.
"""

from __future__ import annotations

import csv
import os
import sys
from typing import Any

import numpy as np

import tff_algos
from tasks import loading
from tasks import registry as tasks
from tff_algos.diagnostics import forgetting
from tff_algos.simulation import evaluation
from tff_algos.simulation.loop import RoundStart

FIRST_FOLLOWED, ROUNDS = 57, 66
SGD: dict[str, Any] = dict(epochs=40, batch_size=10, learning_rate=0.1, momentum=0.0)


def main() -> None:
  """Runs SCAFFOLD and writes what its clients do."""
  if len(sys.argv) != 2:
    sys.exit("follow.py takes one argument, the folder of the data set MNIST.")
  runtime = tff_algos.create_runtime()
  plain, authors = (_load(sys.argv[1], epsilon) for epsilon in (0.0, 1e-12))
  clients = plain.clients  # The losses change the model alone.
  processes, followed, rows = {}, {}, []
  for loss, model in (("plain", plain.model), ("authors'", authors.model)):
    processes["scaffold", loss] = tff_algos.build_scaffold(
      model, tff_algos.ScaffoldHparams(**SGD), num_clients=len(clients)
    )
    processes["fedavg", loss] = tff_algos.build_fed_avg(
      model, tff_algos.FedAvgHparams(**SGD)
    )
    for algorithm in ("scaffold", "fedavg"):
      key = algorithm, loss
      local_models = forgetting.build_local_models(model, processes[key])
      followed[key] = local_models, evaluation.build_means(model)
  settings = tff_algos.Settings(rounds=ROUNDS, clients_per_round=10)

  def follow(start: RoundStart) -> None:
    if start.rounds_done + 1 < FIRST_FOLLOWED:
      return
    server = start.state.variables
    places = settings.attendance(len(clients), start.rounds_done).taking_part
    cohort = [clients.ids[place] for place in places]
    examples = [clients.examples(client, plain.model.example_spec) for client in cohort]
    for (algorithm, loss), (local_models, means) in followed.items():
      if algorithm == "scaffold":
        variables, states = server, start.client_states
      else:
        variables, states = server._replace(extra=()), [()] * len(cohort)
      trained = local_models(variables, states, start.client_inputs)
      for client, (x, y), local in zip(cohort, examples, trained):
        way = [np.subtract(a, b, dtype=np.float64) for a, b in zip(local, server.model)]
        rows.append(
          {
            "round": start.rounds_done + 1,
            "client": client,
            "examples": len(y),
            "algorithm": algorithm,
            "loss": loss,
            "loss_before": means(server.model, x, y)["loss"],
            "loss_after": means(local, x, y)["loss"],
            "update_length": np.sqrt(sum(np.sum(w * w) for w in way)),
          }
        )

  with runtime:
    result = tff_algos.simulate(
      processes["scaffold", "plain"],
      clients,
      settings,
      evaluate=tff_algos.build_evaluation(plain.model, plain.test_x, plain.test_y),
      before_round=follow,
    )
  _write("clients.csv", list(rows[0]), rows)
  columns = ["round", "train_loss", "test_loss", "test_accuracy", "num_dropped"]
  _write("rounds.csv", columns, result.records)


def _load(data_dir: str, loss_epsilon: float) -> loading.LoadedTask:
  task = tasks.get("mnist_two_class")
  return loading.load(
    task,
    data_dir=data_dir,
    cache_dir=os.path.expanduser("~/.cache/tff_algos"),
    partition=task.partition,
    num_clients=task.num_clients,
    partition_seed=0,
    model_seed=0,
    loss_epsilon=loss_epsilon,
  )


def _write(name: str, columns: list[str], rows: list[dict[str, Any]]) -> None:
  folder = os.path.dirname(os.path.abspath(__file__))
  with open(os.path.join(folder, name), "w", newline="", encoding="utf-8") as file:
    table = csv.DictWriter(file, columns, extrasaction="ignore")
    table.writeheader()
    table.writerows(
      {k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()}
      for row in rows
    )


if __name__ == "__main__":
  main()
