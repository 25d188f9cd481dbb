"""The manifest: its digest identifies the run, and invalid values are refused."""

from __future__ import annotations

import dataclasses
import tomllib
from typing import Any, get_args

import pytest
from blake3 import blake3

from p2ptrain import kernels
from p2ptrain.archive.ledger_on_disk import rules_of
from p2ptrain.config.run_file import PARAMETERS_MAX, RunFile, parse_run_file
from p2ptrain.config.samples import sample
from p2ptrain.encoding import pack, unpack
from p2ptrain.errors import ConfigError, RemoteProtocolError, VersionMismatch
from p2ptrain.identity import Identity
from p2ptrain.ids import Digest
from p2ptrain.run import Run, RunManifest, Signed
from p2ptrain.run import manifest as manifests
from p2ptrain.run.draft import DraftedRun, draft_manifest
from p2ptrain.run.manifest import BLOCK_MAX, BLOCK_MIN, CodecName, CodecSpec
from p2ptrain.run.trust_rules import TrustRules
from p2ptrain.state import layout
from tests.run.conftest import MADE


def test_run_survives_encoding_and_its_id_is_the_manifests_digest(run: Run) -> None:
    again = Run.from_bytes(run.to_bytes())
    assert again == run
    assert again.id == blake3(run.manifest.to_payload()).hexdigest()


def test_manifest_keeps_every_field(manifest: RunManifest) -> None:
    marked = dataclasses.replace(manifest.data, document_token=4)
    for each in (manifest, dataclasses.replace(manifest, data=marked)):
        assert RunManifest.from_payload(each.to_payload()) == each


def test_equal_manifests_are_one_run_and_any_change_makes_a_different_run(
    organiser: Identity, run: Run
) -> None:
    again = Run.publish(organiser, dataclasses.replace(run.manifest))
    later = Run.publish(organiser, dataclasses.replace(run.manifest, created_unix=1))
    assert again.id == run.id
    assert later.id != run.id


def test_manifest_has_the_values_of_the_file(run_file: RunFile, manifest: RunManifest) -> None:
    assert manifest.name == "tiny"
    assert manifest.model.width == run_file.model.width
    assert manifest.inner.total_steps == run_file.inner.steps * run_file.outer.steps
    assert manifest.blocks_per_lease == run_file.inner.steps
    assert manifest.data.block_tokens == run_file.inner.batch_sequences * run_file.model.sequence
    assert manifest.policy.quorum == "majority"
    assert manifest.encrypted
    assert (manifest.codec.name, manifest.codec.block) == ("int8", 256)
    assert (manifest.genesis, manifest.layout) == (MADE.genesis, MADE.layout)


def test_manifest_signed_by_a_stranger_is_refused(run: Run, stranger: Identity) -> None:
    forged = Signed.by(stranger, "manifest", run.signed.payload)
    with pytest.raises(RemoteProtocolError) as caught:
        Run.from_bytes(forged.to_bytes())
    assert caught.value.code == "SIGNATURE"
    assert "names" in caught.value.what
    assert "but is signed by" in caught.value.what


@pytest.mark.parametrize("kept", [0, 1, 100, 500, -1])
def test_truncated_manifest_is_refused(run: Run, kept: int) -> None:
    with pytest.raises(RemoteProtocolError):
        Run.from_bytes(run.to_bytes()[:kept])


HOSTILE: list[tuple[str, Any]] = [
    ("name", "Über"),
    ("name", 7),
    ("name", "a" * 41),
    ("organiser", "nobody"),
    ("created_unix", -1),
    ("created_unix", True),
    ("tokenizer", "11"),
    ("genesis", "Z" * 64),
    ("founders", []),
    ("founders", [{}]),
    ("founders", ["x", "x"]),
    ("founders", "all"),
    ("admission", "everybody"),
    ("sync", None),
    ("sync.fragments", 0),
    ("sync.fragments", 2**62),
    ("sync.fragments", 3),
    ("sync.overlap_steps", 2**40),
    ("sync.overlap_steps", -1),
    ("sync.mixing", 0.5),
    ("sync.merge", "sum"),
    ("sync.eager", True),
    ("sync.eager", 1),
    ("model", None),
    ("model", []),
    ("model.width", 0),
    ("model.width", -32),
    ("model.width", 2**62),
    ("model.heads", 0),
    ("model.heads", 5),
    ("model.layers", 2**40),
    ("model.layers", "2"),
    ("model.layers", True),
    ("model.sequence", 2**40),
    ("model.rope_base", "x"),
    ("model.tied", 1),
    ("model.extra", 1),
    ("inner.lr", -1.0),
    ("inner.lr", None),
    ("inner.betas", [0.9]),
    ("inner.betas", ["a", "b"]),
    ("inner.betas", "ab"),
    ("inner.schedule", "step"),
    ("inner.steps", 101),
    ("inner.warmup_steps", 10**9),
    ("data.train_blocks", 0),
    ("data.index", "22"),
    ("data.block_tokens", 1),
    ("data.document_token", -1),
    ("data.document_token", 512),
    ("data.document_token", "4"),
    ("data.document_token", False),
    ("outer.lr", 0),
    ("outer.momentum", 1.5),
    ("outer.steps", 0),
    ("outer.steps", 2**60),
    ("codec.name", "zip"),
    ("codec.block", 1),
    ("policy.quorum", "all"),
    ("policy.quorum_loss", "vote"),
    ("policy.branch_after_s", 0.5),
    ("policy.influence_max", 0.0),
    ("policy.influence_max", 1e35),
    ("policy.grace_s", 1e18),
    ("policy.encryption", "rot13"),
    ("policy.round_timeout_s", 0.0),
    ("policy.attempts_max", 0),
    ("policy.snapshot_every", 0),
]


