"""The standard library's `dataclass`, but with methods that are created at their first use.

The standard library writes and compiles the source of each method while a module is imported, which
takes half a millisecond for a frozen class. A broker's start and each command import dozens of
frozen classes, but create objects of only a few of them (decision 31). This module compiles the
constructor, the comparison and the hash of a class at their first call. All classes share one
function for each other method, such as `__repr__`.

    from tidelog.lazy_dataclass import dataclass

    @dataclass(frozen=True, slots=True)
    class ByteRange:
        start: int
        size_bytes: int = 0

The decorator has the arguments and the meaning of the standard library's `dataclass`. The standard
library's `field`, `fields`, `replace` and `asdict` work with these classes, and type checkers see
the standard library's decorator. Slots are required. A class with an `InitVar` or with a field
`self` is refused. For a class with `order=True`, the decorator calls the standard library's
`dataclass`.
"""

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import MISSING, Field, FrozenInstanceError, fields
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
    from inspect import Signature
else:

    def dataclass(*, slots: bool, order: bool = False, **options: bool) -> Callable[[type], type]:
        """Return a decorator that makes a class of annotated fields a dataclass."""
        assert slots, "an assignment to a name that is no field would go unnoticed"
        if order:
            return dataclasses.dataclass(slots=True, order=True, **options)
        return lambda declared: _with_methods(declared, **options)


def _with_methods(
    declared: type,
    *,
    frozen: bool = False,
    kw_only: bool = False,
    eq: bool = True,
    repr: bool = True,  # noqa: A002  # the standard library's name
) -> type:
    own = set(declared.__dict__)
    # Without this docstring, the standard library would compute one from the constructor's
    # parameters.
    declared.__doc__ = declared.__doc__ or declared.__name__
    # The standard library raises TypeError if only one of a class and its base is frozen.
    is_checked = frozen and hasattr(declared, "__dataclass_fields__")
    kind: type = dataclasses.dataclass(
        init=False, repr=False, eq=False, slots=True, kw_only=kw_only, frozen=is_checked
    )(declared)
    kind.__dataclass_params__.frozen = frozen  # type: ignore[attr-defined] # not in typeshed
    _ensure_supported(kind)
    _ensure_order(kind)
    methods: dict[str, object] = {}
    if "__init__" not in own:
        methods |= {
            "__init__": _compiled_later(kind, "__init__", _constructor_of),
            "__signature__": _SIGNATURE,
        }
    if repr:
        methods["__repr__"] = _repr
    if eq:
        methods["__eq__"] = _compiled_later(kind, "__eq__", _comparison_of)
    if frozen:
        methods |= _FROZEN
    for name, method in methods.items():
        if name not in own:
            setattr(kind, name, method)
    # If a class defines __eq__ but no __hash__, Python sets its __hash__ to None.
    if eq and declared.__dict__.get("__hash__") is None:
        kind.__hash__ = _compiled_later(kind, "__hash__", _hash_of) if frozen else None  # type: ignore[assignment, method-assign] # as the standard library
    return kind


def _ensure_supported(kind: type) -> None:
    """Raise TypeError for a field that the constructor can't take: an `InitVar`, or `self`."""
    declared: dict[str, Field[object]] = kind.__dict__["__dataclass_fields__"]
    if "self" in declared:
        raise TypeError(f"{kind.__qualname__}: a field can't be named 'self'; rename it")
    # each of these names is a ClassVar or an InitVar
    for name in declared.keys() - _names_of(kind):
        # InitVar may have been imported under another name. The field's `repr` is the only public
        # way to find out whether the field is an InitVar.
        if repr(declared[name]).endswith("_field_type=_FIELD_INITVAR)"):
            raise TypeError(
                f"{kind.__qualname__}.{name}: InitVar is not supported; declare a field, or use the"
                " dataclass of the standard library"
            )


def _ensure_order(kind: type) -> None:
    """Raise TypeError if a field without a default follows a field with a default."""
    has_default = False
    for each in fields(kind):
        if not each.init or each.kw_only:
            continue
        if has_default and _is_required(each):
            raise TypeError(f"non-default argument {each.name!r} follows default argument")
        has_default = not _is_required(each)


def _compiled_later(
    kind: type, name: str, compiled: Callable[[type], Callable[..., object]]
) -> Callable[..., object]:
    """Return a method whose first call compiles the method `name` of a class.

    The first call replaces the returned method in the class by the compiled method, and calls the
    compiled method. A wrapper, or a thread that looked up the returned method before, may still
    call the returned method later.
    """

    def method(self: object, *args: object, **values: object) -> object:
        function = compiled(kind)
        if kind.__dict__.get(name) is method:
            type.__setattr__(kind, name, function)
        return function(self, *args, **values)

    return method


def _constructor_of(kind: type) -> Callable[..., object]:
    names: dict[str, object] = {"__set": object.__setattr__, "__created": _CREATED}
    assign = "    __set(self, {0!r}, {1})" if _is_frozen(kind) else "    self.{0} = {1}"
    lines = []
    for each in fields(kind):
        name, default = each.name, f"__default_{each.name}"
        value = name
        if _is_given(each.default_factory):
            names[default] = each.default_factory
            value = (
                f"{default}() if {name} is __created else {name}" if each.init else default + "()"
            )
        elif _is_given(each.default):
            names[default] = each.default
            value = name if each.init else default
        elif not each.init:
            continue
        lines.append(assign.format(name, value))
    if hasattr(kind, "__post_init__"):
        lines.append("    self.__post_init__()")
    head = f"def __init__({', '.join(['self', *_parameters_of(kind)])}):"
    return _method_of(kind, "__init__", [head, *(lines or ["    pass"])], names)


