"""What a hook waits for, in one line: ``{ok: boolean, note?: string | null}``."""

from __future__ import annotations

from typing import Any, Final

from flowpg.model import jsontext

_LONGEST: Final = 200


def in_short(schema: Any) -> str:
    """A JSON Schema as a person reads a type; what it says beyond types is left out."""
    definitions = schema.get("$defs") if isinstance(schema, dict) else None
    text = _Line(definitions if isinstance(definitions, dict) else {}).of(schema)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


class _Line:
    def __init__(self, definitions: dict[str, Any]) -> None:
        self._definitions = definitions
        self._within: list[str] = []  # the names of what is being written

    def of(self, node: Any) -> str:
        if not isinstance(node, dict):
            return "anything"
        if "$ref" in node:
            return self._named(str(node["$ref"]).removeprefix("#/$defs/"))
        if "const" in node:
            return jsontext.encode(node["const"])
        if isinstance(node.get("enum"), list):
            return " | ".join(map(jsontext.encode, node["enum"]))
        for name in ("anyOf", "oneOf"):
            if isinstance(node.get(name), list):
                return " | ".join(dict.fromkeys(map(self.of, node[name]))) or "anything"
        kind = node.get("type")
        if kind == "array":
            return self._array(node)
        if kind == "object":
            return self._object(node)
        if isinstance(node.get("format"), str):
            return str(node["format"])
        kinds = kind if isinstance(kind, list) else [kind]
        return " | ".join(str(one) for one in kinds) if kind else "anything"

    def _named(self, name: str) -> str:
        if name in self._within:
            return name
        self._within.append(name)
        try:
            return self.of(self._definitions.get(name))
        finally:
            self._within.pop()

    def _array(self, node: dict[str, Any]) -> str:
        if isinstance(node.get("prefixItems"), list):
            return f"[{', '.join(map(self.of, node['prefixItems']))}]"
        item = self.of(node.get("items"))
        return f"({item})[]" if " | " in item else f"{item}[]"

    def _object(self, node: dict[str, Any]) -> str:
        members, required = node.get("properties"), node.get("required")
        if not isinstance(members, dict) or not members:
            return f"{{*: {self.of(node.get('additionalProperties'))}}}"
        needed = required if isinstance(required, list) else []
        parts = (
            f"{name}{'' if name in needed else '?'}: {self.of(part)}"
            for name, part in members.items()
        )
        return "{" + ", ".join(parts) + "}"
