"""`binaries/lying_clients.py`: what it says of wrong flags."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
  "flag, said",
  [
    ("--attacks=flipped", "there is no attack named 'flipped'"),
    ("--attacks=scaled:factor=inf", "factor must be from -1e+19 to 1e+19; found"),
    ("--attacks=random:factor=1e39", "factor must be above 0 and at most 1e+19; found"),
    ("--attacks=scaled:factor=1", "changes nothing"),
    ("--attacks=random:factor=0", "factor must be above 0 and at most 1e+19"),
    ("--attacks=", "--attacks is empty"),
    ("--defences=krum", "there is no defence named 'krum'"),
    ("--defences=norm_limit:times=1", "norm_limit must be finite and above 1"),
    ("--defences=norm_limit:times=1e39", "norm_limit must be a number that float32"),
    ("--liars=1", "liars must be above 0 and below 1"),
    ("--algorithms=", "--algorithms is empty"),
    ("--hparams=epoch=1", "--hparams: 'epoch=1' is no"),
  ],
)
def test_program_says_what_is_wrong_in_one_sentence(fork_program, tmp_path, flag, said):
  out = tmp_path / "out"
  done = fork_program("lying_clients.py", f"--out={out}", flag, cwd=tmp_path)
  assert done.status == 2 and not done.out
  assert said in done.err
  assert len(done.err.strip().split("\n")) == 1 and not out.exists()
