"""One training run from its settings to its folder of results; shared by the programs."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import fcntl
import importlib.metadata
import json
import math
import os
import platform
import resource
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Optional

import tqdm

from binaries import command_line, runs
from tasks import registry as tasks_registry
from tff_algos.algorithms import registry as algorithms_registry
from tff_algos.diagnostics import heterogeneity
from tff_algos.models.functional import Model
from tff_algos.privacy import accounting
from tff_algos.runtimes import in_process, remote_workers, tunnel
from tff_algos.runtimes import runtime as runtimes
from tff_algos.simulation import (
  checkpoints,
  cohorts,
  evaluation,
  loop,
  records,
  traffic,
)
from tff_algos.simulation.client_state_store import ClientStateStore

_CHECKPOINTS = "checkpoints"
_PACKAGES = ("tensorflow", "tensorflow-federated", "tensorflow-datasets", "numpy")
# A run may be resumed with other values of these; they do not change its numbers.
_FREE_ON_RESUME = (
  "rounds",
  "run_dir",
  "data_dir",
  "cache_dir",
  "runtime",
  "threads",
  "devices",
  "workers",
  "worker_certificate",
  "worker_key",
  "worker_authority",
  "checkpoint_every",
  "target_accuracy",
)


class InputError(Exception):
  """What the user gave cannot be run; the message is one sentence that says why."""


@dataclasses.dataclass(frozen=True)
class Config:
  """Everything that a run depends on; `make_config` fills in the task's defaults.

  Attributes:
    algorithm: A name of `algorithms.registry`.
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
    checkpoint_every: Rounds between checkpoints; 0 for none.
    target_accuracy: The accuracy whose round is reported, 0..1; None for none.
    runtime: A name of `runtimes.runtime.DESCRIPTIONS`.
    threads: Clients worked on at once on each device of in_process; None: one for each
      core.
    devices: Where in_process places clients, such as GPU:0; None: all GPUs, else the CPU.
    workers: The workers of remote_workers, as host:port.
    worker_certificate: What this program shows them; None: they are not in a tunnel.
    worker_key: The key of that.
    worker_authority: The certificate of the authority that signed the workers'.
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
  runtime: str = "in_process"
  threads: Optional[int] = None
  devices: Optional[Sequence[str]] = None
  workers: Sequence[str] = ()
  worker_certificate: Optional[str] = None
  worker_key: Optional[str] = None
  worker_authority: Optional[str] = None


class Prepared(NamedTuple):
  """A run whose every setting has been checked; nothing is on disk yet.

  Attributes:
    config: The settings.
    loaded: The task's model and data.
    hparams: The algorithm's hyper-parameters.
    process: The algorithm's process.
    settings: What the loop takes.
  """

  config: Config
  loaded: tasks_registry.LoadedTask
  hparams: Any
  process: Any
  settings: loop.Settings


@contextlib.contextmanager
def user_input() -> Iterator[None]:
  """Turns the errors of checks into `InputError`; only wrapped around checks."""
  from tasks.datasets.dataset import DataMissingError

  kinds = (ValueError, TypeError, OSError, DataMissingError, command_line.UsageError)
  try:
    yield
  except kinds as error:
    raise InputError(" ".join(str(error).split())) from error


