"""What the flags of a sweep ask for: a cell for each algorithm and point of the grid.

Nothing here needs TensorFlow, so that a mistake is found at once.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from absl import flags

from experiments import command_line, run_options, training_flags
from experiments.config import Config, field_names, make_config, make_hparams
from experiments.run_folder import reading
from experiments.run_folder.folder import FREE_SETTINGS, RunFolder
from experiments.tables import measures
from experiments.tables.cells import Settings, run_folder
from experiments.tables.model import Cell, Column, Figure, Panel, Row, Table
from tasks import registry as tasks_registry
from tff_algos.algorithms import registry as algorithms_registry
from tff_algos.errors import InputError
from tff_algos.templates.algorithm import Algorithm

# Flags of train.py that a sweep sets itself.
_OWN = ("algorithm", "task", "seed", "run_dir", "hparams")

# Bytes, of Linux's file systems.
_LONGEST_NAME = 255

Point = dict[str, Any]


class Plan(NamedTuple):
  """What is run, and what is shown of it.

  Attributes:
    settings: The folder and the seeds.
    configs: The settings of each run, by cell's name and seed, in the order of running.
    table: A row for each cell.
    figure: Their curves.
  """

  settings: Settings
  configs: Mapping[tuple[str, int], Config]
  table: Table
  figure: Figure


def define_flags() -> None:
  """Defines the flags of a sweep, and those of a run that it shares with train.py."""
  place = dict(module_name=sys.argv[0])  # Where absl looks for what --help shows.
  names = ", ".join(algorithms_registry.ALGORITHMS)
  flags.DEFINE_list(
    "algorithms",
    ["fedavg"],
    f"Of {names}; or module:attribute, algorithms of your own.",
    **place,
  )
  flags.DEFINE_list("seeds", ["0"], "The seeds, each a run of every cell.", **place)
  flags.DEFINE_multi_string(
    "grid",
    [],
    "A flag of train.py and its values, learning_rate=0.05,0.1; with semicolons where "
    "values have commas, partition='iid;dirichlet:beta=0.1,min_size=10'. Several --grid "
    "are multiplied. An axis of one algorithm, fedgg_mu=..., leaves others as they are.",
    **place,
  )
  flags.DEFINE_string("out", None, "Folder of table, picture and runs.", **place)
  flags.mark_flag_as_required("out")
  run_options.define()


def parse(argv: Sequence[str]) -> list[str]:
  """Defines the hyper-parameters' flags of the algorithms, then parses all flags.

  Raises:
    InputError: The flags are wrong.
  """
  argv = training_flags.with_flag_files(argv)
  default = ",".join(flags.FLAGS["algorithms"].default)
  given = training_flags.value_in(argv, "algorithms", default)
  names = [name.strip() for name in given.split(",")]
  training_flags.define_hparam_flags(
    [algorithms_registry.get(name) for name in dict.fromkeys(names)]
  )
  training_flags.check_foreign_flags(argv, names)
  return command_line.parse_flags(argv)


def make() -> Plan:
  """What the parsed flags ask for.

  Raises:
    InputError: A value or a combination cannot be used, or a folder holds a run with
      other settings.
  """
  values = flags.FLAGS
  out = os.path.expanduser(values.out)
  command_line.check_folder("out", out)
  seeds = _seeds(values.seeds)
  names = list(values.algorithms)
  _check_once("--algorithms", names)
  for name in ("stop_at", "patience"):
    if values[name].present:
      raise InputError(
        f"--{name} gives runs different lengths, of which there is no mean curve: leave "
        "it out of a sweep."
      )
  rows = {name: algorithms_registry.get(name) for name in names}
  axes = _axes(values.grid, list(rows.values()))
  settings = Settings(out, seeds)
  configs: dict[tuple[str, int], Config] = {}
  table_rows: list[Row] = []
  for name, row in rows.items():
    _check_common(name, row)
    known = {axis: points for axis, points in axes.items() if _takes(row, axis)}
    for chosen in itertools.product(*known.values()):
      point = dict(zip(known, chosen))
      cell = _add(configs, name, row, point, settings)
      labels = (name, *(_text(point[axis]) if axis in point else "" for axis in axes))
      table_rows.append(Row(labels, (cell,)))
  _check_once("--grid", [row.cells[0].name for row in table_rows])
  return Plan(settings, configs, *_items(table_rows, tuple(axes)))


def _seeds(words: Sequence[str]) -> tuple[int, ...]:
  if not words or not all(re.fullmatch(r"\d{1,18}", word) for word in words):
    raise InputError(
      f"--seeds must be whole numbers >= 0, such as 0,1,2; found {','.join(words)!r}."
    )
  seeds = tuple(map(int, words))
  _check_once("--seeds", seeds)
  return seeds


def _check_once(flag: str, values: Sequence[Any]) -> None:
  again = sorted({str(value) for value in values if values.count(value) > 1})
  if again:
    raise InputError(f"{flag} gives {' and '.join(again)} twice: give each once.")


def _axes(words: Sequence[str], rows: Sequence[Algorithm]) -> dict[str, list[Any]]:
  """Flags to their values, parsed."""
  swept = [name for name in field_names() if f"flags.{name}" not in FREE_SETTINGS]
  settings = [name for name in swept if name not in _OWN]
  hparams = {
    training_flags.flag_name(row, field.name): field
    for row in rows
    for field in dataclasses.fields(row.hparams_class)
  }
  axes: dict[str, list[Any]] = {}
  for word in words:
    name, equals, text = word.partition("=")
    if not equals or not text:
      raise InputError(f"--grid must be like learning_rate=0.05,0.1; found {word!r}.")
    if name in ("seed", "algorithm"):
      raise InputError(f"--grid cannot have {name}: give --{name}s.")
    if name not in settings and name not in hparams:
      raise InputError(
        f"--grid={name} is no setting that changes the numbers of "
        f"{' or '.join(row.name for row in rows)}: choose a hyper-parameter's flag or "
        f"one of {', '.join(settings)}."
      )
    if flags.FLAGS[name].present:
      raise InputError(f"--{name} is given by itself and by --grid: leave one out.")
    if name in axes:
      raise InputError(f"--grid={name} is given twice: give all its values at once.")
    parsed = []
    for part in text.split(";" if ";" in text else ","):
      try:
        value = flags.FLAGS[name].parser.parse(part.strip())
      except (ValueError, TypeError) as error:
        raise InputError(f"--grid={name}: {part!r} cannot be used: {error}.") from error
      if name in hparams:
        value = training_flags.hparam_value(name, hparams[name], value)
      parsed.append(value)
    _check_once(f"--grid={name}", parsed)
    axes[name] = parsed
  return axes


def _takes(row: Algorithm, axis: str) -> bool:
  """Whether a flag is of the algorithm, or of every run."""
  of_row = {training_flags.flag_name(row, f.name) for f in _fields(row)}
  if axis in of_row or axis in field_names():
    return True
  if axis in training_flags.COMMON:
    raise InputError(
      f"{row.name} has no hyper-parameter {axis}, so leave it out of --grid, or the "
      "algorithm out of --algorithms."
    )
  return False


def _check_common(name: str, row: Algorithm) -> None:
  own = {field.name for field in _fields(row)}
  for flag in training_flags.COMMON:
    if flag not in own and flag in flags.FLAGS and flags.FLAGS[flag].present:
      raise InputError(
        f"{name} has no hyper-parameter {flag}, so leave --{flag} out, or the algorithm "
        "out of --algorithms."
      )


def _fields(row: Algorithm) -> tuple[dataclasses.Field, ...]:
  return dataclasses.fields(row.hparams_class)


def _add(
  configs: dict[tuple[str, int], Config],
  name: str,
  row: Algorithm,
  point: Point,
  settings: Settings,
) -> Cell:
  """A cell; adds the settings of its runs."""
  fields = [field for field in field_names() if field not in _OWN]
  given: dict[str, Any] = command_line.given_flags(fields)
  given.update((axis, value) for axis, value in point.items() if axis in fields)
  of_flags = {training_flags.flag_name(row, f.name): f.name for f in _fields(row)}
  hparams = training_flags.given_hparams(row)
  hparams.update((of_flags[a], value) for a, value in point.items() if a in of_flags)
  task = flags.FLAGS.task
  whole = make_hparams(row, tasks_registry.get(task), hparams)
  words = [name, *(f"{axis}={_text(value)}" for axis, value in point.items())]
  # A folder's name, which programs take in lists.
  place = re.sub(r"[^\w.=+-]", "-", "_".join(words))
  if len(place.encode()) > _LONGEST_NAME:
    raise InputError(
      f"--grid gives a cell whose folder's name would have {len(place.encode())} bytes, "
      f"where {_LONGEST_NAME} are possible: give fewer axes or shorter values."
    )
  for seed in settings.seeds:
    config = make_config(
      name,
      task,
      hparams=hparams,
      seed=seed,
      run_dir=run_folder(settings.out, Cell(place, name, task, 1), seed),
      **given,
    )
    manifest = {"flags": dataclasses.asdict(config), "hparams": dataclasses.asdict(whole)}
    folder = RunFolder(config.run_dir, flag="--out")
    folder.check(manifest, free=FREE_SETTINGS)
    if folder.read():  # Of fewer rounds the table would show less.
      done = len(reading.read_run(folder.path).records)
      folder.check_rounds(done, config.rounds)
    configs[place, seed] = config
  compared = [field for field in given if f"flags.{field}" not in FREE_SETTINGS]
  # By their flags, as one of the user's own may be called as a setting is.
  held = {training_flags.flag_name(row, n): value for n, value in hparams.items()}
  held.update((field, getattr(config, field)) for field in compared)
  return Cell(place, name, task, config.rounds, held)


def _text(value: Any) -> str:
  """A value as the command line has it."""
  return "inf" if value is None else str(value)


def _items(rows: Sequence[Row], axes: tuple[str, ...]) -> tuple[Table, Figure]:
  columns = [
    Column("best accuracy", measures.best, "%", 2),
    Column("final accuracy", measures.final, "%", 2),
    Column("least test loss", measures.least_loss, digits=4),
    Column("seconds of a round", measures.seconds_of_a_round, digits=2),
  ]
  if flags.FLAGS.held_out_clients and flags.FLAGS.eval_clients_every:
    columns.append(Column("median held-out client", measures.of_held_out, "%", 2))
  target = flags.FLAGS.target_accuracy
  if target is not None:
    heading = f"rounds to {100 * target:g} %"
    columns.append(Column(heading, measures.rounds_to(target), digits=1))
  task = rows[0].cells[0].task
  note = (
    f"Mean and sample standard deviation over seeds {', '.join(flags.FLAGS.seeds)}, on "
    "the same split."
  )
  title = f"Sweep of {task}"
  curves = {
    ", ".join(
      (row.labels[0], *(f"{a} = {v}" for a, v in zip(axes, row.labels[1:]) if v))
    ): row.cells[0]
    for row in rows
  }
  return (
    Table(title, ("algorithm", *axes), tuple(columns), tuple(rows), note=note),
    Figure("Mean curves", (Panel(task, curves),), note=note),
  )
