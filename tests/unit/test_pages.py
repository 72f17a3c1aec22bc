"""HTML pages: verdict first, bounded tables, escaped texts, an origin, colors with contrast."""

import re
from pathlib import Path
from time import process_time

import pytest
from tests.worlds.made_pages import (
    audit_page,
    bootstrap_page,
    lag_page,
    latency_page,
    made_pages,
    mirror_page,
)
from tests.worlds.pages import Balanced

from tidelog.cli.jobs import lag, latency
from tidelog.cli.jobs.session import origin
from tidelog.cli.surroundings import Surroundings
from tidelog.html_cells import visible
from tidelog.jobs.latency.tables import LatencyResult, TopicTimes
from tidelog.pages import (
    ROWS_FIRST,
    ROWS_MAX,
    STYLE,
    Align,
    Items,
    Provenance,
    Report,
    Section,
    Table,
    Text,
    plot_by_hour,
    without_secrets,
    write_report,
)
from tidelog.plots import Plot
from tidelog.scan.latency import TopicLateness
from tidelog.storage.clocks.latency import LatencyByHour
from tidelog.types import HOUR_MS

HOSTILE = "<script>alert('&')</script>"
ODD = "a\0\x1b[31m\u202eb\tc\nd"
HOUR = 376_944


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return {name: report.html() for name, report in made_pages().items()}


def test_every_page_is_well_formed_and_needs_nothing_else(pages: dict[str, str]) -> None:
    for page in pages.values():
        parser = Balanced()
        parser.feed(page)
        assert parser.open == []
        assert not parser.seen & {"script", "link", "img", "iframe"}
        assert set(re.findall(r"https?://[^\"' )<]+", page)) <= {"http://www.w3.org/2000/svg"}
        assert "@import" not in page
        assert set(re.findall(r"url\((.)", page)) <= {"#"}
        assert not re.search(r"[\x00-\x08\x0b-\x1f\u202e]", page)


def test_every_page_begins_with_a_verdict_and_stays_small(pages: dict[str, str]) -> None:
    for page in pages.values():
        verdict = re.search(r"</h1>\s*<p class=\"verdict\">(.+?)</p>", page)
        assert verdict
        assert not re.search(r"<(?!/?span\b)", verdict[1])
        assert len(page) < 2_000_000


def test_ids_of_pictures_are_unique(pages: dict[str, str]) -> None:
    for page in pages.values():
        ids = re.findall(r" id=\"([^\"]+)\"", page)
        assert len(ids) == len(set(ids))


def test_landmarks_of_a_page_have_names_of_their_own(pages: dict[str, str]) -> None:
    for page in pages.values():
        names = re.findall(r'role="region" aria-label="([^"]*)"', page)
        assert len(names) == len(set(names))


def test_a_long_table_shows_its_first_rows_and_the_command_for_all() -> None:
    rows = [[str(n)] for n in range(5_135)]
    page = Table(["n"], rows, whole="--show hours -o csv").html()
    head, _, rest = page.partition("<details>")
    assert head.count("<tr>") == ROWS_FIRST + 1
    assert f"{ROWS_MAX - ROWS_FIRST} more rows" in rest
    assert "1,000 of 5,135 rows" in rest
    assert "<code>--show hours -o csv</code>" in _joined(rest)
    assert page.count("<td") == ROWS_MAX


@pytest.mark.parametrize(
    ("hidden", "words"), [(["id"], "prints it."), (["id", "at"], "prints them.")]
)
def test_a_table_names_the_columns_that_it_omits(hidden: list[str], words: str) -> None:
    page = Table(["n"], [["1"]], whole="-o csv", hidden=hidden).html()
    assert f"Not shown: {', '.join(hidden)}; <code>-o csv</code> {words}</p>" in _joined(page)


def _joined(page: str) -> str:
    """Return a page without the marks that prevent line breaks in times and options."""
    return re.sub('<span class="d">|</span>', "", page)


def test_times_and_options_stay_on_one_line() -> None:
    text = "from 2013-01-01 00:00:00 to before 2014-01-01, --zone UTC -o csv a-b <i>"
    assert Text(text).html() == (
        '<p>from <span class="d">2013-01-01 00:00:00</span> to before'
        ' <span class="d">2014-01-01</span>, <span class="d">--zone</span> UTC'
        ' <span class="d">-o</span> csv a-b &lt;i&gt;</p>'
    )


def test_rows_too_long_for_a_phone_become_blocks_with_the_names_of_their_columns() -> None:
    columns = ["topic", "<hour>", "records", "p50", "p99"]
    wide = Table(columns, [["flights", "2013-01-01 00:00:00", "10", "1m", ""]]).html()
    assert '<table class="blocks">' in wide
    assert '<td class="d" data-name="&lt;hour&gt;">2013-01-01 00:00:00</td>' in wide
    assert 'data-name="p99">(empty)</td>' in wide
    small = Table(["topic", "records"], [["flights", "10"]]).html()
    assert "blocks" not in small
    assert "data-name" not in small


