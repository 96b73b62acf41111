"""The program of a paper: runs the cells of its tables and figures, and writes them.

Tables that need the same cell share its runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Optional

from absl import flags

from experiments import command_line
from experiments.report import page
from experiments.run_folder import reading
from experiments.tables.cells import (
  Settings,
  StoppedEarlyError,
  check_can_go_on,
  curves_of,
  is_wanted,
  run_calls,
  run_cells,
  seeds_of,
)
from experiments.tables.model import (
  Build,
  Item,
  Program,
  Table,
  cells_of,
  items_of,
  names_of,
)
from experiments.tables.writing import check_scale, write_figure, write_table
from tasks import registry as tasks_registry
from tff_algos.errors import InputError

# Of which the longest experiments have no more rounds than train.py takes.
_MOST_SCALE = 1000


def _define_flags() -> None:
  place = dict(module_name=sys.argv[0])  # Where absl looks for what --help shows.
  flags.DEFINE_list("table", [], "Tables of the paper, such as 1,2.", **place)
  flags.DEFINE_list("figure", [], "Figures of the paper, such as 2.", **place)
  flags.DEFINE_boolean("list", False, "List the tables and figures, and end.", **place)
  flags.DEFINE_integer(
    "repeats",
    1,
    "Runs of each cell, with seeds 0, 1, ..., on the same split.",
    1,
    **place,
  )
  flags.DEFINE_float(
    "rounds_scale",
    1.0,
    "What every cell's rounds are multiplied by, for a cheaper version; a later start "
    "with more goes on with the same runs.",
    0.0,
    **place,
  )
  flags.DEFINE_list(
    "only",
    [],
    "Run only cells whose names hold one of these texts as whole words: iid_20 is in "
    "mnist_cnn_iid_20_fedavg, and not in cnn_noniid_20.",
    **place,
  )
  flags.DEFINE_boolean(
    "run", True, "Run what is not done; --norun writes what is there.", **place
  )
  flags.DEFINE_boolean(
    "report", False, "Write report.html too, a page of all runs there.", **place
  )
  flags.DEFINE_string(
    "out", None, "Folder of tables, figures and runs; default: results/<paper>.", **place
  )
  flags.DEFINE_list(
    "data_dirs",
    [],
    "Folders of data sets, by the first word of a task's name: "
    "cifar10=DIR,har=DIR; others are where their loaders look.",
    **place,
  )
  flags.DEFINE_string(
    "cache_dir",
    None,
    "Folder for prepared client data; default: that of train.py.",
    **place,
  )


def start(paper: str, build: Build) -> None:
  """Runs the program of a paper.

  Args:
    paper: Its short name, the default folder under results/.
    build: Gives its tables and its figures by their numbers, once flags are parsed.
  """
  _define_flags()

  def main() -> Optional[int]:
    items = items_of(build)
    settings = _settings(paper)
    if flags.FLAGS.list:
      print_list(items, settings)
      return None
    chosen = _choose(items, settings)
    if flags.FLAGS.report and not flags.FLAGS.run:
      _read_runs(settings)  # Without any it ends here, before a table is written.
    try:
      failed = make(chosen, settings, run=flags.FLAGS.run)
    except StoppedEarlyError as stopped:
      print(stopped, file=sys.stderr)
      return command_line.STOPPED_EARLY
    if flags.FLAGS.report:
      print(write_report(paper, settings))
    if failed:
      print(f"Runs that failed, {len(failed)}: {'; '.join(failed)}.", file=sys.stderr)
    return 1 if failed else None

  command_line.start(main)


def make(items: Mapping[str, Item], settings: Settings, *, run: bool) -> list[str]:
  """Runs what is missing of tables and figures, and writes them; the runs that failed.

  Raises:
    InputError: A table that is there was written with another scale of rounds, or a run
      of it was kept with fewer and without checkpoints, so that writing it now would lose
      numbers.
    StoppedEarlyError: A run was stopped; what is there was written.
  """
  for key, item in items.items():
    check_scale(key, item, settings, run=run)
  for item in items.values() if run else ():
    if not isinstance(item, Program):
      check_can_go_on(cells_of(item), settings)
  failed = []
  for key, item in items.items():
    if isinstance(item, Program):
      failed += run_calls(item, key, settings) if run else []
      continue
    cells = cells_of(item)
    try:
      failed += run_cells(cells, settings) if run else []
    finally:  # What is there is written also when the rest is stopped.
      write = write_table if isinstance(item, Table) else write_figure
      # Of all seeds that were begun, else fewer --repeats would take numbers away.
      seeds = {*settings.seeds, *(s for cell in cells for s in seeds_of(cell, settings))}
      shown = settings._replace(seeds=sorted(seeds))
      for path in write(item, key, shown):  # type: ignore[operator]
        print(path)
  return failed


def write_report(paper: str, settings: Settings) -> str:
  """Writes the HTML report of all runs of a paper; gives the file.

  Raises:
    InputError: There are none.
  """
  path = os.path.join(settings.out, "report.html")
  page.write(_read_runs(settings), path, title=paper)
  return path


def _read_runs(settings: Settings) -> list[reading.Run]:
  return reading.read_runs([os.path.join(settings.out, "runs")])


def print_list(items: Mapping[str, Item], settings: Settings) -> None:
  """Prints what there is, and how many cells of it are done."""
  for key, item in items.items():
    cells = cells_of(item)
    done = sum(len(curves_of(c, settings)) == len(settings.seeds) for c in cells)
    count = f"{done} of {len(cells)} cells done"
    state = f"by {item.program}" if isinstance(item, Program) else count
    print(f"{key:<9} {item.title} ({state})")


def _choose(items: Mapping[str, Item], settings: Settings) -> dict[str, Item]:
  """What the flags name; of it, what has a cell or call that --only lets pass."""
  chosen: dict[str, Item] = {}
  for kind, names in (("table", flags.FLAGS.table), ("figure", flags.FLAGS.figure)):
    for name in names:
      key = f"{kind}{name}"
      # A table that has parts only: 7 are 7_mnist and 7_har. 2 is not 2_beside too.
      parts = [key] if key in items else [k for k in items if k.startswith(f"{key}_")]
      if not parts:
        known = ", ".join(k[len(kind) :] for k in items if k.startswith(kind))
        raise InputError(
          f"There is no {kind} {name} here: the {kind}s are {known or 'none'}."
        )
      chosen.update((k, items[k]) for k in parts)
  if not chosen and not flags.FLAGS.report:
    raise InputError("Say which by --table or --figure; --list shows what there is.")
  names = [name for item in chosen.values() for name in names_of(item)]
  for text in settings.only if chosen else ():
    if not any(is_wanted(name, settings._replace(only=[text])) for name in names):
      raise InputError(
        f"--only: {text} is in none of the names of {', '.join(chosen)}, such as "
        f"{names[0]} and {names[-1]}."
      )
  return {
    key: item
    for key, item in chosen.items()
    if any(is_wanted(name, settings) for name in names_of(item))
  }


def _settings(paper: str) -> Settings:
  data_dirs = {}
  for word in flags.FLAGS.data_dirs:
    name, equals, folder = word.partition("=")
    if not (name and equals and folder):
      raise InputError(f"--data_dirs must be like cifar10=DIR,har=DIR; found {word!r}.")
    if name not in (known := {task.split("_")[0] for task in tasks_registry.TASKS}):
      raise InputError(
        f"--data_dirs: there is no data set {name}, but {', '.join(sorted(known))}."
      )
    if not os.path.isdir(os.path.expanduser(folder)):
      raise InputError(f"--data_dirs: there is no folder {folder}.")
    data_dirs[name] = folder
  scale = flags.FLAGS.rounds_scale
  if not 0 < scale <= _MOST_SCALE:
    raise InputError(
      f"--rounds_scale must be more than 0 and at most {_MOST_SCALE}; found {scale:g}."
    )
  if not all(text.strip("_ ") for text in flags.FLAGS.only):
    raise InputError("--only has an empty text, which is in every name: leave it out.")
  out = os.path.join("results", paper)
  if flags.FLAGS.out is not None:
    out = os.path.expanduser(flags.FLAGS.out)
  command_line.check_folder("out", out)
  return Settings(
    out=out,
    seeds=range(flags.FLAGS.repeats),
    rounds_scale=scale,
    only=flags.FLAGS.only,
    data_dirs=data_dirs,
    cache_dir=flags.FLAGS.cache_dir,
  )
