"""What a training run leaves when it ends: summary, pictures, the last lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments import markdown, progress
from experiments.config import Config
from experiments.export import keras_files
from experiments.preparation import Prepared
from experiments.run_folder import reading
from experiments.run_folder.folder import RunFolder
from tff_algos.privacy import accounting
from tff_algos.runtimes import dask_tasks
from tff_algos.runtimes import runtime as runtimes
from tff_algos.simulation import client_evaluation, cohorts, loop, records, stopping


def finish(
  prepared: Prepared, result: loop.Result, runtime: runtimes.Runtime, *, quiet: bool
) -> dict[str, Any]:
  """Writes summary.json and the pictures, and prints the summary, in one line if quiet.

  Returns:
    What summary.json holds.
  """
  config, folder = prepared.config, RunFolder(prepared.config.run_dir)
  metric = f"test_{prepared.measure}"
  summary = records.summarize(
    result.records, metric=metric, target=config.target_accuracy
  )
  summary["stopped_early"] = result.ended_by == "stopped"
  summary["ended_by"] = result.ended_by
  if config.eval_clients_every and result.records:
    # The last round's are always there.
    summary["final_client_metrics"] = client_evaluation.of_clients(result.records[-1])
  if prepared.process.privacy is not None:
    mechanism = prepared.process.privacy
    summary["privacy"] = _privacy(prepared, mechanism, len(result.records))
  weights = prepared.process.get_model_weights(result.state).trainable
  best = result.best and result.best.weights
  own = dask_tasks.peak_memory()
  summary["peak_memory_bytes"] = own + runtime.worker_peak_memory()
  summary = records.finite(summary)
  records.write_json(folder.file(records.SUMMARY), summary)
  note = f" ({prepared.loaded.note})" if prepared.loaded.note else ""
  title = f"{config.algorithm} on {config.task}{note}"
  records.draw_traffic(
    result.records, folder.file("traffic.png"), metric=metric, title=title
  )
  records.draw_metric(
    result.records,
    folder.file(f"{prepared.measure}.png"),
    metric=metric,
    title=title,
    target=config.target_accuracy,
  )
  # Last of the files, as it is others' layers that are written.
  keras_files.keep(folder, prepared.loaded.model, weights, best)
  line = _summary_line(summary, prepared.measure, config)
  if quiet:
    print(f"{line}; {_where(summary, config)}")
    return summary
  _print_end(result, prepared)
  print(line)
  if "privacy" in summary:
    print(reading.privacy_line(summary["privacy"]))
  if summary["stopped_early"]:
    print(_where(summary, config))
  return summary


def _privacy(
  prepared: Prepared, mechanism: accounting.GaussianMechanism, rounds: int
) -> dict[str, Any]:
  """What holds for the examples of the client that took part most often."""
  settings, num_clients = prepared.settings, len(prepared.loaded.clients)
  attendances = (settings.attendance(num_clients, done) for done in range(rounds))
  # What comes too late has been uploaded too.
  most = cohorts.most_participations([*a.taking_part, *a.late] for a in attendances)
  epsilon = mechanism.epsilon(most)
  return {
    "epsilon": epsilon,
    "delta": mechanism.delta,
    "most_participations": most,
  }


def _print_end(result: loop.Result, prepared: Prepared) -> None:
  """Says what of the run's settings has ended it before its last round."""
  rule = prepared.settings.stop
  if rule is None or result.ended_by not in ("target", "patience"):
    return
  metric = stopping.name_of(rule.metric)
  if result.ended_by == "target":
    why = f"test {metric} has reached {rule.target:g}"
  else:
    why = f"test {metric} has got no better in {rule.patience} evaluations"
  print(
    f"at its end after round {len(result.records)} of {prepared.config.rounds}: {why}"
  )


def _summary_line(summary: Mapping[str, Any], measure: str, config: Config) -> str:
  done = markdown.count(summary["rounds"], "round")
  best, final = summary[f"best_{measure}"], summary[f"final_{measure}"]
  if best is None:
    return f"{done} done"
  line = (
    f"{done}: best test {measure} {progress.number(measure, best)} (round "
    f"{summary[f'best_{measure}_round']}), final "
    f"{'not a number' if final is None else progress.number(measure, final)}"
  )
  if config.target_accuracy is not None:
    reached = summary["rounds_to_target"]
    when = f"in round {reached}" if reached else "not reached"
    line += f", {100 * config.target_accuracy:g} % {when}"
  return line


def _where(summary: Mapping[str, Any], config: Config) -> str:
  if summary["stopped_early"]:
    return f"stopped early; go on with --run_dir={config.run_dir} --resume"
  return f"results in {config.run_dir}"
