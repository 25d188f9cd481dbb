"""The history of a run as one node saw it: `series.db` in the node's home, a SQLite file.

One thread of the node writes the file (`recorder`, `writer`), and any process may read it
(`reader`). The journal tells what this node did and why; the series tells how the whole run went,
and is what charts are drawn from. Nothing in the node reads it to decide anything.
"""

from p2ptrain.observe.series.reader import SeriesReader, SeriesUnavailable
from p2ptrain.observe.series.recorder import SeriesRecorder
from p2ptrain.observe.series.rows import (
    EventRow,
    PeerStepRow,
    SampleRow,
    StepRow,
    ToldEventRow,
    ToldSampleRow,
)

__all__ = [
    "EventRow",
    "PeerStepRow",
    "SampleRow",
    "SeriesReader",
    "SeriesRecorder",
    "SeriesUnavailable",
    "StepRow",
    "ToldEventRow",
    "ToldSampleRow",
]
