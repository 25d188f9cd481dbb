"""The manifest says whether contributions are claims. Runs of earlier versions have none."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from typing import Any

import pytest

from p2ptrain.archive.ledger_on_disk import rules_of
from p2ptrain.config.run_file import RunFile, parse_run_file
from p2ptrain.config.samples import sample, sample_names
from p2ptrain.encoding import pack, unpack
from p2ptrain.errors import ConfigError, RemoteProtocolError
from p2ptrain.identity import Identity
from p2ptrain.prepare.run_advice import lints_of
from p2ptrain.prepare.run_cost import costs_of
from p2ptrain.prepare.run_summary import run_facts, run_lines
from p2ptrain.run import Run, RunManifest
from p2ptrain.run.trust_rules import TrustRules

CLAIMS = TrustRules(claims=True)
NONE = TrustRules()


def parsed(**tables: dict[str, Any]) -> RunFile:
    return parse_run_file({**tomllib.loads(sample("tiny")), **tables})


def lints(run: RunFile) -> list[str]:
    found = lints_of(run, costs_of(run, [2]), founders=4)
    return [each.words for each in found if each.field == "trust.claims"]


def test_old_manifest_has_no_claims_and_keeps_its_bytes(
    manifest: RunManifest, organiser: Identity
) -> None:
    manifest = replace(manifest, trust=NONE)
    plain = unpack(manifest.to_payload(), bytes_max=1 << 20)
    assert isinstance(plain, dict)
    assert "trust" not in plain
    assert not rules_of(Run.publish(organiser, manifest)).claims
    run = Run.publish(organiser, replace(manifest, trust=CLAIMS))
    assert Run.from_bytes(run.to_bytes()) == run
    assert unpack(run.manifest.to_payload(), bytes_max=1 << 20) == plain | {
        "trust": {"claims": True}
    }
    assert rules_of(run).claims


def test_manifest_says_whether_auditors_check_claims(
    manifest: RunManifest, organiser: Identity
) -> None:
    assert not rules_of(Run.publish(organiser, replace(manifest, trust=CLAIMS))).audits
    rules = replace(CLAIMS, audits=True, links_one_in=8)
    run = Run.publish(organiser, replace(manifest, trust=rules))
    plain = unpack(run.manifest.to_payload(), bytes_max=1 << 20)
    assert isinstance(plain, dict)
    assert plain["trust"] == {"claims": True, "audits": True, "links_one_in": 8}
    assert Run.from_bytes(run.to_bytes()) == run
    assert rules_of(run).audits


@pytest.mark.parametrize(
    "value",
    [
        *({"claims": False}, {"claims": 1}, {}, {"claims": True, "x": 1}),
        {"claims": True, "audits": False},
        {"claims": True, "audits": 1},
        {"claims": False, "audits": True},
        {"claims": True, "audits": True, "links_one_in": 16},
        {"claims": True, "audits": True, "links_one_in": 0},
        {"claims": True, "audits": True, "outcomes_one_in": True},
    ],
)
def test_manifest_with_malformed_trust_is_refused(manifest: RunManifest, value: object) -> None:
    plain = unpack(manifest.to_payload(), bytes_max=1 << 20)
    assert isinstance(plain, dict)
    with pytest.raises(RemoteProtocolError):
        RunManifest.from_payload(pack(plain | {"trust": value}))


def test_claims_are_on_unless_the_run_file_or_error_feedback_says_otherwise() -> None:
    feedback = {"name": "int8", "feedback": True}
    off = parsed(trust={"claims": False})
    assert [each.has_claims for each in (parsed(), off, parsed(codec=feedback))] == [
        True,
        False,
        False,
    ]
    assert all(parse_run_file(tomllib.loads(sample(name))).has_claims for name in sample_names())
    with pytest.raises(ConfigError, match="others could not recompute the update"):
        parsed(codec=feedback, trust={"claims": True})
    assert lints(parsed()) == []
    assert len(lints(off)) == 1
    assert "because codec.feedback is true" in lints(parsed(codec=feedback))[0]


@pytest.mark.parametrize(
    ("tables", "peers", "fields"),
    [
        ({}, 4, []),
        ({"codec": {"name": "int4"}}, 2, []),
        ({"codec": {"name": "int4"}}, 4, ["codec.name"]),
        ({"codec": {"name": "int8"}}, 24, ["codec.name"]),
        ({"codec": {"name": "int4"}, "trust": {"claims": False}}, 4, []),
        ({"sync": {"fragments": 2}}, 4, ["sync"]),
    ],
)
def test_run_check_says_which_rules_about_contributions_do_not_apply(
    tables: dict[str, Any], peers: int, fields: list[str]
) -> None:
    run = parsed(**tables)
    found = lints_of(run, costs_of(run, [peers]), founders=4)
    assert [
        each.field
        for each in found
        if "contribution" in each.words and each.field != "trust.claims"
    ] == fields


def test_manifest_with_claims_and_error_feedback_is_refused(manifest: RunManifest) -> None:
    with pytest.raises(ValueError, match=r"trust\.claims"):
        replace(manifest, codec=replace(manifest.codec, feedback=True), trust=CLAIMS)


def test_show_says_whether_updates_can_be_recomputed(
    manifest: RunManifest, organiser: Identity
) -> None:
    without = Run.publish(organiser, replace(manifest, trust=NONE))
    run = Run.publish(organiser, replace(manifest, trust=CLAIMS))
    assert [run_facts(each)["claims"] for each in (without, run)] == [False, True]
    said = [line for line in run_lines(run) if line.startswith("trust")]
    assert said == [
        "trust     contributions are signed claims: anybody can recompute the updates from them"
    ]
