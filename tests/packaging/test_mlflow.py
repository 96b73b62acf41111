"""A run told to the real MLflow, with its file store, and gone on with."""

from __future__ import annotations

import os
import pathlib
import subprocess

import pytest

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_SMALL = ("--num_clients=4", "--clients_per_round=2", "--epochs=1", "--partition=iid")

pytestmark = pytest.mark.packaging


def test_a_resumed_run_is_one_run_of_mlflow(uv, pypi, tmp_path):
  def train(*flags):
    # Later ones want a database in place of the folder; TensorFlow a protobuf before 5.
    packages = "--with=mlflow-skinny==3.5.1", "--with=protobuf<5"
    flags = (*flags, f"--run_dir={tmp_path / 'run'}", f"--cache_dir={tmp_path / 'cache'}")
    with open(tmp_path / "log", "w") as log:
      subprocess.run(
        [uv, "run", *packages, "python", "binaries/train.py", *flags],
        cwd=_ROOT,
        env={**os.environ, "MLFLOW_TRACKING_URI": f"file://{tmp_path / 'store'}"},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        timeout=300,
        check=True,
      )

  train("--tracker=mlflow", "--rounds=1", *_SMALL)
  train("--rounds=2", "--resume")
  [tracked] = (path.parent for path in (tmp_path / "store/0").glob("*/metrics"))
  told = [line.split() for line in (tracked / "metrics/test_accuracy").open()]
  assert [step for _, _, step in told] == ["1", "2"]
  in_folder = (tmp_path / "run/metrics.csv").read_text()
  assert all(f"{float(value):.4f}"[:5] in in_folder for _, value, _ in told)
  assert (tracked / "params/flags.algorithm").read_text() == "fedavg"
  assert (tracked / "artifacts/summary.json").is_file()
