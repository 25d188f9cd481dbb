"""The acceptances by name. A later issue adds its own name here, and keeps the earlier ones."""

from __future__ import annotations

from p2ptrain.testing.acceptance import siege
from p2ptrain.testing.acceptance.setting import Measure

ACCEPTANCES: dict[str, tuple[Measure, ...]] = {"siege": siege.MEASURES}
