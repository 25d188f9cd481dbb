"""Join requests, the data index, and documents on disk."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from p2ptrain.encoding import pack, unpack
from p2ptrain.errors import ConfigError, ManifestInvalid, RemoteProtocolError, VersionMismatch
from p2ptrain.identity import Identity
from p2ptrain.ids import Digest
from p2ptrain.run import (
    Allowlist,
    DataIndex,
    JoinRequest,
    Run,
    Signed,
    SignedAllowlist,
    load_allowlist,
    load_run,
    save_allowlist,
    save_run,
)


def test_join_request_survives_encoding(run: Run, stranger: Identity) -> None:
    request = JoinRequest(run.id, stranger.peer, 1_790_000_000, "two GPUs, nights only")
    assert JoinRequest.from_bytes(request.to_bytes(stranger)) == request


@pytest.mark.parametrize("note", ["", "Ada {two H100s}", "x" * 80, "\U0001f600" * 80, "a = {b=C}"])
def test_device_and_reach_travel_in_a_request(run: Run, stranger: Identity, note: str) -> None:
    request = JoinRequest(run.id, stranger.peer, 1, note, device="cuda", reach="private")
    assert JoinRequest.from_bytes(request.to_bytes(stranger)) == request


def test_earlier_versions_read_device_and_reach_in_the_note(run: Run, stranger: Identity) -> None:
    """Earlier versions refuse a request with a further field, and show the note."""
    request = JoinRequest(run.id, stranger.peer, 1, "Ada", device="cpu", reach="public")
    signed = Signed.from_bytes(request.to_bytes(stranger), kind="join-request")
    assert unpack(signed.payload, bytes_max=2048) == {
        "run": run.id,
        "peer": stranger.peer,
        "created_unix": 1,
        "note": "Ada {device=cpu reach=public}",
    }


def test_request_of_an_earlier_version_states_nothing(run: Run, stranger: Identity) -> None:
    payload = pack({"run": run.id, "peer": stranger.peer, "created_unix": 1, "note": "Ada"})
    read = JoinRequest.from_bytes(Signed.by(stranger, "join-request", payload).to_bytes())
    assert read == JoinRequest(run.id, stranger.peer, 1, "Ada")


def test_facts_that_this_version_does_not_know_are_skipped(run: Run, stranger: Identity) -> None:
    note = "Ada {colour=red device=cpu memory=large}"
    payload = pack({"run": run.id, "peer": stranger.peer, "created_unix": 1, "note": note})
    read = JoinRequest.from_bytes(Signed.by(stranger, "join-request", payload).to_bytes())
    assert read == JoinRequest(run.id, stranger.peer, 1, "Ada", device="cpu")


def test_long_note_leaves_no_room_for_facts(run: Run, stranger: Identity) -> None:
    request = JoinRequest(run.id, stranger.peer, 1, "x" * 200, device="cpu", reach="public")
    read = JoinRequest.from_bytes(request.to_bytes(stranger))
    assert (read.note, read.device, read.reach) == ("x" * 200, "", "")
    with pytest.raises(ValueError, match="not a word"):
        JoinRequest(run.id, stranger.peer, 1, device="two words")


def test_peer_cannot_request_admission_of_a_different_peer(
    run: Run, organiser: Identity, stranger: Identity
) -> None:
    payload = pack({"run": run.id, "peer": organiser.peer, "created_unix": 1, "note": ""})
    with pytest.raises(RemoteProtocolError, match="not signed by the peer"):
        JoinRequest.from_bytes(Signed.by(stranger, "join-request", payload).to_bytes())


@pytest.mark.parametrize(
    "changes",
    [
        {"run": "x"},
        {"note": "a\nb"},
        {"note": "x" * 201},
        {"created_unix": -1},
        {"x": 1},
        {"device": "cpu"},
        {"note": 1},
        {"note": "x" * 190 + " {device=cpu}"},
    ],
)
def test_malformed_join_request_is_refused(
    run: Run, stranger: Identity, changes: dict[str, object]
) -> None:
    value = {"run": run.id, "peer": stranger.peer, "created_unix": 1, "note": ""} | changes
    with pytest.raises(RemoteProtocolError):
        JoinRequest.from_bytes(Signed.by(stranger, "join-request", pack(value)).to_bytes())


def test_length_of_a_join_request_is_bounded() -> None:
    with pytest.raises(RemoteProtocolError, match="too long"):
        JoinRequest.from_bytes(b"\0" * 2049)


INDEX = DataIndex(
    tuple(Digest(f"{number:064x}") for number in range(3)), (Digest("ff" * 32), Digest("ee" * 32))
)


def test_index_survives_encoding() -> None:
    again = DataIndex.from_bytes(INDEX.to_bytes(), train_blocks=3, validation_blocks=2)
    assert again == INDEX


@pytest.mark.parametrize(("train", "validation"), [(3, 1), (4, 2), (0, 0), (2**40, 2)])
def test_index_that_does_not_fit_the_manifest_is_refused(train: int, validation: int) -> None:
    with pytest.raises(ManifestInvalid):
        DataIndex.from_bytes(INDEX.to_bytes(), train_blocks=train, validation_blocks=validation)


def test_run_and_its_allowlist_are_kept_on_disk(
    tmp_path: Path, run: Run, organiser: Identity
) -> None:
    run_path, list_path = (
        tmp_path / "run" / "manifest.signed",
        tmp_path / "run" / "allowlist.signed",
    )
    assert load_run(run_path) is None
    assert load_allowlist(list_path, run) is None
    first = SignedAllowlist.publish(organiser, Allowlist.of(run.id, 1, [organiser.peer]))
    second = SignedAllowlist.publish(organiser, first.allowlist.without_peer(organiser.peer))
    save_run(run_path, run)
    save_allowlist(list_path, first)
    save_allowlist(list_path, second)
    assert load_run(run_path) == run
    assert load_allowlist(list_path, run) == second
    assert sorted(path.name for path in run_path.parent.iterdir()) == [
        "allowlist.signed",
        "manifest.signed",
    ]


@pytest.mark.parametrize("data", [b"", b"junk", b"\x84", b"\0" * 2_000_000])
def test_damaged_file_is_reported_as_a_local_error(tmp_path: Path, run: Run, data: bytes) -> None:
    path = tmp_path / "manifest.signed"
    path.write_bytes(data)
    for load in (load_run, lambda path: load_allowlist(path, run)):
        with pytest.raises(ConfigError) as caught:
            load(path)
        assert caught.value.what.startswith(f"{path} is not the expected document")
        assert caught.value.code == "RUN-FILE"
        assert str(path) in caught.value.do


def test_allowlist_of_a_different_run_on_disk_is_reported(
    tmp_path: Path, run: Run, organiser: Identity
) -> None:
    other = Run.publish(organiser, dataclasses.replace(run.manifest, name="other"))
    path = tmp_path / "allowlist.signed"
    save_allowlist(path, SignedAllowlist.publish(organiser, Allowlist.of(other.id, 1, [])))
    with pytest.raises(ConfigError) as caught:
        load_allowlist(path, run)
    assert caught.value.evidence == (f"it is for run {other.id}", f"this is run {run.id}")


def test_run_of_a_different_version_on_disk_is_reported(
    tmp_path: Path, organiser: Identity
) -> None:
    path = tmp_path / "manifest.signed"
    path.write_bytes(Signed.by(organiser, "manifest", pack({"version": 3})).to_bytes())
    with pytest.raises(VersionMismatch):
        load_run(path)
