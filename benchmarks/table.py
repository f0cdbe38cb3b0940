"""Plain text tables."""

from __future__ import annotations

from collections.abc import Sequence

NONE = "–"


def show(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """The first column is flush left, as is the last if it has no heading: that one is for remarks."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    print(f"\n{title}\n")
    for row in (head, ["-" * width for width in widths], *rows):
        print("  ".join(_cell(row, head, widths, place) for place in range(len(head))).rstrip())
    print(flush=True)


def _cell(row: Sequence[str], head: Sequence[str], widths: Sequence[int], place: int) -> str:
    left = place == 0 or not head[place]
    return row[place].ljust(widths[place]) if left else row[place].rjust(widths[place])


def ms(milliseconds: float) -> str:
    return f"{milliseconds:.3f}" if milliseconds < 10 else f"{milliseconds:.1f}"


def ratio(part: float, whole: float | None) -> str:
    if not whole:
        return NONE
    return f"{part / whole:.2f}" if part < 100 * whole else f"{part / whole:.0f}"
