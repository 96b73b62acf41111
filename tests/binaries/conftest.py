"""Programs that are run in forks."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import NamedTuple

import pytest
from programs import ROOT, Done
from training import SMALL, place


@pytest.fixture(scope="session")
def run_forked(fork_program) -> Callable[..., Done]:
  """`(*flags, cwd, before) -> Done`: train.py in a fork.

  It finds the modules `own_tasks` and `own_algorithms`.
  """

  def run(*flags: str, cwd, before: str = "") -> Done:
    paths = [str(ROOT / "tests/binaries"), str(ROOT / "tests")]
    return fork_program("train.py", *flags, cwd=cwd, paths=paths, before=before)

  return run


class Trained(NamedTuple):
  """A run of the default task, whose data are raw pixels; its folder stays as it is."""

  folder: pathlib.Path
  run_dir: pathlib.Path
  rounds: int


@pytest.fixture(scope="session")
def trained(run_forked, tmp_path_factory) -> Trained:
  """One client a round moves the model to and fro, so that its last is not its best."""
  folder = tmp_path_factory.mktemp("trained")
  run_dir, where = place(folder)
  flags = [*SMALL, "--clients_per_round=1", "--epochs=3", "--learning_rate=0.2"]
  flags += ["--held_out_clients=2", "--rounds=9"]
  done = run_forked(*flags, *where, cwd=folder)
  assert (done.status, done.err) == (0, "")
  return Trained(folder, run_dir, 9)
