"""The [trust] table of a run file: how contributions are checked."""

from __future__ import annotations

from p2ptrain.config.section import Section


class TrustSection(Section):
    """The [trust] table. If `claims` is None, contributions are claims unless the codec has error
    feedback.
    """

    claims: bool | None = None
