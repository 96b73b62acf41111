"""Programs that are run in forks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from programs import ROOT, Done


@pytest.fixture(scope="session")
def run_forked(fork_program) -> Callable[..., Done]:
  """`(*flags, cwd, before) -> Done`: train.py in a fork, which finds `own_tasks`."""

  def run(*flags: str, cwd, before: str = "") -> Done:
    paths = [str(ROOT / "tests/binaries")]
    return fork_program("train.py", *flags, cwd=cwd, paths=paths, before=before)

  return run
