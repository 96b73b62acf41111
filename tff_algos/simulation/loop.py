"""The simulation loop: rounds of a process over a population of clients on disk."""

from __future__ import annotations

import dataclasses
import functools
import os
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, NamedTuple, Optional

import tensorflow_federated as tff

from tff_algos import durable_files
from tff_algos.client_data import ClientDirectory, ClientInput
from tff_algos.errors import InputError, check_function, check_is, set_whole_number
from tff_algos.models.functional import Weights
from tff_algos.simulation import (
  array_files,
  best_round,
  checkpoints,
  client_inputs,
  cohorts,
  divergence,
  measurements,
  origin,
  schedules,
)
from tff_algos.simulation.availability import Attendance, Availability
from tff_algos.simulation.client_evaluation import EvaluateClients
from tff_algos.simulation.client_files import ClientFiles
from tff_algos.simulation.client_state_store import ClientStateStore
from tff_algos.simulation.schedules import Schedule
from tff_algos.simulation.stopping import StopRule
from tff_algos.templates.rounds import RoundOutput
from tff_algos.templates.stateful_process import StatefulProcess, check_process
from tff_algos.templates.views import on_device_next

# Of one round: names to numbers that JSON can hold; None: not measured.
Record = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Settings:
  """What a run is besides its process and its clients.

  Attributes:
    rounds: How many rounds to do in all.
    clients_per_round: The size of the cohort, drawn uniformly without replacement.
    seed: The run's seed, >= 0.
    eval_every: Evaluate after every so many rounds, and after the last.
    checkpoint_every: Write a checkpoint after every so many rounds, and at the end or
      where the run stops or fails; 0: only then.
    checkpoint_folder: Where checkpoints go; None: nowhere.
    stop: What ends the run before its last round; None: only `should_stop`.
    availability: What keeps clients of a cohort from counting in its round.
    learning_rate_schedule: `(rounds done) -> factor` of a round's `learning_rate`, such
      as those of `schedules`; None: it stays.
    held_out_clients: How many clients never train: the last of a permutation by the seed.
    eval_clients_every: Evaluate on the clients' own examples after every so many rounds,
      and after the last, where `simulate` is told how.

  Raises:
    InputError: A value is of another kind or out of range.
  """

  rounds: int
  clients_per_round: int
  seed: int = 0
  eval_every: int = 1
  checkpoint_every: int = 0
  checkpoint_folder: Optional[str | os.PathLike[str]] = None
  stop: Optional[StopRule] = None
  availability: Availability = dataclasses.field(default_factory=Availability)
  learning_rate_schedule: Optional[Schedule] = None
  held_out_clients: int = 0
  eval_clients_every: int = 1

  def __post_init__(self) -> None:
    at_least_1 = ("rounds", "clients_per_round", "eval_every", "eval_clients_every")
    for name in (*at_least_1, "seed", "checkpoint_every", "held_out_clients"):
      set_whole_number(self, name, int(name in at_least_1))
    check_is("availability", self.availability, Availability)
    if self.stop is not None:
      check_is("stop", self.stop, StopRule)
    if self.learning_rate_schedule is not None:
      such_as = " of the rounds done, such as one of tff_algos.schedules gives"
      check_function("learning_rate_schedule", self.learning_rate_schedule, such_as)
    if self.checkpoint_every and not self.checkpoint_folder:
      raise InputError(
        "checkpoint_every needs the checkpoint_folder that checkpoints go to."
      )
    if "://" in os.fspath(self.checkpoint_folder or ""):
      raise InputError(
        "checkpoint_folder must be a local folder, whose files can be synced; found "
        f"{self.checkpoint_folder}."
      )

  def attendance(self, num_clients: int, round_num: int) -> Attendance:
    """Who takes part in a round, of so many clients; rounds are counted from 0.

    Raises:
      InputError: The cohort is larger than the population that trains.
    """
    training = cohorts.training_clients(num_clients, self.held_out_clients, self.seed)
    drawn = cohorts.uniform_cohort(
      len(training), self.clients_per_round, self.seed, round_num
    )
    cohort = [training[k] for k in drawn]
    return self.availability.attendance(cohort, self.seed, round_num)


