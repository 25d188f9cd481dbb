"""Make this node's report on an outer step from what it did, for its heartbeats and its series."""

from __future__ import annotations

from p2ptrain import __version__
from p2ptrain.observe.series.rows import PeerStepRow
from p2ptrain.observe.series.step_activity import StepFacts
from p2ptrain.peers.series.step_report import (
    BYTES_MAX,
    COLUMNS,
    DEVICES,
    MS_MAX,
    VERSION_CHARACTERS_MAX,
    StepReport,
    within,
)


def report_of(facts: StepFacts) -> StepReport:
    """Return the report of this node on the outer step of `facts`. Values out of bounds, which
    other nodes would refuse, are unknown or cut to the largest one."""
    return StepReport(
        step=facts.step,
        train_ms=min(facts.train_ms, MS_MAX),
        data_wait_ms=min(facts.data_wait_ms, MS_MAX),
        wait_ms=min(facts.wait_ms, MS_MAX),
        exchange_ms=min(facts.exchange_ms, MS_MAX),
        fetch_ms=min(facts.fetch_ms, MS_MAX),
        apply_ms=min(facts.apply_ms, MS_MAX),
        bytes_up=min(facts.bytes_up, BYTES_MAX),
        bytes_down=min(facts.bytes_down, BYTES_MAX),
        loss=within("loss", facts.loss),
        gradient_norm=within("gradient_norm", facts.gradient_norm),
        cosine=within("cosine", facts.cosine),
        quantisation_error=within("quantisation_error", facts.quantisation_error),
        mfu=within("mfu", facts.mfu),
        device=facts.device if facts.device in DEVICES else "other",
        version=__version__[:VERSION_CHARACTERS_MAX],
    )


def row_of(peer: str, report: StepReport) -> PeerStepRow:
    """Return the reported columns of `peer` for its row in the series."""
    told = {name: getattr(report, name) for name in COLUMNS}
    return PeerStepRow(report.step, peer, **told)
