"""The results as a table for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def table(rows: Sequence[tuple[str, dict[str, Any]]]) -> str:
    """Markdown: what was measured on what, then one line a result."""
    if not rows:
        return "No results.\n"
    first = rows[0][1]
    peers = list(dict.fromkeys(name for _, result in rows for name in result["peers"]))
    versions: dict[str, str] = {}
    for _, result in rows:
        versions |= result["versions"]
    machine, server = first["machine"], first["server"]
    lines = [
        "# Results",
        "",
        (
            f"{first['date'][:10]}, {machine['cpu']}, {machine['cores']} cores, "
            f"{machine['memory_gib']} GiB, {machine['system']}, Python {machine['python']}; "
            f"PostgreSQL {server['version']} on the same machine, {server['kind']}, "
            f"fsync {server['fsync']}, shared_buffers {server['shared_buffers']}."
        ),
        "",
        ", ".join(f"{name} {version}" for name, version in versions.items()) + ".",
        "",
        "A ratio says how many times better flowpg is, in rounds taken in turn on the same server;",
        "above 1 is better for flowpg whatever the unit. `results.jsonl` holds all of it.",
        "",
        "![ratios](chart.svg)",
        "",
        "| Measurement | flowpg | lowest to highest | "
        + " | ".join(f"{name}: value | ratio" for name in peers)
        + " | limit: value | share |",
        "|---|--:|--:|" + "--:|--:|" * len(peers) + "--:|--:|",
    ]
    for label, result in rows:
        low, high = result["spread"]
        cells = [label, f"{_number(result['value'])} {result['unit']}"]
        cells.append(f"{_number(low)} to {_number(high)}")
        for name in peers:
            peer = result["peers"].get(name) or {}
            cells += [_number(peer.get("value")), _number(peer.get("ratio"))]
        limit = result["limit"] or {}
        cells += [_number(limit.get("value")), _number(limit.get("share"))]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
