"""A chart of the results: one line a question, how many times better than each peer, as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

_ROW, _LEFT, _WIDTH, _TOP = 26, 290, 520, 46
_COLOURS = ("#2f6f9f", "#c0762b", "#5c8a3a")
_GRID = (0.1, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500)


def draw(rows: Sequence[tuple[str, dict[str, Any]]], title: str) -> str:
    """An SVG of ``rows``: a label and a result each. Results without a ratio are left out."""
    kept = [(label, _ratios(result)) for label, result in rows]
    kept = [(label, ratios) for label, ratios in kept if ratios]
    names = list(dict.fromkeys(name for _, ratios in kept for name in ratios))
    values = [value for _, ratios in kept for value in ratios.values()] or [1.0]
    low, high = min(0.5, *values), max(10.0, *values)

    def place(value: float) -> float:
        share = math.log(value / low) / math.log(high / low)
        return round(_LEFT + _WIDTH * share, 1)

    height = _TOP + _ROW * len(kept) + 34
    parts = [
        (
            '<svg xmlns="http://www.w3.org/2000/svg"'
            f' width="{_LEFT + _WIDTH + 70}" height="{height}"'
            ' font-family="sans-serif" font-size="12" fill="#333">'
        ),
        (
            f'<rect width="100%" height="100%" fill="#fff"/><text x="12" y="20" font-size="14">'
            f"{escape(title)}</text>"
        ),
    ]
    for number, name in enumerate(names):
        at = _LEFT + 110 * number
        parts.append(
            f'<rect x="{at}" y="28" width="10" height="10" fill="{_colour(number)}"/>'
            f'<text x="{at + 15}" y="37">times {escape(name)}</text>'
        )
    for value in _GRID:
        if low <= value <= high:
            x, dark = place(value), "#888" if value == 1 else "#ddd"
            parts.append(
                f'<line x1="{x}" x2="{x}" y1="{_TOP}" y2="{height - 28}" stroke="{dark}"/>'
                f'<text x="{x}" y="{height - 12}" text-anchor="middle">{value:g}</text>'
            )
    for row, (label, ratios) in enumerate(kept):
        y = _TOP + _ROW * row
        parts.append(
            f'<text x="{_LEFT - 10}" y="{y + 17}" text-anchor="end">{escape(label)}</text>'
        )
        thick = (_ROW - 8) / len(names)
        for number, name in enumerate(names):
            if name in ratios:
                one, there = sorted((place(1.0), place(ratios[name])))
                parts.append(
                    f'<rect x="{one}" y="{y + 4 + thick * number:.1f}" height="{thick:.1f}"'
                    f' width="{max(1.0, there - one):.1f}" fill="{_colour(number)}"/>'
                )
    parts.append("</svg>\n")
    return "\n".join(parts)


def _ratios(result: dict[str, Any]) -> dict[str, float]:
    return {
        name: float(peer["ratio"]) for name, peer in result["peers"].items() if peer.get("ratio")
    }


def _colour(number: int) -> str:
    return _COLOURS[number % len(_COLOURS)]
