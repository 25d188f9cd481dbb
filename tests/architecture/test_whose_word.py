"""The page about trust in peers' messages names every protocol and topic that nodes use."""

from __future__ import annotations

from p2ptrain.ids import RunId
from p2ptrain.peers import protocol_names
from tests.architecture.sources import ROOT

PAGE = ROOT / "docs" / "decisions" / "001-whose-word-is-it.md"


def test_trust_page_names_each_protocol_and_topic() -> None:
    made = vars(protocol_names).items()
    protocols = [value for name, value in made if name.endswith("_PROTOCOL")]
    subjects = [make(RunId("")).split("/")[-1] for name, make in made if name.endswith("_topic")]
    assert len(protocols) > 4
    assert len(subjects) > 3
    page = PAGE.read_text()
    lacking = [each for each in protocols if f"`{each}`" not in page]
    lacking += [each for each in subjects if f"topic `{each}`" not in page]
    assert lacking == []
