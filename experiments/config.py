"""The settings of a training run: what is given, over a run's own, over the task's."""

from __future__ import annotations

import dataclasses
import datetime
import json
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Optional, Union, get_args, get_origin, get_type_hints

from absl import flags

from experiments import trackers
from experiments.run_folder.folder import OF_A_RUNTIME
from tasks import registry as tasks_registry
from tff_algos import hyper_parameters, partitions, runtimes
from tff_algos.aggregators import table as aggregators
from tff_algos.algorithms import registry as algorithms_registry
from tff_algos.errors import InputError
from tff_algos.simulation import availability, schedules, stopping
from tff_algos.simulation.availability import Availability
from tff_algos.simulation.schedules import Schedule
from tff_algos.simulation.stopping import StopRule
from tff_algos.templates import composer


@dataclasses.dataclass(frozen=True)
class Config:
  """Everything that a run depends on; `make_config` fills in the task's defaults.

  Attributes:
    algorithm: A name of `algorithms.registry`, or module:attribute.
    task: A name of `tasks.registry`, or module:attribute.
    hparams: Hyper-parameters that differ from the task's and the algorithm's defaults.
    run_dir: Where the results go.
    data_dir: Where the data set is; None: where its loader looks by itself.
    cache_dir: Where prepared client data are kept.
    partition: The split, as `partitions.parse` takes it.
    partition_seed: The split's seed, apart from the run's so that repeats share it.
    num_clients: The number of all clients; None: as many as the data have groups.
    clients_per_round: The size of the cohort.
    rounds: The number of rounds.
    seed: The run's seed.
    eval_every: Rounds between evaluations.
    checkpoint_every: Rounds between checkpoints; 0: only when stopped.
    target_accuracy: The accuracy whose round is reported, 0..1; None for none.
    stop_at: The test metric and target at which the run ends, such as accuracy:0.95;
      None or "" for none.
    patience: Evaluations without improvement after which it ends; None or 0 for none.
    held_out_clients: How many clients never train.
    eval_clients_every: Rounds between evaluations on the clients' own examples; 0: none.
    personalize_steps: Steps that a client takes for itself in these; 0: none.
    loss_epsilon: The loss is -log(p + loss_epsilon), p the label's probability.
    mixed_precision: Whether the task's network computes in bfloat16.
    learning_rate_schedule: As `schedules.parse` takes it, the rounds of a cosine filled
      in; None: the learning rate stays.
    aggregator: As `aggregators.table.parse` takes it; None: the algorithm's own.
    norm_limit: How many times the median of past rounds an update's norm may be; None:
      it is not looked at.
    dropout: The probability that a client drops out of a round.
    client_duration: How long clients take for a round, as `parse_durations` takes it;
      None: this is not looked at.
    round_deadline: The seconds after which results do not count; None: never.
    runtime: A name of `runtimes.DESCRIPTIONS`.
    threads: Clients worked on at once on each device of in_process; None: one on a GPU,
      on the CPU one for each core.
    devices: Where in_process places clients, such as GPU:0; None: all GPUs, else the CPU.
    clients_per_part: As `create_runtime` takes it, for in_process and dask.
    workers: How many processes dask starts; None: one for each GPU, else for each core.
    scheduler: The address of the Dask scheduler to use instead; None: none.
    tls_ca_file: The certificate of the authority of its cluster; None: that of Dask's
      configuration.
    tls_cert: What this program shows there.
    tls_key: The key of that.
    tracker: Who is told of the rounds besides the folder's files, of `trackers.NAMES`.
  """

  algorithm: str
  task: str
  run_dir: str
  partition: str
  num_clients: Optional[int]
  clients_per_round: int
  rounds: int
  hparams: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  data_dir: Optional[str] = None
  cache_dir: str = "~/.cache/tff_algos"
  partition_seed: int = 0
  seed: int = 0
  eval_every: int = 1
  checkpoint_every: int = 10
  target_accuracy: Optional[float] = None
  stop_at: Optional[str] = None
  patience: Optional[int] = None
  held_out_clients: int = 0
  eval_clients_every: int = 0
  personalize_steps: int = 0
  loss_epsilon: float = 0.0
  mixed_precision: bool = False
  learning_rate_schedule: Optional[str] = None
  aggregator: Optional[str] = None
  norm_limit: Optional[float] = None
  dropout: float = 0.0
  client_duration: Optional[str] = None
  round_deadline: Optional[float] = None
  runtime: str = "in_process"
  threads: Optional[int] = None
  devices: Optional[Sequence[str]] = None
  clients_per_part: Optional[int] = None
  workers: Optional[int] = None
  scheduler: Optional[str] = None
  tls_ca_file: Optional[str] = None
  tls_cert: Optional[str] = None
  tls_key: Optional[str] = None
  tracker: Sequence[str] = ("tensorboard",)

  def stop_rule(self, measure: str = "accuracy") -> Optional[StopRule]:
    """What `stop_at` and `patience` say, the latter alone of `measure`; None for neither.

    Raises:
      InputError: They cannot be used.
    """
    if not self.stop_at and not self.patience:
      return None
    metric, target = stopping.parse(self.stop_at) if self.stop_at else (measure, None)
    return StopRule(metric, target, self.patience or None)

  def schedule(self) -> Optional[Schedule]:
    """What `learning_rate_schedule` says.

    Raises:
      InputError: It cannot be used.
    """
    spec = self.learning_rate_schedule
    return None if spec is None else schedules.parse(spec)

  def availability(self) -> Availability:
    """What `dropout`, `client_duration` and `round_deadline` say.

    Raises:
      InputError: They cannot be used.
    """
    durations = None
    if self.client_duration is not None:
      durations = availability.parse_durations(self.client_duration)
    elif self.round_deadline is not None:
      raise InputError(
        "round_deadline needs client_duration, such as lognormal:mean=10: say how long "
        "clients take."
      )
    return Availability(self.dropout, durations, self.round_deadline)


