"""How a run of train.py is simulated: what ends it, who takes part, what is recorded."""

from __future__ import annotations

import math
import pathlib

import pytest
from programs import ROOT, Done
from training import (
  assert_refused,
  at_round,
  metrics,
  place,
  read_json,
  without_seconds,
)

_TASK = "--task=own_tasks:good"


# --- All options, together ----------------------------------------------------------

_ALL = (
  *(_TASK, "--algorithm=scaffold", "--rounds=5", "--num_clients=8"),
  *("--clients_per_round=4", "--dropout=0.3", "--seed=2"),
  *("--client_duration=lognormal:mean=10,sigma=0.3", "--round_deadline=12"),
  *("--learning_rate=0.1", "--learning_rate_schedule=cosine:final=0.1"),
  *("--held_out_clients=2", "--eval_clients_every=2", "--personalize_steps=3"),
  *("--patience=100", "--aggregator=robust", "--norm_limit=1000"),
  *("--loss_epsilon=0.01", "--mixed_precision"),
)
_SPREAD = ("p10", "p50", "p90", "worst")


@pytest.fixture(scope="module")
def unbroken(run_forked, tmp_path_factory) -> tuple[pathlib.Path, Done]:
  folder = tmp_path_factory.mktemp("unbroken")
  run_dir, where = place(folder)
  done = run_forked(*_ALL, *where, "--quiet", cwd=folder)
  assert done.status == 0, done.err
  return run_dir, done


@pytest.mark.thorough
def test_quiet_run_prints_its_last_line_alone(unbroken):
  run_dir, done = unbroken
  assert done.err == ""
  [line] = done.out.splitlines()
  assert line.startswith("5 rounds: best test accuracy ")
  assert line.endswith(f"; results in {run_dir}")


def test_metrics_have_what_was_asked_for(unbroken):
  rows = metrics(unbroken[0])
  rates = [float(row["learning_rate"]) for row in rows]
  shares = [(1 + math.cos(math.pi * t / 5)) / 2 for t in range(5)]
  assert rates == pytest.approx([0.1 * (0.1 + 0.9 * share) for share in shares])
  for row in rows:
    counts = [int(row[f"num_{k}"]) for k in ("accepted", "dropped_out", "late")]
    assert sum(counts) == 4 and int(row["num_dropped"]) == 0
    assert 0 <= float(row["round_duration"]) <= 12
    for group in ("client", "held_out"):
      for name in ("accuracy", "personalized_accuracy"):
        found = [row[f"{group}_{name}_{part}"] for part in _SPREAD]
        if row["round"] in ("2", "4", "5"):
          low, middle, high, worst = map(float, found)
          assert 0 <= worst <= low <= middle <= high <= 1
        else:
          assert found == [""] * 4
  assert sum(int(row["num_dropped_out"]) for row in rows) > 0
  assert sum(int(row["num_late"]) for row in rows) > 0


def test_metrics_have_what_aggregators_measure(unbroken):
  for row in metrics(unbroken[0]):
    assert int(row["num_too_long"]) == 0
    assert float(row["aggregator_update_norm"]) >= 0
    # All norms are far below the first limit, 2 * 10 + 1.
    assert int(row["aggregator_model_zeroed_count"]) == 0
    assert 0 < float(row["aggregator_model_zeroing_norm"]) <= 21


def test_manifest_and_summary_have_it_too(unbroken):
  run_dir, _ = unbroken
  config, summary = (read_json(run_dir / f"{n}.json") for n in ("config", "summary"))
  assert config["flags"]["learning_rate_schedule"] == "cosine:final=0.1,rounds=5"
  assert config["flags"]["dropout"] == 0.3
  assert config["flags"]["loss_epsilon"] == 0.01
  assert config["flags"]["mixed_precision"] is True
  # Of 8 clients with 5 examples each.
  assert config["data"]["clients"] == 8
  assert config["data"]["training"] == {"num_clients": 6, "num_examples": 30}
  rows = metrics(run_dir)
  for name in ("dropped_out", "late"):
    assert summary[f"clients_{name}"] == sum(int(row[f"num_{name}"]) for row in rows)
  last = summary["final_client_metrics"]
  assert {name: float(rows[-1][name]) for name in last} == last
  assert len(last) == 32


@pytest.mark.thorough
def test_stopped_and_resumed_by_its_folder_alone_it_is_the_unbroken_run(
  unbroken, run_forked, tmp_path
):
  run_dir, where = place(tmp_path)
  stop = at_round(2, "os.kill(os.getpid(), signal.SIGTERM)")
  done = run_forked(*_ALL, *where, cwd=tmp_path, before=stop)
  assert done.status == 75
  assert len(metrics(run_dir)) == 3
  done = run_forked(f"--run_dir={run_dir}", "--resume", cwd=tmp_path)
  assert (done.status, done.err) == (0, "")
  assert without_seconds(metrics(run_dir)) == without_seconds(metrics(unbroken[0]))