def _method_of(
    kind: type, name: str, lines: Iterable[str], names: dict[str, object]
) -> Callable[..., object]:
    what = f"{kind.__qualname__}.{name}"
    method = compiled_function(name, lines, {"__name__": kind.__module__, **names}, what)
    method.__qualname__ = what
    return method


def _parameters_of(kind: type) -> list[str]:
    texts = []
    for each in _fields_of_init(kind):
        if each.kw_only and "*" not in texts:
            texts.append("*")
        created = _is_given(each.default_factory)
        default = "=__created" if created else f"=__default_{each.name}"
        texts.append(each.name + ("" if _is_required(each) else default))
    return texts


def _fields_of_init(kind: type) -> list[Field[object]]:
    """Return the fields that the constructor takes, keyword-only fields last."""
    return sorted(
        (each for each in fields(kind) if each.init), key=lambda each: each.kw_only is True
    )


def _is_required(declared: Field[object]) -> bool:
    return not (_is_given(declared.default) or _is_given(declared.default_factory))


def _is_given(default: object) -> bool:
    """Return whether a default is given.

    In an unpickled class, the default may be a copy of `MISSING`.
    """
    return not isinstance(default, type(MISSING))


class _Created:
    """Placeholder for the default of a parameter whose value a factory creates."""

    def __repr__(self) -> str:
        return "<factory>"


_CREATED: Final = _Created()


class _SignatureOfFields:
    """Signature of a class from its fields, for `inspect.signature` and `help`."""

    def __get__(self, instance: object, kind: type) -> "Signature":
        owner = next(each for each in kind.__mro__ if "__init__" in each.__dict__)
        if instance is not None or "__signature__" not in owner.__dict__:
            raise AttributeError("__signature__")
        # imported only here, because the import takes 8 ms and is rarely needed
        from inspect import Parameter, Signature

        def parameter_of(declared: Field[object]) -> Parameter:
            default = declared.default
            if _is_given(declared.default_factory):
                default = _CREATED
            return Parameter(
                declared.name,
                Parameter.KEYWORD_ONLY if declared.kw_only else Parameter.POSITIONAL_OR_KEYWORD,
                default=Parameter.empty if _is_required(declared) else default,
                annotation=declared.type,
            )

        return Signature(
            [parameter_of(each) for each in _fields_of_init(owner)], return_annotation=None
        )


_SIGNATURE: Final = _SignatureOfFields()


def _tuple_of(value: str, declared: Iterable[Field[object]]) -> str:
    return f"({''.join(f'{value}.{each.name}, ' for each in declared)})"


def _comparison_of(kind: type) -> Callable[..., object]:
    compared = [each for each in fields(kind) if each.compare]
    lines = [
        "def __eq__(self, other):",
        "    if other.__class__ is self.__class__:",
        f"        return {_tuple_of('self', compared)} == {_tuple_of('other', compared)}",
        "    return NotImplemented",
    ]
    return _method_of(kind, "__eq__", lines, {})


def _hash_of(kind: type) -> Callable[..., object]:
    is_hashed = ((each, each.compare if each.hash is None else each.hash) for each in fields(kind))
    hashed = _tuple_of("self", (each for each, counts in is_hashed if counts))
    return _method_of(kind, "__hash__", ["def __hash__(self):", f"    return hash({hashed})"], {})


def _names_of(kind: type) -> list[str]:
    return [each.name for each in fields(kind)]


@recursive_repr()
def _repr(self: object) -> str:
    kind: type = type(self)
    declaring = next(each for each in kind.__mro__ if each.__dict__.get("__repr__") is _repr)
    names = (each.name for each in fields(declaring) if each.repr)
    values = (f"{name}={getattr(self, name)!r}" for name in names)
    return f"{kind.__qualname__}({', '.join(values)})"


def _set(self: object, name: str, value: object) -> None:
    _ensure_mutable(self, name, "assign to")
    object.__setattr__(self, name, value)


def _delete(self: object, name: str) -> None:
    _ensure_mutable(self, name, "delete")
    object.__delattr__(self, name)


def _ensure_mutable(value: object, name: str, verb: str) -> None:
    """Raise FrozenInstanceError if an attribute of an object must not change.

    If the object's class is itself a dataclass, no attribute may change. If only a base of the
    class is a dataclass, attributes that are not fields may change.
    """
    kind = type(value)
    if "__dataclass_fields__" in kind.__dict__ or name in _names_of(kind):
        raise FrozenInstanceError(f"cannot {verb} field {name!r}")


def _state(self: object) -> list[object]:
    """Return the values for `pickle` and `copy`, which can't assign fields of a frozen object."""
    return [getattr(self, name) for name in _names_of(type(self))]


def _set_state(self: object, state: list[object]) -> None:
    for name, value in zip(_names_of(type(self)), state, strict=True):
        object.__setattr__(self, name, value)


_FROZEN: Final[dict[str, object]] = {
    "__setattr__": _set,
    "__delattr__": _delete,
    "__getstate__": _state,
    "__setstate__": _set_state,
}


def _is_frozen(kind: type) -> bool:
    return kind.__dict__.get("__setattr__") is _set


def compiled_function(
    name: str, lines: Iterable[str], names: dict[str, object], what: str
) -> Callable[..., None]:
    """Compile source made from declarations and return its function `name`.

    Args:
        name: Name of the function in the source.
        lines: Lines of the source.
        names: Objects that the source refers to; the function is added.
        what: Description of the source, for tracebacks.
    """
    code = compile("\n".join(lines), f"<{what}>", "exec")
    exec(code, names)  # noqa: S102  # lines made from declarations alone
    return cast("Callable[..., None]", names[name])
