"""The lines of `p2ptrain doctor` suit the terminal, and their JSON suits programs."""

from __future__ import annotations

from p2ptrain.cli.doctor_output import Look, facts, lines, verdict
from p2ptrain.doctor.finding import Finding, fault, good, warning

GOOD = good("memory", "plenty")
DOUBT = warning("clock", "slow", fix="set it")
BAD = fault("data port", "port 4202 is in use", fix="choose another", code="PORT-IN-USE")


def shown(finding: Finding, look: Look) -> list[str]:
    return list(lines(finding, look))


def test_lines_show_mark_name_words_fix_and_command() -> None:
    assert shown(GOOD, Look()) == ["✓  memory              plenty"]
    assert shown(BAD, Look()) == [
        "✗  data port           port 4202 is in use",
        "                  fix  choose another",
        "                 more  p2ptrain explain PORT-IN-USE",
    ]


def test_hint_without_a_code_has_no_command() -> None:
    assert [line.split()[0] for line in shown(DOUBT, Look())] == ["!", "fix"]


def test_terminal_without_unicode_gets_words_and_one_with_colours_gets_colours() -> None:
    assert shown(GOOD, Look(is_ascii=True)) == ["ok memory              plenty"]
    assert shown(BAD, Look(is_ascii=True))[0].startswith("x  data port")
    assert shown(GOOD, Look(has_colours=True)) == ["\033[32m✓\033[0m  memory              plenty"]


def test_long_texts_are_wrapped_and_addresses_stay_whole() -> None:
    address = "/ip4/203.0.113.7/tcp/4201/p2p/" + "1" * 52
    wrapped = shown(good("bootstrap", f"ann answers at {address} after 7 ms"), Look(60))
    assert [line.strip() for line in wrapped] == [
        "✓  bootstrap           ann answers at",
        address,
        "after 7 ms",
    ]
    assert all(line.startswith(" " * 23) for line in wrapped[1:])


def test_text_of_a_peer_cannot_control_the_terminal() -> None:
    (line,) = shown(good("run", "'\033[2J' by ann\n✓  forged"), Look())
    assert line == "✓  run                 '·[2J' by ann·✓  forged"


def test_verdict_names_the_worst_lines() -> None:
    assert verdict([GOOD], 3.2, asked=True) == (
        "Everything is in order. A node can run here. (1 checks, 3 s)"
    )
    assert "A node can run here. Read the line marked !" in verdict([DOUBT, GOOD], 1, asked=True)
    assert "add --bootstrap ADDRESS" in verdict([DOUBT], 1, asked=False)
    assert "cannot take part yet: repair the 2 lines marked ✗" in verdict(
        [BAD, DOUBT, BAD], 1, asked=False
    )


def test_json_has_every_finding_and_the_exit_status() -> None:
    assert facts([DOUBT, BAD], 1.26) == {
        "findings": [
            {
                "name": "clock",
                "level": "warning",
                "said": "slow",
                "fix": "set it",
                "code": "",
                "status": 0,
            },
            {
                "name": "data port",
                "level": "fault",
                "said": "port 4202 is in use",
                "fix": "choose another",
                "code": "PORT-IN-USE",
                "status": 4,
            },
        ],
        "status": 4,
        "seconds": 1.3,
    }
