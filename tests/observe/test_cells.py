"""Text from peers fits into the cells of a terminal, and cannot move other text."""

from __future__ import annotations

import pytest

from p2ptrain.observe.cells import cells_of, fitted, padded


@pytest.mark.parametrize(
    ("text", "width", "shown"),
    [
        ("brave-otter", 20, "brave-otter"),
        ("brave-otter", 6, "brave…"),
        ("brave-otter", 1, "…"),
        ("brave-otter", 0, ""),
        ("\x1b[2J\x1b[31mred\r\n\a", 30, "·[2J·[31mred···"),
        ("abc\u202etxt.exe", 20, "abc·txt.exe"),
        ("שלום 12", 20, "···· 12"),
        ("Z\u0300\u0301\u0302", 20, "Z···"),
        ("日本語", 6, "日本語"),
        ("日本語", 5, "日本…"),
        ("日本語", 4, "日…"),
        ("\ud800\x00", 4, "··"),
    ],
)
def test_text_is_inert_and_cut_to_its_cells(text: str, width: int, shown: str) -> None:
    assert fitted(text, width) == shown
    assert cells_of(padded(text, width)) == width


def test_very_long_text_is_cut_without_being_read() -> None:
    assert fitted("x" * 10_000_000, 5) == "xxxx…"
    assert fitted("x" * 10_000_000, 5000).endswith("x…")
