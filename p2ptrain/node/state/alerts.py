"""The warnings that this node shows to its user, in the status and on the screen.

Any task may show a warning and clear it again. A warning has a name, and each name has one writer.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from p2ptrain.observe.cautions import Caution


@dataclass(slots=True)
class Alerts:
    doubts: tuple[Caution, ...] = ()
    """Warnings about this machine's resources, found before the node started."""
    warnings: dict[str, Caution] = field(default_factory=dict)
    """The current warnings by name."""

    def show(self, name: str, caution: Caution) -> None:
        """Show `caution` until `name` is cleared, in place of an earlier warning of this name."""
        self.warnings[name] = caution

    def clear(self, name: str) -> None:
        """Remove the warning of this name, if there is one."""
        self.warnings.pop(name, None)

    def __contains__(self, name: str) -> bool:
        return name in self.warnings
