"""Events, losses, requests and the node's end become news once, and the past does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from p2ptrain.archive.home import Home, sole_use
from p2ptrain.names import label
from p2ptrain.notify.messages import Message
from p2ptrain.notify.notifier import Notifier
from p2ptrain.notify.outbox import RETRY_S
from p2ptrain.notify.targets import Target
from p2ptrain.notify.watching import OLD_S, Place, Watcher, end_of_node, pending_peers
from p2ptrain.observe.journal import Journal
from p2ptrain.observe.series import StepRow
from tests.cli.conftest import fake_node
from tests.cli.watching.made import PEERS
from tests.notify.made import NOW, Clock, Ids, event, write

STALL = event("stall", "This node waits.")


def test_only_what_happens_from_now_on_is_told(tmp_path: Path) -> None:
    home = Home(tmp_path)
    watcher = Watcher(home, Place())
    assert watcher.look(NOW) == []
    write(home, STALL, StepRow(1, loss=2.0))
    assert watcher.look(NOW) == []
    write(home, event("end", "The run is complete."), event("join", "A peer joined."))
    assert watcher.look(NOW) == [("ended", "The run is complete.")]
    assert watcher.look(NOW) == []
    assert watcher.place == Place(3, 1)
    watcher.close()


def test_restart_continues_but_old_news_are_no_news(tmp_path: Path) -> None:
    home = Home(tmp_path)
    write(home, STALL, event("end", "Old.", NOW - OLD_S), STALL)
    watcher = Watcher(home, Place(1, 0))
    assert watcher.look(NOW) == [("stalled", "This node waits.")]
    watcher.close()


def test_new_series_is_read_from_its_beginning(tmp_path: Path) -> None:
    home = Home(tmp_path)
    write(home, *[STALL] * 9)
    watcher = Watcher(home, Place(0, 0))
    assert len(watcher.look(NOW)) == 9
    home.series.rename(tmp_path / "aside")
    assert watcher.look(NOW) == []
    write(home, STALL)
    assert watcher.look(NOW) == [("stalled", "This node waits.")]
    watcher.close()


def test_loss_spike_is_told(tmp_path: Path) -> None:
    home = Home(tmp_path)
    write(home, *(StepRow(step, loss=2.0) for step in range(1, 10)))
    watcher = Watcher(home, Place())
    watcher.look(NOW)
    write(home, *(StepRow(step, loss=4.0 if step == 10 else 2.0) for step in range(10, 13)))
    ((cause, text),) = watcher.look(NOW)
    assert (cause, "of outer step 10 is 4.000" in text) == ("loss-spike", True)
    assert watcher.look(NOW) == []
    watcher.close()


def test_damaged_series_is_no_news(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.series.write_bytes(b"no database" * 100)
    watcher = Watcher(home, Place(0, 0))
    assert watcher.look(NOW) == []


def test_each_request_is_told_once(tmp_path: Path) -> None:
    watcher = Watcher(Home(tmp_path), Place())
    first, *others = PEERS[:6]
    assert watcher.requests(lambda: [first]) == [
        ("pending", f"{label(first)} asks to take part: see `peers pending`.")
    ]
    assert watcher.requests(lambda: [first]) == []
    ((_, text),) = watcher.requests(lambda: [first, *others])
    assert text.endswith(" and 2 more ask to take part: see `peers pending`.")
    assert pending_peers(tmp_path / "control.sock") == []


@pytest.mark.parametrize(
    ("reply", "found"),
    [
        (b'{"pending": ["a", 5, "b"]}\n', ["a", "b"]),
        (b'{"error": "the node starts"}\n', []),
        (b'{"pending": 5}\n', []),
        (b"[]\n", []),
        (b"[" * 100_000, []),
        (b"", []),
    ],
)
def test_node_is_asked_who_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reply: bytes, found: list[str]
) -> None:
    home = Home(tmp_path / ("long" * 40))
    monkeypatch.chdir(home.root)  # The kernel refuses long paths of sockets.
    with fake_node(Path(), reply) as asked:
        assert pending_peers(home.control) == found
    assert asked == [{"command": "pending"}]


def test_end_that_the_owner_did_not_want_is_told(tmp_path: Path) -> None:
    home = Home(tmp_path)
    killed = "it was killed, or the machine had no memory left"
    with Journal(home.journal, wall=lambda: NOW) as journal, sole_use(home):
        assert end_of_node(home, NOW - 5) is None
        journal.write("stopped", code="AUTH-REVOKED", reason="the organiser removed it")
        journal.write("page-ended", reason="")
        told = "The node has ended: the organiser removed it (AUTH-REVOKED)."
        assert end_of_node(home, NOW - 5) == told
        assert end_of_node(home, NOW + 5) is None
        journal.write("stopped", code="", reason="")
        assert end_of_node(home, NOW - 5) == ""
    assert end_of_node(home, NOW + 5) == f"The node has ended without a word: {killed}."


def test_faults_are_told_and_counts_outlive_the_process(tmp_path: Path) -> None:
    kept, clock = tmp_path / "state", Clock()
    targets = (Target("one", "ntfy:one", ("stalled",)), Target("two", "ntfy:two", ("disk",)))
    notifier = Notifier(kept, Ids())
    notifier.use(targets)
    assert (notifier.wants("disk"), notifier.wants("ended")) == (True, False)
    notifier.take([("stalled", "sunny\x1b[2J"), ("ended", "no")], clock())
    got: list[tuple[str, str]] = []

    def refuse(target: Target, told: Message) -> str:
        got.append((target.name, told.text))
        return "refused"

    faults = list[str]()
    for pause_s in (0.0, *RETRY_S, 1.0):
        clock.now += pause_s
        faults += notifier.send_due(refuse, clock)
    assert got == [("one", "sunny·[2J")] * 4
    assert faults[-1] == "one did not accept a message: refused; the message is dropped"
    notifier.keep(Place(8, 9))
    assert kept.stat().st_mode & 0o777 == 0o600
    assert json.loads(kept.read_text())["targets"]["one"]["dropped"] == 1
    again = Notifier(kept, Ids())
    again.use(targets)
    again.take([("stalled", "again")], clock.now - 100)
    assert (again.place, again.waiting) == (Place(8, 9), 0)
