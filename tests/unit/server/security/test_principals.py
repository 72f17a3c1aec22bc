"""Distinguished names of certificates, and the rules that map them to principals.

Rules and results are those of KIP-371 and of Kafka's documentation.
"""

import pytest

from tidelog.errors import ConfigError
from tidelog.server.security.authentication import name_of, parse_rules, short_name
from tidelog.server.security.sasl import LoginFailed


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        ((), ""),
        (
            ((("countryName", "DE"),), (("organizationName", "Acme"),), (("commonName", "a"),)),
            "CN=a,O=Acme,C=DE",
        ),
        (((("commonName", "a"), ("userId", "b")),), "CN=a+UID=b"),
        (((("commonName", 'a, "b" + c=d; <e> \\'),),), 'CN=a\\, \\"b\\" \\+ c\\=d\\; \\<e\\> \\\\'),
        (((("commonName", "#a "),),), "CN=\\#a\\ "),
        (((("emailAddress", "a@b"),),), "1.2.840.113549.1.9.1=#160361" + "4062"),
    ],
)
def test_names(subject: tuple[tuple[tuple[str, str], ...], ...], name: str) -> None:
    assert name_of(subject) == name


DN = "CN=Duke,OU=ServiceUsers,O=Org,C=US"


@pytest.mark.parametrize(
    ("rules", "name", "short"),
    [
        ("", DN, DN),
        ("DEFAULT", DN, DN),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/", DN, "Duke"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L", DN, "duke"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/U", DN, "DUKE"),
        ("RULE:^cn=(.*)$/$1/,DEFAULT", DN, DN),
        ("RULE:^CN=(.*?),OU=(.*?),O=(.*?),C=(.*?)$/$1@$2/", DN, "Duke@ServiceUsers"),
        ("RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L", DN, "duke"),
        ("RULE:^CN=(.*?),.*$/$1@$9/", DN, "Duke@$9"),
        ("RULE:CN=(.*?)/$1/,RULE:^CN=Duke.*$/x/", DN, "Duke,OU=ServiceUsers,O=Org,C=US"),
        ("RULE:CN=Du/a/, RULE:^CN=.*$/b/\nDEFAULT", DN, "b"),
        ("RULE:^CN=Duke(x?).*$/$1/,DEFAULT", DN, ""),
    ],
)
def test_rules(rules: str, name: str, short: str) -> None:
    assert short_name(parse_rules(rules), name) == short


def test_a_name_that_no_rule_is_about() -> None:
    with pytest.raises(LoginFailed):
        short_name(parse_rules("RULE:^CN=nobody$/x/"), DN)


@pytest.mark.parametrize(
    "rules", ["x", "RULE:a", "RULE:a/b", "RULE:(/a/", "DEFAULT/x", "RULE:a/b/X"]
)
def test_rules_that_cannot_be_read(rules: str) -> None:
    with pytest.raises(ConfigError, match=r"ssl\.principal\.mapping\.rules"):
        parse_rules(rules)
