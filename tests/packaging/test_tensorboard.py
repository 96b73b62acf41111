"""TensorBoard of the locked versions starts and shows what a run wrote."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator

import pytest

from tff_algos.simulation import records

_TENSORBOARD = pathlib.Path(sys.executable).with_name("tensorboard")
_SECONDS = 120  # Its start imports TensorFlow, on a machine that may be busy.


def _processes_of(session: int) -> list[str]:
  """The command lines of the processes of one session, without those that have ended."""
  found = []
  for folder in pathlib.Path("/proc").glob("[0-9]*"):
    with contextlib.suppress(OSError):  # It has just ended.
      state, _, _, owner = (folder / "stat").read_text().rsplit(")", 1)[1].split()[:4]
      if int(owner) == session and state != "Z":
        found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
  return found


@contextlib.contextmanager
def _tensorboard(logdir: pathlib.Path, log: pathlib.Path) -> Iterator[str]:
  """Runs it as a user does and gives its address; nothing of it is left afterwards."""
  command = [_TENSORBOARD, "--logdir", logdir, "--host", "127.0.0.1", "--port", "0"]
  with open(log, "w") as f:
    started = subprocess.Popen(
      [str(word) for word in command],
      stdin=subprocess.DEVNULL,
      stdout=f,
      stderr=f,
      start_new_session=True,
    )
  try:
    deadline = time.monotonic() + _SECONDS
    while not (address := re.search(r"http://127\.0\.0\.1:\d+/", log.read_text())):
      assert started.poll() is None, log.read_text()
      assert time.monotonic() < deadline, log.read_text()
      time.sleep(0.2)
    yield address[0]
    started.send_signal(signal.SIGINT)  # Ctrl-C.
    started.wait(timeout=_SECONDS)
    assert _processes_of(started.pid) == []
  finally:
    with contextlib.suppress(ProcessLookupError):
      os.killpg(started.pid, signal.SIGKILL)
    started.wait(timeout=_SECONDS)


def _get(url: str) -> bytes:
  # No proxy of the environment's: the page is of this machine.
  opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
  with opener.open(url, timeout=_SECONDS) as response:
    return response.read()


@pytest.mark.thorough
@pytest.mark.skipif(not _TENSORBOARD.exists(), reason=f"no {_TENSORBOARD}")
def test_tensorboard_starts_and_shows_a_run(tmp_path):
  run = tmp_path / "runs/of_today"
  run.mkdir(parents=True)
  writer = records.RecordWriter(str(run), ["round", "train_loss"])
  writer.start([{"round": 1, "train_loss": 0.75}, {"round": 2, "train_loss": 0.5}])
  writer.close()
  with _tensorboard(tmp_path / "runs", tmp_path / "log") as address:
    assert b"<title>TensorBoard" in _get(address)
    deadline = time.monotonic() + _SECONDS
    shown: dict = {}
    while not shown and time.monotonic() < deadline:  # It reads the events meanwhile.
      shown = json.loads(_get(f"{address}data/plugin/scalars/tags"))
      time.sleep(0.2)
    assert list(shown) == ["of_today/tensorboard"]
    assert list(shown["of_today/tensorboard"]) == ["train_loss"]
    points = "data/plugin/scalars/scalars?run=of_today/tensorboard&tag=train_loss"
    assert [point[1:] for point in json.loads(_get(address + points))] == [
      [1, 0.75],
      [2, 0.5],
    ]
