"""`./run demo`: loads the flights, queries both clocks, replays a day on Spark, checks results.

The demo prints a line for each step, the storm day as bars, three sentences, and the number of
checks. All other results are in the report.
"""

import argparse
import shutil
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from examples.demo import flights as load
from examples.demo import questions, sparkjob, story
from examples.demo.flights import ROW_COUNT, ZONE, Flights, flights_of, read_source, source_path
from examples.demo.story import Report, write_report

from tidelog.env import os_env
from tidelog.errors import InvalidRequest, TidelogError
from tidelog.pages import Provenance
from tidelog.timespec import parse_point, parse_range, time_text

if TYPE_CHECKING:
    from concurrent.futures import Future
    from subprocess import Popen

    from pyarrow import Table
    from pyspark.sql import SparkSession


OUTPUT: Final = "demo-output"

# Name of a file that marks a folder as the output of a demo. A later run removes output only from a
# marked folder.
_MARKER: Final = ".tidelog-demo"

_LAST_MONTH: Final = 12
_STORM_DAY: Final = f"2013-02-08 {ZONE}"
_STORM_START: Final = f"2013-02-08 12:00 {ZONE}"
_MS_PER_HOUR: Final = 3_600_000


def main() -> None:
    """Run the demo; exit with code 1 if a figure differs from the expected one or a step fails."""
    parser = argparse.ArgumentParser(
        prog="./run demo", description="Real flights go into a log; Spark replays a storm day."
    )
    parser.add_argument("--out", default=OUTPUT, help=f"folder of all output ({OUTPUT})")
    arguments = parser.parse_args()
    # PySpark warns about new versions of pandas. The demo's functions work with new versions too,
    # and the demo checks its figures.
    warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas")
    try:
        failed = run(Path(arguments.out), story.Printer())
    except TidelogError as error:
        sys.exit(f"demo: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(bool(failed))


def run(out: Path, printer: story.Printer) -> list[str]:
    """Run the whole demo; return the checks that failed.

    Args:
        out: Folder for all output; output of an earlier run is removed.
        printer: Prints the progress.

    Raises:
        InvalidRequest: The folder has files that no demo created.
        TidelogError: The library refused a step.
    """
    started = time.perf_counter()
    prepare(out)
    spark = sparkjob.start_spark(out / "spark", out / "spark.log")
    compiler = questions.start_compiler(out / "native")
    try:
        demo = Demo(out, printer, spark)
        demo.load(compiler)
        demo.look_up_on_both_clocks()
        demo.replay()
        demo.follow_aircraft()
        demo.write_report()
        demo.print_results()
        printer.end(out, time.perf_counter() - started)
        return demo.checks.failed
    finally:
        questions.stop_compiler(compiler)
        spark.result().stop()
        for name in ("spark", "native"):
            shutil.rmtree(out / name, ignore_errors=True)


def prepare(out: Path) -> None:
    """Create the folder, or remove the output of an earlier demo from it."""
    if out.exists() and not (out / _MARKER).exists() and any(out.iterdir()):
        raise InvalidRequest(
            f"{out} is not empty and was not created by the demo; give another --out"
        )
    for name in ("log", "spark", "native", "spark.log", "report.html"):
        path = out / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    out.mkdir(parents=True, exist_ok=True)
    (out / _MARKER).touch()


class Demo:
    """Steps of the demo, in order; each prints its progress and stores values for later steps."""

    def __init__(self, out: Path, printer: story.Printer, spark: "Future[SparkSession]") -> None:
        self._out = out
        self._printer = printer
        self._spark = spark
        self._log = str(out / "log")
        self._start_ms, self._end_ms = parse_range(_STORM_DAY, now_ms=0)
        self._at_ms = parse_point(_STORM_START, now_ms=0)
        self.checks = questions.Checks()

    # -- loading -----------------------------------------------------------------------------

    def load(self, compiler: "Popen[bytes] | None") -> None:
        """Load eleven months through the library, and the last month through Spark.

        Args:
            compiler: The process that compiles native code. This method waits for its end.
        """
        with self._step(f"Reading the {ROW_COUNT:,} flights of 2013 that left New York"):
            rows = read_source(source_path())
            flights = flights_of(rows)
        self._check_source(rows, flights)
        by_sink = flights.month == _LAST_MONTH
        self._flights = flights
        self._loaded, late = flights.where(~by_sink), flights.where(by_sink)
        self._partitions = self._loaded.partitions(load.PARTITIONS)
        self._load_by_library()
        # Spark writes while native code is compiled in another process, because the write needs
        # little native code.
        self._load_by_spark(late)
        if compiler is not None:
            with self._step("Compiling native code (once)"):
                compiler.wait()
        self._check_rows()
        self._files = story.files_table(self._log)

    def _check_source(self, rows: "Table", flights: Flights) -> None:
        hours = rows["time_hour"].to_numpy().astype("datetime64[h]")
        scheduled = np.sort(flights.scheduled_ms // _MS_PER_HOUR)
        source_hours = np.sort(hours.astype(np.int64))
        self.checks.equal(
            "scheduled hours by the IANA zone, against the file's own UTC column",
            int((scheduled == source_hours).sum()),
            len(rows),
        )

    def _load_by_library(self) -> None:
        title = f"Appending {len(self._loaded):,} of them, each at the minute when it left"
        with self._printer.bar(title, len(self._loaded)) as advance:
            load.load(self._log, self._loaded, self._partitions, advance)

    def _load_by_spark(self, late: Flights) -> None:
        # The commit's append time is after the last departure, so that append times don't decrease.
        clock_ms = (int(late.departed_ms.max()) // _MS_PER_HOUR + 1) * _MS_PER_HOUR
        with self._step("Starting Spark"):
            session = self._spark.result()
        with self._step(f"Writing the {len(late):,} flights of December by Spark, in one commit"):
            numbers = late.partitions(load.PARTITIONS)
            sparkjob.write_month(session, self._log, late, numbers, clock_ms=clock_ms)
        note = (
            f"The {len(late):,} flights of December were written by Spark in one commit, so all of"
            f" them have the append time of that commit, {story.local(clock_ms)}."
        )
        self._settings_notes = [note]

    def _check_rows(self) -> None:
        self.checks.equal(
            f"records in the topic, compared with the {ROW_COUNT:,} rows of the source",
            story.record_count(self._log),
            ROW_COUNT,
        )

    # -- lookups -----------------------------------------------------------------------------

    def look_up_on_both_clocks(self) -> None:
        """Look up the storm day's noon on both clocks, and explain the difference."""
        span = (self._at_ms, self._start_ms, self._end_ms)
        with self._step("Looking up noon of 8 February on both clocks"):
            answers = questions.look_up(self._log, self._at_ms)
            self._crossing = questions.count_crossing(self._log, *span)
        self._clocks = story.clocks_table(answers)
        self._why = story.why(answers, self._crossing)
        self.checks.equal(
            "offsets on both clocks, compared with a count of the flights in order",
            [(answer.record.offset, answer.append.offset) for answer in answers],
            questions.expected_answers(self._loaded, self._partitions, self._at_ms),
        )
        with self._step("Reading the source again, by pandas, for the checks"):
            self._by_pandas = questions.read_by_pandas(source_path())
        self.checks.equal(
            "flights on either side of noon, by pandas from the source",
            self._crossing,
            questions.crossing_by_pandas(self._by_pandas, *span),
        )

    # -- replay ------------------------------------------------------------------------------

    def replay(self) -> None:
        """Replay the storm day on Spark by the record clock; compare the reads by both clocks."""
        session = self._spark.result()
        by_record = self._options("record")
        with self._step("Replaying 8 February on Spark"):
            self._day = sparkjob.by_hour_and_airport(sparkjob.read_flights(session, by_record))
        expected = questions.day_by_pandas(self._by_pandas, self._start_ms, self._end_ms)
        self.checks.frames_equal(
            f"{len(expected)} rows of the day by hour and airport, all columns, by pandas from the"
            " source",
            self._day,
            expected,
        )
        self.checks.equal(
            "dep_delay of each flight in the table, against append time minus create time",
            int(self._day["disagreeing"].sum()),
            0,
        )
        with self._step("Replaying the same day by append time"):
            by_append = self._options("append")
            departed = sparkjob.read_flights(session, by_append).count()
        self._compare_reads(by_record, by_append, departed)

    def _options(self, clock: str) -> dict[str, str]:
        return sparkjob.read_options(self._log, self._start_ms, self._end_ms, clock)

    def _compare_reads(
        self, by_record: dict[str, str], by_append: dict[str, str], departed: int
    ) -> None:
        due = int(self._day[["departures", "cancelled"]].to_numpy().sum())
        plans = [sparkjob.planned(by_record), sparkjob.planned(by_append)]
        self._reads = story.reads_table(list(zip((due, departed), plans, strict=True)))
        self._share = plans[0].scan_bytes / plans[0].log_bytes
        left = self._by_pandas["left_ms"]
        is_departed = (left >= self._start_ms) & (left < self._end_ms)
        self.checks.equal(
            "flights that left on that day, by pandas from the source",
            departed,
            int(is_departed.sum()),
        )

    # -- keys --------------------------------------------------------------------------------

    def follow_aircraft(self) -> None:
        """Show the last flight of each aircraft, as of a date and at the end of the year."""
        with self._step("Writing the flights by aircraft, into a compacted topic"):
            count = questions.load(self._log, self._flights)
        end_ms = int(self._flights.scheduled_ms.max())
        with self._step("Reading where each aircraft was, at noon and at the year's end"):
            then = questions.state_as_of(self._log, self._at_ms)
            last = questions.state_as_of(self._log, end_ms)
        self._check_states("before compaction", then, self._at_ms)
        self._check_states("before compaction", last, end_ms)
        with self._step("Compacting that topic"):
            remaining = questions.compact(self._log)
        after = questions.state_as_of(self._log, end_ms)
        self._check_states("after compaction", after, end_ms)
        self.checks.equal(
            f"the table as of {story.local(self._at_ms)} is refused after compaction",
            questions.is_refused(self._log, self._at_ms),
            True,
        )
        self._aircraft = story.aircraft_table(then.rows, last.rows)
        self._why_aircraft = story.why_aircraft(count, remaining, len(last.rows))

    def _check_states(self, when: str, state: questions.State, at_ms: int) -> None:
        expected = questions.state_by_pandas(self._by_pandas, at_ms)
        self.checks.frames_equal(
            f"last flight of {len(expected):,} aircraft as of {story.local(at_ms)}, {when},"
            " by pandas",
            state.rows.reset_index(),
            expected.reset_index(),
        )

    # -- report ------------------------------------------------------------------------------

    def write_report(self) -> None:
        """Write the report as one HTML file."""
        path = self._out / "report.html"
        write_report(
            path,
            Report(
                title="8 February 2013 at New York's airports",
                lead=story.LEAD,
                day=self._day,
                clocks=self._clocks,
                why=self._why,
                reads=self._reads,
                why_bytes=story.WHY_BYTES,
                aircraft=self._aircraft,
                why_aircraft=self._why_aircraft,
                files=self._files,
                settings=story.settings_table(),
                settings_notes=self._settings_notes,
                checked=self.checks.lines,
                origin=Provenance(
                    time=f"{time_text(os_env().clock.now_ms(), ZONE)} {ZONE}",
                    version=version("tidelog"),
                    command="./run demo",
                    locations={"Log": "the folder log beside this page"},
                    span=f"{_STORM_DAY}, on both clocks",
                    zone=ZONE,
                ),
            ),
        )

    def print_results(self) -> None:
        """Print the storm day as bars, three sentences on what it shows, and the checks."""
        self._printer.day("8 February 2013, New York: flights by scheduled hour", self._day)
        for line in story.three_sentences(self._day, self._crossing, self._share):
            self._printer.say(line)
        self._printer.checked(self.checks)

    @contextmanager
    def _step(self, title: str) -> Iterator[None]:
        with self._printer.step(title):
            yield
