"""A campaign's results in a file of JSON lines, so that it can be interrupted and continued.

    {"plan": {first_seed, peers, steps, profile}}      the plan, in the first line
    {"batch": {first_seed, seeds, outer_steps, …}}     one line for each batch that is done
    {seeds, outer_steps, …}                            totals of a completed campaign; never read

If a crash left an incomplete last line, it is removed, and its batch is simulated again. The file
does not record the version of the code: use a new file after a change of the ledger.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from p2ptrain.errors import ConfigError
from p2ptrain.simulation.campaign import CampaignPlan, CampaignSums, SeedFailure


class Results:
    """The file at `path`, for `plan`. Raises ConfigError if it holds results of another plan."""

    def __init__(self, path: Path, plan: CampaignPlan) -> None:
        self.known: dict[range, CampaignSums] = {}
        self._path = path
        asked = {name: value for name, value in asdict(plan).items() if name != "seeds"}
        lines = _whole_lines(path)
        if lines and lines[0].get("plan") != asked:
            raise ConfigError(
                f"{path} holds results of a different campaign: {lines[0].get('plan')}",
                do="use a different file, or the options of that campaign",
            )
        for line in lines:
            if "batch" in line:
                self._know(line["batch"])
        if not lines:
            self._append({"plan": asked})

    def record_batch(self, seeds: range, sums: CampaignSums) -> None:
        self._append({"batch": {"first_seed": seeds.start, **asdict(sums)}})

    def end(self, facts: Mapping[str, object]) -> None:
        self._append(facts)

    def _know(self, batch: dict[str, Any]) -> None:
        start = batch.pop("first_seed")
        failures = tuple(SeedFailure(**failure) for failure in batch.pop("failures"))
        sums = CampaignSums(**batch, failures=failures)
        self.known[range(start, start + sums.seeds)] = sums

    def _append(self, line: Mapping[str, object]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


def _whole_lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines of the file, after removing an incomplete last line."""
    if not path.exists():
        return []
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        path.write_bytes(whole)
    try:
        return [json.loads(line) for line in whole.splitlines()]
    except ValueError as exc:
        do = "use a different file"
        raise ConfigError(f"{path} does not hold results of a campaign", do=do) from exc
