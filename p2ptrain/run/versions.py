"""The versions of the protocol, and what manifests of earlier versions of p2ptrain may contain."""

from __future__ import annotations

from p2ptrain.errors import RemoteProtocolError, VersionMismatch

VERSION = 2
"""The version of the protocol between peers in new runs. A run's version never changes. A node can
take part in runs of all `VERSIONS`:
    1    learners earn votes, even in open runs
    2    in an open run only the founders vote"""

VERSIONS = (1, 2)

MERGE = "mean"
"""The value of `sync.merge` in every manifest. Earlier versions also allowed "rda". The field stays
in the manifest so that the format does not change (docs/decisions/023)."""


def check_version(version: object) -> None:
    """Raise VersionMismatch if this p2ptrain does not know `version`."""
    if type(version) is not int:
        raise RemoteProtocolError("a run manifest needs a version number")
    if version not in VERSIONS:
        newer = version > VERSION
        raise VersionMismatch(
            f"the run has version {version}; this p2ptrain supports versions {VERSIONS[0]} to "
            f"{VERSIONS[-1]}",
            likely="this p2ptrain is too old" if newer else "the run was made by an older version",
            do="upgrade p2ptrain" if newer else "use the p2ptrain that the run was made with",
        )


def without_merge(sync: object) -> object:
    """Return the map `sync` without its field `merge`. Raises VersionMismatch if `merge` is "rda",
    and RemoteProtocolError if it is any other value than `MERGE`."""
    if not isinstance(sync, dict):
        return sync
    rest = dict(sync)
    merge = rest.pop("merge", None)
    if merge == "rda":
        raise VersionMismatch(
            'the run averages with sync.merge = "rda", which this p2ptrain no longer supports',
            likely="the run was made by an older version",
            do="use the p2ptrain that the run was created with, or publish a new run without it",
        )
    if merge != MERGE:
        raise RemoteProtocolError(f"the run manifest's sync.merge is {str(merge)[:80]!r}")
    return rest
