"""Fixtures: a small run, its organiser, and a stranger."""

from __future__ import annotations

import tomllib

import pytest

from p2ptrain.config.run_file import RunFile, parse_run_file
from p2ptrain.config.samples import sample
from p2ptrain.identity import Identity
from p2ptrain.ids import Digest
from p2ptrain.run import Run, RunManifest
from p2ptrain.run.draft import DraftedRun, draft_manifest

MADE = DraftedRun(
    tokenizer=Digest("11" * 32),
    index=Digest("22" * 32),
    train_blocks=100,
    validation_blocks=2,
    genesis=Digest("33" * 32),
    layout=Digest("44" * 32),
)


def tiny_run(organiser: Identity) -> Run:
    """Return the tiny sample as a run, with made-up digests."""
    run_file = parse_run_file(tomllib.loads(sample("tiny")))
    founders = [organiser.peer]
    manifest = draft_manifest(
        run_file, MADE, organiser=organiser.peer, founders=founders, created_unix=1_790_000_000
    )
    return Run.publish(organiser, manifest)


@pytest.fixture(scope="session")
def organiser() -> Identity:
    return Identity.from_seed(b"o" * 32)


@pytest.fixture(scope="session")
def stranger() -> Identity:
    return Identity.from_seed(b"s" * 32)


@pytest.fixture(scope="session")
def run_file() -> RunFile:
    return parse_run_file(tomllib.loads(sample("tiny")))


@pytest.fixture(scope="session")
def run(organiser: Identity) -> Run:
    return tiny_run(organiser)


@pytest.fixture(scope="session")
def manifest(run: Run) -> RunManifest:
    return run.manifest
