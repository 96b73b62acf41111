"""Reads what the logs of FedReg's authors say of the paper's Tables 1 to 3 and C.1.

    PYTHONPATH=. python results/fedreg/authors_logs/read_logs.py REPOSITORY

REPOSITORY is a clone of github.com/Zoesgithub/FedReg. `logs.csv` gets a row for each log:
the best test accuracy, the round that it stands after, the one after the last round, the
mean of the last 30 rounds (of all, where there are ten), the first rounds at half, nine
tenths and all of the best of the same setting's SGD, and the paper's numbers of these.
"""

from __future__ import annotations

import csv
import pathlib
import re
import sys

from experiments.papers.printed import paper_numbers

# Folder of the logs to table and setting of the paper.
SETTINGS = {
  "mnist": ("1", "mnist_two_classes"),
  "mnist_sc": ("1", "mnist_one_class"),
  "emnist": ("1", "emnist_digits"),
  "cifar10": ("2", "cifar10_uniform"),
  "cifar10_sc": ("2", "cifar10_one_class"),
  "cifar100": ("3", "cifar100_resnet9"),
  "cifar100_transformer": ("3", "cifar100_transformer"),
  "CT": ("3", "covid_ct"),
  "landmark": ("C.1", "landmarks_user_160k"),
}
NUMBERS = {"C.1": "fedreg_landmarks_and_time.csv"}
ALGORITHMS = ("sgd", "fedavg", "fedprox", "scaffold", "fedcurv", "fedreg")
SHARES = (0.5, 0.9, 1.0)
LAST = 30


def test_accuracies(run: pathlib.Path) -> list[float]:
  """After rounds 0, 1, 2 and so on; before the first the log evaluates as well."""
  paths = re.search(r'"test_path": (\[.*?\])', (run / "config.py").read_text())
  assert paths
  place = next(i for i, path in enumerate(paths[1].split(",")) if "/test/" in path)
  # One log has the beginning of another run at its end. The last evaluation is called as
  # the one before it, and the lines under TRAIN RESULTS may be those under TEST RESULTS.
  log = (run / "train.log").read_text().split("Train with")[1]
  found = re.findall(rf"TEST RESULTS.*?Test_{place} Accuracy: (\S+)", log, re.DOTALL)
  return [float(accuracy) for accuracy in found]


def main() -> None:
  """Writes the table beside this file."""
  if len(sys.argv) != 2:
    sys.exit("read_logs.py takes one argument, a clone of github.com/Zoesgithub/FedReg.")
  tasks = pathlib.Path(sys.argv[1], "tasks")
  rows: list[dict[str, object]] = []
  for folder, (table, setting) in SETTINGS.items():
    runs = {
      run.name.lower().split("_")[0]: test_accuracies(run)
      for run in sorted(tasks.joinpath(folder).iterdir())
      if "_cnn" not in run.name  # Of COVID-CT a setting of Table 4 has its logs here too.
    }
    printed = {
      row["algorithm"]: row
      for row in paper_numbers(NUMBERS.get(table, f"fedreg_table{table}.csv"), table)
      if row["task"] == setting
    }
    for algorithm in ALGORITHMS:
      if algorithm not in runs:
        continue
      values = runs[algorithm]
      best, last = max(values), values[1:][-LAST:]
      row = {
        "setting": setting,
        "algorithm": algorithm,
        "rounds": len(values) - 1,
        "best": f"{100 * best:.2f}",
        "best_round": values.index(best),
        "final": f"{100 * values[-1]:.2f}",
        "mean_of_last": f"{100 * sum(last) / len(last):.2f}",
      }
      for share in SHARES:
        mark = share * max(runs["sgd"])
        reached = (done for done, value in enumerate(values) if value >= mark)
        row[f"R{share}"] = next(reached, "-")
      row |= {f"paper_R{share}": printed[algorithm][f"R{share}"] for share in SHARES}
      row["paper_accuracy"] = f"{100 * float(printed[algorithm]['best_accuracy']):.1f}"
      rows.append(row)
  path = pathlib.Path(__file__).with_name("logs.csv")
  with path.open("w", newline="", encoding="utf-8") as file:
    lines = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
    lines.writeheader()
    lines.writerows(rows)


if __name__ == "__main__":
  main()
