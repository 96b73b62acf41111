"""The certificates of one side of a connection."""

from __future__ import annotations

import os
import ssl
from typing import NamedTuple

from tff_algos.errors import InputError


class TlsFiles(NamedTuple):
  """The paths of what one side of a connection needs, in PEM format.

  Attributes:
    authority: The certificate of the authority that has signed both sides'.
    certificate: Its own certificate, and those between it and the authority's, if any.
    key: The private key of that, without a password.
  """

  authority: str
  certificate: str
  key: str

  def check(self) -> None:
    """Reads the files.

    Raises:
      InputError: A file is missing, is not what it should be, or the key is another's.
    """
    for name, path in self._asdict().items():
      # A number would be a file that is open.
      if not isinstance(path, (str, os.PathLike)):
        raise InputError(f"TlsFiles.{name} must be a file's path; found {path!r}.")
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
