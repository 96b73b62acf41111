"""A run whose every setting has been checked, before anything of it is written."""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Optional

from experiments.config import Config, make_hparams
from experiments.run_folder import fingerprints
from experiments.run_folder.folder import CHECKPOINTS, differences
from tasks import registry as tasks_registry
from tff_algos import hyper_parameters
from tff_algos.aggregators import table as aggregators
from tff_algos.algorithms import registry as algorithms_registry
from tff_algos.errors import DamagedError, InputError, InputWarning
from tff_algos.models.functional import Model
from tff_algos.simulation import (
  best_round,
  checkpoints,
  cohorts,
  loop,
  schedules,
  stopping,
)
from tff_algos.simulation.client_evaluation import Personalization
from tff_algos.templates.algorithm import Algorithm
from tff_algos.templates.rounds import AggregationFactory
from tff_algos.templates.stateful_process import StatefulProcess


class Prepared(NamedTuple):
  """A run whose every setting has been checked; nothing is on disk yet.

  Attributes:
    config: The settings.
    loaded: The task's model and data.
    hparams: The algorithm's hyper-parameters.
    process: The algorithm's process.
    settings: What the loop takes.
    personalization: The steps that clients take for themselves; None: they take none.
  """

  config: Config
  loaded: tasks_registry.LoadedTask
  hparams: Any
  process: StatefulProcess
  settings: loop.Settings
  personalization: Optional[Personalization]

  @property
  def measure(self) -> str:
    """The test metric that rounds are told apart by."""
    return measure_of(self.loaded.model)

  def manifest(self) -> dict[str, Any]:
    """All that the run's numbers depend on, by headings."""
    manifest = {
      "flags": dataclasses.asdict(self.config),
      "hparams": dataclasses.asdict(self.hparams),
      **fingerprints.of_all(self.loaded, self.config.task, [self.config.algorithm]),
    }
    if self.settings.held_out_clients:
      manifest["data"]["training"] = _population(self.loaded, self.settings)
    return manifest


def measure_of(model: Model) -> str:
  """Accuracy, or of a model without that metric the loss, of which less is better."""
  return "accuracy" if "accuracy" in model.metrics else "loss"


def prepare(config: Config) -> Prepared:
  """Loads the task and builds the process.

  Raises:
    InputError: The settings, the data or the model cannot be used.
  """
  task = tasks_registry.get(config.task)
  algorithm = algorithms_registry.get(config.algorithm)
  hparams = make_hparams(algorithm, task, config.hparams)
  _warn_of_unknown(task.hparams, algorithm)
  personalization = _personalization(config, task, hparams)
  settings = loop.Settings(
    rounds=config.rounds,
    clients_per_round=config.clients_per_round,
    seed=config.seed,
    eval_every=config.eval_every,
    checkpoint_every=config.checkpoint_every,
    checkpoint_folder=os.path.join(config.run_dir, CHECKPOINTS),
    availability=config.availability(),
    learning_rate_schedule=config.schedule(),
    held_out_clients=config.held_out_clients,
    eval_clients_every=config.eval_clients_every or 1,
  )
  _check_schedule(settings, hparams)
  _aggregator(dataclasses.asdict(config))  # Before anything is written.
  if config.num_clients is not None:
    _check_cohort(config, config.num_clients)
  loaded = load(config)
  _check_cohort(config, len(loaded.clients))
  settings = dataclasses.replace(settings, stop=_stop_rule(config, loaded.model))
  process = build(config, loaded, hparams, settings)
  return Prepared(config, loaded, hparams, process, settings, personalization)


def _warn_of_unknown(names: Iterable[str], algorithm: Algorithm) -> None:
  """Warns of a task's hyper-parameters that this algorithm has not, nor any of ours."""
  rows = (algorithm, *algorithms_registry.ALGORITHMS.values())
  known = {f.name for row in rows for f in dataclasses.fields(row.hparams_class)}
  for name in names:
    if name not in known:
      warnings.warn(
        f"The task's hyper-parameter {name!r} is left out, as neither {algorithm.name} "
        "nor any algorithm here has it.",
        InputWarning,
        stacklevel=2,
      )


