"""`binaries/heterogeneity.py`: its table, its folder, and bad input."""

from __future__ import annotations

import csv
import json
import subprocess
import sys

import pytest


def _run(out, *flags):
  command = [
    *(sys.executable, "binaries/heterogeneity.py", "--task=digits_cnn", f"--out={out}"),
    *("--num_clients=5", *flags),
  ]
  return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_program_writes_table_and_pictures(tmp_path):
  out = tmp_path / "new" / "out"
  done = _run(out, "--partitions=iid; dirichlet:beta=0.1;iid")
  assert done.returncode == 0, done.stderr
  assert {path.name for path in out.iterdir()} == {
    *("config.json", "table.csv", "table.md", "iid.png", "iid_columns.png"),
    *("dirichlet_beta_0.1.png", "dirichlet_beta_0.1_columns.png"),
  }
  lines = done.stdout.rstrip().split("\n")
  assert len({line.count("|") for line in lines}) == 1 and len(lines) == 4
  assert done.stdout == (out / "table.md").read_text()
  with open(out / "table.csv", newline="") as f:
    iid, dirichlet = csv.DictReader(f)
  assert int(iid["max_size"]) - int(iid["min_size"]) <= 1
  assert float(iid["wasserstein_distance"]) < float(dirichlet["wasserstein_distance"])
  config = json.loads((out / "config.json").read_text())
  assert config["flags"]["partitions"] == ["iid", "dirichlet:beta=0.1"]
  assert config["command"] and config["versions"]

  other = _run(out)
  assert other.returncode == 2 and "is not empty" in other.stderr
  (out / "table.md").unlink()  # As if it had been killed: the same settings go on.
  again = _run(out, "--partitions=iid; dirichlet:beta=0.1;iid")
  assert again.returncode == 0 and again.stdout == (out / "table.md").read_text()


@pytest.mark.parametrize(
  "wrong, said",
  [
    ("--partitions=iid;shard", "shards"),
    ("--partition_seed=-1", "--partition_seed must be >= 0; found -1"),
  ],
)
def test_bad_split_gets_one_sentence_and_nothing_is_written(tmp_path, wrong, said):
  done = _run(tmp_path / "out", wrong)
  assert done.returncode == 2
  assert said in done.stderr and len(done.stderr.strip().split("\n")) == 1
  assert not list(tmp_path.iterdir())
