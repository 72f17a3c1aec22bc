"""Classes of `tidelog.lazy_dataclass` behave like dataclasses of the standard library."""

import copy
import dataclasses
import inspect
import threading
from collections.abc import Callable
from dataclasses import FrozenInstanceError, InitVar, field
from typing import ClassVar, Generic, TypeVar

import pytest

from tidelog import lazy_dataclass

T = TypeVar("T")
Passed = InitVar
Decorate = Callable[..., Callable[[type], type]]
DECORATORS: dict[str, Decorate] = {
    "standard": dataclasses.dataclass,
    "lazy": lazy_dataclass.dataclass,
}
both = pytest.mark.parametrize("decorate", DECORATORS.values(), ids=list(DECORATORS))


def declared(decorate: Decorate, **options: bool) -> type:
    class Taken:
        """Doc."""

        first: int
        second: str = field(default="s", repr=False)
        third: list[int] = field(default_factory=list, compare=False)
        fourth: int = field(default=4, init=False)
        fifth: int = field(default=5, kw_only=True)

        @property
        def total(self) -> int:
            return self.first + self.fifth

    return decorate(slots=True, **options)(Taken)


OPTIONS: tuple[dict[str, bool], ...] = (
    {},
    {"frozen": True},
    {"kw_only": True},
    {"frozen": True, "kw_only": True},
    {"eq": False},
    {"frozen": True, "eq": False},
    {"repr": False},
    {"frozen": True, "order": True},
)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_class_is_that_of_the_standard_library(options: dict[str, bool]) -> None:
    standard, lazy = (declared(decorate, **options) for decorate in DECORATORS.values())
    assert str(inspect.signature(lazy)) == str(inspect.signature(standard))
    assert lazy.__match_args__ == standard.__match_args__  # type: ignore[attr-defined] # dataclasses have it
    assert lazy.__slots__ == standard.__slots__  # type: ignore[attr-defined] # dataclasses have it
    assert lazy.__doc__ == standard.__doc__

    def told(kind: type) -> list[object]:
        values = [kind(first=1), kind(first=1, third=[1]), kind(first=1, second="t"), kind(first=2)]
        hashable = kind.__hash__ is not None
        shown = [repr(value).split(" at 0x")[0] for value in values]
        equal = [one == other for one in values for other in values]
        same_hash = [hash(one) == hash(other) for one in values for other in values if hashable]
        fields = [(each.name, each.default, each.init) for each in dataclasses.fields(kind)]
        changed = dataclasses.replace(values[0], first=9)
        return [
            shown,
            equal,
            hashable,
            same_hash,
            fields,
            dataclasses.asdict(values[1]),
            changed.first,
            changed.total,
            copy.copy(values[1]).third,
            copy.deepcopy(values[1]).third,
            values[0].third is values[3].third,
        ]

    assert told(lazy) == told(standard)


