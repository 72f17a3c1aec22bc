"""Error codes have the numbers of Kafka's protocol, as the library kio lists them."""

from tidelog.error_codes import ErrorCode


def test_every_error_code_has_the_protocol_s_number() -> None:
    from kio.schema.errors import ErrorCode as Protocols

    protocols = {code.name.upper(): code.value for code in Protocols}
    assert {code.name: int(code) for code in ErrorCode} == {
        code.name: protocols.get(code.name) for code in ErrorCode
    }


def test_an_error_code_is_reported_as_its_number() -> None:
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert f"{code} {code!s} {code:>2}" == "3 3  3"
    assert "%s" % code == "3"  # noqa: UP031 - the case
