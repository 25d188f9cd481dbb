"""Manifests of earlier versions keep their meaning. Features that were removed are refused, and the
error names them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from p2ptrain.config.run_file import RunFile
from p2ptrain.encoding import pack, unpack
from p2ptrain.errors import RemoteProtocolError, VersionMismatch
from p2ptrain.identity import Identity
from p2ptrain.run import Run, Signed, load_run

Change = Callable[[dict[str, Any]], object]

WITH_RDA = Path(__file__).parents[1] / "fixtures" / "manifest_with_rda.signed"
"""A manifest that p2ptrain published in November 2026."""


def changed(organiser: Identity, run: Run, change: Change) -> Run:
    """Return the run whose manifest is that of `run` after `change`."""
    tree = unpack(run.signed.payload, bytes_max=1 << 20)
    assert isinstance(tree, dict)
    change(tree)
    return Run.from_bytes(Signed.by(organiser, "manifest", pack(tree)).to_bytes())


def test_rda_is_refused_with_an_error_that_names_it_and_says_what_to_do() -> None:
    with pytest.raises(VersionMismatch) as caught:
        load_run(WITH_RDA)
    assert 'sync.merge = "rda"' in caught.value.what
    assert "publish a new run" in caught.value.do


def test_manifests_still_contain_the_averaging_method(run: Run) -> None:
    """Nodes of earlier versions refuse a manifest without the field."""
    tree: Any = unpack(run.signed.payload, bytes_max=1 << 20)
    assert tree["sync"]["merge"] == "mean"


def test_manifest_fields_have_no_defaults(organiser: Identity, run: Run) -> None:
    """If fields had defaults, changing one could change the meaning of manifests that are already
    signed."""
    for section, name in (
        ("inner", "join_optimizer"),
        ("sync", "merge"),
        ("model", "tied"),
        ("codec", "feedback"),
    ):
        with pytest.raises(RemoteProtocolError, match=name):
            changed(organiser, run, lambda tree, s=section, n=name: tree[s].pop(n))  # type: ignore[misc]


def test_new_run_has_the_default_of_its_run_file(run_file: RunFile, run: Run) -> None:
    assert run_file.inner.join_optimizer == run.manifest.inner.join_optimizer == "donors"


@pytest.mark.parametrize("option", ["fresh", "donor", "donors"])
def test_manifest_keeps_the_optimizer_option_that_it_names(
    organiser: Identity, run: Run, option: str
) -> None:
    made = changed(organiser, run, lambda tree: tree["inner"].update(join_optimizer=option))
    assert made.manifest.inner.join_optimizer == option
