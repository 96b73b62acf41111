"""Who reaches the schedulers and workers of the dask runtime, and who does not."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import subprocess
import sys
import textwrap
from types import SimpleNamespace
from typing import NamedTuple

import distributed
import psutil
import pytest
from distributed.security import Security

import tff_algos
from tff_algos import TlsFiles
from tff_algos.runtimes import dask_cluster

# --- Addresses --------------------------------------------------------------------------


def _files(folder, name: str = "member", authority: str = "ca") -> TlsFiles:
  names = (f"{authority}.pem", f"{name}.pem", f"{name}.key")
  return TlsFiles(*(str(folder / n) for n in names))


@pytest.mark.parametrize(
  "address",
  ["tcp://127.0.0.1:8786", "tcp://localhost:1", "tcp://127.9.9.9:1", "tcp://[::1]:65535"],
)
def test_this_machine_is_reached_without_certificates(address):
  dask_cluster.check_address(address)


@pytest.mark.parametrize(
  "host",
  [
    "192.0.2.1",
    "0.0.0.0",
    "10.0.0.1",
    "[2001:db8::1]",
    "[::]",
    "[::ffff:192.0.2.1]",
    "scheduler",
    "localhost.example.org",
    "127.0.0.1.example.org",
  ],
)
@pytest.mark.parametrize("protocol", ["tcp", "ws", "ucx", "inproc"])
def test_networks_are_reached_by_tls_alone(host, protocol):
  with pytest.raises(tff_algos.InputError, match=r"several_machines\.md") as error:
    dask_cluster.check_address(f"{protocol}://{host}:8786")
  assert "TLS with certificates of both sides" in str(error.value)
  assert "\n" not in str(error.value)


@pytest.mark.parametrize("host", ["192.0.2.1", "[2001:db8::1]", "scheduler", "127.0.0.1"])
def test_tls_is_for_every_host_but_with_certificates(host, certificates):
  dask_cluster.check_address(f"tls://{host}:8786", _files(certificates))
  with pytest.raises(tff_algos.InputError, match=r"several_machines\.md") as error:
    dask_cluster.check_address(f"tls://{host}:8786")
  assert "\n" not in str(error.value)


@pytest.mark.parametrize(
  "address",
  [
    "",
    "scheduler",
    "127.0.0.1:8786",
    "tls://",
    "tls://host",
    "tls://host:",
    "tls://host:0",
    "tls://host:65536",
    "tls://host:12:34",
    "tls://2001:db8::1:8786",
    "tls://ho st:1",
    "tls://host:1\n",
    "tcp://user@127.0.0.1:1/x",
    "tcp://127.0.0.1:1,tcp://192.0.2.1:1",
  ],
)
def test_what_is_no_address_is_told_what_one_is_like(address):
  with pytest.raises(tff_algos.InputError, match="is like tls://host:8786"):
    dask_cluster.check_address(address)


@pytest.mark.parametrize(
  "address", ["http://127.0.0.1:8787", "https://trainer:8787/status"]
)
def test_what_is_a_browsers_address_is_told_which_one_is_meant(address):
  with pytest.raises(tff_algos.InputError, match="one that the scheduler's log has"):
    dask_cluster.check_address(address)


def test_a_client_of_ones_own_is_held_to_the_same():
  def client(address):
    return SimpleNamespace(scheduler=SimpleNamespace(address=address))

  for address in ("tls://192.0.2.1:1", "tcp://127.0.0.1:1", "inproc://192.0.2.1/7/1"):
    dask_cluster.check_client(client(address))
  with pytest.raises(tff_algos.InputError, match="use TLS"):
    tff_algos.create_runtime("dask", client=client("tcp://192.0.2.1:8786"))


# --- A scheduler with TLS ---------------------------------------------------------------


def _security(files: TlsFiles) -> Security:
  return Security(
    tls_ca_file=files.authority,
    require_encryption=True,
    **{
      f"tls_{role}_{what}": path
      for role in ("scheduler", "worker", "client")
      for what, path in (("cert", files.certificate), ("key", files.key))
    },
  )


@pytest.fixture(scope="module")
def scheduler(certificates):
  """The address of a scheduler with a worker, both threads here, with certificates."""
  with distributed.LocalCluster(
    n_workers=1,
    threads_per_worker=1,
    processes=False,
    host="127.0.0.1",
    protocol="tls://",
    security=_security(_files(certificates)),
    dashboard_address="127.0.0.1:0",
    silence_logs=60,
  ) as cluster:
    yield cluster.scheduler_address


def test_with_a_certificate_of_the_authority(scheduler, certificates):
  with tff_algos.create_runtime(
    "dask", scheduler=scheduler, tls=_files(certificates)
  ) as runtime:
    assert f"the scheduler {scheduler}, now 1 workers" in runtime.notice


@pytest.mark.parametrize(
  "name, authority",
  [("foreign", "other_ca"), ("foreign", "ca")],
  ids=["nothing shared", "knows the authority"],
)
def test_another_authoritys_certificate_is_refused(
  scheduler, certificates, monkeypatch, name, authority, capfd
):
  monkeypatch.setattr(dask_cluster, "_CONNECT_SECONDS", 3)
  files = _files(certificates, name, authority)
  with pytest.raises(tff_algos.WorkerLostError, match="certificate") as error:
    tff_algos.create_runtime("dask", scheduler=scheduler, tls=files)
  assert str(error.value).startswith(f"No Dask scheduler answers at {scheduler}")
  assert "\n" not in str(error.value)
  assert capfd.readouterr() == ("", "")


def test_an_impostors_scheduler_is_refused(certificates, monkeypatch):
  """One without a certificate of the authority that the client was given."""
  monkeypatch.setattr(dask_cluster, "_CONNECT_SECONDS", 3)
  with (
    distributed.LocalCluster(
      n_workers=0,
      processes=False,
      host="127.0.0.1",
      protocol="tls://",
      security=_security(_files(certificates, "foreign", "other_ca")),
      dashboard_address="127.0.0.1:0",
      silence_logs=60,
    ) as impostor,
    pytest.raises(tff_algos.WorkerLostError, match="certificate"),
  ):
    tff_algos.create_runtime(
      "dask", scheduler=impostor.scheduler_address, tls=_files(certificates)
    )


def _workers(scheduler, certificates) -> int:
  files = _files(certificates)
  with distributed.Client(
    scheduler, security=_security(files), set_as_default=False
  ) as client:
    return len(client.nthreads())


def _join(address: str, seconds: int = 2, **settings) -> int:
  """The scheduler's number of workers while one more tries to join."""

  async def join():
    async with distributed.Worker(
      address,
      nthreads=1,
      host="127.0.0.1",
      dashboard_address="127.0.0.1:0",
      death_timeout=seconds,
      **settings,
    ) as worker:
      return len((await worker.scheduler.identity())["workers"])

  return asyncio.run(join())


