"""The data of the report, from a run that is watched from outside.

An observer knows less than a node: the ledger, and the losses that nodes sign. So the page shows
fewer sections.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence

from p2ptrain.errors import counted
from p2ptrain.ids import PeerId
from p2ptrain.names import label, peer_name
from p2ptrain.peers.outside.watched_ledger import WatchedLedger, WatchedStep
from p2ptrain.run import Run
from p2ptrain.web.report.without_names import without_names

STEPS_SHOWN_MAX = 4000
"""Maximum number of outer steps in the report: the newest ones."""

Row = dict[str, object]


class WatchReport:
    """Collects what an observer sees."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._steps: dict[int, tuple[WatchedStep, float]] = {}
        """The outer steps, each with the Unix time at which this process learned that it ended."""

    def note(self, steps: Sequence[WatchedStep], *, now: float | None = None) -> None:
        """Take in the outer steps that have ended since the last call."""
        at = time.time() if now is None else now
        self._steps |= {step.step: (step, at) for step in steps}
        for old in list(self._steps)[:-STEPS_SHOWN_MAX]:
            del self._steps[old]

    def data(self, ledger: WatchedLedger, serial: int, now: float | None = None) -> Row:
        """Return the content of `data.json`."""
        steps = [self._row(step, at) for step, at in self._steps.values()]
        wall = time.time() if now is None else now
        body: Row = {
            "state": self._state(ledger, serial, wall),
            "series": self._series(ledger, steps, serial),
            "events": [],
            "samples": self._samples(),
        }
        if self._run.manifest.public.names or self._run.manifest.admission == "open":
            return body
        named: Row = without_names(body, ledger.state.tokens_by_peer)
        return named

    def _row(self, step: WatchedStep, at: float) -> Row:
        held_out = step.held_out
        return {
            "step": step.step,
            "time": at,
            "attempt": step.attempt,
            "skipped": int(step.skipped),
            "members": len(step.members),
            "participants": len(step.participants),
            "tokens": step.tokens,
            "tokens_total": step.tokens_total,
            "loss": step.loss,
            "held_out": held_out[1] if held_out and held_out[0] == step.step else None,
            **dict.fromkeys(("learning_rate", "gradient_norm", "exchange_ms")),
            **dict.fromkeys(("bytes_up", "bytes_down")),
        }

    def _series(self, ledger: WatchedLedger, steps: Sequence[Row], serial: int) -> Row:
        newest = [step for step, _ in self._steps.values()][-20:]
        recent = [
            {
                "step": step.step,
                "peer": each.peer,
                "name": peer_name(each.peer),
                "tokens": each.tokens,
            }
            for step in newest
            for each in step.participants
        ]
        names = steps[0] if steps else {}
        peers = dict.fromkeys([*ledger.state.tokens_by_peer, *(str(row["peer"]) for row in recent)])
        return {
            "schema": 1,
            "serial": serial,
            "steps": {name: [row[name] for row in steps] for name in names},
            "peers": [{"peer": peer, "name": peer_name(PeerId(peer))} for peer in peers],
            "recent": recent,
            "throughput": {"step": [], "by_peer": {}},
            "contributors": {"all": self._contributors(ledger), "day": [], "week": []},
            "unigram_entropy": None,
        }

    def _contributors(self, ledger: WatchedLedger) -> list[Row]:
        took_part = Counter(
            each.peer for step, _ in self._steps.values() for each in step.participants
        )
        total = max(1, ledger.state.tokens)
        most = sorted(ledger.state.tokens_by_peer.items(), key=lambda item: -item[1])
        return [
            {
                "peer": peer,
                "name": peer_name(peer),
                "tokens": tokens,
                "steps": took_part[peer],
                "share": tokens / total,
            }
            for peer, tokens in most
        ]

    def _samples(self) -> Row:
        rows = [
            {"step": step.step, "prompt": prompt, "peer": peer, "text": text}
            for step, _ in self._steps.values()
            for prompt, (peer, text) in sorted(step.samples.items())
        ]
        prompts = list(self._run.manifest.samples.prompts)
        return {"schema": 1, "prompts": prompts, "samples": rows}

    def _state(self, ledger: WatchedLedger, serial: int, now: float) -> Row:
        manifest, chain = self._run.manifest, ledger.state
        about, steps = manifest.about, manifest.outer.steps
        losses = [each.held_out for each, _ in self._steps.values() if each.held_out]
        snapshot: Mapping[str, object] = (
            {}
            if chain.snapshot is None
            else {"step": chain.snapshot.step, "digest": chain.snapshot.digest}
        )
        members = [
            {
                "peer": peer,
                "peer_name": peer_name(peer),
                "role": "voter" if peer in chain.voters else "learner",
                "state": "member",
            }
            for peer in chain.members
        ]
        return {
            "schema": 1,
            "serial": serial,
            "now": round(now, 1),
            "heard_s_ago": 0.0,
            "status": {
                "schema": 1,
                "run": self._run.id,
                "run_name": manifest.name,
                "state": "watched from outside",
                "state_name": "serving",
                "outer_step": chain.step,
                "outer_steps": steps,
                "tokens_total": chain.tokens,
                "validation_loss": losses[-1][1] if losses else None,
                "members": members,
                "addresses": [],
                "warnings": [],
            },
            "sentence": f"Watched from outside: step {chain.step} of {steps}, "
            f"{counted(len(chain.members), 'member')}",
            "can_act": False,
            "you": None,
            "snapshots": [{**snapshot, "signers": [], "copies": None}] if snapshot else [],
            "invite": None,
            "run": {
                "id": self._run.id,
                "name": manifest.name,
                "organiser": label(manifest.organiser),
                "model": f"{counted(manifest.model.layers, 'layer')} of width "
                f"{manifest.model.width}",
                "steps": steps,
                "description": about.description,
                "licence": about.licence,
                "contact": about.contact,
                "public_weights": manifest.public.weights,
            },
        }
