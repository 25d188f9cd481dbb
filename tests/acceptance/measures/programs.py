"""Programs of the tests that print what they measured as lines of JSON."""

from __future__ import annotations

from dataclasses import dataclass

from tests.acceptance.measures.setting import Line, Setting, line, objects_in


@dataclass(frozen=True, slots=True)
class Printed:
    """The objects that a program printed. `why` says why there may be too few of them."""

    objects: list[dict[str, object]]
    why: str
    evidence: str

    def missing(self, name: str, required: str) -> Line:
        return line(name, f"not measured: {self.why}", required, False, evidence=self.evidence)


def printed(setting: Setting, read: str, log: str, module: str, *words: str) -> Printed:
    """Run the program `module`, or read the earlier result `read`."""
    text = setting.earlier(read)
    if text is None:
        done = setting.python(log, "-m", module, *words)
        text, end = done.text, f"{module.rpartition('.')[2]} ended with status {done.code}"
    else:
        end = f"the given result of {read} does not contain it"
    return Printed(objects_in(text), end, text[-2000:])


def number(found: dict[str, object], name: str) -> float:
    """Return a number that a program printed; not a number if it is missing."""
    return float(str(found.get(name, "nan")))
