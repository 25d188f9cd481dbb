"""The requirements of `scripts/accept reach` that tests show, and these tests."""

from __future__ import annotations

from tests.acceptance.measures.pytest_runs import Claim

FAULTS_MIN = 15
"""Minimum number of planted faults that the doctor must find."""


_ANSWERS = "tests/node/reach/test_reach_questions_and_answers.py"
_PUNCHED = "tests/node/punching/test_punched_connections.py"
_JUDGED = "tests/doctor/test_judgements.py"
_REACHED = "tests/doctor/test_reach_judgements.py"
_SESSIONS = "tests/dataplane/test_punch_sessions.py"

CLAIMS = (
    Claim(
        "organisers",
        "all machines of an organiser are gone; another one or a delegate admits a volunteer",
        "the volunteer trains",
        ("tests/node/swarms/test_swarm_organisers.py",),
    ),
    Claim(
        "refused",
        "an outsider asks for relaying",
        "refused; no packet is sent",
        (
            "tests/dataplane/relaying/test_relay.py::test_stranger_cannot_use_the_relay_for_a_fetch",
            "tests/dataplane/relaying/test_relay.py::test_peer_that_does_not_take_part_is_refused",
            "tests/node/relaying/test_relaying.py::test_relay_refuses_a_member_that_does_not_take_part",
            "tests/node/relaying/test_relaying.py::test_request_to_meet_is_checked",
        ),
    ),
    Claim(
        "third-party",
        "a peer asks for a dial-back to a third address",
        "refused; no packet is sent",
        (
            f"{_ANSWERS}::test_question_that_names_a_third_address_is_refused_without_a_packet",
            f"{_ANSWERS}::test_outsider_and_peer_without_address_are_refused_without_a_packet",
        ),
    ),
    Claim(
        "punch-targets",
        "a request to punch names loopback, multicast, the gateway or a third party",
        "refused; no packet is sent",
        (
            f"{_PUNCHED}::test_node_does_not_call_an_address_where_nobody_sees_the_peer",
            f"{_PUNCHED}::test_forwarders_statement_does_not_lead_into_our_own_network",
            f"{_PUNCHED}::test_node_does_not_call_its_own_gateway",
            f"{_PUNCHED}::test_stranger_may_not_offer",
            f"{_SESSIONS}::test_offer_for_loopback_multicast_or_gateway_sends_only_a_refusal",
            f"{_SESSIONS}::test_answer_that_names_a_third_party_ends_the_agreement",
            "tests/dataplane/test_candidates.py",
        ),
    ),
    Claim(
        "bad-relays",
        "a relay is killed, stalls or changes bytes during an exchange",
        "no neighbour is blamed; the next attempt uses another relay",
        (
            "tests/node/relaying",
            "tests/dataplane/relaying/test_faults.py",
            "tests/dataplane/relaying/test_choice.py",
        ),
    ),
    Claim(
        "doctor-faults",
        "doctor with each of 15 planted faults",
        "the right line and fix",
        (
            f"{_JUDGED}::test_planted_fault_gets_its_line_and_its_fix",
            f"{_REACHED}::test_fault_gets_its_line_and_its_fix",
            "tests/doctor/test_torch_trial.py::test_planted_torch_gets_its_line_and_its_fix",
        ),
        cases_min=FAULTS_MIN,
    ),
    Claim(
        "doctor-output",
        "doctor: exit status, --json, and checks that raise or hang",
        "as documented",
        ("tests/doctor/test_runner.py", "tests/cli/test_doctor_output.py"),
    ),
)
