"""A suggested command names the home that the message is about."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from p2ptrain.suggested_command import to_paste, usual_home


def test_default_home_is_omitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("P2PTRAIN_HOME", raising=False)
    assert to_paste(usual_home(), "status") == "p2ptrain status"


@pytest.mark.parametrize("home", ["/var/lib/p2ptrain", "/srv/two words", "/srv/$HOME;it's"])
def test_home_other_than_the_default_is_quoted_for_the_shell(home: str) -> None:
    words = shlex.split(to_paste(Path(home), "ckpt fetch 4"))
    assert words == ["p2ptrain", "ckpt", "fetch", "4", "--home", home]


def test_default_home_is_named_if_the_environment_sets_a_different_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("P2PTRAIN_HOME", "/srv/other")
    assert to_paste(usual_home(), "status").endswith(f"--home {shlex.quote(str(usual_home()))}")
    assert to_paste(Path("/srv/other"), "status") == "p2ptrain status --home /srv/other"
