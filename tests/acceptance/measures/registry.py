"""The measures of each issue, by the issue's name. The measures of earlier issues stay here."""

from __future__ import annotations

from tests.acceptance.measures import page, reach, siege
from tests.acceptance.measures.setting import Measure

ACCEPTANCES: dict[str, tuple[Measure, ...]] = {
    "page": page.MEASURES,
    "reach": reach.MEASURES,
    "siege": siege.MEASURES,
}