def test_a_worker_with_a_certificate_of_the_authority_joins(scheduler, certificates):
  before = _workers(scheduler, certificates)
  security = _security(_files(certificates))
  assert _join(scheduler, 60, security=security) == before + 1


@pytest.mark.parametrize(
  "files",
  [
    pytest.param(("foreign", "other_ca"), marks=pytest.mark.thorough),
    ("foreign", "ca"),
    pytest.param(None, marks=pytest.mark.thorough),
  ],
  ids=["nothing shared", "knows the authority", "no TLS"],
)
def test_a_worker_of_another_authority_does_not_join(scheduler, certificates, files):
  before = _workers(scheduler, certificates)
  settings, address = {}, scheduler.replace("tls://", "tcp://")
  if files is not None:
    settings, address = dict(security=_security(_files(certificates, *files))), scheduler
  with pytest.raises((OSError, TimeoutError, asyncio.TimeoutError)):
    _join(address, **settings)
  assert _workers(scheduler, certificates) == before


def _answer(address: str, sent: bytes) -> bytes:
  """What an address sends to who sends it bytes, until it closes or is silent."""
  host, port = address.split("://")[1].split(":")
  with socket.create_connection((host, int(port)), timeout=10) as connection:
    connection.sendall(sent)
    with contextlib.suppress(ConnectionResetError):
      return connection.recv(100)
  return b""


@pytest.mark.parametrize(
  "sent", [b"GET / HTTP/1.0\r\n\r\n", bytes(64), b"\x01" + bytes(7) + b"\x80" * 40]
)
def test_bytes_without_tls_get_at_most_an_alert(scheduler, sent):
  answer = _answer(scheduler, sent)
  assert answer == b"" or (answer[0], len(answer)) == (21, 7)  # RFC 8446, 5.1 and 6.


def test_a_connection_of_tls_without_a_certificate_is_refused(scheduler):
  _assert_asks_for_certificate(scheduler)


def _assert_asks_for_certificate(address: str) -> None:
  host, port = address.split("://")[1].split(":")
  context = ssl.create_default_context()
  context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
  # By TLS 1.3 a client learns only when it reads that it was refused.
  with (
    pytest.raises((ssl.SSLError, ConnectionError)),
    socket.create_connection((host, int(port)), timeout=10) as connection,
    context.wrap_socket(connection) as wrapped,
  ):
    wrapped.sendall(bytes(8))
    assert wrapped.recv(1) != b""
    pytest.fail("it was let in")


# --- The cluster on this machine --------------------------------------------------------


def _listening() -> set[tuple[str, int]]:
  """Where this process and its children listen."""
  us = psutil.Process()
  return {
    (connection.laddr.ip, connection.laddr.port)
    for process in (us, *us.children(recursive=True))
    for connection in process.net_connections("inet")
    if connection.status == psutil.CONN_LISTEN
  }