@pytest.mark.parametrize(("where", "value"), HOSTILE, ids=[f"{w}={v!s:.12}" for w, v in HOSTILE])
def test_refusal_of_a_hostile_manifest_names_the_faulty_section(
    organiser: Identity, run: Run, where: str, value: object
) -> None:
    tree = unpack(run.signed.payload, bytes_max=1 << 20)
    assert isinstance(tree, dict)
    section, _, name = where.partition(".")
    if name:
        tree[section][name] = value
    else:
        tree[section] = value
    signed = Signed.by(organiser, "manifest", pack(tree))
    with pytest.raises(RemoteProtocolError) as caught:
        Run.from_bytes(signed.to_bytes())
    assert section in caught.value.what


@pytest.mark.parametrize("section", ["model", "name", "policy", "founders", "version"])
def test_incomplete_manifest_is_refused(organiser: Identity, run: Run, section: str) -> None:
    tree = unpack(run.signed.payload, bytes_max=1 << 20)
    assert isinstance(tree, dict)
    del tree[section]
    with pytest.raises(RemoteProtocolError):
        Run.from_bytes(Signed.by(organiser, "manifest", pack(tree)).to_bytes())


@pytest.mark.parametrize(("version", "do"), [(3, "upgrade"), (0, "use the p2ptrain")])
def test_error_for_an_unsupported_version_says_what_to_do(
    organiser: Identity, version: int, do: str
) -> None:
    payload = pack({"version": version, "shape": "unknown to us"})
    with pytest.raises(VersionMismatch) as caught:
        Run.from_bytes(Signed.by(organiser, "manifest", payload).to_bytes())
    assert caught.value.exit_code == 7
    assert caught.value.do.startswith(do)


def test_run_of_version_1_loads_and_keeps_its_rules(organiser: Identity, run: Run) -> None:
    for version, admission, founders_vote in (
        (1, "open", False),
        (1, "allowlist", False),
        (2, "open", True),
        (2, "allowlist", False),
    ):
        tree = unpack(run.signed.payload, bytes_max=1 << 20)
        assert isinstance(tree, dict)
        tree |= {"version": version, "admission": admission}
        loaded = Run.from_bytes(Signed.by(organiser, "manifest", pack(tree)).to_bytes())
        assert loaded.manifest.version == version
        assert loaded.manifest.founders_vote is founders_vote
        assert rules_of(loaded).founders_vote is founders_vote
    assert run.manifest.version == 2, "new runs use the new rules"


def test_too_little_data_for_an_outer_step_is_reported_before_signing(
    run_file: RunFile, organiser: Identity
) -> None:
    little: DraftedRun = dataclasses.replace(MADE, train_blocks=1, index=Digest("55" * 32))
    with pytest.raises(ConfigError) as caught:
        draft_manifest(
            run_file, little, organiser=organiser.peer, founders=[organiser.peer], created_unix=0
        )
    assert "the data fill 1 training block, but" in caught.value.what


def test_largest_values_of_a_run_file_can_be_published(organiser: Identity) -> None:
    """Packing the data takes long and comes before publication, so invalid values must be reported
    when the run file is parsed."""
    tree = tomllib.loads(sample("tiny"))
    tree["outer"] |= {"lr": 100, "steps": 10_000_000}
    tree["inner"] |= {"lr": 0.999e9, "batch_sequences": 65_536, "steps": 100}
    most: dict[str, float] = {"grace_s": 86_400, "patience_s": 86_400, "round_timeout_s": 86_400}
    most |= {"influence_max": 0.999e9, "attempts_max": 100, "participants_min": 10_000}
    for policy in (most, {"grace_s": 0, "patience_s": 0, "round_timeout_s": 0.01}):
        draft_manifest(
            parse_run_file(tree | {"policy": policy}),
            MADE,
            organiser=organiser.peer,
            founders=[organiser.peer],
            created_unix=0,
        )
    assert PARAMETERS_MAX == manifests.PARAMETERS_MAX == layout.NUMEL_MAX


def test_founder_listed_twice_is_a_configuration_error(
    run_file: RunFile, organiser: Identity
) -> None:
    with pytest.raises(ConfigError, match="founders"):
        draft_manifest(
            run_file, MADE, organiser=organiser.peer, founders=[organiser.peer] * 2, created_unix=0
        )


def test_run_with_a_different_codec_survives_encoding(organiser: Identity, run: Run) -> None:
    for spec in (CodecSpec("int4", 64, feedback=True), CodecSpec("fp16", 4096)):
        plain = dataclasses.replace(run.manifest, codec=spec, trust=TrustRules())
        made = Run.publish(organiser, plain)
        assert Run.from_bytes(made.to_bytes()).manifest.codec == spec


def test_manifest_allows_the_codecs_that_the_kernels_have() -> None:
    assert get_args(CodecName) == kernels.CODECS
    assert BLOCK_MAX == kernels.BLOCK_MAX
    for name in kernels.CODECS:
        for block in (BLOCK_MIN, BLOCK_MAX):
            spec = CodecSpec(name, block)
            assert kernels.codec(spec.name, spec.block).block == block
    with pytest.raises(ValueError):
        CodecSpec("int8", BLOCK_MAX + 1)
