"""Trains with clients that lie, with each defence; writes the folder of it."""

from __future__ import annotations

import csv
import dataclasses
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, get_type_hints

import numpy as np

from experiments import command_line
from experiments.attacks import liars as liars_lib
from experiments.attacks import lying_report
from experiments.attacks.lies import (
  HONEST,
  NOBODY,
  Defence,
  Lie,
  Request,
  check_names,
)
from experiments.attacks.lying_report import Run
from experiments.config import make_hparams
from experiments.run_folder import fingerprints
from experiments.run_folder.folder import RunFolder
from tasks import registry as tasks_registry
from tff_algos import durable_files
from tff_algos.aggregators import table as aggregators
from tff_algos.algorithms import registry as algorithms_registry
from tff_algos.client_data import ClientDirectory
from tff_algos.errors import InputError
from tff_algos.models.functional import Weights
from tff_algos.runtimes import in_process
from tff_algos.runtimes import runtime as runtimes
from tff_algos.simulation import client_inputs, cohorts, evaluation
from tff_algos.simulation.client_files import ClientFiles
from tff_algos.templates.stateful_process import StatefulProcess

RUNS = "runs.csv"
# A run's accuracy is the mean over so many of its last rounds, as some swing.
LAST_ROUNDS = 5


class Population(NamedTuple):
  """Who trains, and how it is measured.

  Attributes:
    clients: All of them.
    evaluate: Weights to test metrics.
    clients_per_round: The size of the cohort.
    rounds: Of each run.
    liars: The share of all clients who lie.
  """

  clients: ClientDirectory
  evaluate: Callable[[Weights], Mapping[str, float]]
  clients_per_round: int
  rounds: int
  liars: float


class Outcome(NamedTuple):
  """What came of a run.

  Attributes:
    accuracy: On the test set, 0..1, the mean over the last rounds.
    lies: Messages of liars.
    dropped: Messages that were dropped.
    rounds_all_dropped: Rounds of which no message was left.
    seconds: That it took.
  """

  accuracy: float
  lies: int
  dropped: int
  rounds_all_dropped: int
  seconds: float


def train(
  process: StatefulProcess, population: Population, lie: Lie, seed: int
) -> Outcome:
  """Trains with some clients that tell a lie; `HONEST` for a run in which nobody does.

  Args:
    process: What `liars.let_lie` gave.
    population: Who trains.
    lie: What its liars send.
    seed: Of cohorts, liars, shuffles and noise.
  """
  clients, num_rounds = population.clients, population.rounds
  liars: Collection[int] = ()
  if lie != HONEST:
    liars = liars_lib.liars_of(len(clients), population.liars, seed)
  files = ClientFiles(clients, process.model, process.identity.example)
  state, initial = process.initialize(), process.initialize_client()
  states = {place: liars_lib.telling(initial, lie) for place in liars}
  accuracies, lies, dropped, all_dropped = [], 0, 0, 0
  start = time.monotonic()
  for done in range(num_rounds):
    cohort = cohorts.uniform_cohort(
      len(clients), population.clients_per_round, seed, done
    )
    ids = [clients.ids[place] for place in cohort]
    inputs = client_inputs.of_cohort(clients, cohort, seed, done)
    with files.read_in(done + 1, ids):
      output = process.next_of(done)(
        state, [states.get(place, initial) for place in cohort], inputs
      )
    state = output.state
    states.update(zip(cohort, output.client_states))
    counts = output.metrics["client_work"]["train"]
    lies += len(set(cohort) & set(liars))
    dropped += int(counts["num_dropped"])
    all_dropped += int(counts["num_accepted"]) == 0
    if done >= num_rounds - LAST_ROUNDS:
      weights = process.get_model_weights(state).trainable
      accuracies.append(population.evaluate(weights)["accuracy"])
  seconds = time.monotonic() - start
  return Outcome(float(np.mean(accuracies)), lies, dropped, all_dropped, seconds)


