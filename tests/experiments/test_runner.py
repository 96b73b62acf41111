"""What a run asks of its folder before it writes there."""

from __future__ import annotations

import contextlib
import json
import types

import pytest

from experiments import runner
from experiments.config import make_config
from tff_algos.errors import InputError


@pytest.fixture
def begin_beside(monkeypatch, tmp_path):
  """`(begin, resume=False)`: a run in whose folder another begins while it prepares."""

  def run(begin, resume=False):
    config = make_config("fedavg", "digits_cnn", run_dir=str(tmp_path / "run"), rounds=4)
    flags = {"algorithm": "fedavg", "task": "digits_cnn"}
    prepared = types.SimpleNamespace(manifest=lambda: {"flags": flags})
    monkeypatch.setattr(runner, "prepare_runtime", lambda config: None)
    monkeypatch.setattr(runner, "prepare", lambda config: prepared)

    def watch(_) -> runner.Watched:
      begin(tmp_path / "run")
      return runner.Watched(lambda start: None)

    runner.run(config, resume=resume, watch=watch)

  return run


def _files(folder) -> dict:
  return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_run_that_another_process_began_meanwhile_is_not_written_over(
  begin_beside, write_run, tmp_path
):
  with pytest.raises(InputError, match="already holds a run"):
    begin_beside(write_run)
  found = _files(tmp_path / "run")
  write_run(tmp_path / "alone")
  assert found == _files(tmp_path / "alone")


def test_rounds_that_another_process_did_meanwhile_are_not_lost(
  begin_beside, write_run, tmp_path
):
  """It has ended, and somebody has taken its checkpoints away."""

  def begin(folder):
    write_run(folder)
    (folder / "summary.json").write_text(json.dumps({"rounds": 4}))

  with pytest.raises(InputError, match="holds 4 rounds without their checkpoints"):
    begin_beside(begin, resume=True)
  assert {*_files(tmp_path / "run")} == {"config.json", "metrics.csv", "summary.json"}


@pytest.mark.parametrize("every, is_refused", [(3, True), (4, False)])
def test_run_that_was_killed_before_its_first_checkpoint_may_begin_anew(
  write_run, tmp_path, every, is_refused
):
  """Of four rounds that were written down, the last may have been the first to save."""
  folder = tmp_path / "run"
  write_run(folder, flags={"checkpoint_every": every})
  config = make_config("fedavg", "digits_cnn", run_dir=str(folder), rounds=4)
  words = "holds 4 rounds without their checkpoints.* or choose another --out"
  refused = pytest.raises(InputError, match=words)
  with refused if is_refused else contextlib.nullcontext():
    own = runner.RunFolder(str(folder), flag="--out")
    runner._refuse_to_lose(own, config, resume=True)