@both
@pytest.mark.parametrize(
    ("arguments", "values", "message"),
    [
        ((), {}, "missing 1 required positional argument: 'first'"),
        ((1, "s", [], 4), {}, "takes from 2 to 4 positional arguments but 5 were given"),
        ((1,), {"fourth": 1}, "unexpected keyword argument 'fourth'"),
        ((1,), {"sixth": 1}, "unexpected keyword argument 'sixth'"),
        ((1,), {"first": 1}, "multiple values for argument 'first'"),
    ],
)
def test_wrong_arguments_are_named(
    decorate: Decorate, arguments: tuple[object, ...], values: dict[str, object], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        declared(decorate)(*arguments, **values)


# The standard library of Python 3.11 raises TypeError here if the name is not a field.
def test_a_frozen_object_does_not_change() -> None:
    value = declared(lazy_dataclass.dataclass, frozen=True)(1)
    for name in ("first", "no_field"):
        with pytest.raises(FrozenInstanceError, match=f"cannot assign to field '{name}'"):
            setattr(value, name, 2)
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'first'"):
        del value.first
    assert value.first == 1


def test_an_undeclared_subclass_may_have_more_attributes() -> None:
    class More(declared(lazy_dataclass.dataclass, frozen=True)):  # type: ignore[misc] # made there
        pass

    value = More(1)
    value.more = 2
    assert (value.more, value.first) == (2, 1)
    with pytest.raises(FrozenInstanceError, match="first"):
        value.first = 2
    del value.more
    assert not hasattr(value, "more")


@both
def test_a_name_that_is_no_field_has_no_place(decorate: Decorate) -> None:
    with pytest.raises(AttributeError, match="no_field"):
        declared(decorate)(1).no_field = 2


@both
def test_methods_of_the_class_are_kept(decorate: Decorate) -> None:
    class Own:
        value: int
        seen: list[int]

        def __init__(self, value: int) -> None:
            self.value = value
            self.seen = []

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 7

        __repr__ = object.__repr__

    kind = decorate(slots=True)(Own)
    assert kind(1) == kind(2)
    assert hash(kind(1)) == 7
    assert repr(kind(1)).startswith("<")
    assert str(inspect.signature(kind)) == "(value: int) -> None"


@both
def test_a_class_with_its_own_comparison_and_no_hash_gets_that_of_its_kind(
    decorate: Decorate,
) -> None:
    def kind(*, frozen: bool) -> type:
        class Own:  # noqa: PLW1641  # the case
            value: int

            def __eq__(self, other: object) -> bool:
                return True

        return decorate(slots=True, frozen=frozen)(Own)

    assert hash(kind(frozen=True)(3)) == hash((3,))
    assert kind(frozen=False).__hash__ is None


@both
def test_a_field_may_be_left_out_of_the_hash_or_be_in_it_alone(decorate: Decorate) -> None:
    class Known:
        name: str
        settings: dict[str, int] = field(default_factory=dict, hash=False)
        note: str = field(default="", compare=False, hash=True)

    kind = decorate(frozen=True, slots=True)(Known)
    assert hash(kind("n", {"a": 1})) == hash(kind("n", {"a": 2}))
    assert kind("n", {"a": 1}) != kind("n", {"a": 2})
    assert hash(kind("n", {}, "x")) != hash(kind("n", {}, "y"))
    assert kind("n", {}, "x") == kind("n", {}, "y")


@both
def test_a_field_without_a_default_after_others_is_refused(decorate: Decorate) -> None:
    class Wrong:
        first: int = 1
        second: int

    with pytest.raises(TypeError, match="non-default argument 'second' follows default argument"):
        decorate(slots=True)(Wrong)
    assert decorate(slots=True, kw_only=True)(Wrong)(second=2).second == 2


@both
def test_the_step_after_the_constructor_runs(decorate: Decorate) -> None:
    class Checked:
        value: int

        def __post_init__(self) -> None:
            if self.value < 0:
                raise ValueError(self.value)

    kind = decorate(slots=True, frozen=True)(Checked)
    assert kind(1).value == 1
    with pytest.raises(ValueError, match="-1"):
        kind(-1)


@pytest.mark.parametrize("of_base", DECORATORS.values(), ids=list(DECORATORS))
@pytest.mark.parametrize("of_derived", DECORATORS.values(), ids=list(DECORATORS))
def test_subclasses_have_the_fields_of_their_base_and_a_constructor_of_their_own(
    of_base: Decorate, of_derived: Decorate
) -> None:
    def build() -> tuple[type, type]:
        class Base:
            first: int

        base = of_base(slots=True, frozen=True)(Base)

        class Derived(base):  # type: ignore[misc, valid-type] # made above
            second: int = 2

        return base, of_derived(slots=True, frozen=True)(Derived)

    base, derived = build()
    assert (derived(1).first, derived(1).second, base(1).first) == (1, 2, 1)
    base, derived = build()
    assert (base(1).first, derived(1).second) == (1, 2)
    assert base(1) != derived(1)
    assert str(inspect.signature(derived)) == "(first: int, second: int = 2) -> None"
    with pytest.raises(FrozenInstanceError, match="first"):
        derived(1).first = 2


@both
def test_a_subclass_may_call_the_constructor_of_its_base(decorate: Decorate) -> None:
    base = declared(decorate)

    class Own(base):  # type: ignore[misc, valid-type] # made above
        def __init__(self, text: str) -> None:
            super().__init__(int(text))

    assert Own("3").first == 3
    assert base(4).first == 4
    assert str(inspect.signature(Own)) == "(text: str) -> None"


@both
def test_a_class_without_fields_and_one_of_a_single_field(decorate: Decorate) -> None:
    class Nothing:
        pass

    class One:
        value: float

    nothing, one = (decorate(slots=True, frozen=True)(kind) for kind in (Nothing, One))
    assert nothing() == nothing()
    assert hash(nothing()) == hash(())
    assert one(1.5) == one(1.5)
    assert one(1.5) != one(2.5)
    assert one(float("nan")) != one(float("nan"))


@both
def test_an_object_within_itself_is_printed(decorate: Decorate) -> None:
    value = declared(decorate)(1)
    value.third.append(value)
    assert "..." in repr(value)


# The dataclasses of Python 3.11 can't create objects of a frozen generic class with slots.
def test_a_generic_class_creates_objects_of_its_kinds() -> None:
    class Held(Generic[T]):
        value: T

    kind = lazy_dataclass.dataclass(frozen=True, slots=True)(Held)
    assert kind[int](3).value == 3  # type: ignore[index] # generic, as declared
    assert copy.copy(kind("v")) == kind("v")  # type: ignore[call-arg] # as declared


def test_the_first_objects_of_a_class_may_be_created_in_many_threads() -> None:
    def create(kind: type, made: list[int], barrier: threading.Barrier, number: int) -> None:
        barrier.wait()
        made.append(kind(number).first)

    for _ in range(20):
        made: list[int] = []
        shared = declared(lazy_dataclass.dataclass), made, threading.Barrier(4)
        threads = [threading.Thread(target=create, args=(*shared, number)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(made) == [0, 1, 2, 3]


@both
def test_methods_that_were_kept_before_the_first_object_work_after_it(decorate: Decorate) -> None:
    class Base:
        first: int

    base = decorate(slots=True, frozen=True)(Base)

    class Derived(base):  # type: ignore[misc, valid-type] # made above
        second: int

    kind = decorate(slots=True, frozen=True)(Derived)
    initialize, is_equal, hash_of = (
        getattr(kind, name) for name in ("__init__", "__eq__", "__hash__")
    )
    one, other = kind(1, 2), kind(1, 2)
    assert one == other
    assert hash(one) == hash((1, 2))
    again = copy.copy(one)
    initialize(again, 1, second=3)
    assert again.second == 3
    assert is_equal(one, other) is True
    assert is_equal(one, again) is False
    assert hash_of(again) == hash((1, 3))


@both
def test_a_replaced_constructor_stays_replaced(decorate: Decorate) -> None:
    kind, calls = declared(decorate), []
    initialize = kind.__init__  # type: ignore[misc] # looked up on the class on purpose

    def counted(self: object, *args: object, **values: object) -> None:
        calls.append(args)
        initialize(self, *args, **values)

    kind.__init__ = counted  # type: ignore[misc] # as a test would patch it
    assert [kind(1).first, kind(2).first] == [1, 2]
    assert calls == [(1,), (2,)]


@both
def test_inherited_methods_know_the_fields_of_the_class_that_declares_them(
    decorate: Decorate,
) -> None:
    class Base:
        first: int

    base = decorate(slots=True)(Base)

    class Derived(base):  # type: ignore[misc, valid-type] # made above
        secret: str

    kind = decorate(slots=True, eq=False, repr=False)(Derived)
    assert kind(1, "a") == kind(1, "b")
    assert kind(1, "a") != kind(2, "a")
    assert repr(kind(1, "a")).endswith(".Derived(first=1)")


@both
@pytest.mark.parametrize("is_frozen", [True, False])
def test_a_frozen_class_has_no_base_that_is_not_and_the_reverse(
    decorate: Decorate, *, is_frozen: bool
) -> None:
    class Base:
        first: int

    base = decorate(slots=True, frozen=is_frozen)(Base)

    class Derived(base):  # type: ignore[misc, valid-type] # made above
        second: int

    with pytest.raises(TypeError, match="cannot inherit"):
        decorate(slots=True, frozen=not is_frozen)(Derived)


@both
def test_an_exception_may_be_declared_as_one(decorate: Decorate) -> None:
    class Refused(Exception):
        code: int
        reason: str = "none"

    kind = decorate(slots=True, eq=False)(Refused)
    with pytest.raises(kind) as caught:
        raise kind(7, reason="full")
    assert (caught.value.code, caught.value.reason) == (7, "full")  # type: ignore[attr-defined] # fields of `Refused`
    assert copy.copy(kind(7)).code == 7


@both
def test_a_class_that_was_pickled_by_value_has_its_defaults(decorate: Decorate) -> None:
    """`cloudpickle` copies the fields of a notebook's class, and the marks for "no default"."""
    kind = declared(decorate)
    for each in dataclasses.fields(kind):
        each.default, each.default_factory = (
            copy.copy(each.default),
            copy.copy(each.default_factory),
        )
        assert dataclasses.MISSING not in (each.default, each.default_factory)
    assert kind(1).third == []
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'first'"):
        kind()


def test_slots_are_required() -> None:
    with pytest.raises(TypeError):
        lazy_dataclass.dataclass(frozen=True)
    with pytest.raises(AssertionError):
        lazy_dataclass.dataclass(slots=False)


@pytest.mark.parametrize("annotation", [InitVar, InitVar[int], "InitVar[int]", "Passed[int]"])
def test_a_parameter_that_is_no_field_is_refused(annotation: object) -> None:
    """The constructor would ignore such a parameter silently."""
    kind = type("Taken", (), {"__annotations__": {"first": int, "second": annotation}})
    kind.__module__ = __name__
    with pytest.raises(TypeError, match=r"Taken\.second: InitVar is not supported"):
        lazy_dataclass.dataclass(slots=True)(kind)


def test_a_field_named_as_the_object_is_refused() -> None:
    kind = type("Taken", (), {"__annotations__": {"self": int}})
    with pytest.raises(TypeError, match="Taken: a field can't be named 'self'"):
        lazy_dataclass.dataclass(slots=True)(kind)


@both
def test_class_variables_are_no_fields(decorate: Decorate) -> None:
    class Taken:
        first: ClassVar[int] = 1
        second: int

    kind = decorate(slots=True)(Taken)
    assert repr(kind(2)).endswith("Taken(second=2)")