class Prepared(NamedTuple):
  """Everything checked, and nothing written.

  Attributes:
    note: What to say beside the numbers, "" for nothing.
    made_of: Data, model and own code, as `fingerprints` has them.
    settings: What all runs depend on.
    hparams: Algorithm to its hyper-parameters.
    population: Who trains.
    builders: `() -> process` by algorithm and defence, of those that go together.
  """

  note: str
  made_of: dict[str, Any]
  settings: dict[str, Any]
  hparams: dict[str, Any]
  population: Population
  builders: dict[tuple[str, str], Callable[[], StatefulProcess]]


def prepare(request: Request) -> Prepared:
  """Loads the task and checks the algorithms; a TFF context must be installed.

  Raises:
    InputError: Something cannot be trained; the message says what and why.
  """
  task = tasks_registry.get(request.task)
  rows = [algorithms_registry.get(name) for name in request.algorithms]
  check_names(rows)
  for row in rows:
    if row.is_personal:
      raise InputError(
        f"{row.name} has no test accuracy, as its global model predicts nothing by "
        "itself: leave it out."
      )
  hparams = {
    row.name: make_hparams(row, task, request.hparams.get(name, {}))
    for name, row in zip(request.algorithms, rows)
  }
  loaded = tasks_registry.load(
    task,
    data_dir=request.data_dir,
    cache_dir=request.cache_dir,
    partition=task.partition,
    num_clients=request.num_clients or task.num_clients,
    partition_seed=0,
    model_seed=0,
  )
  model, clients = loaded.model, loaded.clients
  if "accuracy" not in model.metrics:
    raise InputError(f"{request.task} has no accuracy to measure: choose another task.")
  size = request.clients_per_round or min(task.clients_per_round, len(clients))
  cohorts.uniform_cohort(len(clients), size, 0, 0)
  numbers = dict(num_clients=len(clients), num_examples=int(clients.num_examples.sum()))

  def builder(row: Any, defence: Defence) -> Callable[[], StatefulProcess]:
    factory = None
    if defence.aggregator is not None:
      factory = aggregators.make(defence.aggregator, clients_per_round=size)

    def build() -> StatefulProcess:
      plain = row.build(model, hparams[row.name], **numbers, aggregator=factory)
      return liars_lib.let_lie(plain, norm_limit=defence.norm_limit)

    return build

  takes_limit = {}
  for row in rows:  # What an algorithm does not take is found out now.
    process = liars_lib.let_lie(row.build(model, hparams[row.name], **numbers))
    kinds = process.composed_of["rounds"].values()
    takes_limit[row.name] = all(kind.estimation is None for kind in kinds)
  builders = {
    (row.name, word): builder(row, defence)
    for row in rows
    for word, defence in request.defences.items()
    if (defence.aggregator is None or row.takes_aggregator)
    and (defence.norm_limit is None or takes_limit[row.name])
  }
  if not builders:
    raise InputError(
      f"{', '.join(request.algorithms)} take none of the defences: add none to "
      "--defences."
    )
  population = Population(
    clients,
    evaluation.build_evaluation(model, loaded.test_x, loaded.test_y),
    size,
    request.rounds or task.rounds,
    request.liars,
  )
  settings = dict(
    task=request.task,
    partition=task.partition,
    num_clients=len(clients),
    clients_per_round=size,
    rounds=population.rounds,
    liars=request.liars,
    last_rounds=LAST_ROUNDS,
  )
  made_of = fingerprints.of_all(loaded, request.task, request.algorithms)
  return Prepared(loaded.note, made_of, settings, hparams, population, builders)


def describe(request: Request, prepared: Prepared) -> dict[str, Any]:
  """What config.json holds; other settings, data or code are other results."""
  return {
    "settings": prepared.settings,
    "hparams": {k: dataclasses.asdict(v) for k, v in prepared.hparams.items()},
    "attacks": {word: lie._asdict() for word, lie in request.attacks.items()},
    "note": prepared.note,
    **prepared.made_of,
  }


