"""Cells, the single settings of an experiment: where their runs are, and running them.

A cell is one setting of `train.py`; its runs, one a seed, are folders under `runs/` that
are gone on with where they were stopped, and left alone when they are done.
"""

from __future__ import annotations

import dataclasses
import glob
import itertools
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Optional

from experiments import command_line
from experiments.config import field_names, make_config, make_hparams
from experiments.run_folder import reading
from experiments.run_folder.folder import (
  CHECKPOINTS,
  CONFIG,
  FREE_SETTINGS,
  differences,
  read_manifest,
)
from experiments.tables.measures import Curve, at_common_rounds, first_rounds
from experiments.tables.model import Cell, Program
from tasks import registry as tasks_registry
from tff_algos.algorithms import registry as algorithms_registry
from tff_algos.errors import InputError
from tff_algos.runtimes import child_process
from tff_algos.simulation import stopping

# Headings of a manifest which are alike in runs that are averaged.
_AVERAGED = ("data", "model", "algorithm", "task")
_PROGRAMS = os.path.join(os.path.dirname(command_line.__file__), "..", "binaries")


def run_folder(out: str, cell: Cell, seed: int) -> str:
  """Where a run of a cell is."""
  return os.path.join(out, "runs", cell.name, f"seed{seed}")


def scaled(rounds: int, scale: float) -> int:
  """The rounds that are run of a cell's, at least one."""
  return max(1, round(rounds * scale))


class Settings(NamedTuple):
  """What the flags say of a program of a paper.

  Attributes:
    out: The folder of tables, figures and runs.
    seeds: Those of the runs of each cell.
    rounds_scale: What the rounds of every cell are multiplied by.
    only: Texts of which a name must hold one to be run, as whole words, which `_` parts;
      none: all are.
    data_dirs: Data set to folder; the data set is the first word of a task's name.
    cache_dir: As for train.py; None: its default.
  """

  out: str
  seeds: Sequence[int] = (0,)
  rounds_scale: float = 1.0
  only: Sequence[str] = ()
  data_dirs: Mapping[str, str] = {}
  cache_dir: Optional[str] = None


def is_enough(run: reading.Run, cell: Cell, rounds: int) -> bool:
  """Whether a run has so many rounds, or what its cell's runs may end with."""
  if len(run.records) >= rounds:
    return True
  if not cell.flags.get("stop_at"):
    return False
  metric, target = stopping.parse(cell.flags["stop_at"])
  return stopping.StopRule(metric, target).reason(run.records) is not None


def is_wanted(name: str, settings: Settings) -> bool:
  """Whether `only` lets a name pass."""
  words = (f"_{text.strip('_')}_" for text in settings.only)
  return not settings.only or any(word in f"_{name}_" for word in words)


def curves_of(cell: Cell, settings: Settings) -> list[Curve]:
  """The curves of a cell's finished runs."""
  return [curve for curve in curves_by_seed(cell, settings) if curve is not None]


def curves_by_seed(cell: Cell, settings: Settings) -> list[Optional[Curve]]:
  """A cell's runs, one a seed, as `at_common_rounds`; None for those that are not done.

  Raises:
    InputError: As of `read_run_of` and `check_same_data`.
  """
  check_same_data(cell, settings)
  rounds = scaled(cell.rounds, settings.rounds_scale)
  runs = [read_run_of(cell, seed, settings) for seed in settings.seeds]
  curves = [
    first_rounds(run, min(rounds, len(run.records)))
    if run is not None and is_enough(run, cell, rounds)
    else None
    for run in runs
  ]
  if cell.flags.get("stop_at"):  # They need not have as many, and have no mean curve.
    return curves
  done = iter(at_common_rounds([curve for curve in curves if curve is not None]))
  return [None if curve is None else next(done) for curve in curves]


def seeds_of(cell: Cell, settings: Settings) -> list[int]:
  """The seeds of a cell's runs that were begun, whatever the settings ask for."""
  folder = os.path.dirname(run_folder(settings.out, cell, 0))
  begun = glob.glob(os.path.join(glob.escape(folder), "*"))
  names = [re.fullmatch(r"seed(\d+)", os.path.basename(folder)) for folder in begun]
  return sorted(int(name[1]) for name in names if name)