@pytest.mark.thorough
def test_run_that_has_reached_its_target_has_ended_and_can_go_on(
  unbroken, run_forked, tmp_path
):
  """Status 0; without the target it is the run that had none."""
  run_dir, where = place(tmp_path)
  done = run_forked(*_ALL, *where, "--stop_at=loss:1000", cwd=tmp_path)
  assert (done.status, done.err) == (0, "")
  assert "at its end after round 1 of 5: test loss has reached 1000" in done.out
  summary = read_json(run_dir / "summary.json")
  assert (summary["rounds"], summary["ended_by"]) == (1, "target")
  assert summary["stopped_early"] is False
  [row] = metrics(run_dir)
  assert row["client_accuracy_p50"]  # As after each last round.
  done = run_forked(f"--run_dir={run_dir}", "--resume", "--stop_at=", cwd=tmp_path)
  assert (done.status, done.err) == (0, "")
  assert without_seconds(metrics(run_dir)) == without_seconds(metrics(unbroken[0]))
  assert read_json(run_dir / "summary.json")["ended_by"] == "rounds"


def test_a_model_that_measures_no_accuracy_is_trained(run_forked, fork_program, tmp_path):
  """Which has no best round: that is one by accuracy. Clients are compared by loss."""
  run_dir, where = place(tmp_path)
  flags = ["--task=own_tasks:no_accuracy", "--eval_clients_every=1", *where]
  done = run_forked(*flags, cwd=tmp_path)
  assert (done.status, done.err) == (0, "")
  rows = metrics(run_dir)
  assert len(rows) == 2
  for row in rows:
    assert math.isfinite(float(row["test_loss"]))
    assert row["test_accuracy"] == ""
  middle, worst = (float(row[f"client_loss_{part}"]) for part in ("p50", "worst"))
  assert middle <= worst
  assert f"clients' loss: median {middle:.4f}, 90th percentile " in done.out

  paths = [str(ROOT / "tests")]
  done = fork_program("evaluate.py", f"--run={run_dir}", cwd=tmp_path, paths=paths)
  assert (done.status, done.err) == (0, "")
  assert f": loss on their own examples {middle:.4f} (median), " in done.out
  assert f", {worst:.4f} (worst)" in done.out


def test_two_classes_may_have_one_output_by_a_loss_of_their_own(run_forked, tmp_path):
  """Logistic regression, of classes that a line divides."""
  run_dir, where = place(tmp_path)
  flags = ["--task=own_tasks:one_output", "--learning_rate=1", "--rounds=20", *where]
  done = run_forked(*flags, cwd=tmp_path)
  assert (done.status, done.err) == (0, "")
  assert float(metrics(run_dir)[-1]["test_accuracy"]) > 0.9


@pytest.mark.parametrize(
  "changed, said",
  [
    ("--dropout=0.2", "dropout=0.3, not 0.2"),
    ("--held_out_clients=1", "held_out_clients=2, not 1"),
    ("--loss_epsilon=0.02", "loss_epsilon=0.01, not 0.02"),
    ("--nomixed_precision", "mixed_precision=True, not False"),
    ("--learning_rate_schedule=exponential:decay=0.9", "learning_rate_schedule="),
  ],
)
def test_another_setting_is_refused(unbroken, run_forked, tmp_path, changed, said):
  before = (unbroken[0] / "metrics.csv").read_bytes()
  flags = [f"--run_dir={unbroken[0]}", "--resume", changed]
  assert_refused(run_forked(*flags, cwd=tmp_path), said)
  assert (unbroken[0] / "metrics.csv").read_bytes() == before


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
  "everybody is held out": (
    ["--held_out_clients=4"],
    ["held_out_clients is 4", "only 4 clients"],
  ),
  "less than nobody": (["--held_out_clients=-1"], ["held_out_clients", "-1"]),
  "steps but no evaluation": (["--personalize_steps=1"], ["eval_clients_every"]),
  "schedule of no kind": (["--learning_rate_schedule=cosin"], ["'cosine'"]),
  "rate that falls to 0": (
    ["--learning_rate_schedule=exponential:decay=1e-30", "--rounds=9"],
    ["round 3 of 9", "must be > 0"],
  ),
  "no epsilon": (["--loss_epsilon=1"], ["loss_epsilon must be in [0, 1)", "1"]),
  "epsilon of another loss": (
    ["--loss_epsilon=1e-12", "--task=own_tasks:own_loss"],
    ["loss_epsilon", "the loss of own is another"],
  ),
  "what the model does not measure": (["--stop_at=f1:0.9"], ["f1", "loss, accuracy"]),
  "target of what is not measured": (
    ["--target_accuracy=0.9", "--task=own_tasks:no_accuracy"],
    ["target_accuracy is about accuracy, which the task's model does not measure"],
  ),
}


@pytest.mark.parametrize("kind", _MISTAKES)
def test_mistake_is_one_sentence(run_forked, tmp_path, kind):
  flags, words = _MISTAKES[kind]
  run_dir, where = place(tmp_path)
  assert_refused(run_forked(_TASK, *where, *flags, cwd=tmp_path), *words)
  assert not run_dir.exists()
