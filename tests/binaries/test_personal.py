"""The programs with an algorithm whose clients have models of their own: pFedGP."""

from __future__ import annotations

import csv
import math
import pathlib
import re

import numpy as np
import pytest
from programs import ROOT, Done
from training import assert_refused, metrics, place, read_json

_FLAGS = (
  *("--task=own_tasks:good", "--algorithm=pfedgp", "--rounds=3"),
  # Which half of its examples a client knows, the seed says.
  *("--held_out_clients=1", "--eval_clients_every=2", "--seed=3"),
)
_SPREAD = ("p10", "p50", "p90", "worst")


@pytest.fixture(scope="module")
def personal(run_forked, tmp_path_factory) -> tuple[pathlib.Path, Done]:
  folder = tmp_path_factory.mktemp("personal")
  run_dir, where = place(folder)
  done = run_forked(*_FLAGS, *where, cwd=folder)
  assert (done.status, done.err) == (0, "")
  return run_dir, done


def _program(fork_program, program, *flags, cwd):
  return fork_program(program, *flags, cwd=cwd, paths=[str(ROOT / "tests")])


def test_run_has_the_accuracies_of_clients_and_no_other(personal):
  run_dir, done = personal
  assert "pfedgp has no test accuracy: its model predicts by a client's" in done.out
  assert not re.search(r"test accuracy [\d.]+ %|best test", done.out)
  assert "clients' accuracy: median" in done.out
  assert "3 rounds done" in done.out
  for row in metrics(run_dir):
    assert (row["test_loss"], row["test_accuracy"]) == ("", "")
    assert float(row["train_loss"]) > 0
    for group in ("client", "held_out"):
      found = [row[f"{group}_accuracy_{part}"] for part in _SPREAD]
      assert ("" in found) == (row["round"] == "1")
  assert not [name for name in row if "personalized" in name]
  summary = read_json(run_dir / "summary.json")
  assert summary["best_accuracy"] is None
  last = summary["final_client_metrics"]
  assert len(last) == 16
  for name, value in last.items():
    # A class that a client does not know has no chance; JSON has no infinity.
    assert float(row[name]) == (math.inf if value is None else value)


def test_evaluate_gives_the_same_of_each_client(personal, fork_program, tmp_path):
  run_dir, _ = personal
  out = tmp_path / "clients.csv"
  flags = [f"--run={run_dir}", f"--out={out}"]
  done = _program(fork_program, "evaluate.py", *flags, cwd=tmp_path)
  assert (done.status, done.err) == (0, "")
  assert "test set" not in done.out
  assert done.out.count(": accuracy on half of their own examples ") == 2
  with open(out, newline="") as f:
    rows = list(csv.DictReader(f))
  # Of 10 examples 5 are known.
  assert [row["examples"] for row in rows] == ["5"] * 4
  last = read_json(run_dir / "summary.json")["final_client_metrics"]
  for group, held_out in (("client", "0"), ("held_out", "1")):
    own = [float(row["accuracy"]) for row in rows if row["held_out"] == held_out]
    expected = [*np.percentile(own, (10, 50, 90)), min(own)]
    assert [last[f"{group}_accuracy_{part}"] for part in _SPREAD] == pytest.approx(
      expected
    )


def test_its_model_is_not_exported(personal, fork_program, tmp_path):
  flags = [f"--run={personal[0]}", "--format=saved_model", f"--out={tmp_path / 'out'}"]
  done = _program(fork_program, "export.py", *flags, cwd=tmp_path)
  assert_refused(done, "predicts nothing by itself", "pfedgp")
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
  "flag",
  ["stop_at=accuracy:0.9", "patience=3", "target_accuracy=0.9", "loss_epsilon=0.1"],
)
def test_what_is_of_the_global_models_predictions_is_refused(run_forked, tmp_path, flag):
  run_dir, where = place(tmp_path)
  done = run_forked(*_FLAGS, *where, f"--{flag}", cwd=tmp_path)
  assert_refused(done, flag.partition("=")[0], "pfedgp")
  assert not run_dir.exists()


def test_steps_of_the_clients_are_refused(run_forked, tmp_path):
  _, where = place(tmp_path)
  done = run_forked(*_FLAGS, *where, "--personalize_steps=2", cwd=tmp_path)
  assert_refused(done, "personalize_steps", "pfedgp")


@pytest.mark.parametrize(
  "program, flags",
  [
    ("lying_clients.py", ["--out=out", "--task=digits_cnn"]),
    ("forgetting.py", ["--run_dir=out", "--task=digits_cnn"]),
  ],
)
def test_programs_that_measure_global_models_refuse_it(
  fork_program, tmp_path, program, flags
):
  flags = [*flags, "--algorithms=pfedgp", f"--cache_dir={tmp_path / 'cache'}"]
  done = fork_program(program, *flags, cwd=tmp_path)
  assert done.status == 2 and "pfedgp has no" in done.err, done
