"""What the annotations of a function or a class say, one by one, under every release of Python.

One that cannot be evaluated, such as a name that is imported for type checkers only, must not take
the others with it. From Python 3.14 on annotations are code that runs when somebody asks for them,
and all of them raise if one does, unless they are asked for in a form that lets names be missing.
"""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable
from typing import Any

if sys.version_info >= (3, 14):
    from annotationlib import Format, get_annotations

    def signature_of(function: Callable[..., Any]) -> inspect.Signature:
        """The parameters of a function, whatever its annotations are."""
        return inspect.signature(function, annotation_format=Format.FORWARDREF)

    def _annotations(owner: Any) -> dict[str, Any]:
        return dict(get_annotations(owner, format=Format.FORWARDREF))

else:

    def signature_of(function: Callable[..., Any]) -> inspect.Signature:
        """The parameters of a function, whatever its annotations are."""
        return inspect.signature(function)

    def _annotations(owner: Any) -> dict[str, Any]:
        return dict(inspect.get_annotations(owner))


def hints_of(owner: Any) -> dict[str, Any]:
    """The annotations of a function or class, evaluated one by one; Any for one that cannot be."""
    found: dict[str, Any] = {}
    bases = reversed(owner.__mro__) if isinstance(owner, type) else (owner,)
    for base in bases:
        namespace = getattr(base, "__globals__", None)
        if namespace is None:
            namespace = getattr(sys.modules.get(base.__module__), "__dict__", {})
        local = {**vars(base), base.__name__: base} if isinstance(base, type) else {}
        for name, hint in _all_or_none(base).items():
            found[name] = _evaluated(hint, namespace, local)
    return found


def _all_or_none(owner: Any) -> dict[str, Any]:
    try:
        return _annotations(owner)
    except Exception:  # noqa: BLE001  an expression in them may raise whatever it likes
        return {}


def _evaluated(hint: Any, namespace: dict[str, Any], local: dict[str, Any]) -> Any:
    if isinstance(hint, typing.ForwardRef):
        return Any
    if not isinstance(hint, str):
        return hint
    try:
        return eval(hint, namespace, local)  # the annotation is source code of the application
    except Exception:  # noqa: BLE001  whatever its evaluation raises, nothing is known about it
        return Any