def make_config(algorithm: str, task: str, **given: Any) -> Config:
  """The settings of a run: what is given and not None, over the task's defaults.

  Args:
    algorithm: A name of `algorithms.registry`.
    task: A name of `tasks.registry`, or module:attribute.
    **given: Fields of `Config`.

  Raises:
    InputError: A name is unknown or a value out of range.
  """
  given = {name: value for name, value in given.items() if value is not None}
  with user_input():
    row = tasks_registry.get(task)
    algorithms_registry.get(algorithm)
    for name in ("num_clients", "clients_per_round", "rounds", "threads"):
      if given.get(name, 1) < 1:
        raise ValueError(f"{name} must be at least 1; found {given[name]}.")
    num_clients = given.get("num_clients", row.num_clients)
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    defaults = dict(
      run_dir=f"runs/{stamp}-{row.name}-{algorithm}",
      partition=row.partition,
      num_clients=num_clients,
      clients_per_round=min(row.clients_per_round, num_clients or sys.maxsize),
      rounds=row.rounds,
      target_accuracy=row.target_accuracy,
    )
    config = Config(algorithm=algorithm, task=task, **{**defaults, **given})
    if config.runtime not in runtimes.DESCRIPTIONS:
      raise ValueError(
        f"There is no runtime {config.runtime!r}: choose one of "
        f"{', '.join(runtimes.DESCRIPTIONS)}."
      )
    _check_workers(config)
    target = config.target_accuracy
    if target is not None and not 0 < target <= 1:
      raise ValueError(f"target_accuracy must be in (0, 1]; found {target:g}.")
    if config.partition_seed < 0:
      raise ValueError(f"partition_seed must be >= 0; found {config.partition_seed}.")
  return config


def _check_workers(config: Config) -> None:
  """Raises `ValueError` if the settings of remote_workers do not fit together."""
  files = _tls_files(config)
  if config.runtime == "remote_workers":
    remote_workers.parse_addresses(config.workers)
    if files is not None:
      files.check()
      tunnel.find_stunnel()
  elif config.workers or files is not None:
    raise ValueError(
      f"workers and their certificates are for the runtime remote_workers, but this "
      f"run's is {config.runtime}: leave them out or choose remote_workers."
    )


def _tls_files(config: Config) -> Optional[tunnel.TlsFiles]:
  given = {
    "worker_certificate": config.worker_certificate,
    "worker_key": config.worker_key,
    "worker_authority": config.worker_authority,
  }
  missing = [name for name, path in given.items() if not path]
  if len(missing) == len(given):
    return None
  if missing:
    raise ValueError(
      "worker_certificate, worker_key and worker_authority go together: "
      f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing."
    )
  return tunnel.TlsFiles(*(str(path) for path in given.values()))


Watcher = Callable[[loop.RoundStart], None]


def _watch_nothing(prepared: Prepared) -> Watcher:
  del prepared
  return lambda start: None


def run(
  config: Config,
  *,
  resume: bool = False,
  watch: Callable[[Prepared], Watcher] = _watch_nothing,
) -> dict[str, Any]:
  """Runs an experiment and writes its folder.

  Args:
    config: The settings.
    resume: Whether to go on with the run that `config.run_dir` holds, if it holds one.
    watch: Makes what is called before each round. It may refuse by a ValueError, before
      anything is written.

  Returns:
    What summary.json holds.

  Raises:
    InputError: The settings cannot be run; nothing was written.
    UnsupportedComputationError: The runtime does not run the algorithm.
    WorkerLostError: A worker process does not start, or died too often.
  """
  run_dir = os.path.expanduser(config.run_dir)
  config = dataclasses.replace(config, run_dir=run_dir)
  check_folder("run_dir", run_dir)
  check_folder("cache_dir", os.path.expanduser(config.cache_dir))
  folder = os.path.join(run_dir, _CHECKPOINTS)
  if config.runtime == "in_process":
    with user_input():
      in_process.prepare(config.devices)
  _goes_on(config, resume, folder)
  prepared = _prepare(config, folder)
  with user_input():
    watcher = watch(prepared)
  os.makedirs(run_dir, exist_ok=True)
  with contextlib.ExitStack() as stack:
    stack.enter_context(_alone_in(run_dir))
    # Again, as another process may have been here since.
    goes_on = _goes_on(config, resume, folder)
    records.write_json(os.path.join(run_dir, runs.CONFIG), _describe(prepared))
    runtime = stack.enter_context(
      runtimes.create_runtime(
        config.runtime,
        num_threads=config.threads,
        devices=config.devices,
        worker_log=os.path.join(run_dir, "worker.log"),
        workers=config.workers,
        tls=_tls_files(config),
      )
    )
    _print_header(prepared, runtime)
    heterogeneity.draw_heat_map(
      prepared.loaded.class_counts,
      os.path.join(run_dir, runs.PARTITION),
      f"{config.task}: {config.partition}",
      "labels" if prepared.loaded.test_y.ndim > 1 else "examples",
    )
    result = _train(prepared, goes_on, watcher)
    summary = _finish(prepared, result, runtime)
  return summary