class Here(NamedTuple):
  """A cluster of two worker processes here, and where they and this process listen."""

  client: distributed.Client
  sockets: set[tuple[str, int]]


@pytest.fixture(scope="module")
def here():
  before = _listening()
  with contextlib.ExitStack() as stack:
    client, _ = dask_cluster.start(stack, 2)
    yield Here(client, _listening() - before)


def test_nothing_but_tls_with_certificates_listens_and_only_here(here):
  assert len(here.sockets) == 5  # A scheduler, and a nanny and a worker for each of two.
  assert {host for host, _ in here.sockets} == {"127.0.0.1"}
  for host, port in here.sockets:
    assert _answer(f"tls://{host}:{port}", b"GET / HTTP/1.0\r\n\r\n")[:4] != b"HTTP"
    _assert_asks_for_certificate(f"tls://{host}:{port}")


def test_another_program_of_this_machine_is_refused(here, certificates, monkeypatch):
  monkeypatch.setattr(dask_cluster, "_CONNECT_SECONDS", 2)
  address = here.client.scheduler.address
  for given in (address, address.replace("tls://", "tcp://")):
    tls = _files(certificates) if given.startswith("tls") else None
    with pytest.raises(tff_algos.WorkerLostError):
      tff_algos.create_runtime("dask", scheduler=given, tls=tls)
  assert len(here.client.nthreads()) == 2


def test_its_key_is_on_no_disk(here):
  """Dask keeps temporary certificates as text, which is not to be written anywhere."""
  security = here.client.cluster.security
  for role in ("scheduler", "worker", "client"):
    assert security.get_tls_config_for_role(role)["key"].startswith("-----BEGIN")


# --- Devices ----------------------------------------------------------------------------


def test_workers_without_gpus_see_what_this_program_sees():
  assert "CUDA_VISIBLE_DEVICES" not in dask_cluster.worker_environment(3, 0)


@pytest.mark.parametrize(
  "seen, expected",
  [(None, ["0", "1", "2", "0"]), ("5,2,7", ["5", "2", "7", "5"]), ("", list("0120"))],
)
def test_workers_take_the_gpus_that_are_seen_in_turn(monkeypatch, seen, expected):
  monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
  if seen is not None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", seen)
  found = [dask_cluster.worker_environment(i, 3) for i in range(4)]
  assert [variables["CUDA_VISIBLE_DEVICES"] for variables in found] == expected


_TWO_DEVICES = """
  import threading
  import tensorflow as tf

  cpu = tf.config.list_physical_devices("CPU")[0]
  two = [tf.config.LogicalDeviceConfiguration()] * 2
  tf.config.set_logical_device_configuration(cpu, two)

  from tff_algos.runtimes import dask_worker, in_process

  in_process._find_devices = lambda names: ["CPU:0", "CPU:1"]  # As of two GPUs.
  found = []

  def work():
    device = dask_worker._HERE.device
    with tf.device(device):
      found.append(tf.constant(1.0).device.rpartition("/device:")[2])
    assert dask_worker._HERE.device == device

  for _ in range(4):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
  print(*found)
"""


@pytest.mark.thorough
def test_threads_of_a_worker_take_its_devices_in_turn():
  done = subprocess.run(
    [sys.executable, "-c", textwrap.dedent(_TWO_DEVICES)],
    capture_output=True,
    text=True,
    timeout=120,
    env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
  )
  assert done.returncode == 0, done.stderr
  used = done.stdout.split()
  assert sorted(used) == ["CPU:0", "CPU:0", "CPU:1", "CPU:1"]
  assert used[:2] == used[2:]


_CHECK_AT_A_TERMINAL = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from tff_algos import InputError, TlsFiles
try:
  TlsFiles(*sys.argv[1:]).check()
except InputError as error:
  sys.exit(str(error))
"""


def test_a_key_with_a_password_is_refused_without_asking(certificates, tmp_path):
  """OpenSSL would ask at the terminal, in the midst of a program."""
  key, locked = str(certificates / "member.key"), str(tmp_path / "locked.key")
  options = ["-aes256", "-passout", "pass:secret", "-in", key, "-out", locked]
  subprocess.run(["openssl", "ec", *options], check=True, capture_output=True)
  files = [str(certificates / name) for name in ("ca.pem", "member.pem")]
  ours, its = os.openpty()
  try:
    done = subprocess.run(
      [sys.executable, "-c", _CHECK_AT_A_TERMINAL, *files, locked],
      stdin=its,
      capture_output=True,
      text=True,
      timeout=60,
      start_new_session=True,
    )
  finally:
    os.close(ours)
    os.close(its)
  assert done.returncode == 1 and "key without a password" in done.stderr
