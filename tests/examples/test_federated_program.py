"""The example is killed without a warning, and goes on."""

from __future__ import annotations

import csv
import signal
import textwrap

import pytest

_ROUNDS = 4
# By the system, as a machine that is switched off: nothing is finished or closed.
_KILLED = textwrap.dedent(
  """
  import asyncio, os, signal
  import tensorflow_federated as tff

  save = tff.program.FileProgramStateManager.save

  async def save_and_die(self, program_state, version):
    if version >= 3:  # TFF's program saves beside its rounds, in any order.
      while 2 not in await self.get_versions():
        await asyncio.sleep(0.01)
      os.kill(os.getpid(), signal.SIGKILL)
    await save(self, program_state, version)

  tff.program.FileProgramStateManager.save = save_and_die
  """
)


@pytest.mark.thorough
@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_a_killed_program_goes_on(fork_program, tmp_path, algorithm):
  def run(folder, before=""):
    flags = f"--folder={tmp_path / folder}", f"--algorithm={algorithm}"
    program = "../examples/federated_program.py"
    rounds = f"--rounds={_ROUNDS}"
    return fork_program(program, *flags, rounds, cwd=tmp_path, before=before)

  def losses(folder):
    with open(tmp_path / folder / algorithm / "metrics.csv") as f:
      return {row["round"]: row["model_metrics/loss"] for row in csv.DictReader(f)}

  assert run("killed", _KILLED).status == -signal.SIGKILL
  saved = {path.name for path in (tmp_path / "killed" / algorithm / "state").iterdir()}
  assert "program_state_2" in saved
  assert not saved & {"program_state_3", "program_state_4"}
  for folder in ("killed", "whole"):
    done = run(folder)
    assert done.status == 0, done.err
  whole = losses("whole")
  assert list(whole) == ["1", "2", "3", "4"]
  assert losses("killed") == whole