def field_names() -> list[str]:
  """The names of `Config`'s fields."""
  return [field.name for field in dataclasses.fields(Config)]


def check_held(held: Mapping[str, Any], file: str) -> None:
  """Checks the types of the settings of a run that is gone on with, or looked at.

  Args:
    held: The "flags" of its config.json, where somebody may have written by hand.
    file: The path of that, for messages.

  Raises:
    InputError: A value is none that this program writes.
  """
  _check_type(f"{file}: flags", held, Mapping)
  for name, kind in get_type_hints(Config).items():
    if name in held and (name, held[name]) != _NO_WORKERS:
      _check_type(f"{file}: flags.{name}", held[name], kind)
  hparams = held.get("hparams", {})
  fields = _fields(held["algorithm"]) if hparams and "algorithm" in held else {}
  for name, value in hparams.items():
    if name in fields:
      kind = hyper_parameters.type_of(fields[name])
      kind = Optional[kind] if fields[name].metadata["optional"] else kind
      _check_type(f"{file}: flags.hparams.{name}", value, kind)


def _check_type(where: str, value: Any, kind: Any) -> None:
  """Raises `InputError` unless JSON has read a value of this type, as annotated."""
  kinds = list(get_args(kind)) if get_origin(kind) is Union else [kind]
  kinds = [get_origin(k) or k for k in kinds]
  found = type(value)
  if found is int and float in kinds:
    found = float
  if found is list and all(isinstance(part, str) for part in value):
    found = Sequence
  if found not in [dict if k is Mapping else k for k in kinds]:
    words = " or ".join(_IN_JSON[k] for k in kinds)
    raise InputError(
      f"{where} must be {words}; found {json.dumps(value)}: correct it in the file."
    )


# The names of checkpoints have seven digits; TensorFlow counts steps by int32.
_MOST = {"rounds": 9_999_999, "personalize_steps": 1_000_000}
_NO_WORKERS: Any = ("workers", [])  # As older versions wrote it.


