"""Programs that are run in forks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from programs import ROOT, Done


@pytest.fixture(scope="session")
def run_forked(fork_program) -> Callable[..., Done]:
  """`(*flags, cwd, before) -> Done`: train.py in a fork.

  It finds the modules `own_tasks` and `own_algorithms`.
  """

  def run(*flags: str, cwd, before: str = "") -> Done:
    paths = [str(ROOT / "tests/binaries"), str(ROOT / "tests")]
    return fork_program("train.py", *flags, cwd=cwd, paths=paths, before=before)

  return run
