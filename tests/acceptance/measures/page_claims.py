"""The requirements of `scripts/accept page` that tests show: what hurt users before, and what
visitors, observers and hostile texts can do.
"""

from __future__ import annotations

from tests.acceptance.measures.pytest_runs import Claim

_BOUNDS = "tests/web/test_page_bounds.py"
_CONSENT = "tests/node/joining/test_consent.py"
_CONTACT = "tests/node/joining/test_first_contact.py"
_KEPT = "tests/node/page/test_keep_page.py"
_LINES = "tests/node/control/test_progress_lines.py"
_NEWS = "tests/node/control/test_member_news.py"
_SERVED = "tests/web/test_page_is_served.py"
_STREAM = "tests/web/test_page_stream.py"
_WAITING = "tests/node/control/test_waiting.py"
_WEIGHTS = "tests/node/watching/test_taken_weights.py"

FAULTS = (
    Claim(
        "silent-stall",
        "a stalled run is silent, and shows the wrong state",
        "each long wait says once for what, since when, until when and for whom",
        (_WAITING, "tests/observe/test_why.py", "tests/cli/test_why_command.py"),
    ),
    Claim(
        "log-lines",
        "no log line has a loss, a rate or an ETA",
        "one line for each outer step has them",
        (
            "tests/observe/test_step_line.py",
            f"{_LINES}::test_each_outer_step_prints_its_loss_and_its_own_tokens",
        ),
    ),
    Claim(
        "random-port",
        "the suggested seed has a random port",
        "seeds use ports 4201 and 4202",
        ("tests/cli/test_node.py::test_seed_has_fixed_ports_because_its_address_is_handed_out",),
    ),
    Claim(
        "consent",
        "--yes is forgotten; the consent screen underestimates traffic, and is outdated",
        "remembered; traffic of a step and of days; values as amended",
        (
            f"{_CONSENT}::test_yes_is_remembered_except_for_an_observer",
            f"{_CONSENT}::test_screen_shows_traffic_of_a_step_and_of_days_of_fast_and_slow_steps",
            f"{_CONSENT}::test_screen_shows_values_as_amended",
        ),
    ),
    Claim(
        "bootstrap",
        "a malformed --bootstrap is ignored; a seed that is down ends the first start",
        "an error; the node waits",
        (
            f"{_CONTACT}::test_malformed_address_is_an_error_beside_good_ones",
            f"{_CONTACT}::test_node_waits_for_a_seed_that_is_down",
        ),
    ),
    Claim(
        "organisers-log",
        "the organiser's log lacks joins, leaves, losses and amendments; a seed loses its vote",
        "it has them; the seed votes again, or says why not",
        (_NEWS,),
    ),
    Claim(
        "no-node",
        "NO-NODE does not say why the node ended; after kill -9 the advice is about the network",
        "it says why; the advice fits",
        (
            "tests/cli/test_node.py::test_missing_node_is_reported_with_the_reason_why_it_ended",
            "tests/node/control/test_left_out.py::"
            "test_node_that_was_just_started_is_not_told_to_check_its_network",
        ),
    ),
    Claim(
        "ckpt-ls",
        "ckpt ls prints what is not here, oldest first",
        "what is here, newest first, with date, loss and copies",
        (
            "tests/cli/test_ckpt_command.py::"
            "test_certified_snapshots_are_listed_with_the_number_of_chunks_held",
            "tests/cli/test_ckpt_command.py::"
            "test_date_loss_and_copies_are_shown_where_they_are_known",
        ),
    ),
    Claim(
        "data-field",
        "run check accepts a wrong data.field",
        "a fault",
        ("tests/cli/test_run_check.py::test_wrong_data_field_is_a_fault",),
    ),
    Claim(
        "replayed-tokens",
        "replayed steps show the newest tokens; the end has no summary",
        "each step its own; summary, thanks and the export command",
        (
            f"{_LINES}::test_replayed_steps_show_their_own_tokens_and_no_loss",
            f"{_LINES}::test_end_of_the_run_is_summarised_with_thanks_and_the_next_command",
        ),
    ),
    Claim(
        "plain-words",
        "details of Python in messages; slow commands",
        "plain text; frequent commands import little",
        (
            "tests/foundation/test_errors.py",
            "tests/cli/test_help.py::test_frequent_commands_import_little",
        ),
    ),
    Claim(
        "readable-names",
        "commands take only whole peer ids",
        "also names and unique parts of ids",
        (
            "tests/cli/test_peers.py::test_pending_peer_is_approved_by_name_or_part_of_its_id",
            "tests/cli/test_allow.py::test_listed_peer_is_removed_by_its_name_or_a_part_of_its_id",
        ),
    ),
    Claim(
        "full-disk",
        "DISK-LOW promises a retry that never happens",
        "the node ends, and continues once there is space",
        (
            "tests/node/swarms/test_swarm_restarts.py::"
            "test_full_disk_stops_a_node_cleanly_and_free_space_lets_it_continue",
        ),
    ),
)