def check_folder(name: str, folder: str) -> None:
  """Raises `InputError` if the folder neither is there nor can be made."""
  with user_input():
    command_line.check_folder(name, folder)


@contextlib.contextmanager
def _alone_in(run_dir: str) -> Iterator[None]:
  """Keeps other processes that run experiments out of a folder.

  Raises:
    InputError: One is in it.
  """
  handle = os.open(run_dir, os.O_RDONLY)
  try:
    try:
      fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      raise InputError(
        f"{run_dir} is being written by another process: wait for it to end, or choose "
        "another --run_dir."
      ) from None
    except OSError:
      pass  # A file system that has no locks.
    yield
  finally:
    os.close(handle)


def _goes_on(config: Config, resume: bool, checkpoint_folder: str) -> bool:
  """Whether the run starts from a checkpoint; refuses to lose a finished one."""
  is_there = _check_run_dir(config, resume)
  if is_there and not checkpoints.exists(checkpoint_folder):
    if os.path.exists(os.path.join(config.run_dir, records.SUMMARY)):
      raise InputError(
        f"{config.run_dir} holds a finished run without its {_CHECKPOINTS}, which cannot "
        "be gone on with: move it away or choose another --run_dir."
      )
    return False
  return is_there


def _check_run_dir(config: Config, resume: bool) -> bool:
  """Whether the folder holds this very run; another one is an error."""
  path = os.path.join(config.run_dir, runs.CONFIG)
  if not os.path.exists(path):
    if os.path.isdir(config.run_dir) and os.listdir(config.run_dir):
      raise InputError(
        f"{config.run_dir} is not empty and holds no run of this program: choose "
        "another run_dir."
      )
    return False
  try:
    with open(path) as f:
      old = dict(json.load(f)["flags"])
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise InputError(
      f"{config.run_dir} holds a {runs.CONFIG} that is not of this program: choose "
      "another run_dir."
    ) from error
  if not resume:
    raise InputError(
      f"{config.run_dir} already holds a run: choose another --run_dir, or go on with "
      "it by --resume."
    )
  new = json.loads(json.dumps(dataclasses.asdict(config)))
  for name in new:
    if name not in _FREE_ON_RESUME and old.get(name) != new[name]:
      raise InputError(
        f"{config.run_dir} holds a run with {name}={old.get(name)!r}, not "
        f"{new[name]!r}: resume it with the settings it was started with."
      )
  with user_input():
    done = len(runs.read_run(config.run_dir).records)
  if config.rounds < done:
    raise InputError(
      f"{config.run_dir} has {done} rounds already: ask for as many or more by --rounds, "
      f"not {config.rounds}."
    )
  return True


def _prepare(config: Config, checkpoint_folder: str) -> Prepared:
  with user_input():
    task = tasks_registry.get(config.task)
    algorithm = algorithms_registry.get(config.algorithm)
    hparams = make_hparams(algorithm, task, config.hparams)
    settings = loop.Settings(
      rounds=config.rounds,
      clients_per_round=config.clients_per_round,
      seed=config.seed,
      eval_every=config.eval_every,
      checkpoint_every=config.checkpoint_every,
      checkpoint_folder=checkpoint_folder,
    )
    if config.num_clients is not None:
      _check_cohort(config, config.num_clients)
    loaded = tasks_registry.load(
      task,
      data_dir=config.data_dir,
      cache_dir=os.path.expanduser(config.cache_dir),
      partition=config.partition,
      num_clients=config.num_clients,
      partition_seed=config.partition_seed,
      model_seed=config.seed,
    )
    _check_cohort(config, len(loaded.clients))
    process = algorithm.build(
      loaded.model,
      hparams,
      num_clients=len(loaded.clients),
      num_examples=int(loaded.clients.num_examples.sum()),
    )
  return Prepared(config, loaded, hparams, process, settings)


