"""A run describes itself for outsiders: optional parts of the manifest, shown and bounded."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from typing import Any

import pytest

from p2ptrain.config.run_file import RunFile, parse_run_file
from p2ptrain.config.samples import sample
from p2ptrain.encoding import pack, unpack
from p2ptrain.errors import ConfigError, RemoteProtocolError
from p2ptrain.identity import Identity
from p2ptrain.prepare.run_advice import lints_of
from p2ptrain.prepare.run_cost import costs_of
from p2ptrain.prepare.run_summary import run_facts, run_lines
from p2ptrain.run import Run, RunManifest
from p2ptrain.run.outside_facts import About, Public, SamplePrompts

ABOUT = About("Learns Danish 🇩🇰 from public law.", "Apache-2.0", "ann@example.org")
PUBLIC = Public(telemetry=True, names=True)
SAMPLES = SamplePrompts(("Loven siger", "§ 1."), 20)
PARTS = {"about", "public", "samples"}


def full(manifest: RunManifest) -> RunManifest:
    return replace(manifest, about=ABOUT, public=PUBLIC, samples=SAMPLES)


def tree(**tables: dict[str, Any]) -> dict[str, Any]:
    return {**tomllib.loads(sample("tiny")), **tables}


def test_old_manifests_keep_their_bytes_and_new_parts_return(
    manifest: RunManifest, organiser: Identity
) -> None:
    plain = unpack(manifest.to_payload(), bytes_max=1 << 20)
    assert isinstance(plain, dict)
    assert PARTS.isdisjoint(plain)
    assert RunManifest.from_payload(manifest.to_payload()) == manifest
    run = Run.publish(organiser, full(manifest))
    assert Run.from_bytes(run.to_bytes()) == run
    told = unpack(run.manifest.to_payload(), bytes_max=1 << 20)
    assert isinstance(told, dict)
    assert set(told) == set(plain) | PARTS


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("about", {"description": "", "licence": "", "contact": ""}),
        ("about", {"description": "a\nb", "licence": "", "contact": ""}),
        ("about", {"description": "", "licence": "\u202egpl", "contact": ""}),
        ("about", {"description": "x" * 501, "licence": "", "contact": ""}),
        ("about", {"description": "x"}),
        ("public", {"telemetry": False, "weights": False, "names": False}),
        ("public", {"telemetry": 1, "weights": False, "names": False}),
        ("samples", {"prompts": [], "every": 10}),
        ("samples", {"prompts": ["\x1b[2J"], "every": 10}),
        ("samples", {"prompts": [""], "every": 10}),
        ("samples", {"prompts": ["x"] * 9, "every": 10}),
        ("samples", {"prompts": [3], "every": 10}),
        ("samples", {"prompts": ["x"], "every": 0}),
        ("samples", {"prompts": ["x"], "every": True}),
    ],
)
def test_unprintable_long_or_empty_parts_are_refused(
    manifest: RunManifest, part: str, value: dict[str, object]
) -> None:
    plain = unpack(manifest.to_payload(), bytes_max=1 << 20)
    assert isinstance(plain, dict)
    with pytest.raises(RemoteProtocolError, match=part):
        RunManifest.from_payload(pack({**plain, part: value}))


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"about": {"contact": "a\tb"}}, "about.contact: it should be one line of printable"),
        ({"about": {"licence": "x" * 101}}, "about.licence"),
        ({"about": {"license": "MIT"}}, "did you mean licence?"),
        ({"public": {"weights": 1}}, "public.weights"),
        ({"samples": {"prompts": ["a\nb"]}}, "samples.prompts.0: it should be one line"),
        ({"samples": {"prompts": ["x" * 201]}}, "samples.prompts.0"),
        ({"samples": {"every": 0}}, "samples.every"),
    ],
)
def test_run_file_names_the_wrong_setting(table: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_run_file(tree(**table))
    assert said in caught.value.what


def lints(run: RunFile) -> list[tuple[str, bool]]:
    named = ("about", "public", "samples")
    found = lints_of(run, costs_of(run, [2]), founders=4)
    return [(each.field, each.is_fault) for each in found if each.field.startswith(named)]


def test_check_warns_of_settings_that_have_no_effect() -> None:
    licence: dict[str, Any] = {"licence": "MIT"}
    assert lints(parse_run_file(tree())) == []
    assert lints(parse_run_file(tree(public={"names": True}))) == [("public.names", False)]
    secret = parse_run_file(tree(about=licence, public={"weights": True}))
    assert lints(secret) == [("public.weights", True)]
    shown = parse_run_file(tree(public={"weights": True, "telemetry": True, "names": True}))
    assert lints(shown) == [("about.licence", False)]
    assert lints(parse_run_file(tree(public={"telemetry": True}))) == [("public.telemetry", False)]
    rare = parse_run_file(tree(samples={"prompts": ["x"], "every": 1000}))
    assert lints(rare) == [("samples.every", False)]


def test_show_and_consent_screen_print_what_the_organiser_says(
    manifest: RunManifest, organiser: Identity
) -> None:
    run = Run.publish(organiser, full(manifest))
    lines = run_lines(run)
    assert "about     Learns Danish 🇩🇰 from public law." in lines
    assert "licence   Apache-2.0" in lines
    assert "contact   ann@example.org" in lines
    assert (
        "public    people who are not admitted may see the ledger and the loss, the names of the "
        "peers in reports"
    ) in lines
    assert lines[-3:] == [
        "samples   every 20 outer steps, a member lets the model continue 2 texts and publishes "
        "the result:",
        "          Loven siger",
        "          § 1.",
    ]
    before = run_lines(Run.publish(organiser, manifest))
    assert not any(line.startswith(("about", "licence", "public", "samples")) for line in before)
    everybody = replace(manifest, admission="open")
    told = run_lines(Run.publish(organiser, everybody))
    assert told[-1] == "public    everything: in an open run, every peer is admitted"
    facts = run_facts(run)
    assert facts["public"] == {"telemetry": True, "weights": False, "names": True}
    assert facts["samples"] == {"prompts": ["Loven siger", "§ 1."], "every": 20}


def test_samples_are_due_at_multiples_but_not_at_the_first_weights() -> None:
    assert [step for step in range(61) if SAMPLES.is_due(step)] == [20, 40, 60]
    assert not any(map(SamplePrompts().is_due, range(61)))
