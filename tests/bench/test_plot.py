"""The plot and the table of all-reduce times. The plot must be well-formed XML, with each point in
the right place.
"""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from p2ptrain.bench.all_reduce.plot import Point, main, picture, table
from p2ptrain.bench.lines import CORES, LOAD, FigureLine

POINTS = [
    *(Point("ring int8 TLS", peers, 1000, peers / 10) for peers in (2, 4, 8)),
    *(Point("ring int8 TLS", 4, elements, 0.4) for elements in (100, 10_000)),
    *(Point("<gloo>", 4, elements, 0.2) for elements in (100, 1000, 10_000)),
]
SVG = "{http://www.w3.org/2000/svg}"


def test_each_point_is_drawn_in_the_plot_that_it_belongs_to() -> None:
    """The ring has three points plotted against the number of peers, and three plotted against the
    size. One of them is in both plots. Gloo has one point and three points."""
    root = ElementTree.fromstring(picture(POINTS, "2 cores"))
    lines = [each.get("points", "").split() for each in root.iter(f"{SVG}polyline")]
    assert sorted(len(line) for line in lines) == [1, 3, 3, 3]
    assert len(list(root.iter(f"{SVG}circle"))) == 10
    words = [each.text for each in root.iter(f"{SVG}text")]
    assert {"<gloo>", "ring int8 TLS", "seconds for 1,000 fp32", "seconds for 4 peers"} <= {*words}


def test_longer_times_are_plotted_higher() -> None:
    root = ElementTree.fromstring(picture(POINTS, ""))
    rising = next(
        each for each in root.iter(f"{SVG}polyline") if each.get("points", "").count(",") == 3
    )
    ups = [float(point.split(",")[1]) for point in rising.get("points", "").split()]
    assert ups == sorted(ups, reverse=True)


def test_table_has_a_row_for_each_number_of_peers_and_size() -> None:
    assert table(POINTS, "2 cores").splitlines()[2:] == [
        "| peers | fp32 | <gloo> | ring int8 TLS |",
        "|---|---|---|---|",
        "| 2 | 1 k |  | 0.200 |",
        "| 4 | 100 | 0.200 | 0.400 |",
        "| 4 | 1 k | 0.200 | 0.400 |",
        "| 4 | 10 k | 0.200 | 0.400 |",
        "| 8 | 1 k |  | 0.800 |",
    ]


def test_reports_of_several_runs_are_merged_into_one_plot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, peers in enumerate((2, 4)):
        point = {"what": "ring", "peers": peers, "elements": 10, "rounds_s": [1.5]}
        lines = [
            FigureLine("ring, 10 elements", 1.5, "s", details=point),
            FigureLine("ring, 10 elements", 1.0, "×", "bytes"),
            FigureLine(CORES, 2, "cores"),
            *(FigureLine(LOAD, load, "processes") for load in (0.5 + number, 3.0)),
        ]
        text = "".join(json.dumps(line.as_map()) + "\n" for line in lines)
        (tmp_path / f"{number}.json").write_text(text)
    files = [str(each) for each in sorted(tmp_path.iterdir())]
    main(*files)
    assert "2 cores, load 0.5 to 3.0" in capsys.readouterr().out
    main("--table", *files)
    assert "| 4 | 10 | 1.500 |" in capsys.readouterr().out