CLAIMS = (
    Claim(
        "rebinding",
        "DNS rebinding",
        "refused",
        (
            f"{_SERVED}::test_dns_rebinding_is_refused",
            f"{_BOUNDS}::test_only_loopback_names_are_served",
        ),
    ),
    Claim(
        "cross-origin",
        "cross-origin POST",
        "refused",
        (f"{_SERVED}::test_other_web_pages_can_neither_read_nor_act",),
    ),
    Claim(
        "clients",
        "500 SSE clients",
        "bounded",
        (
            f"{_STREAM}::test_readers_above_the_limit_are_refused",
            f"{_STREAM}::test_connections_above_the_limit_are_closed",
        ),
    ),
    Claim(
        "slow-readers",
        "slow readers",
        "bounded",
        (
            f"{_STREAM}::test_slow_reader_is_disconnected",
            f"{_STREAM}::test_client_that_does_not_read_is_dropped",
        ),
    ),
    Claim(
        "killed",
        "web process killed",
        "restarted",
        (f"{_KEPT}::test_killed_page_is_started_again_at_its_port",),
    ),
    Claim(
        "hostile-page",
        "hostile names, notes and samples: data of the page",
        "inert and bounded",
        (f"{_BOUNDS}::test_hostile_texts_of_the_node_are_bounded",),
    ),
    Claim(
        "hostile-top",
        "hostile names, notes and samples: top and events",
        "inert and bounded",
        (
            "tests/cli/watching/test_frame.py::"
            "test_hostile_text_is_inert_and_keeps_the_size_of_the_screen",
            "tests/cli/watching/test_events.py::"
            "test_hostile_text_is_printed_without_control_characters",
            "tests/observe/test_cells.py",
        ),
    ),
    Claim(
        "hostile-status",
        "hostile names, notes and samples: status and errors",
        "inert and bounded",
        (
            "tests/cli/test_node.py::test_control_characters_in_a_status_are_replaced",
            "tests/cli/test_errors.py::test_text_from_a_peer_cannot_control_the_terminal",
        ),
    ),
    Claim(
        "hostile-logs",
        "hostile names, notes and samples: log, journal and samples",
        "inert and bounded",
        (
            "tests/node/test_life.py::test_each_line_has_a_timestamp_and_no_control_characters",
            "tests/observe/test_journal.py::"
            "test_text_from_a_peer_is_escaped_and_read_back_unchanged",
            "tests/node/training/test_sampling.py::test_samples_are_bounded_and_printable",
        ),
    ),
    Claim(
        "observer",
        "an observer with an invitation and no allowlist entry",
        "sees loss, tokens and peers",
        ("tests/node/watching/test_watching.py", "tests/node/watching/test_watched_report.py"),
    ),
    Claim(
        "observers-weights",
        "an observer's weights",
        "only if the run allows it; certified and checked",
        (_WEIGHTS, "tests/node/watching/test_public_weights.py"),
    ),
    Claim(
        "pause",
        "pause; resume: the others and the lost work",
        "the others go on; the member contributes in the next outer step",
        ("tests/node/swarms/test_swarm_pauses.py",),
    ),
    Claim(
        "samples",
        "a sample of the certified weights",
        "on the page of another node",
        ("tests/node/swarms/test_swarm_samples.py",),
    ),
)
