"""Child processes that never outlive this one, with their output in a file."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Optional

# On a machine that does much else, too.
_STOP_SECONDS = 30
_PR_SET_PDEATHSIG = 1
# What has to be set in the child is set by a program between it and us. A `preexec_fn`
# would do it after a fork, and gRPC, which TFF's executors use from other threads, may
# abort a forked process ("Check failed: next_worker->state == KICKED").
_BIND_AND_EXECUTE = f"""
import ctypes, os, signal, sys
parent, number, group, *command = sys.argv[1:]
if group == "own":
  os.setpgrp()
# Covers a SIGKILL of the parent too, which no exit handler sees.
ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, int(number))
if os.getppid() != int(parent):
  sys.exit("The program that started this one has ended.")
# A program that waits for signals blocks them, Python ignores SIGPIPE, and what a script
# starts with `&` SIGINT; its children are to do none of these.
signal.pthread_sigmask(signal.SIG_SETMASK, ())
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(command[0], command)
"""
# Its input ends with the process that holds the other end, however that ends.
_END_GROUP = f"""
import contextlib, os, sys
sys.stdin.read()
with contextlib.suppress(ProcessLookupError):
  os.killpg(int(sys.argv[1]), {signal.SIGKILL:d})
"""
_guards: list[subprocess.Popen[bytes]] = []


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
  cwd: Optional[str] = None,
) -> subprocess.Popen[bytes]:
  """Starts a process that ends when the thread that calls this does.

  Args:
    command: The program's path and its arguments.
    log_path: File that its output is appended to.
    pass_fds: File descriptors that it inherits.
    env: Its environment; default: this process's.
    cwd: The folder that it works in; default: this process's.

  Raises:
    OSError: The program cannot be started, or the file not be written.
  """
  if not os.access(command[0], os.X_OK):
    raise FileNotFoundError(f"There is no program {command[0]} that could be started.")
  with open(log_path, "ab") as log:
    return subprocess.Popen(
      # Out of the terminal's group: Ctrl-C is for the program, not its children.
      bound(command, signal.SIGKILL, group="own"),
      stdin=subprocess.DEVNULL,
      stdout=log,
      stderr=log,
      pass_fds=pass_fds,
      env=env,
      cwd=cwd,
    )


def bound(command: Sequence[str], number: int, *, group: str = "ours") -> list[str]:
  """A command whose process gets a signal when the thread that starts it ends.

  Args:
    command: The program's path and its arguments.
    number: The signal.
    group: The process group that it is in, "ours" or its "own".
  """
  launcher = [sys.executable, "-I", "-S", "-c", _BIND_AND_EXECUTE]
  return [*launcher, str(os.getpid()), str(int(number)), group, *command]


def end_children_with_this_process() -> None:
  """Has what this process starts killed when it ends, however it ends.

  It is for children that other code starts, as TFF does its own worker; those of `start`
  end by themselves. This process becomes the leader of its process group, which its
  children stay in unless they leave it, and a small program outside it waits for the end.
  """
  if os.getpgrp() != os.getpid():
    os.setpgrp()
  # The writing end has no Python object, which would be closed before the process ends.
  read_end, _ = os.pipe()
  _guards.append(
    subprocess.Popen(
      [sys.executable, "-I", "-S", "-c", _END_GROUP, str(os.getpid())],
      stdin=read_end,
      stdout=subprocess.DEVNULL,
      stderr=subprocess.DEVNULL,
      start_new_session=True,
    )
  )
  os.close(read_end)


def stop(process: subprocess.Popen[bytes]) -> None:
  """Ends a process; waits for it."""
  if process.poll() is not None:
    return
  process.send_signal(signal.SIGINT)
  try:
    process.wait(_STOP_SECONDS)
  except subprocess.TimeoutExpired:
    process.kill()
    process.wait()
