"""`binaries/gradient_inversion.py`: what it says of wrong flags."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
  "flag, said",
  [
    ("--distance=l1", "distance must be one of l2, cosine"),
    ("--hparams=fedavg:pseudo_step=0.1", "--hparams: 'fedavg:pseudo_step=0.1' is no"),
  ],
)
def test_program_says_what_is_wrong_in_one_sentence(fork_program, tmp_path, flag, said):
  out = tmp_path / "out"
  done = fork_program("gradient_inversion.py", f"--out={out}", flag, cwd=tmp_path)
  assert done.status == 2 and not done.out
  assert said in done.err
  assert len(done.err.strip().split("\n")) == 1 and not out.exists()