def load(config: Config) -> tasks_registry.LoadedTask:
  """Loads the task of a run, its model and data.

  Raises:
    InputError: The data or the model cannot be used.
  """
  return tasks_registry.load(
    tasks_registry.get(config.task),
    data_dir=config.data_dir,
    cache_dir=os.path.expanduser(config.cache_dir),
    partition=config.partition,
    num_clients=config.num_clients,
    partition_seed=config.partition_seed,
    model_seed=config.seed,
    loss_epsilon=config.loss_epsilon,
    mixed_precision=config.mixed_precision,
  )


def build(
  config: Config,
  loaded: tasks_registry.LoadedTask,
  hparams: Any,
  settings: loop.Settings,
):
  """The process of a run.

  Args:
    config: The run's settings.
    loaded: The task.
    hparams: The algorithm's hyper-parameters.
    settings: What the loop takes; clients that it holds out do not count.
  """
  numbers = _population(loaded, settings)
  return _build(dataclasses.asdict(config), loaded.model, hparams, numbers)


def _build(
  flags: Mapping[str, Any], model: Model, hparams: Any, numbers: Mapping[str, int]
) -> StatefulProcess:
  """The process of a run, by its settings; older folders have fewer of them."""
  algorithm = algorithms_registry.get(flags["algorithm"])
  process = algorithm.build(model, hparams, **numbers, aggregator=_aggregator(flags))
  if flags.get("norm_limit") is not None:
    process = process.recomposed(norm_limit=flags["norm_limit"])
  return process


def _aggregator(flags: Mapping[str, Any]) -> Optional[AggregationFactory]:
  spec = flags.get("aggregator")
  if spec is None:
    return None
  return aggregators.make(spec, clients_per_round=flags["clients_per_round"])


def _population(
  loaded: tasks_registry.LoadedTask, settings: loop.Settings
) -> dict[str, int]:
  """The clients that train and their examples."""
  clients = loaded.clients
  places = cohorts.training_clients(
    len(clients), settings.held_out_clients, settings.seed
  )
  return {
    "num_clients": len(places),
    "num_examples": int(clients.num_examples[list(places)].sum()),
  }


def _personalization(
  config: Config, task: tasks_registry.Task, hparams: Any
) -> Optional[Personalization]:
  if not config.personalize_steps:
    return None
  known = {**task.hparams, **dataclasses.asdict(hparams)}
  if "learning_rate" not in known:
    raise InputError(
      f"personalize_steps needs a learning rate, and neither {config.algorithm} nor "
      f"{config.task} has one: leave it out."
    )
  return Personalization(
    config.personalize_steps,
    known["learning_rate"],
    batch_size=known.get("batch_size"),
    seed=config.seed,
  )


def _check_cohort(config: Config, num_clients: int) -> None:
  held_out = config.held_out_clients
  if held_out >= num_clients:
    raise InputError(
      f"held_out_clients is {held_out}, but there are only {num_clients} clients, of "
      "which some have to train: lower it."
    )
  if config.clients_per_round > num_clients - held_out:
    less = f", of which {held_out} are held out" if held_out else ""
    raise InputError(
      f"clients_per_round is {config.clients_per_round}, but there are only "
      f"{num_clients} clients{less}: lower it or raise num_clients."
    )


def _check_schedule(settings: loop.Settings, hparams: Any) -> None:
  schedule = settings.learning_rate_schedule
  if schedule is None:
    return
  if "learning_rate" not in hyper_parameters.tunable_values(hparams):
    raise InputError(
      f"{type(hparams).__name__} has no tunable learning_rate, so there can be no "
      "learning_rate_schedule: leave it out."
    )
  schedules.rates(schedule, hparams.learning_rate, settings.rounds)


