"""Signatures of public names as text, in which types are named without their modules.

Annotations are evaluated with their module's imports for type checkers, so the text depends neither
on quotes nor on the module of a type.
"""

import ast
import dataclasses
import enum
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from types import ModuleType

# Special methods that users of a class call by syntax, such as `len(x)`; those of `object` are
# omitted.
_SYNTAX = (
    *("__enter__", "__exit__", "__aenter__", "__aexit__", "__iter__", "__next__", "__aiter__"),
    *("__len__", "__getitem__", "__contains__", "__call__", "__repr__", "__str__", "__eq__"),
    *("__hash__", "__lt__", "_repr_html_", "__arrow_c_stream__", "__arrow_c_schema__"),
)


def is_ours(kind: object) -> bool:
    """Whether `kind` is a class of tidelog."""
    return isinstance(kind, type) and kind.__module__.split(".")[0] == "tidelog"


# ------------------------------------------------------------------------------- Annotations


@cache
def _names_of(module: ModuleType) -> dict[str, object]:
    """Return a module's names, including those that it imports for type checkers."""
    names: dict[str, object] = dict(vars(module))
    tree = ast.parse(inspect.getsource(module))
    for node in tree.body:
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            for line in node.body:
                exec(ast.unparse(line), names)
    return names


def resolved(annotation: object, module: ModuleType) -> object:
    """Return the annotation; a string is first evaluated with the names of its module."""
    if isinstance(annotation, typing.ForwardRef):
        annotation = annotation.__forward_arg__
    if isinstance(annotation, str):
        value: object = eval(annotation, dict(_names_of(module)))
        return resolved(value, module)
    return annotation


def type_text(annotation: object, module: ModuleType) -> str:
    """Return an annotation as text in source form."""
    found = resolved(annotation, module)
    if isinstance(found, list):
        return f"[{', '.join(type_text(one, module) for one in found)}]"
    origin, arguments = typing.get_origin(found), typing.get_args(found)
    if origin is typing.Literal:
        return f"Literal[{', '.join(map(repr, arguments))}]"
    texts = [type_text(one, module) for one in arguments]
    if origin in (typing.Union, types.UnionType):
        return " | ".join(texts)
    return _name(found) if origin is None else f"{_name(origin)}[{', '.join(texts)}]"


def _name(kind: object) -> str:
    if kind is ...:
        return "..."
    if kind is None or kind is type(None):
        return "None"
    name = getattr(kind, "__qualname__", None) or getattr(kind, "__name__", None)
    return str(name or kind).removeprefix("typing.")


def types_in(annotation: object, module: ModuleType) -> Iterator[type]:
    """Yield the classes of tidelog in an annotation."""
    found = resolved(annotation, module)
    if isinstance(found, type) and is_ours(found):
        yield found
    for one in found if isinstance(found, list) else typing.get_args(found):
        if one is not ...:
            yield from types_in(one, module)


# -------------------------------------------------------------------------------- Signatures


def _default(value: object) -> str:
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    text = repr(value)
    return f"<{type(value).__name__.lstrip('_')}>" if " at 0x" in text else text


def _module_of(function: object) -> ModuleType:
    plain = inspect.unwrap(typing.cast("Callable[..., object]", function))
    return sys.modules[plain.__module__]


def signature_lines(name: str, function: Callable[..., object]) -> list[str]:
    """Return `name(`, a line for each parameter, and `) -> type`; one line if there are none."""
    module = _module_of(function)
    signature = inspect.signature(function)
    lines = list[str]()
    kinds = inspect.Parameter
    previous = None
    for parameter in signature.parameters.values():
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind is kinds.KEYWORD_ONLY and previous not in (
            kinds.KEYWORD_ONLY,
            kinds.VAR_POSITIONAL,
        ):
            lines.append("    *")
        if previous is kinds.POSITIONAL_ONLY and parameter.kind is not previous:
            lines.append("    /")
        previous = parameter.kind
        stars = "*" * (parameter.kind is kinds.VAR_POSITIONAL) + "**" * (
            parameter.kind is kinds.VAR_KEYWORD
        )
        text = f"    {stars}{parameter.name}"
        if parameter.annotation is not kinds.empty:
            text += f": {type_text(parameter.annotation, module)}"
        if parameter.default is not kinds.empty:
            text += f" = {_default(parameter.default)}"
        lines.append(text)
    result = signature.return_annotation
    end = "" if result is signature.empty else f" -> {type_text(result, module)}"
    asynchronous = "async " if inspect.iscoroutinefunction(inspect.unwrap(function)) else ""
    if not lines:
        return [f"{asynchronous}{name}(){end}"]
    return [f"{asynchronous}{name}(", *lines, f"){end}"]


