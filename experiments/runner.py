"""One training run from its settings to its folder of results."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Optional

from experiments import command_line, finishing, trackers
from experiments.config import Config
from experiments.export import keras_files
from experiments.preparation import Prepared, prepare
from experiments.progress import Progress, stopping_on_signal
from experiments.run_folder import reading
from experiments.run_folder.folder import CHECKPOINTS, FREE_SETTINGS, RunFolder
from tff_algos.diagnostics import heterogeneity
from tff_algos.errors import InputError
from tff_algos.runtimes import in_process
from tff_algos.runtimes import runtime as runtimes
from tff_algos.runtimes.tls_files import TlsFiles
from tff_algos.simulation import (
  checkpoints,
  client_evaluation,
  evaluation,
  loop,
  measurements,
  records,
)

Watcher = Callable[[loop.RoundStart], None]

_WORKER_LOG = "worker.log"
# Headings of what watches a run, and the program that goes on with it.
_WATCHED_BY = {"forgetting": "forgetting.py"}


class Watched(NamedTuple):
  """What watches a run.

  Attributes:
    watcher: Is called before each round.
    manifest: By headings what the folder's files depend on besides the run's settings.
    files: The names of the files that the watcher writes there.
  """

  watcher: Watcher
  manifest: Mapping[str, Any] = {}
  files: Sequence[str] = ()


def run(
  config: Config,
  *,
  resume: bool = False,
  quiet: bool = False,
  folder_flag: str = "--run_dir",
  watch: Callable[[Prepared], Watched] = lambda prepared: Watched(lambda start: None),
) -> dict[str, Any]:
  """Runs an experiment and writes its folder.

  Args:
    config: The settings.
    resume: Whether to go on with the run that `config.run_dir` holds, if it holds one.
    quiet: Whether to print the last line only.
    folder_flag: What a user names another folder by.
    watch: Makes what watches the run. It may refuse by an InputError, before anything is
      written.

  Returns:
    What summary.json holds.

  Raises:
    InputError: The settings cannot be run; nothing was written.
    UnsupportedComputationError: The runtime does not run the algorithm.
    WorkerLostError: A worker process does not start, or died too often.
  """
  folder = RunFolder(config.run_dir, flag=folder_flag)
  config = dataclasses.replace(config, run_dir=folder.path)
  command_line.check_folder("run_dir", folder.path)
  command_line.check_folder("cache_dir", os.path.expanduser(config.cache_dir))
  folder.check({"flags": dataclasses.asdict(config)}, free=FREE_SETTINGS)
  tls = prepare_runtime(config)
  _refuse_to_lose(folder, config, resume)
  prepared = prepare(config)
  watcher, watched, files = watch(prepared)
  manifest = {**prepared.manifest(), **watched}
  _check(folder, manifest)
  with contextlib.ExitStack() as signals, contextlib.ExitStack() as stack:
    stack.enter_context(folder.alone())
    # Again, as another process may have been here since.
    _check(folder, manifest)
    _refuse_to_lose(folder, config, resume)
    is_new = folder.read() is None
    if is_new:
      own = (reading.PARTITION, records.METRICS, records.EVENTS, trackers.IDS)
      stack.enter_context(folder.begun(manifest, (*own, _WORKER_LOG, *files)))
    is_worker = config.runtime == "local_worker"
    runtime = stack.enter_context(
      runtimes.create_runtime(
        config.runtime,
        num_threads=config.threads,
        devices=config.devices,
        # Also local_worker may go on with a run that has parts.
        clients_per_part=None if is_worker else config.clients_per_part,
        worker_log=folder.file(_WORKER_LOG) if is_worker else None,
        workers=config.workers,
        scheduler=config.scheduler,
        tls=tls,
      )
    )
    if not quiet:
      if resume and is_new:
        print(f"{folder.path} holds no run: one begins there.")
      _print_header(prepared, runtime)

    def begin() -> None:
      """Takes the folder over, no sooner than it is known that the run can go on."""
      if not is_new:
        folder.begin(manifest)
      keras_files.remove(folder)
      if prepared.loaded.class_counts is not None:
        heterogeneity.draw_heat_map(
          prepared.loaded.class_counts,
          folder.file(reading.PARTITION),
          f"{config.task}: {config.partition}",
          "labels" if prepared.loaded.test_y.ndim > 1 else "examples",
        )

    progress = Progress(prepared.settings.rounds, quiet=quiet)
    tracked = stack.enter_context(trackers.track(folder, manifest))
    # One signal may come several times, and the summary is to be written whole.
    should_stop = signals.enter_context(stopping_on_signal())
    result = _train(prepared, folder, begin, watcher, progress, tracked, should_stop)
    summary = finishing.finish(prepared, result, runtime, quiet=quiet)
    folder.note(last_round=len(result.records))
    tracked.end(summary)
  return summary


def _check(folder: RunFolder, manifest: Mapping[str, Any]) -> None:
  """Raises `InputError` if the folder is of other settings, or is watched otherwise."""
  folder.check(manifest, free=FREE_SETTINGS)
  for heading in (folder.read() or {}).keys() - manifest.keys():
    if heading in _WATCHED_BY:
      raise InputError(
        f"{folder.path} holds a run of {_WATCHED_BY[heading]}, whose measurements would "
        f"be left out: go on with it by {_WATCHED_BY[heading]} --resume, or choose "
        f"another {folder.flag}."
      )


def _refuse_to_lose(folder: RunFolder, config: Config, resume: bool) -> None:
  """Raises `InputError` if the run would take results out of the folder."""
  held = folder.read()
  if held is None:
    return
  if not resume:
    raise InputError(
      f"{folder.path} already holds a run: choose another {folder.flag}, or go on with "
      "it by --resume."
    )
  saved = checkpoints.rounds_done(folder.file(CHECKPOINTS))
  done = len(reading.read_run(folder.path).records) if saved is None else saved
  folder.check_rounds(done, config.rounds)
  has_ended = os.path.exists(folder.file(records.SUMMARY))
  # A run that was killed before its first checkpoint is to begin anew.
  every = held["flags"].get("checkpoint_every", Config.checkpoint_every)
  if saved is None and (has_ended or done > every):
    raise InputError(
      f"{folder.path} holds {done} rounds without their {CHECKPOINTS}, which cannot be "
      f"gone on with: move it away or choose another {folder.flag}."
    )


def prepare_runtime(config: Config) -> Optional[TlsFiles]:
  """Sets TensorFlow's threads, before it does anything; the certificates for a cluster.

  Raises:
    InputError: The settings do not fit together, or are another runtime's.
  """
  files = _tls_files(config)
  given: dict[str, dict[str, Any]] = {
    "in_process": {"threads": config.threads, "devices": config.devices},
    "dask": dict(workers=config.workers, scheduler=config.scheduler, tls_cert=files),
  }
  for runtime, values in given.items():
    names = [name for name, value in values.items() if value is not None]
    if config.runtime != runtime and names:
      raise InputError(
        f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'} for the runtime "
        f"{runtime}, but this run's is {config.runtime}: leave out or choose "
        f"--runtime={runtime}."
      )
  if files is not None and config.scheduler is None:
    raise InputError("tls_cert is for a scheduler: give its address by --scheduler.")
  if config.runtime == "dask":
    runtimes.check_dask(workers=config.workers, scheduler=config.scheduler, tls=files)
  if config.runtime != "local_worker":
    in_process.prepare(config.devices)
  return files


def _tls_files(config: Config) -> Optional[TlsFiles]:
  given = {
    "tls_ca_file": config.tls_ca_file,
    "tls_cert": config.tls_cert,
    "tls_key": config.tls_key,
  }
  missing = [name for name, path in given.items() if not path]
  if len(missing) == len(given):
    return None
  if missing:
    raise InputError(
      "tls_ca_file, tls_cert and tls_key go together: "
      f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing."
    )
  return TlsFiles(*(str(path) for path in given.values()))


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
  if prepared.process.personal_model is not None:
    print(
      f"{config.algorithm} has no test accuracy: its model predicts by a client's "
      "examples only, which --eval_clients_every measures"
    )
  if runtime.notice:
    print(runtime.notice)
  print(f"results in {config.run_dir}", flush=True)


def _columns(prepared: Prepared) -> list[str]:
  """Of metrics.csv; those of what a run can do besides only where it does."""
  settings = prepared.settings
  every = [
    "round",
    "train_loss",
    "test_loss",
    "test_accuracy",
    *(f"test_{name}" for name in prepared.loaded.model.metrics),
    "seconds",
    "evaluation_seconds",
    "num_examples",
    "num_accepted",
    "num_dropped",
    *measurements.training_columns(prepared.process),
    *(["learning_rate"] if settings.learning_rate_schedule else []),
    *settings.availability.columns(),
    *_client_columns(prepared),
    *(["num_too_long"] if prepared.config.norm_limit is not None else []),
    *measurements.aggregators_columns(prepared.process),
    *measurements.traffic_columns(prepared.process),
  ]
  return list(dict.fromkeys(every))


def _client_columns(prepared: Prepared) -> list[str]:
  if not prepared.config.eval_clients_every:
    return []
  return client_evaluation.columns(
    prepared.loaded.model,
    prepared.personalization,
    has_held_out=prepared.settings.held_out_clients > 0,
  )


def _train(
  prepared: Prepared,
  folder: RunFolder,
  begin: Callable[[], None],
  watcher: Watcher,
  progress: Progress,
  tracked: trackers.Tracked,
  should_stop: Callable[[], bool],
) -> loop.Result:
  loaded, personal_model = prepared.loaded, prepared.process.personal_model
  evaluate = evaluate_clients = None
  if personal_model is None:
    evaluate = evaluation.build_evaluation(loaded.model, loaded.test_x, loaded.test_y)
  if prepared.config.eval_clients_every:
    evaluate_clients = client_evaluation.build_client_evaluation(
      loaded.model,
      prepared.personalization,
      personal_model=personal_model,
      seed=prepared.config.seed,
    )
  writer = records.RecordWriter(
    folder.path,
    _columns(prepared),
    with_events=trackers.TENSORBOARD in prepared.config.tracker,
  )

  def on_start(done: list[loop.Record]) -> None:
    tracked.start(done)
    begin()
    if done:
      folder.note(first_round=len(done) + 1, last_round=None)
    writer.start(done)
    progress.start(len(done))

  def on_round(record: loop.Record) -> None:
    if record["round"] == 1:  # Not before it is known that there can be one.
      folder.note(first_round=1, last_round=None)
    writer.write(record)
    tracked.write(record)
    progress.update(record)

  try:
    return loop.simulate(
      prepared.process,
      prepared.loaded.clients,
      prepared.settings,
      evaluate=evaluate,
      evaluate_clients=evaluate_clients,
      keep_best=prepared.measure if evaluate else None,
      resume=True,  # If it has any.
      on_start=on_start,
      before_round=watcher,
      on_round=on_round,
      should_stop=should_stop,
    )
  finally:
    progress.close()
    writer.close()
