"""The screen of `p2ptrain top` is compared whole. Text from peers can neither move nor widen it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from p2ptrain.cli.screen.frame import Known, View, frame, ranked
from p2ptrain.cli.screen.lanes import IN_ASCII, lane, sparkline
from p2ptrain.ids import PeerId
from p2ptrain.names import peer_name
from p2ptrain.observe.cautions import Caution
from p2ptrain.observe.cells import cells_of
from p2ptrain.observe.series import PeerStepRow
from p2ptrain.observe.status import MemberStatus
from tests.cli.watching.made import (
    NOW,
    PEERS,
    made_peer_steps,
    made_status,
    made_steps,
    waiting,
)

KNOWN = Known(
    NOW,
    waiting(made_status(), 1),
    NOW,
    "",
    made_steps(),
    [row for row in made_peer_steps() if row.step > 10],
)

WIDE = """\
metagene-mini                                                        sunny-koala
training (inner 37/100)
step 30/60  ███████████████···············  50 %  ETA 20 min
loss 2.381  held out 2.360  27k tok/s  yours 4.6M of 9.7M tokens  up 2 h 05 min
waits: members are still training: swift-moose, 20 s left
     █▇▅▄▃▁
     ███████▇▅▄▃▁
     █████████████▇▅▄▂▁
     ███████████████████▆▅▄▂▁
loss █████████████████████████▆▅▄▂▁  5.90 → 3.00
  peer             state                       tok/s  heard steps 25 to 30
● sunny-koala you  training (inner 37/100)      9.0k        ▓▓⇄▓▓⇄▓▓⇄▓▓⇄▓▓⇄▓▓⇄
● rustic-magpie    training (inner 37/100)      9.0k    2 s ▓░⇄▓░⇄▓░⇄▓░⇄▓░⇄▓░⇄
● swift-moose      training (inner 37/100)      9.0k    1 s ▓░⇄▓░⇄▓░⇄▓░⇄▓░⇄▓░⇄









p pause  r resume  f finish  ↑↓ scroll  ? help  q quit"""

NARROW = """\
metagene-mini                sunny-koala
training (inner 37/100)
step 30/60  ████····  50 %  ETA 20 min
loss 2.381  held out 2.360  27k tok/s  …
waits: members are still training: swif…
loss ██▇▇▆▅▅▅▄▃▃▂▂▂▁  5.90 → 3.00
  peer             steps 24 to 30
● sunny-koala you  ▓▓⇄▓▓⇄▓▓⇄▓▓⇄▓▓⇄▓▓⇄▓▓⇄
● rustic-magpie    ▓░⇄▓░⇄▓░⇄▓░⇄▓░⇄▓░⇄▓░⇄
● swift-moose      ▓░⇄▓░⇄▓░⇄▓░⇄▓░⇄▓░⇄▓░⇄




p r f  ? help  q quit"""

SILENT = """\
metagene-mini              sunny-koala
no answer for 14 s, since CLOCK: it ha…
training (inner 37/100)
step 30/60  █████████·········  50 %
loss 2.381  held out 2.360  270k tok/…
loss: there is no series yet
  peer
