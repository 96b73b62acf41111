"""How a run of train.py is simulated: what ends it, who takes part, what is recorded."""

from __future__ import annotations

import pytest
from training import assert_refused, metrics, place, read_json, without_seconds

_TASK = "--task=own_tasks:good"


# --- What ends it -------------------------------------------------------------------


def test_run_that_is_at_its_end_before_its_last_round(run_forked, tmp_path):
  """Status 0; gone on with by other settings, it is the run that never ended so."""
  whole, where = place(tmp_path, "whole")
  flags = [_TASK, "--rounds=6", "--learning_rate=0.5"]
  assert run_forked(*flags, *where, cwd=tmp_path).status == 0
  accuracies = [float(row["test_accuracy"]) for row in metrics(whole)]
  target = accuracies[2]
  end = next(k for k, value in enumerate(accuracies, 1) if value >= target)

  run_dir, where = place(tmp_path)
  done = run_forked(*flags, *where, f"--stop_at=accuracy:{target}", cwd=tmp_path)
  assert (done.status, done.err) == (0, "")
  assert f"after round {end} of 6: test accuracy has reached" in done.out
  summary = read_json(run_dir / "summary.json")
  assert (summary["rounds"], summary["ended_by"]) == (end, "target")
  assert summary["stopped_early"] is False
  config = read_json(run_dir / "config.json")
  assert config["flags"]["stop_at"] == f"accuracy:{target}"

  # At its end, which its folder knows.
  done = run_forked(f"--run_dir={run_dir}", "--resume", cwd=tmp_path)
  assert (done.status, len(metrics(run_dir))) == (0, end)
  resume = [f"--run_dir={run_dir}", "--resume", "--stop_at=", "--patience=100"]
  done = run_forked(*resume, cwd=tmp_path)
  assert (done.status, done.err) == (0, "")
  assert without_seconds(metrics(run_dir)) == without_seconds(metrics(whole))
  summary = read_json(run_dir / "summary.json")
  assert (summary["rounds"], summary["ended_by"]) == (6, "rounds")


# --- What is refused ----------------------------------------------------------------

_MISTAKES = {
  "target without a metric": (["--stop_at=0.9"], ["accuracy:0.95", "'0.9'"]),
  "no patience": (["--patience=-1"], ["patience", "-1"]),
  "everybody drops out": (["--dropout=1"], ["dropout must be in [0, 1)", "1"]),
  "deadline without durations": (
    ["--round_deadline=5"],
    ["round_deadline needs client_duration"],
  ),
  "no deadline": (
    ["--round_deadline=0", "--client_duration=lognormal:mean=1"],
    ["deadline must be > 0"],
  ),
  "durations of no kind": (["--client_duration=normal:mean=1"], ["'lognormal'"]),
  "what the model does not measure": (["--stop_at=f1:0.9"], ["f1", "loss, accuracy"]),
}


@pytest.mark.parametrize("kind", _MISTAKES)
def test_mistake_is_one_sentence(run_forked, tmp_path, kind):
  flags, words = _MISTAKES[kind]
  run_dir, where = place(tmp_path)
  assert_refused(run_forked(_TASK, *where, *flags, cwd=tmp_path), *words)
  assert not run_dir.exists()