def test_a_table_without_rows_is_a_sentence() -> None:
    assert Table(["a"], [], nothing="No differences.").html() == "<p>No differences.</p>"


def test_text_is_left_and_numbers_are_right() -> None:
    columns = ["topic", "n", "size", "at", "late", "none"]
    rows = [
        ["flights", "1,234", "125 MB", "2013-02-08 17:00:00", "21h35m", "-"],
        ["a-1", "-", "9 bytes", "-", "-2.5%", "-"],
    ]
    page = Table(columns, rows).html()
    kinds = re.findall(r"<td class=\"(.)\"", page)
    assert kinds == ["t", "n", "n", "d", "n", "t"] * 2
    numeric_keys = Table(["key"], [["12345"]], aligned=[Align.TEXT]).html()
    assert '<td class="t">12345</td>' in numeric_keys


def test_the_page_of_lags_shows_the_limits_that_it_was_judged_by() -> None:
    assert "Exceeded limits: --max-lag 100000" in lag_page().html()
    kept = lag.page("p", [], [], "--max-lag 5", None).html()
    assert "Exceeded limits: --max-lag 5" in kept
    assert "No partition exceeds them." in kept
    assert "Exceeded limits" not in lag.page("p", [], [], "", None).html()


def test_keys_are_shown_as_in_the_terminal_and_cut_with_the_whole_beside() -> None:
    page = audit_page().html()
    assert visible(ODD) == r"a\x00\x1b[31m\u202eb\tc\nd"
    key = '<td class="t" data-name="key"'
    for text in (r"\x00\x1b[31mred", r"evil\u202egpj.exe", r"a\tb\nc", "(empty)", "日本語🛫"):
        assert f"{key}>{text}</td>" in page
    assert f"{key}>{{&quot;base64&quot;: &quot;//4A&quot;}}</td>" in page
    assert "&lt;script&gt;" in page
    assert f'{key} title="{"k" * 1_000}…">{"k" * 39}…</td>' in page


def test_invisible_characters_are_shown_as_escapes() -> None:
    plot = plot_by_hour({ODD: {ODD: {HOUR + n: 1.0 for n in range(3)}}}, ODD, title=ODD)
    parts: list[Section] = [Text(ODD), Items([ODD]), Table([ODD], [[ODD]]), plot]
    page = Report(ODD, parts, ODD).html()
    assert not {"\0", "\x1b", "\u202e", "\t"} & set(page)
    assert page.count(r"a\x00\x1b[31m\u202eb\tc\nd") > 10


def test_all_text_is_escaped(tmp_path: Path) -> None:
    sections: list[Section] = [
        Text(HOSTILE, title=HOSTILE),
        Items([HOSTILE]),
        Table([HOSTILE], [[HOSTILE]], title=HOSTILE, nothing=HOSTILE),
        plot_by_hour({HOSTILE: {HOSTILE: {HOUR + n: 3.0 for n in range(4)}}}, HOSTILE),
    ]
    origin = Provenance(
        time=HOSTILE, version=HOSTILE, command=HOSTILE, locations={HOSTILE: HOSTILE}
    )
    path = tmp_path / "report.html"
    write_report(str(path), Report(HOSTILE, sections, HOSTILE, origin))
    page = path.read_text(encoding="utf-8")
    assert "<script" not in page
    parser = Balanced()
    parser.feed(page)
    assert parser.open == []


def test_the_footer_of_a_page_states_its_origin() -> None:
    page = _joined(audit_page().html())
    footer = page[page.index("<footer>") :]
    for text in ("by tidelog 0.1.0", "America/New_York", "from 2013-01-01", "--report"):
        assert text in footer
    assert "<h1>Audit of A (east) and B (west), from 2013-01-01 00:00:00" in page


def test_the_tables_of_the_latency_page_have_the_words_of_the_command() -> None:
    page = _joined(latency_page().html())
    for heading in ("late by up to", "clock ahead", "watermark delay", "records lost", "p99.9"):
        assert f">{heading}</th>" in page
    assert ">min</th>" not in page