def read_done(folder: RunFolder, config: dict[str, Any]) -> list[Run]:
  """The runs that the folder holds, of these settings; [] in a new one.

  What stands in its config.json alone is added to `config`.

  Raises:
    InputError: It holds something else.
  """
  if not folder.check(config):
    return []
  held = folder.read() or {}
  for heading in ("hparams", "attacks", "algorithm"):
    if heading in config:
      config[heading] = {**held.get(heading, {}), **config[heading]}
  if not os.path.exists(folder.file(RUNS)):
    return []
  types = get_type_hints(Run).items()
  try:
    with open(folder.file(RUNS), encoding="utf-8", newline="") as f:
      return [
        Run(**{name: to(line[name]) for name, to in types}) for line in csv.DictReader(f)
      ]
  except (KeyError, ValueError, TypeError) as error:
    raise InputError(
      f"{folder.path} holds a {RUNS} that is not of this program, or was cut short: "
      "choose another --out."
    ) from error


def _write(folder: RunFolder, runs: Sequence[Run]) -> None:
  with durable_files.new_file(folder.file(RUNS), "w", newline="") as f:
    csv.writer(f, lineterminator="\n").writerows([Run._fields, *runs])


def run(request: Request) -> None:
  """Trains what the folder does not hold yet, and writes it.

  Raises:
    InputError: The request cannot be fulfilled; nothing was written.
  """
  folder = RunFolder(request.out, flag="--out")
  command_line.check_folder("out", folder.path)
  command_line.check_folder("cache_dir", request.cache_dir)
  rounds = request.rounds or tasks_registry.get(request.task).rounds
  known = dict(task=request.task, rounds=rounds, liars=request.liars)
  folder.check_begun_with("liars", known)
  in_process.prepare()
  with runtimes.create_runtime("in_process"):
    prepared = prepare(request)
    config = describe(request, prepared)
    runs = read_done(folder, config)
    with folder.alone():
      folder.begin(config)
      _train_all(request, prepared, runs, lambda: _write(folder, runs))
      text = _report(request, prepared, runs)
  print(f"{text}\nresults in {request.out}")


def _report(request: Request, prepared: Prepared, runs: Sequence[Run]) -> str:
  """Writes table and picture of what was asked for; the text of the table.

  With all seeds that are there: another command may have made more of them.
  """
  attacks, pairs = [NOBODY, *request.attacks], list(prepared.builders)
  shown = [r for r in runs if r.key[:2] in pairs and r.attack in attacks]
  shown.sort(key=lambda r: (pairs.index(r.key[:2]), attacks.index(r.attack), r.seed))
  return lying_report.write(request.out, shown, prepared.settings, attacks, prepared.note)


def _train_all(
  request: Request, prepared: Prepared, runs: list[Run], keep: Callable[[], None]
) -> None:
  """Trains what is not among the runs, adds each and has it kept."""
  done = {run.key for run in runs}
  lies = {NOBODY: HONEST, **request.attacks}
  todo = {
    pair: [
      (attack, seed)
      for attack in lies
      for seed in range(request.repeats)
      if (*pair, attack, seed) not in done
    ]
    for pair in prepared.builders
  }
  total, count = sum(map(len, todo.values())), 0
  if done:
    print(f"{len(done)} runs are there already, {total} are to be made")
  for (algorithm, defence), missing in todo.items():
    if not missing:
      continue
    process = prepared.builders[algorithm, defence]()
    for attack, seed in missing:
      outcome = train(process, prepared.population, lies[attack], seed)
      runs.append(Run(algorithm, defence, attack, seed, *outcome))
      keep()
      count += 1
      print(
        f"{count}/{total} {algorithm}, {defence}, {attack}, seed {seed}: accuracy "
        f"{100 * outcome.accuracy:.1f} %, {outcome.dropped} dropped, "
        f"{outcome.seconds:.1f} s",
        flush=True,
      )
