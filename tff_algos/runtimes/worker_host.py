"""Runs one of TFF's workers for programs on other machines, behind a TLS tunnel.

TFF's worker runs any graph that anyone sends it, and listens on every interface. Here it
is alone in a network namespace, where nothing reaches its port but the tunnel: the
tunnel's listening socket was opened before, outside. Nothing here imports TensorFlow,
whose threads would keep the process from making a namespace.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Optional

from tff_algos.errors import InputError
from tff_algos.runtimes import child_process, tunnel

_START_SECONDS = 30.0
_POLL_SECONDS = 0.05
# A process that ends is started again after the first, and twice the time each time it
# has not lived for `_SETTLED_SECONDS`.
_FIRST_DELAY, _LONGEST_DELAY, _SETTLED_SECONDS = 0.5, 30.0, 60.0
# In a namespace of its own every port is free.
_PRIVATE_PORT = 8470
_ENDING = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
_LIBC = ctypes.CDLL(None, use_errno=True)


class CannotStartError(InputError):
  """The worker cannot be run as asked; the message is one sentence that says why."""


def serve(
  port: int,
  files: Optional[tunnel.TlsFiles],
  *,
  log_path: str,
  on_ready: Callable[[], None],
) -> None:
  """Runs a worker until a signal ends this process; a worker that ends is replaced.

  With certificates this moves the process into a network namespace of its own, for good.

  Args:
    port: Where others reach it.
    files: The worker's certificate, its key and the authority of those who may use it;
      None to let anyone use it, in the clear.
    log_path: File for the output of the worker and the tunnel.
    on_ready: Called when the worker answers.

  Raises:
    CannotStartError: It cannot be started like this.
  """
  with tempfile.TemporaryDirectory(prefix="tff_algos_") as folder:
    if files is None:
      _listen(port).close()  # TFF's worker would share a port that another program has.
      _Supervisor([_worker(port, log_path)], port, log_path).run(on_ready)
      return
    _check_files(files)
    listener = _listen(port)
    _enter_private_network()
    children = [
      _worker(_PRIVATE_PORT, log_path),
      _Child(
        "The stunnel",
        lambda: tunnel.start_server(
          listener.fileno(), _PRIVATE_PORT, files, folder=folder, log_path=log_path
        ),
      ),
    ]
    _Supervisor(children, _PRIVATE_PORT, log_path).run(on_ready)


def _check_files(files: tunnel.TlsFiles) -> None:
  try:
    files.check()
    tunnel.find_stunnel()
  except (ValueError, OSError) as error:
    raise CannotStartError(str(error)) from error


def _listen(port: int) -> socket.socket:
  """A socket that listens on every interface, by both versions of IP where there are."""
  try:
    if socket.has_dualstack_ipv6():
      return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))
  except OSError as error:
    raise CannotStartError(
      f"Port {port} cannot be listened on: {error.strerror}."
    ) from error


# --- The network namespace -------------------------------------------------------------


def _enter_private_network() -> None:
  """Moves this process into a network namespace with nothing but a loopback interface."""
  user, group = os.geteuid(), os.getegid()
  try:
    if user == 0:
      _unshare(_CLONE_NEWNET)
    else:
      _unshare(_CLONE_NEWUSER | _CLONE_NEWNET)
      _write("/proc/self/setgroups", "deny")
      _write("/proc/self/uid_map", f"{user} {user} 1")
      _write("/proc/self/gid_map", f"{group} {group} 1")
    _bring_loopback_up()
  except OSError as error:
    raise CannotStartError(
      "The worker's own port cannot be closed to others, because this process may not "
      f"make a network namespace ({error.strerror}): run it as root or with the "
      "capabilities SYS_ADMIN and NET_ADMIN, or let users make namespaces."
    ) from error


def _unshare(flags: int) -> None:
  if _LIBC.unshare(flags) != 0:
    number = ctypes.get_errno()
    raise OSError(number, os.strerror(number))


def _write(path: str, text: str) -> None:
  with open(path, "w") as f:
    f.write(text)


def _bring_loopback_up() -> None:
  request = "16sH22x"
  with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
    asked = struct.pack(request, b"lo", 0)
    answer = fcntl.ioctl(any_socket, _SIOCGIFFLAGS, asked)
    name, interface_flags = struct.unpack(request, answer)
    asked = struct.pack(request, name, interface_flags | _IFF_UP)
    fcntl.ioctl(any_socket, _SIOCSIFFLAGS, asked)


# --- Supervision -----------------------------------------------------------------------


class _Child:
  """A process that is to run all the time."""

  def __init__(self, name: str, start: Callable[[], subprocess.Popen[bytes]]):
    self.name, self._start = name, start
    self._process: Optional[subprocess.Popen[bytes]] = None
    self._started_at = 0.0
    self._delay = 0.0
    self.due_at = 0.0

  @property
  def is_alive(self) -> bool:
    return self._process is not None and self._process.poll() is None

  def start(self) -> None:
    self._process, self._started_at = self._start(), time.monotonic()

  def plan_restart(self) -> str:
    """Sets when it is started again; says so."""
    assert self._process is not None
    lived = time.monotonic() - self._started_at
    settled = lived > _SETTLED_SECONDS or not self._delay
    self._delay = _FIRST_DELAY if settled else min(2 * self._delay, _LONGEST_DELAY)
    self.due_at = time.monotonic() + self._delay
    status, self._process = self._process.returncode, None
    return f"{self.name} ended with status {status}; starting it in {self._delay:g} s"

  @property
  def is_waiting(self) -> bool:
    """Whether its restart is planned."""
    return self._process is None

  def stop(self) -> None:
    if self._process is not None:
      child_process.stop(self._process)


def _worker(port: int, log_path: str) -> _Child:
  command = [child_process.worker_binary(), f"--port={port}"]
  return _Child("TFF's worker", lambda: child_process.start(command, log_path))


class _Supervisor:
  """Keeps processes running until this one is told to end."""

  def __init__(self, children: list[_Child], port: int, log_path: str):
    self._children, self._port, self._log_path = children, port, log_path

  def run(self, on_ready: Callable[[], None]) -> None:
    # Blocked, signals are waited for; without that, the end of a process could come
    # between looking and sleeping.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING | {signal.SIGCHLD})
    try:
      self._start_all()
      if self._wait_until_ready():
        on_ready()
        self._keep_running()
    finally:
      for child in self._children:
        child.stop()
      signal.pthread_sigmask(signal.SIG_SETMASK, before)

  def _start_all(self) -> None:
    for child in self._children:
      try:
        child.start()
      except OSError as error:
        raise CannotStartError(f"{child.name} does not start: {error}.") from error

  def _wait_until_ready(self) -> bool:
    """Whether it is; else a signal says to end."""
    deadline = time.monotonic() + _START_SECONDS
    while not self._answers():
      for child in self._children:
        if not child.is_alive:
          raise CannotStartError(
            f"{child.name} ended at once; its output is in {self._log_path}."
          )
      if time.monotonic() > deadline:
        raise CannotStartError(
          f"TFF's worker did not answer within {_START_SECONDS:g} seconds; its output "
          f"is in {self._log_path}."
        )
      if _wait_for_signal(_POLL_SECONDS) in _ENDING:
        return False
    return True

  def _answers(self) -> bool:
    try:
      socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
    except OSError:
      return False
    return True

  def _keep_running(self) -> None:
    while True:
      for child in self._children:
        if child.is_waiting and child.due_at <= time.monotonic():
          child.start()
        elif not child.is_waiting and not child.is_alive:
          print(child.plan_restart(), file=sys.stderr, flush=True)
      due = [child.due_at for child in self._children if child.is_waiting]
      seconds = max(0.0, min(due) - time.monotonic()) if due else None
      if _wait_for_signal(seconds) in _ENDING:
        return


def _wait_for_signal(seconds: Optional[float]) -> Optional[int]:
  """The signal that comes, None after that time; without a time it waits for good."""
  signals = _ENDING | {signal.SIGCHLD}
  if seconds is None:
    return signal.sigwaitinfo(signals).si_signo
  found = signal.sigtimedwait(signals, seconds)
  return found.si_signo if found else None
