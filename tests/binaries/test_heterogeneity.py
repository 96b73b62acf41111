"""`binaries/heterogeneity.py`: its table, its folder, and bad input."""

from __future__ import annotations

import csv
import json

import pytest


@pytest.fixture
def run(fork_program, tmp_path):
  """`(out, *flags) -> Done` of the program."""

  def run(out, *flags):
    options = ("--task=digits_cnn", f"--out={out}", "--num_clients=5", *flags)
    return fork_program("heterogeneity.py", *options, cwd=tmp_path)

  return run


def test_program_writes_table_and_pictures(run, tmp_path):
  out = tmp_path / "new" / "out"
  done = run(out, "--partitions=iid; dirichlet:beta=0.1;iid")
  assert done.status == 0, done.err
  assert {path.name for path in out.iterdir()} == {
    *("config.json", "table.csv", "table.md", "iid.png", "iid_columns.png"),
    *("dirichlet_beta_0.1.png", "dirichlet_beta_0.1_columns.png"),
  }
  lines = done.out.rstrip().split("\n")
  assert len({line.count("|") for line in lines}) == 1 and len(lines) == 4
  assert done.out == (out / "table.md").read_text()
  with open(out / "table.csv", newline="") as f:
    iid, dirichlet = csv.DictReader(f)
  assert int(iid["max_size"]) - int(iid["min_size"]) <= 1
  assert float(iid["wasserstein_distance"]) < float(dirichlet["wasserstein_distance"])
  config = json.loads((out / "config.json").read_text())
  assert config["flags"]["partitions"] == ["iid", "dirichlet:beta=0.1"]
  [session] = config["sessions"]
  assert session["command"][0] == "binaries/heterogeneity.py" and session["versions"]

  other = run(out, "--partitions=iid; dirichlet:beta=0.2;iid")
  assert other.status == 2 and other.err.count("\n") == 1
  assert "partitions[1]='dirichlet:beta=0.1', not 'dirichlet:beta=0.2'" in other.err
  assert "choose another --out" in other.err
  (out / "table.md").unlink()  # As if it had been killed: the same settings go on.
  again = run(out, "--partitions=iid; dirichlet:beta=0.1;iid")
  assert again.status == 0 and again.out == (out / "table.md").read_text()
  assert len(json.loads((out / "config.json").read_text())["sessions"]) == 2


def test_folder_of_a_run_of_the_same_task_is_refused_and_stays(run, tmp_path):
  """Else the run could be neither read nor resumed."""
  out = tmp_path / "run"
  out.mkdir()
  flags = {"algorithm": "fedavg", "task": "digits_cnn", "num_clients": 5, "rounds": 3}
  (out / "config.json").write_text(json.dumps({"flags": flags, "sessions": []}))
  before = (out / "config.json").read_bytes()
  done = run(out, "--partitions=iid")
  assert done.status == 2 and done.err.count("\n") == 1
  assert "holds results of another program: choose another --out" in done.err
  assert [path.name for path in out.iterdir()] == ["config.json"]
  assert (out / "config.json").read_bytes() == before


_SEQUENCES = """
import numpy as np
from tasks.datasets.dataset import Dataset
from tasks.registry import Task

def load(data_dir, cache_dir):
  x = np.ones((8, 5), np.int32)
  y = np.tile(np.int32([1, 0, 1, 0, -1]), (8, 1))
  return Dataset(x, y, x, y, 2)

task = Task("lines", "Lines.", load, None, "iid", 2, 2, 1, {})
"""


def test_sizes_of_sequences_are_of_examples(run, tmp_path):
  """Their labels are counted by class; an example has several."""
  (tmp_path / "sequences.py").write_text(_SEQUENCES)
  out = tmp_path / "out"
  done = run(out, "--task=sequences:task", "--num_clients=2")
  assert done.status == 0, done.err
  with open(out / "table.csv", newline="") as f:
    [row] = csv.DictReader(f)
  sizes = [float(row[f"{which}_size"]) for which in ("min", "median", "max")]
  assert sizes == [4, 4, 4]


def test_file_that_a_loader_lacks_gets_one_sentence(run, tmp_path):
  missing = _SEQUENCES.replace(
    "x = np.ones((8, 5), np.int32)", "x = np.load('absent.npy')"
  )
  (tmp_path / "sequences.py").write_text(missing)
  done = run(tmp_path / "out", "--task=sequences:task", "--num_clients=2")
  assert (done.status, done.err) == (2, "absent.npy: No such file or directory.\n")


@pytest.mark.parametrize(
  "wrong, said",
  [
    ("--partitions=iid;shard", "shards"),
    ("--partition_seed=-1", "--partition_seed=-1"),
    ("--cache_dir=/dev/null", "/dev/null cannot be the cache_dir"),
  ],
)
def test_bad_split_gets_one_sentence_and_nothing_is_written(run, tmp_path, wrong, said):
  done = run(tmp_path / "out", wrong)
  assert done.status == 2
  assert said in done.err and len(done.err.strip().split("\n")) == 1
  assert not list(tmp_path.iterdir())