def test_passwords_are_in_no_page() -> None:
    arguments = ["spark", "bootstrap", "jdbc:x://u:hunter2@h:5432/d?password=hunter2", "flights"]
    arguments += ["--option", "password=hunter2", "--store-option", "secret_access_key=hunter2"]
    arguments += ["--option=password=hunter2", "--to", "kafka://broker:9092"]
    kept = without_secrets(arguments)
    assert "hunter2" not in " ".join(kept)
    assert {"kafka://broker:9092", "password=...", "secret_access_key=..."} <= set(kept)
    for secret in (
        "abfss://c@a.dfs.core.windows.net/x?sv=1&sig=hunter2&se=2",
        "s3://bucket/x?X-Amz-Signature=hunter2",
        "s3://bucket/x?access_key=hunter2",
        "adl://x?account_key=hunter2",
        "kafka://u:p@hunter2@broker:9092",
        "jdbc:x://h/d?user=u&pwd=hunter2",
    ):
        assert "hunter2" not in without_secrets([secret])[0]
        named = origin(Surroundings(), {"Place": secret})
        assert "hunter2" not in named.html()
    assert without_secrets(["s3://bucket/a@b", "--key", "sig"]) == [
        "s3://bucket/a@b",
        "--key",
        "sig",
    ]
    assert "hunter2" not in bootstrap_page().html()


@pytest.mark.parametrize("option", ["--store-option", "--to-store-option", "--option", "--conf"])
def test_values_of_settings_are_in_no_page(option: str) -> None:
    """A setting's name doesn't show whether its value is secret, so pages show no values."""
    for words in ([option, "sas_key=hunter2=x"], [f"{option}=sas_key=hunter2=x"]):
        kept = without_secrets(["spark", *words, "flights"])
        assert "hunter2" not in " ".join(kept)
        assert kept[-1] == "flights"
        assert "sas_key=..." in kept[-2]


def test_a_long_key_of_digits_is_laid_out_at_once() -> None:
    began = process_time()
    page = Table(["key"], [["1" * 5_000 + "!"]]).html()
    assert process_time() - began < 1
    assert '<td class="n"' not in page


def test_percentiles_of_a_week_are_those_of_all_its_records() -> None:
    hours = LatencyByHour()
    for hour in range(24 * 365):  # in each week, one hour is slow
        hours.at((HOUR + hour) * HOUR_MS).add(7 * HOUR_MS if hour % 168 == 0 else 60_000, 10)
    topic = TopicTimes(87_600, 0, hours, hours, TopicLateness(records=87_600))
    sections = latency.page("data", LatencyResult({"t": topic}, 1, []), None).sections
    latencies, counts, *_ = [one for one in sections if isinstance(one, Plot)]
    assert latencies.title == "t: latency by week"
    for panel in latencies.panels.values():
        assert [one.name for one in panel] == ["p50", "p99"]
        minutes = [ms / 60_000 for one in panel for ms in one.values.values()]
        assert len(minutes) > 100
        # One slow hour raises the p99 of a week only if the week has fewer than 100 hours. Only
        # the last week is that short: it has 48 hours.
        assert sorted(minutes)[-2] < 1.1
    (count, *_) = counts.panels["append time"]
    assert sum(count.values.values()) == 87_600


def test_one_batch_is_a_sentence_and_not_a_plot_of_a_dot() -> None:
    page = mirror_page(1).html()
    assert "<svg" not in page
    assert "1,000 records were copied in 1 batch;" in page
    assert "Writing took 900ms." in page
    assert "records per second: 1,111 (batch 0)." in page
    assert "<svg" in mirror_page(30).html()


def test_the_audit_explains_its_kinds_and_reports_equal_sides() -> None:
    page = audit_page().html()
    assert "east and west differ in 2,000 of 61,967 keys: 667 missing on B, 667 only on B" in page
    assert "extra: B has the key, A does not" in page
    equal = audit_page(0).html()
    assert "east and west are equal: 61,300 keys in" in equal
    assert "<p>No differences.</p>" in equal


def test_times_are_in_the_zone_that_the_page_names_once(pages: dict[str, str]) -> None:
    page = pages["latency"]
    assert "append time in America/New_York, by week" in page
    assert "in UTC" not in page


# -- colors ---------------------------------------------------------------------------------------


def luminance(color: str) -> float:
    """Return the relative luminance as WCAG 2.2 defines it."""
    digits = color.lstrip("#")
    digits = "".join(c * 2 for c in digits) if len(digits) == 3 else digits
    parts = [int(digits[n : n + 2], 16) / 255 for n in (0, 2, 4)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def colors(scheme: str) -> dict[str, str]:
    light, dark = STYLE.split("@media (prefers-color-scheme: dark)", 1)
    text = light if scheme == "light" else dark[: dark.index("* {")]
    return dict(re.findall(r"--(\w+): (#[0-9a-f]{3,6})\b", text))


def test_contrast_is_that_of_wcag() -> None:
    assert contrast("#000", "#ffffff") == pytest.approx(21)
    assert contrast("#e69f00", "#fff") == pytest.approx(2.25, abs=0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["ink", "soft", "s0"])
def test_text_has_contrast(scheme: str, name: str) -> None:
    assert contrast(colors(scheme)[name], colors(scheme)["page"]) >= 4.5


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("number", range(4))
def test_marks_have_contrast(scheme: str, number: int) -> None:
    assert contrast(colors(scheme)[f"s{number}"], colors(scheme)["page"]) >= 3
