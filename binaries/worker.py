"""Runs one of TFF's workers for train.py --runtime=remote_workers on other machines.

  python binaries/worker.py --certificate=worker.pem --key=worker.key --authority=ca.pem

A worker runs whatever it is sent. So it lets in only who shows a certificate that the
authority has signed; docs/several_machines.md says how to make them.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":  # Before what a broken environment fails to import.
  from tff_algos import preflight

  preflight.check_and_quiet(sys.argv)

import os
import tempfile
from typing import Optional

from absl import flags

from experiments import command_line
from tff_algos.errors import InputError
from tff_algos.runtimes import tunnel, worker_host

_PORT = flags.DEFINE_integer("port", 8470, "Where others reach it.", 1, 65535)
_CERTIFICATE = flags.DEFINE_string("certificate", None, "The worker's, a PEM file.")
_KEY = flags.DEFINE_string("key", None, "The certificate's private key, a PEM file.")
_AUTHORITY = flags.DEFINE_string(
  "authority",
  None,
  "The certificate of the authority that signs for those who may use the worker.",
)
_TRUSTED_NETWORK = flags.DEFINE_boolean(
  "trusted_network",
  False,
  "Instead of the certificates: let everyone in who reaches the port, in the clear.",
)
_LOG = flags.DEFINE_string(
  "log",
  None,
  "File for what TFF's worker and stunnel print; default: one in the temporary folder.",
)


def _tls_files() -> Optional[tunnel.TlsFiles]:
  given = (_CERTIFICATE.value, _KEY.value, _AUTHORITY.value)
  if _TRUSTED_NETWORK.value:
    if any(given):
      raise InputError(
        "A worker with --trusted_network lets in everyone, so leave it out or "
        "--certificate, --key and --authority."
      )
    return None
  if not all(given):
    raise InputError(
      "A worker runs whatever it is sent: give --certificate, --key and --authority to "
      "let in only whom you trust, or --trusted_network where nobody else reaches it."
    )
  return tunnel.TlsFiles(*given)


def _log_path() -> str:
  if _LOG.value is None:
    handle, path = tempfile.mkstemp(prefix="tff_algos_worker_", suffix=".log")
    os.close(handle)
    return path
  try:
    with open(_LOG.value, "ab"):
      return _LOG.value
  except OSError as error:
    raise InputError(f"{_LOG.value} cannot be written: {error.strerror}.") from error


def main() -> None:
  """Runs what the flags say."""
  files = _tls_files()
  log_path = _log_path()
  how = (
    "in the clear: anyone who reaches it can run anything"
    if files is None
    else f"for programs with a certificate of {files.authority}"
  )
  worker_host.serve(
    _PORT.value,
    files,
    log_path=log_path,
    on_ready=lambda: print(
      f"worker on port {_PORT.value}, {how}; log {log_path}", flush=True
    ),
  )


if __name__ == "__main__":
  command_line.start(main)