def read_run_of(cell: Cell, seed: int, settings: Settings) -> Optional[reading.Run]:
  """A run of a cell; None if it was not begun.

  Raises:
    InputError: The folder holds a run with other settings than the cell's.
  """
  folder = run_folder(settings.out, cell, seed)
  if not os.path.exists(os.path.join(folder, CONFIG)):
    return None
  run = reading.read_run(folder)
  held = {"flags": run.flags, "hparams": run.hparams}
  wanted = _settings_of(cell, seed, folder)
  for name, found, value in differences(held, wanted, FREE_SETTINGS):
    raise InputError(
      f"{folder} holds a run with {name}={found!r}, not {value!r}: move it away or "
      "choose another --out."
    )
  return run


def _settings_of(cell: Cell, seed: int, folder: str) -> dict[str, dict[str, Any]]:
  """All that `config.json` has of the settings of a run, those that are defaults too."""
  row, task = algorithms_registry.get(cell.algorithm), tasks_registry.get(cell.task)
  known = {field.name for field in dataclasses.fields(row.hparams_class)}
  given: dict[str, Any] = {"rounds": cell.rounds}
  hparams: dict[str, Any] = {}
  for flag, value in cell.flags.items():
    name = flag.removeprefix(f"{row.name}_")
    if name in known and flag not in field_names():
      hparams[name] = None if value == "inf" else value
    else:
      given[flag] = value
  config = make_config(cell.algorithm, cell.task, seed=seed, run_dir=folder, **given)
  whole = make_hparams(row, task, hparams)
  return {"flags": dataclasses.asdict(config), "hparams": dataclasses.asdict(whole)}


def check_same_data(cell: Cell, settings: Settings) -> None:
  """Raises `InputError` if a cell's runs, which are to be averaged, have other data.

  Or another model, or other code of a user's own. Their settings say none of it: files
  may change. What an older run did not note is not compared, and who trains is drawn by
  the seed.
  """
  folders = [run_folder(settings.out, cell, seed) for seed in settings.seeds]
  begun = [f for f in folders if os.path.exists(os.path.join(f, CONFIG))]
  manifests = {folder: read_manifest(folder, "move it away") for folder in begun}
  for (one, held), (other, found) in itertools.combinations(manifests.items(), 2):
    now = {heading: found.get(heading) for heading in _AVERAGED}
    names = [name for name, *_ in differences(held, now, free=("data.training",))]
    if names:
      raise InputError(
        f"{one} and {other} cannot be averaged, for their data, models or own "
        f"code differ in {', '.join(names)}: move one away or choose another --out."
      )


def train_command(cell: Cell, seed: int, settings: Settings) -> list[str]:
  """The command line of a run."""
  options = {
    "algorithm": cell.algorithm,
    "task": cell.task,
    "rounds": scaled(cell.rounds, settings.rounds_scale),
    **cell.flags,
    "seed": seed,
    "run_dir": run_folder(settings.out, cell, seed),
  }
  return [*program_command("train.py", options, settings), "--resume"]


def program_command(
  program: str, options: Mapping[str, Any], settings: Settings
) -> list[str]:
  """The command line of a program of binaries/, with where its task's data are."""
  places = {}
  data_set = options["task"].split("_")[0]
  if data_set in settings.data_dirs:
    places["data_dir"] = settings.data_dirs[data_set]
  if settings.cache_dir is not None:
    places["cache_dir"] = settings.cache_dir
  words = [f"--{name}={value}" for name, value in {**options, **places}.items()]
  return [sys.executable, os.path.join(os.path.normpath(_PROGRAMS), program), *words]


def unfinished(cells: Sequence[Cell], settings: Settings) -> str:
  """How far a run is that goes on or was stopped; "" if there is none."""
  for cell in cells:
    rounds = scaled(cell.rounds, settings.rounds_scale)
    for seed in settings.seeds:
      run = read_run_of(cell, seed, settings)
      if run is not None and not is_enough(run, cell, rounds):
        return f"{len(run.records)} of {rounds} rounds"
  return ""


def check_can_go_on(cells: Sequence[Cell], settings: Settings) -> None:
  """Raises `InputError` if a run is to go on that was kept without its checkpoints.

  It would fail when it is its turn, and the table then be written without it.
  """
  for cell in cells:
    rounds = scaled(cell.rounds, settings.rounds_scale)
    for seed in settings.seeds if is_wanted(cell.name, settings) else ():
      folder = run_folder(settings.out, cell, seed)
      run = read_run_of(cell, seed, settings)
      has_others = os.path.isdir(os.path.join(folder, CHECKPOINTS))
      if run is None or has_others or is_enough(run, cell, rounds) or not run.has_ended:
        continue
      raise InputError(
        f"{folder} holds {len(run.records)} of {rounds} rounds without their "
        f"{CHECKPOINTS}, as runs are kept, and cannot be gone on with: give the "
        "--rounds_scale that it was made with, or --out, another folder."
      )


