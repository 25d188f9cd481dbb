"""The [trust] table of a run file: how contributions are checked."""

from __future__ import annotations

from p2ptrain.config.section import Section


class TrustSection(Section):
    """The [trust] table. If the file does not set `claims`, they are off in a run whose codec has
    error feedback (`RunFile.has_claims`).
    """

    claims: bool = True
