"""The programs of the papers: their command line."""

from __future__ import annotations

import subprocess
import sys

import programs
import pytest


def _program(*words: str) -> subprocess.CompletedProcess:
  command = [sys.executable, "binaries/fedgg_tables.py", *words]
  return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
  "words, said",
  [
    (["--table=9"], "There is no table 9 here: the tables are 1, 1_beside, 2, "),
    ([], "Say which by --table or --figure; --list shows what there is."),
    (["--table=1", "--data_dirs=svhn"], "must be like cifar10=DIR,har=DIR"),
    (["--table=1", "--data_dirs=svhn=/absent"], "there is no folder /absent"),
    (["--table=1", "--rounds_scale=0"], "--rounds_scale must be more than 0"),
    (["--table=1", "--rounds_scale=nan"], "--rounds_scale must be more than 0"),
    (["--table=1", "--rounds_scale=1e307"], "and at most 1000; found 1e+307"),
    (["--table=1", "--only=,beta"], "--only has an empty text"),
    (["--table=1", "--data_dirs=cifar=/tmp"], "there is no data set cifar, but c"),
    (["--table=1", "--repeats=0"], "repeats"),
    (["--table=1", "--norun", "--only=beta0.5,beta"], "--only: beta is in none of the n"),
    (["--table=1", "--norun", "--report"], "out/runs"),
  ],
)
def test_bad_input_gets_one_sentence(fork_program, words, said, tmp_path):
  flags = [*words, f"--out={tmp_path / 'out'}"]
  done = fork_program("fedgg_tables.py", *flags, cwd=tmp_path)
  assert done.status == 2
  assert said in done.err
  assert "Traceback" not in done.err
  assert not (tmp_path / "out").exists()


def test_out_that_is_no_folder_and_rates_that_are_none_get_one_sentence(
  fork_program, tmp_path
):
  (tmp_path / "file").write_text("")
  flags = ["--table=1", "--norun", f"--out={tmp_path / 'file'}"]
  done = fork_program("fedgg_tables.py", *flags, cwd=tmp_path)
  assert done.status == 2 and done.err.count("\n") == 1
  assert "is not a folder." in done.err
  flags = ["--list", "--learning_rates=0.1,high"]
  done = fork_program("fedavg_tables.py", *flags, cwd=tmp_path)
  assert done.status == 2 and done.err.count("\n") == 1
  assert "must be positive numbers; found 'high'" in done.err
  flags = ["--list", "--learning_rates=0.1,0.10"]
  done = fork_program("fedavg_tables.py", *flags, cwd=tmp_path)
  assert done.status == 2 and done.err.count("\n") == 1
  assert "--learning_rates gives one twice" in done.err


def test_what_only_lets_nothing_pass_of_is_not_written(tmp_path):
  done = _program("--table=2,3", "--norun", "--only=beta0.5", f"--out={tmp_path}")
  assert done.returncode == 0, done.stderr
  assert sorted(path.name for path in tmp_path.iterdir()) == ["table3.csv", "table3.md"]


def test_a_table_is_itself_and_where_it_has_parts_only_these(fork_program, tmp_path):
  """Not 1_beside too, which has other rounds."""
  for program, name, written in (
    ("fedgg_tables.py", "1", ["table1"]),
    ("fedavg_tables.py", "2", ["table2_cnn", "table2_lstm"]),
  ):
    out = tmp_path / program
    flags = [f"--table={name}", "--norun", f"--out={out}"]
    done = fork_program(program, *flags, cwd=tmp_path)
    assert done.status == 0, done.err
    assert sorted(path.stem for path in out.glob("*.md")) == written


def test_help_shows_the_flags_that_the_programs_share():
  done = _program("--help")
  assert done.returncode == 0
  for flag in ("--table", "--[no]run", "--rounds_scale", "--cache_dir"):
    assert f"  {flag}:" in done.stdout


def test_list_needs_no_data(tmp_path):
  done = _program("--list", f"--out={tmp_path}")
  assert done.returncode == 0, done.stderr
  assert "table2" in done.stdout
  assert "0 of 15 cells done" in done.stdout


def test_state_of_a_folder_that_is_none_gets_one_sentence(tmp_path):
  command = [sys.executable, str(programs.ROOT / "binaries/state_of_results.py")]
  options = dict(cwd=tmp_path, capture_output=True, text=True, timeout=120)
  done = subprocess.run(command, **options)
  assert done.returncode == 2 and done.stderr.count("\n") == 1
  said = f"{tmp_path}/results/why.csv must be a CSV file with the columns"
  assert done.stderr.startswith(said)
  assert list(tmp_path.iterdir()) == []