def _stop_rule(config: Config, model: Model) -> Optional[stopping.StopRule]:
  """The run's; raises `InputError` if it or the target is of what nobody measures."""
  known = ("loss", *model.metrics)
  rule = config.stop_rule(measure_of(model))
  wanted = None if rule is None else stopping.name_of(rule.metric)
  if wanted is not None and wanted not in known:
    raise InputError(
      f"The run is to stop by {wanted}, which the task's model does not measure: "
      f"choose one of {', '.join(known)}."
    )
  if config.target_accuracy and "accuracy" not in known:
    raise InputError(
      "target_accuracy is about accuracy, which the task's model does not measure: leave "
      "it out."
    )
  return rule


def process_of(run_dir: str, manifest: dict[str, Any], model: Model) -> StatefulProcess:
  """The process of a run that was begun; the arguments are those of `newest_weights`."""
  try:
    algorithm = algorithms_registry.get(manifest["flags"]["algorithm"])
    hparams = algorithm.hparams_class(**manifest["hparams"])
    data = manifest["data"]
    every = dict(num_clients=int(data["clients"]), num_examples=int(data["examples"]))
    numbers = data.get("training", every)
  except InputError:  # Of an algorithm of the user's own.
    raise
  except (ValueError, KeyError, TypeError) as error:
    raise InputError(
      f"{run_dir} holds a config.json that is not of train.py: give a run's folder."
    ) from error
  return _build(manifest["flags"], model, hparams, numbers)


def check_model(
  run_dir: str, manifest: Mapping[str, Any], loaded: tasks_registry.LoadedTask
) -> None:
  """Raises `InputError` if a run's weights are of another model than its task has now.

  They may fit all the same, as where a layer's activation changed, or in the files of
  a task of one's own its preprocessing or loss.
  """
  task = fingerprints.of_own_code(manifest["flags"]["task"])
  found = differences(manifest, {"model": fingerprints.of_model(loaded), **task})
  if found:
    what = "; ".join(f"{name}={old!r}, not {new!r}" for name, old, new in found[:4])
    raise InputError(
      f"{run_dir} holds a run of a model with {what}: give its task the model, inputs "
      "as those, and the files if it is one of your own, that it was trained with."
    )


class RunWeights(NamedTuple):
  """The global model of a run's newest checkpoint, or of its best round.

  Attributes:
    weights: Float32 arrays.
    rounds: The number of rounds done to it.
  """

  weights: tuple
  rounds: int


def newest_weights(
  run_dir: str, manifest: dict[str, Any], model: Model, *, best: bool = False
) -> RunWeights:
  """Reads the newest checkpoint of a run; a TFF context must be installed.

  Args:
    run_dir: The run's folder.
    manifest: What its config.json holds.
    model: The model of its task.
    best: Whether to take the best round of the checkpoint's, not the last.

  Raises:
    InputError: The folder holds no such run, no checkpoint, or none with a best round.
    DamagedError: Every checkpoint is damaged.
  """
  process = process_of(run_dir, manifest, model)
  like = process.initialize()
  try:
    folder = os.path.join(run_dir, CHECKPOINTS)
    restored = checkpoints.restore(folder, like, types=process.state_types)
  except (OSError, InputError) as error:
    kind = DamagedError if isinstance(error, DamagedError) else InputError
    raise kind(f"{run_dir}: {error}") from error
  if best:
    # The last round may have been measured out of turn, for being the last.
    kept = best_round.of_checkpoint(restored.best, restored.records, measure_of(model))
    if kept is None or kept.round_num < restored.round_num:
      if kept is None or kept.weights is None:
        raise InputError(
          f"The checkpoint of {run_dir} does not hold the model of its best round: take "
          "its last one, without --best."
        )
      return RunWeights(kept.weights, kept.round_num)
  weights = process.get_model_weights(restored.state).trainable
  return RunWeights(tuple(weights), restored.round_num)
