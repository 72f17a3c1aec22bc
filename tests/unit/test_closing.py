"""If a `with` block and the close at its end both fail, neither failure hides the other."""

from tidelog.closing import Closing
from tidelog.errors import InvalidRecord, StorageFailure


class Failing(Closing):
    """Object whose close fails."""

    def __init__(self, path: str) -> None:
        self.path = path

    def close(self) -> None:
        raise StorageFailure(self.path, "append", "disk full")


def fail(error: BaseException | None, path: str) -> StorageFailure:
    """Return the failure of a block that raises `error` and then closes with a failure."""
    try:
        with Failing(path):
            if error is not None:
                raise error
    except StorageFailure as failure:
        return failure
    raise AssertionError("the close must fail")


def notes(error: BaseException) -> list[str]:
    return list(getattr(error, "__notes__", ()))


def test_a_failed_close_is_raised() -> None:
    assert (str(fail(None, "a")), notes(fail(None, "a"))) == ("a: append failed: disk full", [])


def test_the_first_failure_keeps_its_notes_if_the_close_repeats_it() -> None:
    first = StorageFailure("a", "append", "disk full")
    first.add_note("2 records were appended")
    assert fail(first, "a") is first
    assert notes(first) == ["2 records were appended"]


def test_the_first_failure_names_another_failure_of_the_close() -> None:
    first = StorageFailure("a", "append", "disk full")
    assert fail(first, "b") is first
    assert notes(first) == ["closing failed as well: b: append failed: disk full"]


def test_a_failed_close_after_another_error_is_raised_and_names_this_error() -> None:
    failure = fail(InvalidRecord("notes-0: no key"), "a")
    assert notes(failure) == ["before this failure: notes-0: no key"]
    assert notes(fail(KeyboardInterrupt(), "a")) == []