def make_config(
  algorithm: str,
  task: str,
  *,
  held: Optional[Mapping[str, Any]] = None,
  **given: Any,
) -> Config:
  """The settings of a run.

  Args:
    algorithm: A name of `algorithms.registry`, or module:attribute.
    task: A name of `tasks.registry`, or module:attribute.
    held: The settings of the run that is resumed, by the names of `Config`'s fields;
      None for a new run, which has the task's defaults.
    **given: Fields of `Config`; None for those that are not given.

  Raises:
    InputError: A name is unknown or a value out of range.
  """
  given = {name: value for name, value in given.items() if value is not None}
  row, algorithm_row = tasks_registry.get(task), algorithms_registry.get(algorithm)
  for name in (
    *("num_clients", "clients_per_round", "rounds", "eval_every"),
    *("threads", "clients_per_part"),
  ):
    if given.get(name, 1) < 1:
      raise InputError(f"{name} must be at least 1; found {given[name]}.")
  for name in (
    *("seed", "partition_seed", "checkpoint_every"),
    *("held_out_clients", "eval_clients_every", "personalize_steps"),
  ):
    if given.get(name, 0) < 0:
      raise InputError(f"{name} must be >= 0; found {given[name]}.")
  for name, most in _MOST.items():
    if given.get(name, 0) > most:
      raise InputError(f"{name} must be at most {most:,}; found {given[name]}.")
  num_clients = given.get("num_clients", row.num_clients)
  stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S-%f")[:-3]
  defaults: dict[str, Any] = dict(
    run_dir=f"runs/{stamp}-{row.name}-{algorithm_row.name}",
    partition=row.partition,
    num_clients=num_clients,
    clients_per_round=min(row.clients_per_round, num_clients or sys.maxsize),
    rounds=row.rounds,
    target_accuracy=None if algorithm_row.is_personal else row.target_accuracy,
  )
  if held is not None:
    before = held.get("runtime", Config.runtime)
    dropped: Collection[str] = ()
    if given.get("runtime", before) != before:
      dropped = OF_A_RUNTIME
    elif before != "in_process":  # Older versions took them with any, and used neither.
      dropped = ("threads", "devices")
    known = set(field_names()).difference(dropped)
    defaults.update(i for i in held.items() if i[0] in known and i != _NO_WORKERS)
    given["hparams"] = {**defaults.get("hparams", {}), **given.get("hparams", {})}
  config = Config(**{**defaults, **given, "algorithm": algorithm, "task": task})
  if config.runtime not in runtimes.DESCRIPTIONS:
    raise InputError(
      f"There is no runtime {config.runtime!r}: choose one of "
      f"{', '.join(runtimes.DESCRIPTIONS)}."
    )
  if given.get("data_dir") and not row.reads_data_dir:
    raise InputError(f"{row.name} reads no data_dir: leave it out, or name its task.")
  parts = (held or {}).get("clients_per_part")  # Older versions took it in vain.
  if config.runtime == "local_worker" and given.get("clients_per_part", parts) != parts:
    raise InputError(
      "clients_per_part is not for local_worker, where TFF adds up in its own order: "
      "leave it out, or choose another runtime."
    )
  if not 0 <= config.loss_epsilon < 1:
    raise InputError(f"loss_epsilon must be in [0, 1); found {config.loss_epsilon:g}.")
  target = config.target_accuracy
  if target is not None and not 0 < target <= 1:
    raise InputError(f"target_accuracy must be in (0, 1]; found {target:g}.")
  spec = (config.learning_rate_schedule or "").rstrip(":")
  if spec.partition(":")[0] == "cosine" and "rounds=" not in spec:
    # Else it would be another one where the run is gone on with for more rounds.
    spec += f"{',' if ':' in spec else ':'}rounds={config.rounds}"
    config = dataclasses.replace(config, learning_rate_schedule=spec)
  if config.personalize_steps and not config.eval_clients_every:
    raise InputError(
      "personalize_steps needs eval_clients_every: say after how many rounds to look."
    )
  if algorithm_row.is_personal:
    measured = ("target_accuracy", "stop_at", "patience")
    for name in (*measured, "personalize_steps", "loss_epsilon"):
      if getattr(config, name):
        raise InputError(
          f"{name} is not for {algorithm}, whose global model predicts nothing by "
          "itself: leave it out."
        )
  if config.aggregator is not None:
    algorithm_row.check_aggregator()
    size = config.clients_per_round if held is None else None
    aggregators.check(config.aggregator, clients_per_round=size)
  if held is None:  # Where they may be an older version's.
    partitions.parse(config.partition)
    make_hparams(algorithm_row, row, config.hparams)
  composer.check_norm_limit(config.norm_limit)
  trackers.check(config.tracker)
  config.stop_rule()
  config.schedule()
  config.availability()
  return config


