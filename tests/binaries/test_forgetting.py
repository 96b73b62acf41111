"""`binaries/forgetting.py`: its flags, and a run that is gone on with."""

from __future__ import annotations


def test_bad_flag_gets_one_sentence_and_nothing_is_written(fork_program, tmp_path):
  flags = ["--rounds=1", f"--run_dir={tmp_path / 'run'}"]
  done = fork_program("forgetting.py", *flags, cwd=tmp_path)
  assert done.status == 2 and done.err.count("\n") == 1
  assert "--rounds must be at least 2" in done.err
  assert not list(tmp_path.iterdir())
