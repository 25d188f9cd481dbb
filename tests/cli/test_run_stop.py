"""`p2ptrain run stop` signs an amendment that ends the run, with the organiser's reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from p2ptrain.archive.home import Home
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.identity import load_or_create
from p2ptrain.run import Amendment, Leg, SignedAmendment, load_run
from tests.cli.conftest import Command
from tests.cli.test_amend import kept

REASON = "the loss no longer falls"


def test_end_is_signed_kept_and_shown(p2ptrain: Command, organiser_home: Path) -> None:
    home = ("--home", organiser_home)
    done = p2ptrain("run", "stop", "tiny", "--reason", REASON, *home, "--json")
    assert (done.code, done.json["stop"], done.json["from_step"]) == (0, REASON, 2)
    assert "the run ends before outer step 2" in done.err
    (made,) = kept(organiser_home)
    assert made == Amendment(made.run, 1, 2, stop=REASON)
    assert (
        f"amended   1: the run ends: {REASON} from outer step 2 on"
        in p2ptrain("run", "show", *home).out
    )


def test_only_the_organiser_ends_a_run(
    p2ptrain: Command, organiser_home: Path, tmp_path: Path
) -> None:
    where = Home(organiser_home)
    where.identity.unlink()
    load_or_create(where.identity)
    done = p2ptrain("run", "stop", "tiny", "--reason", REASON, "--home", organiser_home)
    assert done.code == 6
    assert kept(organiser_home) == []


@pytest.mark.parametrize("reason", ["", " ", "two\nlines", "\x1b[2J", "x" * 201])
def test_invalid_reasons_are_refused(p2ptrain: Command, organiser_home: Path, reason: str) -> None:
    done = p2ptrain("run", "stop", "tiny", "--reason", reason, "--home", organiser_home)
    assert done.code == 2
    assert kept(organiser_home) == []


def test_end_survives_later_amendments_and_travels(organiser_home: Path) -> None:
    where = Home(organiser_home)
    run, organiser = load_run(where.manifest), load_or_create(where.identity)
    assert run is not None
    end = SignedAmendment.publish(organiser, Amendment(run.id, 1, 2, stop=REASON), run)
    assert SignedAmendment.from_bytes(end.to_bytes(), run) == end
    leg = Leg(run.manifest).amended(end.amendment).amended(Amendment(run.id, 2, 3, lr=0.01))
    assert (Leg(run.manifest).stop, leg.stop) == ("", REASON)


def test_amendment_without_an_end_has_the_bytes_of_earlier_versions(organiser_home: Path) -> None:
    where = Home(organiser_home)
    run, organiser = load_run(where.manifest), load_or_create(where.identity)
    assert run is not None
    made = SignedAmendment.publish(organiser, Amendment(run.id, 1, 2, lr=0.01), run)
    assert b"stop" not in made.to_bytes()
    damaged = made.to_bytes().replace(b"codec", b"stopp")
    with pytest.raises(RemoteProtocolError):
        SignedAmendment.from_bytes(damaged, run)
