"""Arguments and results of one function as JSON, under the names of its parameters.

The arguments of a call are one object, ``{"order_id": "A-1", "cents": 500}``, whichever way they
were given; what was left to a default is left out. So a parameter with a default can be added, and
a client in another language can start a run. An error names the function and the argument, never
the value.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any

from flowpg.authoring import failures  # noqa: F401  it registers how exceptions are stored
from flowpg.authoring.annotations import hints_of, signature_of
from flowpg.authoring.hint_classes import Plan
from flowpg.authoring.hints import ANYTHING, plan_for
from flowpg.authoring.tags import Unfit
from flowpg.errors import SerializationError

_EMPTY = inspect.Parameter.empty
_POSITIONAL = inspect.Parameter.POSITIONAL_OR_KEYWORD
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class FunctionCodec:
    """The codec of one function, which errors call ``what``, such as ``step 'charge'``.

    ``skip`` parameters at the front are none of the caller's, such as ``self``.
    """

    def __init__(self, function: Callable[..., Any], what: str, *, skip: int = 0) -> None:
        self.what = what
        self._function = function
        parameters = list(signature_of(function).parameters.values())[skip:]
        self._signature = inspect.Signature(parameters)
        self._parameters = {parameter.name: parameter for parameter in parameters}
        self._positional = [p.name for p in parameters if p.kind <= p.POSITIONAL_OR_KEYWORD]
        self._required = frozenset(
            p.name for p in parameters if p.default is _EMPTY and p.kind not in _VARIADIC
        )
        self._named = frozenset(
            p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        )
        # Each argument given once, in its place or by its name: nothing has to be found out.
        plain = all(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters)
        self._names = tuple(self._parameters) if plain else None
        # Which types of all of them are their own JSON; None, which is no type, where none is.
        self._natives: tuple[type | None, ...] = (None,)
        self._plans: dict[str, Plan] | None = None

    # -- writing --------------------------------------------------------------------------------

    def encode_arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The object of one call. TypeError as the function itself would raise for a wrong call,
        SerializationError for an argument that cannot be stored."""
        plans = self._plans or self._make_plans()
        if not kwargs and self._names is not None and self._natives == tuple(map(type, args)):
            return dict(zip(self._names, args, strict=True))
        shape: dict[str, Any] = {}
        for name, value in self._bound(args, kwargs).items():
            plan = plans[name]
            if type(value) is plan.native:
                shape[name] = value
                continue
            try:
                shape[name] = plan.encode(value)
            except Unfit as error:
                raise self._unstorable(f"argument {name!r}", error, value) from None
            except RecursionError:
                raise self._refused(f"argument {name!r}", "cannot be stored", _DEEP) from None
        return shape

    def encode_result(self, value: Any) -> Any:
        """What the function returned, as JSON. SerializationError."""
        plans = self._plans or self._make_plans()
        try:
            return plans["return"].encode(value)
        except Unfit as error:
            raise self._unstorable("the result", error, value) from None
        except RecursionError:
            raise self._refused("the result", "cannot be stored", _DEEP) from None

    def checked_result(self, value: Any) -> Any:
        """The same, of a result that is sure to be read again: one that its own annotation refuses
        would block the run, and no deploy could help. SerializationError."""
        plan = (self._plans or self._make_plans())["return"]
        if type(value) is plan.native or (plan.plain is not None and plan.plain(value)):
            return value
        shape = self.encode_result(value)
        self.decode_result(shape)
        return shape

    # -- reading --------------------------------------------------------------------------------

    def decode_arguments(self, shape: Any) -> tuple[list[Any], dict[str, Any]]:
        """Positional and keyword arguments of a call. SerializationError if the object does not
        fit the function; an argument that is missing or unknown is named."""
        plans = self._plans or self._make_plans()
        if shape is None:
            shape = {}
        if type(shape) is dict and self._names == tuple(shape):
            values = list(shape.values())
            if self._natives != tuple(map(type, values)):
                values = [self._decoded(name, plans[name], shape[name]) for name in self._names]
            return values, {}
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        self._check_names(shape)
        by_position = True
        for name, parameter in self._parameters.items():
            if name not in shape:
                # What follows a default that was left out can be given by name only.
                by_position = False
                continue
            value = self._decoded(name, plans[name], shape[name])
            if by_position and parameter.kind <= _POSITIONAL:
                args.append(value)
            else:
                self._place(parameter, value, args, kwargs)
        return args, kwargs

    def decode_result(self, value: Any) -> Any:
        """A result as the caller sees it. SerializationError if it does not fit."""
        plans = self._plans or self._make_plans()
        try:
            return plans["return"].decode(value)
        except Unfit as error:
            raise self._refused("the result", "does not fit", error) from None

    # -- helpers --------------------------------------------------------------------------------

    def _decoded(self, name: str, plan: Plan, value: Any) -> Any:
        try:
            return plan.decode(value)
        except Unfit as error:
            raise self._refused(f"argument {name!r}", "does not fit", error) from None

    def _check_names(self, shape: Any) -> None:
        if not isinstance(shape, dict):
            raise SerializationError(
                f"the arguments of {self.what} must be an object with the names of its parameters"
            )
        names = shape.keys()
        if names >= self._required and names <= self._parameters.keys():
            return
        missing = sorted(self._required - names)
        if missing:
            raise SerializationError(f"{self.what} misses {_quoted(missing)}")
        unknown = [name for name in shape if name not in self._parameters]
        raise SerializationError(f"{self.what} has no argument {_quoted(unknown[:5])}")

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Mapping[str, Any]:
        # The common case without the machinery of inspect, which costs more than a short step.
        if len(args) <= len(self._positional):
            found = dict(zip(self._positional, args, strict=False))
            if kwargs:
                if kwargs.keys() <= self._named and found.keys().isdisjoint(kwargs):
                    found.update(kwargs)
                else:
                    return self._bound_by_inspect(args, kwargs)
            if found.keys() >= self._required:
                return found
        return self._bound_by_inspect(args, kwargs)

    def _bound_by_inspect(self, args: Any, kwargs: dict[str, Any]) -> Mapping[str, Any]:
        try:
            return self._signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise TypeError(f"{self.what}: {error}") from None

    @staticmethod
    def _place(
        parameter: inspect.Parameter,
        value: Any,
        args: list[Any],
        kwargs: dict[str, Any],
    ) -> None:
        if parameter.kind is parameter.VAR_POSITIONAL:
            args.extend(value)
        elif parameter.kind is parameter.VAR_KEYWORD:
            kwargs.update(value)
        else:
            kwargs[parameter.name] = value

    def _make_plans(self) -> dict[str, Plan]:
        # On first use: an annotation may name what the module defines further down.
        hints = hints_of(inspect.unwrap(self._function))
        plans = {"return": plan_for(hints["return"]) if "return" in hints else ANYTHING}
        for name, parameter in self._parameters.items():
            plan = plan_for(hints[name]) if name in hints else ANYTHING
            if parameter.kind is parameter.VAR_POSITIONAL:
                plan = plan_for(types.GenericAlias(tuple, (hints.get(name, Any), ...)))
            elif parameter.kind is parameter.VAR_KEYWORD:
                plan = plan_for(types.GenericAlias(dict, (str, hints.get(name, Any))))
            plans[name] = plan
        if self._names is not None:
            self._natives = tuple(plans[name].native for name in self._names)
        self._plans = plans
        return plans

    def _unstorable(self, part: str, error: Unfit, value: Any) -> SerializationError:
        if inspect.isawaitable(value):
            # What a plain function does that calls a step in an asynchronous workflow.
            error = Unfit("it was not awaited: write `await` before the call that made it")
        return self._refused(part, "cannot be stored", error)

    def _refused(self, part: str, verdict: str, error: Exception) -> SerializationError:
        return SerializationError(f"{part} of {self.what} {verdict}: {error}")


_DEEP = Unfit("it is nested too deeply, or contains itself")


def _quoted(names: list[str]) -> str:
    return ", ".join(ascii(name[:80]) for name in names)