def make_hparams(algorithm: Any, task: Any, given: Mapping[str, Any]) -> Any:
  """The algorithm's hyper-parameters: given values over the task's over its own.

  Args:
    algorithm: A row of `algorithms.registry`.
    task: A row of `tasks.registry`.
    given: Name to value.

  Raises:
    InputError: The algorithm has no such hyper-parameter, or a value has the wrong type
      or is out of range.
  """
  known = {field.name for field in dataclasses.fields(algorithm.hparams_class)}
  for name in given:
    if name not in known:
      raise InputError(
        f"{algorithm.name} has no hyper-parameter {name}: it has "
        f"{', '.join(sorted(known))}."
      )
  defaults = {name: v for name, v in task.hparams.items() if name in known}
  try:
    return algorithm.hparams_class(**{**defaults, **given})
  except (TypeError, ValueError) as error:  # As the class says of what it is given.
    raise InputError(str(error)) from error


def parse_hparams(
  words: Sequence[str], algorithms: Sequence[str]
) -> dict[str, dict[str, Any]]:
  """Hyper-parameters of several algorithms, for each by name.

  Args:
    words: name=value, for all algorithms that have it, or algorithm:name=value.
    algorithms: Names of `algorithms.registry`.

  Raises:
    InputError: An algorithm is unknown, or a word cannot be read or is of none of them.
  """
  fields = {name: _fields(name) for name in algorithms}
  given: dict[str, dict[str, Any]] = {name: {} for name in algorithms}
  for word in words:
    key, equals, text = word.partition("=")
    owner, colon, hparam = key.rpartition(":")
    taken = False
    for name in [owner] if colon else algorithms:
      if equals and hparam in fields.get(name, {}):
        try:
          given[name][hparam] = read_hparam(fields[name][hparam], text)
        except ValueError as error:
          raise InputError(f"--hparams: {word!r}: {hparam} {error}.") from None
        taken = True
    if not taken:
      raise InputError(
        f"--hparams: {word!r} is no name=value or algorithm:name=value of a "
        f"hyper-parameter of {', '.join(algorithms)}: correct it."
      )
  return given


def _fields(algorithm: str) -> dict[str, dataclasses.Field]:
  hparams_class = algorithms_registry.get(algorithm).hparams_class
  return {field.name: field for field in dataclasses.fields(hparams_class)}


def read_hparam(field: dataclasses.Field, text: str) -> Any:
  """A hyper-parameter as its class takes it, of a word of the command line.

  Raises:
    ValueError: The word is no value of its type; the message says what it must be.
  """
  if text == "inf" and field.metadata["optional"]:
    return None
  kind = hyper_parameters.type_of(field)
  # Of any word but "", bool() is True.
  read: Callable[[str], Any] = flags.BooleanParser().parse if kind is bool else kind
  try:
    return read(text)
  except ValueError:
    or_inf = " or inf" if field.metadata["optional"] else ""
    raise ValueError(f"must be {_IN_WORDS[kind]}{or_inf}; found {text!r}") from None


_IN_WORDS = {bool: "true or false", int: "a whole number", float: "a number"}
_IN_JSON = {
  **_IN_WORDS,
  str: "a text",
  Mapping: "an object",
  Sequence: "a list of texts",
  type(None): "null",
}