def run_in_child(cell: Cell, seed: int, settings: Settings) -> int:
  """Does a run in a process of its own, which holds its compiled rounds; its status."""
  return run_program(train_command(cell, seed, settings))


def run_cells(
  cells: Sequence[Cell],
  settings: Settings,
  run_one: Callable[[Cell, int, Settings], int] = run_in_child,
) -> list[str]:
  """Runs what is not done yet, in order; the names of the runs that failed.

  Args:
    cells: What to run.
    settings: Of the program.
    run_one: Does a run of a cell with a seed; its exit status.

  Raises:
    InputError: As of `curves_by_seed`.
  """
  wanted = [cell for cell in cells if is_wanted(cell.name, settings)]
  failed = []
  for k, cell in enumerate(wanted, 1):
    check_same_data(cell, settings)
    rounds = scaled(cell.rounds, settings.rounds_scale)
    for seed in settings.seeds:
      run = read_run_of(cell, seed, settings)
      # Of one that was cut short at its last round the summary is missing.
      if (
        run is not None
        and is_enough(run, cell, rounds)
        and (run.has_ended or len(run.records) > rounds)
      ):
        continue
      print(f"cell {k} of {len(wanted)}: {cell.name}, seed {seed}", flush=True)
      if run_one(cell, seed, settings):
        failed.append(f"{cell.name}, seed {seed}")
      check_same_data(cell, settings)
  return failed


class StoppedEarlyError(Exception):
  """A signal has stopped the program that does a run."""

  def __str__(self) -> str:
    return "stopped early: the same command goes on with what is left"


def run_program(command: Sequence[str]) -> int:
  """Runs another program of ours; its exit status.

  Where this process is killed, the other is told to stop, as by one more signal.

  Raises:
    StoppedEarlyError: Either was stopped by signals, which are passed on.
  """
  stopped = False

  def pass_on(number: int, frame: Any) -> None:
    nonlocal stopped
    del frame
    # A terminal tells both of Ctrl-C. The first is passed on all the same, as it may be
    # for this process alone: within a second the other takes the two for one.
    if number != signal.SIGINT or not stopped:
      process.terminate()
    stopped = True

  with (
    subprocess.Popen(child_process.bound(command, signal.SIGTERM)) as process,
    command_line.handling_stops(pass_on),
  ):
    # `process.wait()` handles what comes just before it waits only after it has waited.
    while (status := process.poll()) is None:
      time.sleep(0.05)
  if status == -signal.SIGKILL:
    print("It was killed, most likely for want of memory.", file=sys.stderr)
  if stopped or status == command_line.STOPPED_EARLY:
    raise StoppedEarlyError
  return status


def call_folder(key: str, name: str, settings: Settings) -> str:
  """Where the results of another program's call are."""
  return os.path.join(settings.out, key, name)


def run_calls(item: Program, key: str, settings: Settings) -> list[str]:
  """Runs the other program; the names of the calls that failed."""
  failed = []
  for name, options in item.calls.items():
    folder = call_folder(key, name, settings)
    is_done = os.path.exists(os.path.join(folder, item.done))
    if is_done:
      _check_call(options, folder, free=item.scaled_flag)
    options = {**options, item.folder_flag: folder}
    if item.scaled_flag:
      rounds = scaled(options[item.scaled_flag], settings.rounds_scale)
      options[item.scaled_flag] = rounds
      is_done = is_done and len(reading.read_run(folder).records) >= rounds
    if is_done or not is_wanted(name, settings):
      continue
    print(f"{item.program}: {key}, {name}", flush=True)
    if run_program(program_command(item.program, options, settings)):
      failed.append(f"{key}, {name}")
  return failed


def _check_call(options: Mapping[str, Any], folder: str, free: str) -> None:
  """Raises `InputError` if a folder says that it was made with other options."""
  manifest = read_manifest(folder, "move it away or choose another --out")
  held = {**manifest.get("settings", {}), **manifest.get("flags", {})}
  for name, value in options.items():
    found = held.get(name, value)
    if isinstance(found, list):
      found = ";".join(map(str, found))
    # Hyper-parameters are held one by one.
    if name != free and not isinstance(found, dict) and str(found) != str(value):
      raise InputError(
        f"{folder} was made with {name}={found}, not {value}: move it away or choose "
        "another --out."
      )