def results_of(function: Callable[..., object]) -> Iterator[type]:
    """Yield the classes of tidelog in the return annotation of a function."""
    result = inspect.signature(function).return_annotation
    if result is not inspect.Signature.empty:
        yield from types_in(result, _module_of(function))


# ----------------------------------------------------------------------------------- Classes


def members(kind: type) -> Iterator[tuple[str, object]]:
    """Yield name and unbound object of each public member of a class and its bases in tidelog."""
    found: dict[str, object] = {}
    for base in reversed(kind.__mro__):
        if is_ours(base):
            found.update(vars(base))
    for name in sorted(found):
        if not name.startswith("_") or name in _SYNTAX:
            yield name, found[name]


def _fields(kind: type) -> dict[str, str]:
    """Return the types of a class's fields by name."""
    module = sys.modules[kind.__module__]
    if dataclasses.is_dataclass(kind):
        return {one.name: type_text(one.type, module) for one in dataclasses.fields(kind)}
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return {name: type_text(kind.__annotations__[name], module) for name in kind._fields}
    return {}


def class_lines(kind: type, *, is_made: bool = True, left_out: Iterable[str] = ()) -> list[str]:
    """Return a class as lines: its kind, its fields, its constructor if public, its members."""
    if issubclass(kind, enum.Enum):
        base = next(one for one in kind.__mro__[1:] if not is_ours(one))
        return [
            f"{base.__name__} {kind.__name__}",
            *(f"{one.name} = {one.value!r}" for one in kind),
        ]
    lines = [f"class {kind.__name__}"]
    if dataclasses.is_dataclass(kind):
        parameters = kind.__dataclass_params__  # type: ignore[attr-defined] # not in typeshed
        lines = [f"dataclass {kind.__name__} frozen={parameters.frozen} order={parameters.order}"]
    fields = _fields(kind)
    lines += [f"field {name}: {text}" for name, text in fields.items() if name not in left_out]
    if is_made and not getattr(kind, "_is_protocol", False):
        lines += _signature_or_nothing(kind.__name__, kind)
    for name, member in members(kind):
        if name not in fields and name not in left_out and not _is_made_by_dataclass(name, kind):
            lines += member_lines(name, member)
    return lines


def _is_made_by_dataclass(name: str, kind: type) -> bool:
    return name in ("__eq__", "__hash__", "__repr__", "__lt__") and (
        dataclasses.is_dataclass(kind) or hasattr(kind, "_fields")
    )


def _signature_or_nothing(name: str, function: Callable[..., object]) -> list[str]:
    try:
        return signature_lines(name, function)
    except (ValueError, KeyError):
        return []


def member_lines(name: str, member: object) -> list[str]:
    """Return a member of a class as lines."""
    if isinstance(member, property):
        return _property_lines(name, member)
    if isinstance(member, (staticmethod, classmethod)):
        kind = type(member).__name__
        return [f"@{kind}", *signature_lines(name, member.__func__)]
    if inspect.isfunction(member):
        if name.startswith("_"):
            return [f"{name}(...)"]
        return signature_lines(name, member)
    plain = isinstance(member, enum.Enum | int | str | float | bool | tuple | frozenset | None)
    return [f"{name} = {_default(member)}" if plain else f"attribute {name}"]


def _property_lines(name: str, member: property) -> list[str]:
    getter = member.fget
    assert getter is not None
    result = inspect.signature(getter).return_annotation
    text = type_text(result, _module_of(getter))
    return [f"property {name}: {text}" + (" (settable)" if member.fset else "")]
