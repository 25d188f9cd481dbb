"""Read the certificate in an exported folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from p2ptrain.errors import ConfigError, RemoteProtocolError

if TYPE_CHECKING:
    from p2ptrain.export.certificate import WeightsCertificate


def certificate_in(folder: Path) -> WeightsCertificate:
    """Return the certificate of the weights in `folder`, not verified.

    Raises ConfigError (PROOF-UNCERTIFIED): the folder has none, or it is damaged.
    """
    from p2ptrain.export.certificate import FILE_BYTES_MAX, FILE_NAME, WeightsCertificate

    try:
        with (folder / FILE_NAME).open("rb") as file:
            return WeightsCertificate.from_bytes(file.read(FILE_BYTES_MAX + 1))
    except OSError as exc:
        raise ConfigError(
            f"{folder} has no {FILE_NAME}, so nothing certifies its weights",
            code="PROOF-UNCERTIFIED",
            likely="an earlier version exported them, or no ledger entry names them",
            do="export a certified snapshot: p2ptrain export --to hf DIR",
        ) from exc
    except RemoteProtocolError as exc:
        raise ConfigError(
            f"{folder / FILE_NAME} is damaged: {exc.what}",
            code="PROOF-UNCERTIFIED",
            do="export the weights again: p2ptrain export --to hf DIR",
        ) from exc