def _check_cohort(config: Config, num_clients: int) -> None:
  if config.clients_per_round > num_clients:
    raise ValueError(
      f"clients_per_round is {config.clients_per_round}, but there are only "
      f"{num_clients} clients: lower it or raise num_clients."
    )


def make_hparams(
  algorithm: algorithms_registry.Algorithm,
  task: tasks_registry.Task,
  given: Mapping[str, Any],
) -> Any:
  """The algorithm's hyper-parameters: given values over the task's over its own.

  Raises:
    ValueError: The algorithm has no such hyper-parameter, or a value is out of range.
    TypeError: A value has the wrong type.
  """
  hparams_class = algorithm.hparams_class
  known = {field.name for field in dataclasses.fields(hparams_class)}
  for name in given:
    if name not in known:
      raise ValueError(
        f"{algorithm.name} has no hyper-parameter {name}: it has "
        f"{', '.join(sorted(known))}."
      )
  defaults = {name: v for name, v in task.hparams.items() if name in known}
  return hparams_class(**{**defaults, **given})


class RunWeights(NamedTuple):
  """The global model of a run's newest checkpoint.

  Attributes:
    weights: Float32 arrays.
    rounds: The number of rounds done.
  """

  weights: tuple
  rounds: int


def newest_weights(run_dir: str, task: str, model: Model) -> RunWeights:
  """Reads the newest checkpoint of a run; a TFF context must be installed.

  Args:
    run_dir: The run's folder.
    task: The name of the task that it must be of.
    model: That task's model.

  Raises:
    InputError: The folder holds no such run, or no checkpoint.
  """
  with user_input():
    try:
      with open(os.path.join(run_dir, runs.CONFIG)) as f:
        config = json.load(f)
      flags = config["flags"]
      algorithm = algorithms_registry.get(flags["algorithm"])
      hparams = algorithm.hparams_class(**config["hparams"])
    except OSError as error:
      raise InputError(
        f"{run_dir or 'The empty name'} is no folder of a run: {error.strerror}, "
        f"{runs.CONFIG}."
      ) from error
    except (ValueError, KeyError, TypeError) as error:
      raise InputError(
        f"{run_dir} holds a {runs.CONFIG} that is not of train.py: give a run's folder."
      ) from error
    if flags["task"] != task:
      raise InputError(
        f"{run_dir} holds a run of the task {flags['task']}, not of {task}: name its "
        "own task."
      )
    process = algorithm.build(
      model,
      hparams,
      num_clients=config["data"]["clients"],
      num_examples=config["data"]["examples"],
    )
    restored = checkpoints.restore(
      os.path.join(run_dir, _CHECKPOINTS),
      process.initialize(),
      ClientStateStore(process.initialize_client()),
    )
  weights = process.get_model_weights(restored.state).trainable
  return RunWeights(tuple(weights), restored.round_num)


def _describe(prepared: Prepared) -> dict[str, Any]:
  return {
    "flags": dataclasses.asdict(prepared.config),
    "hparams": dataclasses.asdict(prepared.hparams),
    "data": {
      "note": prepared.loaded.note,
      "clients": len(prepared.loaded.clients),
      "examples": int(prepared.loaded.clients.num_examples.sum()),
      "left_over": prepared.loaded.left_over,
      "test_examples": len(prepared.loaded.test_y),
    },
    "num_weights": prepared.loaded.model.num_weights,
    **provenance(),
  }


