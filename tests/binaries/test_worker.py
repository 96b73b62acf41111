"""The program that runs a worker for other machines; nothing here needs TensorFlow."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time

import portpicker
import pytest

_PROGRAM = pathlib.Path(__file__).resolve().parents[2] / "binaries/worker.py"
# What a client of gRPC says first, and the start of the answer: a frame of settings.
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
_SETTINGS = 4


def _is_answered(connection: socket.socket) -> bool:
  """Whether a gRPC server is at the other end."""
  try:
    connection.sendall(_GREETING)
    answer = connection.recv(9)
  except OSError:
    return False
  return len(answer) > 3 and answer[3] == _SETTINGS


def _is_answered_in_clear(port: int) -> bool:
  with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
    return _is_answered(connection)


def _is_answered_by_tls(port: int, certificates, owner: str) -> bool:
  """Whether the worker lets in who has this certificate; "" for none."""
  context = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
  if owner:
    context.load_cert_chain(certificates / f"{owner}.pem", certificates / f"{owner}.key")
  with contextlib.ExitStack() as stack:
    connection = socket.create_connection(("127.0.0.1", port), timeout=60)
    stack.enter_context(connection)
    inside = context.wrap_socket(connection, server_hostname="localhost")
    return _is_answered(stack.enter_context(inside))


def _listening(process_id: int | str) -> set[str]:
  """The sockets on which somebody listens in the process's network namespace."""
  found = set()
  for name in ("tcp", "tcp6"):
    path = pathlib.Path(f"/proc/{process_id}/net/{name}")
    rows = [line.split() for line in path.read_text().splitlines()[1:]]
    found |= {row[9] for row in rows if row[3] == "0A"}
  return found


def _wait_for(condition, seconds: float = 60.0):
  deadline = time.monotonic() + seconds
  while not condition():
    assert time.monotonic() < deadline
    time.sleep(0.05)


def _ended(process_id: int) -> bool:
  try:
    stat = pathlib.Path(f"/proc/{process_id}/stat").read_text()
  except OSError:
    return True
  return stat.rsplit(")", 1)[1].split()[0] == "Z"


@pytest.fixture(scope="module")
def worker(start_worker):
  return start_worker()


def test_lets_in_only_whom_the_authority_signed_for(worker, certificates):
  assert "for programs with a certificate of" in worker.out
  assert _is_answered_by_tls(worker.port, certificates, "program")
  assert not _is_answered_by_tls(worker.port, certificates, "foreign_program")
  assert not _is_answered_by_tls(worker.port, certificates, "")
  assert not _is_answered_in_clear(worker.port)


def test_one_worker_may_not_use_another(worker, certificates):
  assert not _is_answered_by_tls(worker.port, certificates, "worker")


def test_the_port_in_the_clear_is_in_a_namespace_of_its_own(worker):
  inside = worker.child("worker_binary")
  namespaces = {os.readlink(f"/proc/{pid}/ns/net") for pid in (inside, "self")}
  assert len(namespaces) == 2
  assert _listening(inside)
  assert not _listening(inside) & _listening("self")


def test_both_its_processes_are_started_again(worker, certificates):
  for name in ("worker_binary", "stunnel"):
    before = worker.child(name)
    os.kill(before, signal.SIGKILL)
    _wait_for(lambda b=before, n=name: worker.child(n) not in (None, b))
  _wait_for(lambda: _is_answered_by_tls(worker.port, certificates, "program"))
  said = re.findall(r"^(.+) ended with status -9", worker.err, re.MULTILINE)
  assert said == ["TFF's worker", "The stunnel"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_nothing_outlives_it(start_worker, number):
  program = start_worker()
  children = [program.child(name) for name in ("worker_binary", "stunnel")]
  assert all(children)
  program.process.send_signal(number)
  status = program.process.wait(timeout=60)
  assert status == (-signal.SIGKILL if number == signal.SIGKILL else 0)
  _wait_for(lambda: all(map(_ended, children)))
  if number != signal.SIGKILL:  # Else its children were asked to end, not killed.
    assert "Received SIGINT; terminating" in program.log.read_text()
  with pytest.raises(ConnectionRefusedError):
    socket.create_connection(("127.0.0.1", program.port), timeout=60)


def _refuse(*flags: str, prefix=(), **environment: str) -> str:
  """What the program says when it does not start, which must be one sentence."""
  done = subprocess.run(
    [*prefix, sys.executable, str(_PROGRAM), *flags],
    stdin=subprocess.DEVNULL,
    capture_output=True,
    text=True,
    timeout=60,
    env={**os.environ, **environment},
  )
  assert (done.returncode, done.stdout) == (2, "")
  assert re.fullmatch(r"[A-Z][^\n]*\.\n", done.stderr), done.stderr
  return done.stderr


def _flags(certificates, certificate="worker.pem", key="worker.key", authority="ca.pem"):
  return [
    f"--certificate={certificates / certificate}",
    f"--key={certificates / key}",
    f"--authority={certificates / authority}",
    f"--port={portpicker.pick_unused_port()}",
  ]


def test_refuses_to_start_unprotected_unless_the_network_is_trusted(certificates):
  assert "--trusted_network" in _refuse()
  assert "--trusted_network" in _refuse(*_flags(certificates)[1:])
  both = _refuse(*_flags(certificates), "--trusted_network")
  assert "A worker with --trusted_network lets in everyone" in both


@pytest.mark.parametrize(
  "files, part",
  [
    (dict(certificate="none.pem"), "There is no file"),
    (dict(key="program.key"), "are not a certificate and its key"),
    (dict(authority="worker.key"), "is no readable certificate"),
  ],
)
def test_refuses_files_that_are_not_what_they_should_be(certificates, files, part):
  assert part in _refuse(*_flags(certificates, **files))


def test_refuses_without_stunnel(certificates, tmp_path):
  assert "stunnel4" in _refuse(*_flags(certificates), PATH=str(tmp_path))


def test_refuses_a_port_that_is_taken(worker, certificates):
  flags = [*_flags(certificates), f"--port={worker.port}"]
  assert "Address already in use" in _refuse(*flags)


@pytest.mark.skipif(
  os.geteuid() != 0 or not shutil.which("setpriv"),
  reason="only root has a capability that can be taken away, by setpriv",
)
def test_refuses_where_it_may_not_close_the_clear_port(needs_tunnel, certificates):
  prefix = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]
  said = _refuse(*_flags(certificates), prefix=prefix)
  assert "may not make a network namespace (Operation not permitted)" in said


def test_on_a_trusted_network_it_listens_in_the_clear_and_says_so(start_worker):
  program = start_worker(None)
  assert "in the clear" in program.out
  assert _is_answered_in_clear(program.port)
  assert _listening(program.child("worker_binary")) <= _listening("self")
  assert program.child("stunnel") is None
  said = _refuse("--trusted_network", f"--port={program.port}")
  assert "Address already in use" in said
