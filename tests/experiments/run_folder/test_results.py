"""The folders of results that the project keeps, most of them of older versions."""

from __future__ import annotations

import dataclasses
import pathlib
import re

import pytest

from experiments.config import Config
from experiments.papers import fedagg, fedavg, fedgg, fedreg, twafl
from experiments.report import comparison, page
from experiments.run_folder.folder import FREE_SETTINGS, completed
from experiments.run_folder.reading import Run, read_runs
from experiments.tables.cells import Settings, curves_of, unfinished
from experiments.tables.model import cells_of

_RESULTS = pathlib.Path(__file__).resolve().parents[3] / "results"
_PAPERS = {
  "fedagg": fedagg,
  "fedavg": fedavg,
  "fedgg": fedgg,
  "fedreg": fedreg,
  "twafl": twafl,
}


@pytest.fixture(scope="module")
def runs() -> list[Run]:
  return read_runs([str(_RESULTS)])


def test_every_run_is_read(runs):
  folders = {path.parent for path in _RESULTS.rglob("metrics.csv")}
  assert {pathlib.Path(run.folder) for run in runs} == folders
  for run in runs:
    program = run.sessions[-1]["command"][0]
    assert program in ("binaries/train.py", "binaries/forgetting.py")
    assert run.sessions[-1]["versions"]["numpy"] and run.sessions[-1]["git_commit"]
    assert run.model["num_weights"] > 0 and run.data["examples"] > 0
    assert run.records and run.hparams


def test_what_older_runs_do_not_name_is_known(runs):
  """Of each setting that numbers depend on, so that it is compared."""
  names = {field.name for field in dataclasses.fields(Config)}
  names -= {name.removeprefix("flags.") for name in FREE_SETTINGS}
  for run in runs:
    assert names <= completed("flags", run.flags).keys(), run.folder


def test_every_run_is_shown(runs, read_table):
  described = page.describe(runs)
  assert len(described["runs"]) == len(runs)
  for shown in described["runs"]:
    headings = dict(shown["details"])
    assert {"Hyper-parameters", "Settings", "Model and data", "Made by"} <= set(headings)
    assert {"command", "commit", "numpy"} <= set(dict(headings["Made by"]))
  measured = [run for run in runs if run.rounds]
  # Seeds of the same settings are one row, which says how many they are.
  labels = [row[0] for row in read_table(comparison.table(measured, 0.9))]
  seeds = [re.search(r"\((\d+) seeds\)$", label) for label in labels]
  assert sum(int(found[1]) if found else 1 for found in seeds) == len(measured)


@pytest.mark.parametrize("paper", _PAPERS)
def test_runs_of_a_paper_are_those_of_its_cells(paper):
  """A cell's settings are still those that its run was made with."""
  groups = _PAPERS[paper].build()
  cells = {
    c.name: c for group in groups for item in group.values() for c in cells_of(item)
  }
  found = 0
  # The runs of FedReg's cells that were made before these had its authors' loss.
  for folder, without in ((paper, ""), (f"{paper}/plain_loss", "loss_epsilon")):
    settings = Settings(str(_RESULTS / folder))
    for name, cell in cells.items():
      if (_RESULTS / folder / "runs" / name).is_dir():
        flags = {flag: value for flag, value in cell.flags.items() if flag != without}
        cell = cell._replace(flags=flags)
        assert curves_of(cell, settings) or unfinished([cell], settings), name
        found += 1
  assert found
