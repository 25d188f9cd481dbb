"""The data of the report, from a node's home: what the node's page shows, for other people.

The page shows the owner of a node more than others should see: what the machine is, who asks to be
admitted, what the node's log warns of. The report leaves that out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import trio

from p2ptrain.archive.home import Home
from p2ptrain.errors import P2PTrainError
from p2ptrain.ids import PeerId
from p2ptrain.run import Run
from p2ptrain.web import charts
from p2ptrain.web.facts import Facts
from p2ptrain.web.history import History, Row
from p2ptrain.web.node_client import ask
from p2ptrain.web.report.without_names import without_names
from p2ptrain.web.state import bounded, state

EVENTS_MAX = 200

PRIVATE: Row = {
    "asking": [],
    "warnings": [],
    "cautions": [],
    "addresses": [],
    "trainer": "",
    "reach": "",
    "relaying": "",
    "relayed": {},
    "sending": "",
    "congestion_control": "",
    "congestion_refusal": "",
    "limit_up_bytes_per_s": None,
    "inner_from": "",
}
"""Fields of the status that concern only the node's owner, with the values that the report has."""


class HomeReport:
    """Reads the home of a node, whether the node runs or not."""

    def __init__(self, home: Home, run: Run) -> None:
        self._home, self._run = home, run
        self._history = History(home.root / "series.db")
        self._facts = Facts(home, self._history)

    def close(self) -> None:
        self._history.close()

    def data_now(self, known: Collection[PeerId], serial: int) -> Row:
        """Return `data`, from a program without an event loop."""
        return trio.run(self.data, known, serial)

    async def data(self, known: Collection[PeerId], serial: int) -> Row:
        """Return the content of `data.json`. `known` are the peers of the ledger, whose names are
        taken out if the run does not publish names."""
        status = await self._status()
        found = state(status, None if status is None else 0.0, self._history, self._facts)
        body: Row = {
            "state": {**found, "serial": serial, "can_act": False, "you": None},
            "series": {**charts.series(self._history, 0, charts.POINTS), "serial": serial},
            "events": [charts.event(each) for each in self._history.events(None, EVENTS_MAX)],
            "samples": charts.samples(self._history, self._facts.prompts),
        }
        if self._run.manifest.public.names or self._run.manifest.admission == "open":
            return body
        named: Row = without_names(body, known)
        return named

    async def _status(self) -> Row | None:
        try:
            reply = await ask(self._home.control, "brief-status")
        except P2PTrainError:
            reply = {"error": "the node is not running"}
        if "error" in reply:
            await self._facts.refresh({"run": self._run.id, "snapshot_step": -1})
            return None
        shown = public_status(bounded(reply))
        await self._facts.refresh(shown)
        return shown


def public_status(status: Mapping[str, object]) -> Row:
    """Return the part of a node's status that other people may see."""
    return {**status, **{name: usual for name, usual in PRIVATE.items() if name in status}}
