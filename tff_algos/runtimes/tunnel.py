"""TLS with certificates on both sides, by stunnel.

TFF's worker speaks in the clear and obeys whoever connects. So a stunnel stands before
the worker and another one beside the program that uses it, and each shows the other a
certificate of one authority.
"""

from __future__ import annotations

import ipaddress
import os
import shutil
import ssl
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

from tff_algos.errors import InputError
from tff_algos.runtimes import child_process

_PROGRAMS = ("stunnel", "stunnel4")
# systemd's way to give a program a listening socket: as descriptor 3, with the id that
# the program will have.
_HAND_OVER = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ.update(LISTEN_FDS="1", LISTEN_PID=str(os.getpid()))
os.execv(sys.argv[2], sys.argv[2:])
"""


class TlsFiles(NamedTuple):
  """The paths of what one side of a tunnel needs, in PEM format.

  Attributes:
    certificate: Its own certificate, and those between it and the authority's, if any.
    key: The private key of that, without a password.
    authority: The certificate of the authority that must have signed the other side's.
  """

  certificate: str
  key: str
  authority: str

  def check(self) -> None:
    """Reads the files.

    Raises:
      InputError: A file is missing, is not what it should be, or the key is another's.
    """
    for name, path in self._asdict().items():
      if not os.path.isfile(path):
        raise InputError(f"There is no file {path}, which is to be the {name}.")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
      context.load_verify_locations(self.authority)
    except (OSError, ssl.SSLError) as error:
      raise InputError(
        f"The authority {self.authority} is no readable certificate: {error}."
      ) from error
    try:
      # Without a password here, OpenSSL would ask for it at the terminal.
      context.load_cert_chain(self.certificate, self.key, password="")
    except (OSError, ssl.SSLError, ValueError) as error:
      raise InputError(
        f"The files {self.certificate} and {self.key} are not a certificate and its "
        f"key without a password: {error}."
      ) from error


def find_stunnel() -> str:
  """The path of stunnel.

  Raises:
    FileNotFoundError: It is not installed, or cannot be handed a socket.
  """
  for name in _PROGRAMS:
    path = shutil.which(name)
    if path:
      break
  else:
    raise FileNotFoundError(
      "The program stunnel is not installed: on Debian and Ubuntu, "
      "`apt-get install stunnel4`."
    )
  done = subprocess.run([path, "-version"], capture_output=True, text=True, check=False)
  if "SYSTEMD" not in done.stderr + done.stdout:
    raise FileNotFoundError(
      f"The program {path} was built without systemd's socket activation: use that of "
      "Debian or Ubuntu."
    )
  return path


def start_server(
  listener: int, port: int, files: TlsFiles, *, folder: str, log_path: str
) -> subprocess.Popen[bytes]:
  """Starts the stunnel before a worker.

  Args:
    listener: The descriptor of the listening socket, which may be of another network
      namespace.
    port: The worker's port, at 127.0.0.1.
    files: The worker's.
    folder: Where the settings are written.
    log_path: File for its output.
  """
  # `accept` is not used where a socket is given, and must be there nevertheless.
  service = ["[worker]", f"accept = {port}", f"connect = 127.0.0.1:{port}"]
  path = _write_settings(folder, [*service, *_tls_settings(files)])
  command = [sys.executable, "-I", "-S", "-c", _HAND_OVER, str(listener)]
  return child_process.start(
    [*command, find_stunnel(), path], log_path, pass_fds=[listener]
  )


def start_client(
  addresses: Sequence[tuple[str, int]],
  files: TlsFiles,
  *,
  folder: str,
  log_path: str,
) -> tuple[subprocess.Popen[bytes], list[str]]:
  """Starts the stunnel beside a program that uses workers.

  Args:
    addresses: Host and port of each worker.
    files: The program's.
    folder: A folder that no other user can enter: for the settings and the sockets.
    log_path: File for its output.

  Returns:
    The process, and for each worker the path of the Unix socket that leads to it.
  """
  lines, sockets = [], []
  for i, (host, port) in enumerate(addresses):
    sockets.append(os.path.join(folder, str(i)))
    kind = "IP" if _is_ip(host) else "Host"
    lines += [
      f"[{i}]",
      "client = yes",
      f"accept = {sockets[-1]}",
      f"connect = {host}:{port}",
      f"check{kind} = {host}",
      "delay = yes",  # A name is looked up again at each connection.
      *_tls_settings(files),
    ]
  path = _write_settings(folder, lines)
  return child_process.start([find_stunnel(), path], log_path), sockets


def _is_ip(host: str) -> bool:
  try:
    ipaddress.ip_address(host)
  except ValueError:
    return False
  return True


def _tls_settings(files: TlsFiles) -> list[str]:
  return [
    f"cert = {os.path.abspath(files.certificate)}",
    f"key = {os.path.abspath(files.key)}",
    f"CAfile = {os.path.abspath(files.authority)}",
    "verifyChain = yes",
    "sslVersionMin = TLSv1.2",
    "TIMEOUTconnect = 10",
    "TIMEOUTclose = 0",
  ]


def _write_settings(folder: str, services: Sequence[str]) -> str:
  path = os.path.join(folder, "stunnel.conf")
  lines = ["foreground = yes", "syslog = no", "pid =", "debug = notice", *services]
  with open(path, "w", encoding="utf-8") as f:
    f.write("\n".join(lines) + "\n")
  return path