● sunny-koala you  training (inner 37…
○ swift-moose      training (inner 37…
● amber-ocelot     training (inner 37…
lanes 1 to 3 of 30
Finish? (y/n)
p r f  ? help  q quit"""


def text(known: Known, view: View, columns: int, rows: int) -> str:
    return "\n".join(line.text for line in frame(known, view, columns, rows))


@pytest.mark.parametrize(("size", "shown"), [((80, 24), WIDE), ((40, 15), NARROW)])
def test_whole_screen_of_a_run(size: tuple[int, int], shown: str) -> None:
    assert text(KNOWN, View(), *size) == shown


def test_very_wide_screen_has_the_round_trip_times_measured_here() -> None:
    me, *others = made_status().members
    others = [replace(each, rtt_ms=3.4 + 40 * number) for number, each in enumerate(others)]
    status = replace(made_status(), members=(me, *others))
    shown = text(replace(KNOWN, status=status), View(), 100, 24).splitlines()
    assert [line[19:70].split() for line in shown[9:13]] == [
        ["state", "tok/s", "heard", "RTT"],
        ["training", "(inner", "37/100)", "9.0k"],
        ["training", "(inner", "37/100)", "9.0k", "2", "s", "43", "ms"],
        ["training", "(inner", "37/100)", "9.0k", "1", "s", "3", "ms"],
    ]


def test_silent_node_leaves_its_last_facts_with_their_age() -> None:
    members = list(made_status(30).members)
    members[1] = replace(members[1], health="red")
    status = replace(made_status(), members=tuple(members))
    known = Known(NOW, status, NOW - 14, "it hangs", no_history="there is no series yet")
    lines = text(known, View(asks="Finish?"), 38, 13).splitlines()
    assert lines[1].startswith("no answer for 14 s, since ")
    expected = SILENT.splitlines()
    assert [*lines[:1], *lines[2:]] == [*expected[:1], *expected[2:]]
    assert text(replace(known, status=None), View(), 38, 4).splitlines() == [
        "p2ptrain top",
        "it hangs",
        "",
        "p r f  ? help  q quit",
    ]
    assert "asking the node …" in text(Known(NOW), View(), 80, 24)


def test_lanes_scroll_to_the_last_one() -> None:
    known = Known(NOW, made_status(30), NOW)
    names = [member.peer_name for member in ranked(known.status)]
    shown = text(known, View(scrolled=99), 80, 16).splitlines()
    assert shown[-2] == "lanes 23 to 30 of 30"
    assert [line.split()[1] for line in shown[-10:-2]] == names[-8:]


def test_help_and_notices_replace_lanes_but_not_the_keys() -> None:
    shown = text(KNOWN, View(helps=True, notice="paused for 2 h"), 80, 24).splitlines()
    assert "p  pause: frees the device, and keeps serving the run" in shown
    assert shown[-2:] == [
        "paused for 2 h",
        "p pause  r resume  f finish  ↑↓ scroll  ? help  q quit",
    ]


def test_warnings_are_shown_and_bounded() -> None:
    cautions = tuple(Caution("X", f"fault {number}") for number in range(5))
    status = replace(made_status(), cautions=cautions)
    shown = text(Known(NOW, status, NOW), View(), 80, 24)
    assert "! fault 0\n! fault 1\n! and 3 more warnings: see status\n" in shown


HOSTILE = "\x1b[2J\x1b]0;owned\x07‮\u2066\u0301שלום<script>\r\n\x00" + "W" * 1_000_000 + "日本"


@pytest.mark.parametrize("size", [(80, 24), (40, 15), (20, 5), (1, 1), (200, 60)])
def test_hostile_text_is_inert_and_keeps_the_size_of_the_screen(size: tuple[int, int]) -> None:
    columns, rows = size
    evil = MemberStatus(PEERS[1], HOSTILE, HOSTILE, HOSTILE, HOSTILE, heard_s_ago=1e12)
    status = replace(
        waiting(made_status(), 1),
        run_name=HOSTILE,
        peer_name=HOSTILE,
        state=HOSTILE,
        waits_for=HOSTILE,
        tokens=1 << 53,
        tokens_total=1 << 53,
        members=(evil, *made_status().members),
        cautions=(Caution(HOSTILE, HOSTILE, HOSTILE),),
    )
    status = replace(status, waiting={**status.waiting, "for": HOSTILE, "names": [HOSTILE] * 99})
    huge = [replace(row, train_ms=1 << 53) for row in made_peer_steps()]
    known = Known(NOW, status, 0.0, HOSTILE, made_steps(), huge)
    lines = [line.text for line in frame(known, View(notice=HOSTILE), columns, rows)]
    assert len(lines) == rows
    assert all(cells_of(line) <= columns for line in lines)
    assert all(line.isprintable() for line in lines)
    assert not any(letter in "".join(lines) for letter in "‮\u0301ש")


def test_lane_divides_each_step_by_its_reported_times() -> None:
    row = PeerStepRow(1, "p", 10, train_ms=50, data_wait_ms=10, wait_ms=15, exchange_ms=20)
    rows = [
        row,
        replace(row, apply_ms=5, fetch_ms=100),
        PeerStepRow(1, "p", 10),
        PeerStepRow(1, "p", 0),
        None,
    ]
    assert lane(rows, 4) == "▓▓░⇄▓░⇄⇄▪▪▪▪····    "
    assert lane(rows, 4).translate(IN_ASCII) == "##.=#.==++++----    "


def test_sparkline_has_the_means_of_known_values() -> None:
    assert sparkline([3.0, None, 1.0, 2.0], 10) == ["█ ▁▅"]
    assert sparkline([4.0, 2.0, None, None, 1.0, 1.0], 3) == ["█ ▁"]
    assert sparkline([1.0, 2.0], 2, height=2) == [" █", "▁█"]
    assert sparkline([2.0, 2.0], 2) == ["▁▁"]
    assert sparkline([None], 2) == sparkline([1.0], 0) == sparkline([], 5) == [""]


def test_lanes_show_this_node_then_members_in_trouble() -> None:
    status = made_status(5)
    members = list(status.members)
    members[3] = replace(members[3], health="yellow")
    members[4] = replace(members[4], health="red")
    order = [member.peer for member in ranked(replace(status, members=tuple(members)))]
    assert order[:3] == [PEERS[0], PEERS[4], PEERS[3]]
    assert sorted(order[3:], key=lambda peer: peer_name(PeerId(peer))) == order[3:]
