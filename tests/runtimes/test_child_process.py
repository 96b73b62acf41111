"""What TFF's worker and others are given by the program that starts them."""

from __future__ import annotations

import os

from programs import wait_for

from tff_algos.runtimes import child_process


def test_output_of_children_is_added_to_their_file(tmp_path):
  """As that of a worker which replaces one that died: why it did is in there."""
  log = tmp_path / "log"
  for words in ("first", "second"):
    assert child_process.start(["/bin/echo", words], str(log)).wait() == 0
  assert log.read_text() == "first\nsecond\n"


def test_children_do_not_read_what_is_for_the_program(tmp_path):
  own, (read_end, write_end) = os.dup(0), os.pipe()
  os.dup2(read_end, 0)
  try:
    process = child_process.start(["/bin/cat"], str(tmp_path / "log"))
  finally:
    os.dup2(own, 0)
  try:
    assert process.wait(30) == 0  # Without an end of what it would wait for.
  finally:
    process.kill()
    for descriptor in (own, read_end, write_end):
      os.close(descriptor)


def test_children_are_out_of_the_terminals_group(tmp_path):
  """Ctrl-C is for the program, which ends them when it is done with them."""
  process = child_process.start(["/bin/sleep", "60"], str(tmp_path / "log"))
  try:
    wait_for(lambda: os.getpgid(process.pid) == process.pid, 30)
  finally:
    process.kill()
    process.wait()
