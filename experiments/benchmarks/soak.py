"""Measures what long runs keep: memory, file descriptors and threads, round by round.

  python experiments/benchmarks/soak.py results/benchmark/soak --rounds=2000

Each run of `RUNS` is a process of its own, which trains on scikit-learn's digits as
train.py does. Written are soak.csv, soak.png and table.md.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import tempfile
import time
from typing import Any

if __name__ == "__main__":
  from tff_algos import preflight

  preflight.check_and_quiet([])

import numpy as np
from matplotlib.figure import Figure

from experiments import markdown, runner
from experiments.benchmarks import measurements
from experiments.config import Config
from tff_algos import durable_files
from tff_algos.runtimes import child_process

RUNS: dict[str, dict[str, Any]] = {
  "fedavg": dict(algorithm="fedavg", checkpoint_every=0),
  "fedavg, without events": dict(algorithm="fedavg", checkpoint_every=0, tracker=()),
  "fedavg, checkpoints": dict(algorithm="fedavg"),
  "scaffold, checkpoints": dict(algorithm="scaffold"),
  "fedavg, local_worker": dict(algorithm="fedavg", runtime="local_worker"),
}
COLUMNS = ("run", "round", "seconds", "resident_kb", "descriptors", "threads")
_SAMPLES = 200


def held() -> dict[str, int]:
  """What this process holds now; its memory with that of its workers."""
  own = os.getpid()
  with_workers = [own, *measurements.workers_of(own)]
  bytes_of = [measurements.process_bytes(p, "VmRSS") for p in with_workers]
  return {
    "resident_kb": sum(bytes_of) // 1024,
    "descriptors": len(os.listdir("/proc/self/fd")) - 1,  # Not that of this listing.
    "threads": int(measurements.process_status(own)["Threads"]),
  }


def run_one(name: str, rounds: int, path: str) -> None:
  """Does a run of `RUNS` in this process and adds its samples to a CSV."""
  with (
    tempfile.TemporaryDirectory() as folder,
    open(path, "a", encoding="utf-8", buffering=1) as file,
  ):
    config = Config(
      **{
        "task": "digits_cnn",
        "partition": "iid",
        "num_clients": 100,
        "clients_per_round": 10,
        "rounds": rounds,
        "checkpoint_every": 100,
        "run_dir": os.path.join(folder, "run"),
        "cache_dir": os.path.join(folder, "cache"),
        **RUNS[name],
      }
    )
    start, every = time.perf_counter(), max(1, rounds // _SAMPLES)

    def sample(round_start: Any) -> None:
      if round_start.rounds_done % every == 0:
        seconds = round(time.perf_counter() - start, 3)
        row = [name, round_start.rounds_done, seconds, *held().values()]
        csv.writer(file).writerow(row)

    runner.run(config, quiet=True, watch=lambda prepared: runner.Watched(sample))


def growth(rounds: Any, values: Any) -> float:
  """What is added in a round: the slope over all but the first quarter."""
  later = rounds >= rounds.max() / 4
  return float(np.polyfit(rounds[later], values[later], 1)[0])


def report(path: str, out: str) -> None:
  """Writes the table and the picture of a CSV."""
  with open(path, encoding="utf-8", newline="") as f:
    rows = list(csv.DictReader(f))
  figure = Figure(figsize=(11, 3.8), layout="constrained")
  panels = [figure.add_subplot(1, 3, place) for place in (1, 2, 3)]
  cells = []
  for name in dict.fromkeys(row["run"] for row in rows):
    of_run = [row for row in rows if row["run"] == name]
    column = {
      c: np.array([float(row[c]) for row in of_run]) for c in COLUMNS if c != "run"
    }
    rounds = column["round"]
    memory = column["resident_kb"] * 1024 / 1e6  # It counts 1,024 bytes as one.
    later = rounds >= rounds.max() / 4
    cells.append(
      [
        name,
        f"{rounds.max():,.0f}",
        f"{1e3 * column['seconds'][-1] / rounds.max():.0f}",
        f"{memory[later][0]:,.0f}",
        f"{memory[-1]:,.0f}",
        f"{growth(rounds, 1e3 * memory):.1f}",
        *(
          f"{column[c][later].min():.0f}-{column[c][later].max():.0f}"
          for c in ("descriptors", "threads")
        ),
      ]
    )
    for panel, values in zip(panels, (memory, column["descriptors"], column["threads"])):
      panel.plot(rounds, values, label=name, linewidth=1)
  for panel, what in zip(panels, ("resident memory (MB)", "descriptors", "threads")):
    panel.set(xlabel="round", ylabel=what, ylim=(0, None))
    panel.locator_params(axis="y", integer=True)
    panel.grid(alpha=0.3)
  panels[0].legend(fontsize="small", loc="lower right")
  durable_files.save_picture(figure, os.path.join(out, "soak.png"), dpi=110)
  heads = ["run", "rounds", "ms a round", "MB after a quarter", "MB at the end"]
  heads += ["kB added in a round", "descriptors", "threads"]
  with durable_files.new_file(os.path.join(out, "table.md"), "w") as f:
    f.write(markdown.table(heads, cells, right=range(1, len(heads))) + "\n")


def main() -> None:
  """Measures what is asked for, each run in a process of its own."""
  parser = argparse.ArgumentParser()
  parser.add_argument("out", help="the folder for the results")
  parser.add_argument("--rounds", type=int, default=2000)
  parser.add_argument("--one", help="a name of RUNS, to be run in this process")
  flags = parser.parse_args()
  path = os.path.join(flags.out, "soak.csv")
  if flags.one:
    run_one(flags.one, flags.rounds, path)
    return
  os.makedirs(flags.out, exist_ok=True)
  with open(path, "w", encoding="utf-8") as f:
    csv.writer(f).writerow(COLUMNS)
  for name in RUNS:
    print(name, flush=True)
    command = [sys.executable, os.path.abspath(__file__), flags.out, "--one", name]
    with tempfile.TemporaryDirectory() as folder:
      log = os.path.join(folder, "log")
      process = child_process.start([*command, f"--rounds={flags.rounds}"], log)
      if process.wait():
        with open(log, encoding="utf-8") as f:
          sys.exit(f.read())
  report(path, flags.out)


if __name__ == "__main__":
  main()
