"""Child processes that never outlive this one, with their output in a file."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import Optional

_STOP_SECONDS = 5
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


def worker_binary() -> str:
  """The path of TFF's worker; TFF itself is not imported."""
  spec = importlib.util.find_spec("tensorflow_federated")
  assert spec is not None and spec.origin is not None
  return os.path.join(os.path.dirname(spec.origin), "data", "worker_binary")


def start(
  command: Sequence[str],
  log_path: str,
  *,
  pass_fds: Sequence[int] = (),
  env: Optional[Mapping[str, str]] = None,
) -> subprocess.Popen:
  """Starts a process that ends when the thread that calls this does.

  Args:
    command: The program and its arguments.
    log_path: File that its output is appended to.
    pass_fds: File descriptors that it inherits.
    env: Its environment; default: this process's.

  Raises:
    OSError: The program cannot be started, or the file not be written.
  """
  with open(log_path, "ab") as log:
    return subprocess.Popen(
      command,
      stdin=subprocess.DEVNULL,
      stdout=log,
      stderr=log,
      preexec_fn=_bind_to_parent,
      pass_fds=pass_fds,
      env=env,
    )


def stop(process: subprocess.Popen) -> None:
  """Ends a process; waits for it."""
  if process.poll() is not None:
    return
  process.send_signal(signal.SIGINT)
  try:
    process.wait(_STOP_SECONDS)
  except subprocess.TimeoutExpired:
    process.kill()
    process.wait()


def _bind_to_parent() -> None:
  # Out of the terminal's group: Ctrl-C is for the program to handle, not its children.
  os.setpgrp()
  # A program that waits for signals blocks them; its children are not to.
  signal.pthread_sigmask(signal.SIG_SETMASK, ())
  # Covers a SIGKILL of this process too, which no exit handler sees.
  _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
