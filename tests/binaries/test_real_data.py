"""The programs on real data, from the publishers' archives to the summary; slow."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import tarfile

import pytest

_DIGESTS = ("client_files", "test_set")
_ROOT = pathlib.Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.real_data, pytest.mark.timeout(7200)]


def _run(program: str, *flags: str) -> str:
  done = subprocess.run(
    [sys.executable, str(_ROOT / "binaries" / program), *flags],
    capture_output=True,
    text=True,
    timeout=1800,
  )
  assert done.returncode == 0, done.stderr
  return done.stdout


def _results(run_dir: pathlib.Path) -> tuple[dict, dict]:
  read = ((run_dir / name).read_text() for name in ("config.json", "summary.json"))
  config, summary = map(json.loads, read)
  return config, summary


def test_mnist_from_the_archives_to_a_trained_model(shared_data_dir, tmp_path):
  tfds_dir, run_dir = tmp_path / "tfds", tmp_path / "run"
  _run(
    "import_data.py",
    "--dataset=mnist",
    f"--from={shared_data_dir / 'mnist'}",
    f"--data_dir={tfds_dir}",
  )
  _run(
    "train.py",
    "--algorithm=fedavg",
    "--task=mnist_linear",
    "--learning_rate=0.1",
    "--rounds=10",
    f"--data_dir={tfds_dir}",
    f"--cache_dir={tmp_path / 'cache'}",
    f"--run_dir={run_dir}",
  )
  config, summary = _results(run_dir)
  counts = {k: v for k, v in config["data"].items() if k not in _DIGESTS}
  assert counts == {
    "note": "",
    "clients": 100,
    "examples": 60000,
    "left_over": 0,
    "test_examples": 10000,
  }
  # A linear classifier makes 12 % errors on MNIST (LeCun et al. 1998).
  assert summary["best_accuracy"] > 0.88


def test_cifar10_from_jpeg_pictures(shared_data_dir, tmp_path):
  pictures, run_dir = tmp_path / "pictures", tmp_path / "run"
  archive = shared_data_dir / "cifar10_jpeg" / "CIFAR-10-images.tar"
  with tarfile.open(archive) as tar:
    tar.extractall(pictures)
  shown = _run(
    "train.py",
    "--algorithm=fedgg",
    "--task=cifar10_lenet",
    "--rounds=2",
    f"--data_dir={pictures}",
    f"--cache_dir={tmp_path / 'cache'}",
    f"--run_dir={run_dir}",
  )
  assert "JPEG CIFAR-10" in shown
  config, summary = _results(run_dir)
  assert config["data"]["note"] == "JPEG CIFAR-10"
  assert config["data"]["examples"] == 50000
  assert config["model"]["num_weights"] == 62006
  # Ten classes: guessing gives 10 %.
  assert summary["best_accuracy"] > 0.15


def test_har_from_the_archive(shared_data_dir, tmp_path):
  run_dir = tmp_path / "run"
  shown = _run(
    "train.py",
    "--algorithm=twafl",
    "--task=har_lstm",
    "--rounds=5",
    f"--data_dir={shared_data_dir / 'har'}",
    f"--cache_dir={tmp_path / 'cache'}",
    f"--run_dir={run_dir}",
  )
  config, summary = _results(run_dir)
  assert config["data"]["note"] in ("", "HAPT windows")
  assert config["data"]["note"] in shown
  assert config["model"]["num_weights"] == 5822
  # Six activities: the most frequent one is 18 % of the test windows.
  assert summary["best_accuracy"] > 0.2