class RoundStart(NamedTuple):
  """What a round is a pure function of, besides the clients' data.

  Attributes:
    rounds_done: The rounds before it.
    state: The server's state.
    client_states: The states of its clients.
    client_inputs: What they are handed.
  """

  rounds_done: int
  state: Any
  client_states: list[Any]
  client_inputs: list[ClientInput]


class Result(NamedTuple):
  """What a run leaves behind.

  Attributes:
    state: The last server state.
    records: One for each round done.
    client_states: The store with the clients' last states.
    ended_by: "rounds", all are done; "target" or "patience", by the `StopRule`; or
      "stopped", by `should_stop`.
    best: The model of the best round, as `keep_best` of `simulate` asks; else None.
  """

  state: Any
  records: list[Record]
  client_states: ClientStateStore
  ended_by: str
  best: Optional[best_round.Best] = None


def simulate(
  process: StatefulProcess,
  clients: ClientDirectory,
  settings: Settings,
  *,
  evaluate: Optional[Callable[[Weights], Mapping[str, float]]] = None,
  evaluate_clients: Optional[EvaluateClients] = None,
  keep_best: Optional[str] = None,
  resume: bool = False,
  on_start: Callable[[list[Record]], None] = lambda records: None,
  before_round: Callable[[RoundStart], None] = lambda start: None,
  on_round: Callable[[Record], None] = lambda record: None,
  should_stop: Callable[[], bool] = lambda: False,
) -> Result:
  """Runs a process, on the runtime that is installed.

  Every round is a pure function of the states before it and of the seed, so a run that
  was resumed gives bit for bit what it would have given without a break (but where a
  GPU's memory was too small for clients at once). Where a round fails or is interrupted,
  or what is called in it, there is a checkpoint of the rounds before it.

  Args:
    process: The process.
    clients: All clients.
    settings: Rounds, cohort, seed, intervals.
    evaluate: Weights to test metrics; their names get the prefix `test_`.
    evaluate_clients: What `build_client_evaluation` gives. Records have the spread of
      the loss and of each metric over the clients that train (`client_accuracy_p10` and
      so on) and those that never do (`held_out_accuracy_p10`).
    keep_best: The test metric, such as "accuracy", of whose best value the weights are
      kept, in checkpoints too: of the first round that has it. It is the largest, and of
      "loss" and of one with "-" before it, as in "-off" for an error, the least.
    resume: Whether to go on from the newest checkpoint, if there is one, with the seed,
      the clients, those that are held out, and the hyper-parameters that the run began
      with, and with algorithm, loss, Keras layers and aggregators of the same names;
      other settings may have changed.
    on_start: Called once with the records of the rounds done before, without the last one
      where it is measured only now.
    before_round: Called with what each round starts from; its time is not the round's.
    on_round: Called with the record of each round.
    should_stop: Asked after each round; a stopped run has a checkpoint.

  Raises:
    InputError: What is given is no process, no `ClientDirectory` or no `Settings`, the
      cohort is larger than the population, the process was built for another population,
      a client has a label for which the model has no output, the checkpoint belongs to
      another model or algorithm or its run began with something else that has to be the
      same, a new run's folder holds checkpoints, another run writes to it or it cannot be
      written to, there is no folder to resume from, checkpoints do not hold a dtype of
      the states, evaluation does not give what the run is to stop or to keep the best
      model by, or cannot be of the process's model, or the process does not take the
      learning rate schedule.
    DamagedError: A client's file does not hold what `write_clients` wrote, or every
      checkpoint is damaged.
  """
  check_process(process)
  check_is("settings", settings, Settings)
  if isinstance(tff.framework.get_context_stack().current, tff.program.FederatedContext):
    raise InputError(
      "simulate runs on a runtime itself, and the default context is one for TFF's "
      "programs: use `with runtime:` in the place of its federated_context()."
    )
  for what, wanted in (("stop", settings.stop), ("keep the best model", keep_best)):
    if wanted is not None and evaluate is None:
      raise InputError(f"To {what} by a test metric, give evaluate= what measures it.")
  for name, measure, builder in (
    ("evaluate", evaluate, "build_evaluation"),
    ("evaluate_clients", evaluate_clients, "build_client_evaluation"),
  ):
    if measure is not None:
      check_function(name, measure, f", such as tff_algos.{builder} gives")
  check_function("on_start", on_start)
  check_function("before_round", before_round)
  check_function("on_round", on_round)
  check_function("should_stop", should_stop)
  if evaluate is not None and process.personal_model is not None:
    raise InputError(
      "The process's global model alone predicts nothing: leave evaluate out, and "
      "evaluate its clients by evaluate_clients."
    )
  files = ClientFiles(clients, process.model, process.identity.example)
  settings.attendance(len(clients), 0)
  training = cohorts.training_clients(
    len(clients), settings.held_out_clients, settings.seed
  )
  cohorts.check_population(process.population, clients.num_examples[list(training)])
  folder = os.fspath(settings.checkpoint_folder or "") or None
  if resume and folder is None:
    raise InputError("To resume a run, give the checkpoint_folder that it has.")
  state, client_state = process.initialize(), process.initialize_client()
  if folder is not None:
    array_files.check_dtypes(state, "the server's state")
    array_files.check_dtypes(client_state, "a client's state")
  schedule = settings.learning_rate_schedule
  adjust = schedules.adjustment(process, schedule, settings.rounds)
  run_round = _rounds_of(process)
  labels = process.model.labels() if process.model else None
  no_bytes = dict.fromkeys(measurements.traffic_columns(process), 0)
  alone = durable_files.alone(folder, "checkpoint_folder") if folder else nullcontext()
  with alone:
    store = ClientStateStore(
      client_state,
      process.model,
      types=process.client_state_types,
      path=None if folder is None else checkpoints.client_file(folder),
    )
    began_with: origin.Origin = {}
    if folder is not None:
      began_with = origin.of(process, state, client_state, clients, settings)
    save = functools.partial(checkpoints.save, model=process.model, origin=began_with)
    records: list[Record] = []
    num_shown, best = 0, None
    if folder is not None and resume and checkpoints.exists(folder):
      found = checkpoints.restore(folder, state, store, types=process.state_types)
      origin.check(began_with, found.origin, f"The run in {folder}")
      given = process.get_hparams(state)
      state, records = found.state, found.records
      if schedule is None:  # It may have had one before.
        state = process.set_hparams(state, given)
      planned = measurements.planned(records, settings)
      best = best_round.of_checkpoint(found.best, planned, keep_best)
      num_shown = len(records)
      if _end(records, settings, stopping=False) is None:
        records[-1:] = [measurements.as_unbroken(r, settings) for r in records[-1:]]
      elif records:  # It was to go on then, so that its end may not have been measured.
        last, num_columns = records[-1], len(records[-1])
        if evaluate is not None and "evaluation_seconds" not in last:
          last.update(measurements.of_test(evaluate, process, state, settings))
        if evaluate_clients is not None and "client_evaluation_seconds" not in last:
          weights = process.get_model_weights(state).trainable
          with files.read_in(len(records), clients.ids):
            last.update(
              measurements.of_clients(evaluate_clients, weights, clients, settings)
            )
        num_shown -= len(last) > num_columns
    elif folder is not None and checkpoints.exists(folder):
      raise InputError(
        f"{folder} holds a run's checkpoints: go on with that run by resume=True, or "
        "choose another folder."
      )
    known = records[:num_shown]
    watch = divergence.Watch(known, num_classes=labels.stop if labels else None)
    saved = len(records)
    on_start(known)
    for record in records[num_shown:]:
      watch.see(record)
      on_round(record)
    ended_by = _end(records, settings, stopping=False)
    while ended_by is None:
      round_num = len(records)
      attendance = settings.attendance(len(clients), round_num)
      cohort = attendance.taking_part
      inputs = client_inputs.of_cohort(clients, cohort, settings.seed, round_num)
      ids = [clients.ids[p] for p in cohort]
      done, before, best_before = round_num + 1, state, best
      try:
        if evaluate_clients is not None and measurements.is_due(settings, done):
          clients.check_files(clients.ids, f" in round {done}")
        with files.read_in(done, ids):
          state, rate = adjust(state, round_num)
          before_round(RoundStart(round_num, state, store.get(cohort), inputs))
          start = time.perf_counter()
          output = run_round(round_num, state, store.get(cohort), inputs)
          # Which may be for what a file has come to hold.
          if measurements.training_metrics(output.metrics).get("num_dropped", 0):
            clients.check_files(ids, f" in round {done}")
        state = output.state
        train_seconds = time.perf_counter() - start
        crossing = process.traffic[process.kind_of_round(round_num)]
        stopping = should_stop()
        record = dict(
          round=done,
          **measurements.of_training(output.metrics),
          seconds=train_seconds,
          **rate,
          **settings.availability.record(attendance),
          **measurements.of_aggregators(output.metrics),
          # Late results have been sent too.
          **{
            **no_bytes,
            **measurements.of_traffic(crossing, len(cohort) + len(attendance.late)),
          },
        )
        is_last = stopping or done == settings.rounds
        if evaluate is not None and (is_last or done % settings.eval_every == 0):
          record.update(measurements.of_test(evaluate, process, state, settings))
        watch.see(record)
        records.append(record)
        if done % settings.eval_every == 0:
          best = best_round.better(best, record, keep_best, process, state)
        ended_by = _end(records, settings, stopping=stopping)
        if evaluate_clients is not None and (
          ended_by or measurements.is_due(settings, done)
        ):
          weights = process.get_model_weights(state).trainable
          with files.read_in(done, clients.ids):
            record.update(
              measurements.of_clients(evaluate_clients, weights, clients, settings)
            )
        on_round(record)
      except BaseException:
        if folder and round_num > saved:  # The rounds before it are whole.
          save(folder, before, store, round_num, records[:round_num], best=best_before)
        raise
      store.put(cohort, output.client_states)
      every = settings.checkpoint_every
      if folder and (ended_by or (every and done % every == 0)):
        save(folder, state, store, done, records, best=best)
        saved = done
    if records:
      best = best_round.better(best, records[-1], keep_best, process, state)
  return Result(state, records, store, ended_by, best)


