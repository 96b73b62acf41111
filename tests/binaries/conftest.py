"""Runs' folders written by hand, and programs run in forks."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import programs
import pytest

_HEAD = "round,train_loss,test_accuracy,seconds,num_dropped,bytes_down,bytes_up"
# No accuracy in round 2.
_ROUNDS = (
  "1,2.5,0.25,9.0,0,1000000,500000",
  "2,2.0,,1.0,0,1000000,500000",
  "3,1.5,0.75,1.0,1,1000000,2000000",
  "4,1.0,0.5,2.0,0,0,0",
)


def _write_run(
  folder: pathlib.Path,
  algorithm: str = "fedavg",
  rounds: Sequence[str] = _ROUNDS,
  head: str = _HEAD,
  **config: Any,
) -> str:
  """Writes config.json and metrics.csv; `config` has more of the former."""
  folder.mkdir(parents=True)
  flags = {"algorithm": algorithm, "task": "digits_cnn", **config.pop("flags", {})}
  (folder / "config.json").write_text(json.dumps({"flags": flags, **config}))
  (folder / "metrics.csv").write_text("\n".join([head, *rounds]) + "\n")
  return str(folder)


@pytest.fixture(scope="session")
def write_run() -> Callable[..., str]:
  """`(folder, algorithm, rounds, head, **config) -> path` of a run written by hand."""
  return _write_run


@pytest.fixture(scope="session")
def fork_program(tmp_path_factory) -> Iterator[programs.ForkServer]:
  """`(program, *flags, cwd, paths) -> Done`: a program of binaries/ run in a fork."""
  server = programs.ForkServer(tmp_path_factory.mktemp("forked"))
  yield server
  server.close()
