"""H, the number of inner steps between two averages, has a maximum. With every H that a run file
accepts, a member's blocks fit into one frame after any number of skipped outer steps. A larger H
can be neither published nor set by an amendment."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from typing import Any

import pytest

from p2ptrain.config import run_file as settings
from p2ptrain.config.run_file import parse_run_file
from p2ptrain.config.samples import sample
from p2ptrain.encoding import pack, unpack
from p2ptrain.errors import ConfigError, RemoteProtocolError
from p2ptrain.identity import Identity
from p2ptrain.ids import PeerId
from p2ptrain.ipc import frames
from p2ptrain.ipc.wire import FRAME_BYTES_MAX, FrameReader, encode
from p2ptrain.ledger.chain import leases
from p2ptrain.ledger.chain.leases import LEASES_HELD_MAX, Leases
from p2ptrain.run import Amendment, Run, RunManifest, SignedAmendment
from p2ptrain.run.manifest import LEASE_BLOCKS_MAX
from p2ptrain.sync import SyncSpec
from p2ptrain.trainer.host.rank_server import PATHS_MAX

ME = PeerId("me")
MANY_BLOCKS = 10**6
USUAL_PATH = "/" + 128 * "x"


def tree_with(steps: int, **sync: int) -> dict[str, object]:
    """Return the tiny run's tables, with a different H."""
    tree = tomllib.loads(sample("tiny"))
    tree["inner"]["steps"] = steps
    return {**tree, "sync": sync}


def with_blocks(manifest: RunManifest, steps: int, sync: SyncSpec) -> RunManifest:
    return replace(
        manifest,
        data=replace(manifest.data, train_blocks=MANY_BLOCKS),
        inner=replace(manifest.inner, steps=steps),
        sync=sync,
    )


def test_blocks_of_the_longest_leases_fit_into_frames_after_many_skips() -> None:
    run_file = parse_run_file(tree_with(LEASE_BLOCKS_MAX))
    book = leases.top_up(Leases({}), [ME], run_file.inner.steps)
    for _ in range(LEASES_HELD_MAX + 1):
        book = leases.extend(book, [ME], run_file.inner.steps)
    paths = (USUAL_PATH,) * len(book.held[ME])
    assert len(paths) == frames.BLOCKS_MAX <= PATHS_MAX
    for frame in (frames.Train(9, paths, 0), frames.FragmentReady(9, 1, paths, 2.0)):
        assert FrameReader().feed(encode(frame)) == [frame]
        with pytest.raises(ValueError, match="at most 16384 paths"):
            replace(frame, block_paths=(*paths, USUAL_PATH))


@pytest.mark.parametrize("letter", ["x", "ü"])
def test_frame_with_the_maximum_number_of_longest_paths_fits(letter: str) -> None:
    longest = letter * (frames.PATH_BYTES_MAX // len(letter.encode()))
    none, one = (
        len(encode(frames.Train(2**53, paths, 2**53, True, 1.0, 1e9, 0.9)))
        for paths in ((), (longest,))
    )
    assert none + frames.BLOCKS_MAX * (one - none) <= FRAME_BYTES_MAX
    with pytest.raises(ValueError, match="at most 4096 bytes"):
        frames.Train(0, (longest + letter,), 0)


@pytest.mark.parametrize(
    ("steps", "sync"),
    [
        (LEASE_BLOCKS_MAX, {}),
        (2 * LEASE_BLOCKS_MAX, {"fragments": 2}),
        (LEASE_BLOCKS_MAX // 2, {"overlap_steps": LEASE_BLOCKS_MAX // 2}),
        (LEASE_BLOCKS_MAX - 10, {"overlap_steps": 10}),
    ],
)
def test_one_more_inner_step_is_refused_everywhere(
    steps: int, sync: dict[str, Any], manifest: RunManifest, organiser: Identity
) -> None:
    assert settings.LEASE_BLOCKS_MAX == LEASE_BLOCKS_MAX
    parse_run_file(tree_with(steps, **sync))
    longest = with_blocks(manifest, steps, SyncSpec(**sync))
    assert longest.blocks_per_lease == LEASE_BLOCKS_MAX
    longer = steps + sync.get("fragments", 1)

    with pytest.raises(ConfigError) as refused:
        parse_run_file(tree_with(longer, **sync), name="my.toml")
    assert refused.value.what.startswith(f"my.toml: inner.steps {longer} is too large: ")
    assert "is 4097, but the maximum is 4096; choose fewer steps" in refused.value.what

    too_long = rf"inner\.steps {longer} ÷ .* is 4097 data blocks; .* at most 4096"
    with pytest.raises(ValueError, match=too_long):
        replace(longest, inner=replace(longest.inner, steps=longer))
    run = Run.publish(organiser, longest)
    with pytest.raises(ValueError, match=too_long):
        SignedAmendment.publish(organiser, Amendment(run.id, 1, 2, inner_steps=longer), run)


def test_signed_manifest_with_longer_leases_is_refused(
    manifest: RunManifest,
) -> None:
    """A peer that runs modified code may publish such a manifest."""
    longest = with_blocks(manifest, LEASE_BLOCKS_MAX, SyncSpec()).to_payload()
    value: Any = unpack(longest, bytes_max=len(longest))
    value["inner"]["steps"] += 1
    payload = pack(value)
    with pytest.raises(RemoteProtocolError, match=r"the run manifest's inner\.steps 4097 ÷ "):
        RunManifest.from_payload(payload)