def _end(records: list[Record], settings: Settings, *, stopping: bool) -> Optional[str]:
  """What has ended the run, as `Result.ended_by` says it; None where it goes on."""
  if settings.stop is not None:
    reason = settings.stop.reason(measurements.planned(records, settings))
    if reason is not None:
      return reason
  if len(records) >= settings.rounds:
    return "rounds"
  return "stopped" if stopping else None


def _rounds_of(process: StatefulProcess) -> Callable[..., RoundOutput]:
  """`(rounds done, state, client states, client inputs) -> RoundOutput`."""
  without_clients: dict[str, Any] = {}

  def run(
    round_num: int, state: Any, client_states: list[Any], inputs: list[ClientInput]
  ) -> RoundOutput:
    if inputs:
      output: RoundOutput = process.next_of(round_num)(state, client_states, inputs)
      return output
    if process.identity.example is not None and not process.identity.parts:
      # Of `from_learning_process`: TFF's own may divide by the weight of all clients.
      return RoundOutput(state, [], {})
    # TFF's workers cannot give the results of no clients, so there must be none to give.
    kind = process.kind_of_round(round_num)
    if kind not in without_clients:
      without_clients[kind] = on_device_next(process, round_num)
    new_state, metrics = without_clients[kind](state, [])
    return RoundOutput(new_state, [], metrics)

  return run
