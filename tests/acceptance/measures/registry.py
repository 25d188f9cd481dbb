"""The measures of each issue, by name. A later issue adds its name and keeps the earlier ones."""

from __future__ import annotations

from tests.acceptance.measures import siege
from tests.acceptance.measures.setting import Measure

ACCEPTANCES: dict[str, tuple[Measure, ...]] = {"siege": siege.MEASURES}