def provenance() -> dict[str, Any]:
  """What made a folder of results: the command, versions and the source's commit."""
  return {
    # Not the folder of the program, which others have elsewhere.
    "command": [f"binaries/{os.path.basename(sys.argv[0])}", *sys.argv[1:]],
    "versions": versions(),
    "machine": machine(),
    "git_commit": git_commit(),
  }


def machine() -> dict[str, Any]:
  """Processor, cores that may be used, GPUs and memory of this machine."""
  import tensorflow as tf

  with open("/proc/cpuinfo") as f:
    models = [line for line in f if line.startswith("model name")]
  return {
    "processor": models[0].partition(":")[2].strip() if models else platform.machine(),
    "cores": len(os.sched_getaffinity(0)),
    "gpus": len(tf.config.list_physical_devices("GPU")),
    "memory_gb": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9),
  }


def versions() -> dict[str, str]:
  """Of Python and of the packages that numbers depend on."""
  packages = {name: importlib.metadata.version(name) for name in _PACKAGES}
  return {"python": sys.version.split()[0], **packages}


def git_commit() -> Optional[str]:
  """The commit of the source, with "+changes" where files differ from it."""
  here = os.path.dirname(os.path.abspath(__file__))
  git = shutil.which("git")
  if git is None:
    return None

  def ask(*words):
    done = subprocess.run([git, "-C", here, *words], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None

  commit = ask("rev-parse", "HEAD")
  if not commit:
    return None
  changed = ask("status", "--porcelain", "--untracked-files=no")
  return commit + ("+changes" if changed else "")


def _print_header(prepared: Prepared, runtime: runtimes.Runtime) -> None:
  config, loaded = prepared.config, prepared.loaded
  note = f" ({loaded.note})" if loaded.note else ""
  print(
    f"{config.algorithm} on {config.task}{note}: {len(loaded.clients):,} clients, "
    f"{config.clients_per_round} a round, split {config.partition}, "
    f"{loaded.model.num_weights:,} weights, runtime {runtime.name}"
  )
  if loaded.left_over:
    print(f"{loaded.left_over:,} training examples are left over by the split")
  if runtime.notice:
    print(runtime.notice)
  print(f"results in {config.run_dir}")


def _train(prepared: Prepared, resume: bool, watcher: Watcher) -> loop.Result:
  evaluate = evaluation.build_evaluation(
    prepared.loaded.model, prepared.loaded.test_x, prepared.loaded.test_y
  )
  writer = records.RecordWriter(
    prepared.config.run_dir,
    columns=[
      "round",
      "train_loss",
      "test_loss",
      "test_accuracy",
      "seconds",
      "evaluation_seconds",
      "num_examples",
      "num_accepted",
      "num_dropped",
      *traffic.record_columns(prepared.process),
    ],
  )
  progress = _Progress(prepared.settings.rounds)

  def on_start(done):
    writer.start(done)
    progress.start(len(done))

  def on_round(record):
    writer.write(record)
    progress.update(record)

  with _stopping_on_signal() as should_stop:
    try:
      return loop.simulate(
        prepared.process,
        prepared.loaded.clients,
        prepared.settings,
        evaluate=evaluate,
        resume=resume,
        on_start=on_start,
        before_round=watcher,
        on_round=on_round,
        should_stop=should_stop,
      )
    finally:
      progress.close()
      writer.close()


class _Progress:
  """A bar on a terminal; a line a round where the output is a file."""

  def __init__(self, rounds: int):
    self._rounds = rounds
    self._bar: Any = None

  def start(self, done: int) -> None:
    self._bar = tqdm.tqdm(
      total=self._rounds,
      initial=done,
      unit="round",
      disable=None,
      dynamic_ncols=True,
      bar_format="{desc} {n_fmt}/{total_fmt} |{bar}| {elapsed}<{remaining}{postfix}",
      desc="round",
    )

  def update(self, record: loop.Record) -> None:
    parts = [f"loss {record['train_loss']:.4f}"]
    if record.get("test_accuracy") is not None:
      parts.append(f"accuracy {100 * record['test_accuracy']:.2f} %")
    parts.append(f"{record['seconds']:.2f} s/round")
    if record["num_dropped"]:
      parts.append(f"{record['num_dropped']} clients dropped")
    self._bar.set_postfix_str(", ".join(parts), refresh=False)
    self._bar.update(1)
    if self._bar.disable:
      print(f"round {record['round']}: {', '.join(parts)}", flush=True)

  def close(self) -> None:
    if self._bar is not None:
      self._bar.close()


@contextlib.contextmanager
def _stopping_on_signal() -> Iterator[Callable[[], bool]]:
  """Lets Ctrl-C and SIGTERM end the run after its round; a second one ends it now."""
  stop = threading.Event()

  def handle(number, frame):
    del number, frame
    if stop.is_set():
      raise KeyboardInterrupt
    stop.set()
    print(
      "\nstopping after this round; once more to stop now and lose it", file=sys.stderr
    )

  numbers = (signal.SIGINT, signal.SIGTERM)
  before = [signal.signal(number, handle) for number in numbers]
  try:
    yield stop.is_set
  finally:
    for number, handler in zip(numbers, before):
      signal.signal(number, handler)


def _finish(
  prepared: Prepared, result: loop.Result, runtime: runtimes.Runtime
) -> dict[str, Any]:
  config = prepared.config
  summary = records.summarize(
    result.records, metric="test_accuracy", target=config.target_accuracy
  )
  summary["stopped_early"] = len(result.records) < config.rounds
  if prepared.process.privacy is not None:
    summary["privacy"] = _privacy(prepared, prepared.process.privacy, len(result.records))
  summary["peak_memory_bytes"] = _peak_memory() + runtime.worker_peak_memory()
  records.write_json(os.path.join(config.run_dir, records.SUMMARY), summary)
  note = f" ({prepared.loaded.note})" if prepared.loaded.note else ""
  title = f"{config.algorithm} on {config.task}{note}"
  records.draw_traffic(
    result.records, os.path.join(config.run_dir, "traffic.png"), title=title
  )
  records.draw_accuracy(
    result.records,
    os.path.join(config.run_dir, "accuracy.png"),
    title=title,
    target=config.target_accuracy,
  )
  _print_summary(summary, config)
  return summary


def _privacy(
  prepared: Prepared, privacy: accounting.GaussianMechanism, rounds: int
) -> dict[str, Any]:
  """What holds for the examples of the client that took part most often."""
  settings = prepared.settings
  most = cohorts.most_participations(
    len(prepared.loaded.clients), settings.clients_per_round, settings.seed, rounds
  )
  epsilon = privacy.epsilon(most)
  return {
    "epsilon": epsilon if math.isfinite(epsilon) else None,
    "delta": privacy.delta,
    "most_participations": most,
  }


def _peak_memory() -> int:
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _print_summary(summary: Mapping[str, Any], config: Config) -> None:
  if summary["best_accuracy"] is None:
    print(f"{summary['rounds']} rounds done; results in {config.run_dir}")
    return
  line = (
    f"{summary['rounds']} rounds: best accuracy {100 * summary['best_accuracy']:.2f} % "
    f"(round {summary['best_accuracy_round']}), final "
    f"{100 * summary['final_accuracy']:.2f} %"
  )
  if config.target_accuracy is not None:
    reached = summary["rounds_to_target"]
    when = f"in round {reached}" if reached else "not reached"
    line += f", {100 * config.target_accuracy:g} % {when}"
  print(line)
  if "privacy" in summary:
    print(runs.privacy_line(summary["privacy"]))
  if summary["stopped_early"]:
    print(f"stopped early; go on with --run_dir={config.run_dir} --resume")
