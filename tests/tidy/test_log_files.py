"""Each kind of file beside a log is a row of `LOG_FILES`; no other code lists suffixes."""

import ast
from pathlib import Path

import tidelog
from tidelog.storage import log_files

SOURCE = Path(tidelog.__file__).parent
SUFFIXES = [row.suffix for row in log_files.LOG_FILES]
SUFFIX_NAMES = {name for name, value in vars(log_files).items() if value in SUFFIXES}


def suffixes_of(module: str) -> set[str]:
    """Return the file suffixes that a module of storage contains."""
    tree = ast.parse((SOURCE / "storage" / module).read_text())
    named = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return {getattr(log_files, name) for name in named & SUFFIX_NAMES}


def test_no_other_module_lists_suffixes() -> None:
    lists = []
    for path in SOURCE.rglob("*.py"):
        if path == SOURCE / "storage" / "log_files.py":
            continue
        source = path.read_text()
        if sum(name in source for name in SUFFIX_NAMES) <= 2:
            continue  # parsing every file would take seconds
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Tuple | ast.List | ast.Set):
                named = [n.attr for n in node.elts if isinstance(n, ast.Attribute)]
                if len(SUFFIX_NAMES & {*named}) > 2:
                    lists.append(f"{path.relative_to(SOURCE)}:{node.lineno}")
    assert not lists


def test_the_log_stands_first_or_last() -> None:
    assert (".log", *log_files.LOG_LAST[:-1]) == log_files.LOG_FIRST
    assert log_files.LOG_LAST[-1] == ".log"
    assert {*log_files.LOG_FIRST} == {*log_files.SEGMENT_SUFFIXES, ".snapshot"}


def test_append_times_are_synced_before_the_log_and_the_log_before_derived_files() -> None:
    assert log_files.PRIMARY_SUFFIXES == (".appendtime", ".log")
    assert log_files.SYNCED_SUFFIXES[:2] == log_files.PRIMARY_SUFFIXES
    ranks = [row.sync_rank for row in log_files.SYNCED_FILES]
    assert ranks == [*range(len(ranks))]


def test_a_zone_map_has_checksums_of_the_files_beside_its_log() -> None:
    assert {*log_files.SUMMED_SUFFIXES} == {*log_files.SEGMENT_SUFFIXES} - {".log", ".zones"}


def test_a_move_to_a_tier_copies_every_file() -> None:
    """Files that the tier does not copy would be lost when the local files are removed."""
    assert suffixes_of("tier_manager/tier_store.py") == {*SUFFIXES}


def test_a_truncation_cuts_every_file_that_a_finished_segment_can_have() -> None:
    """A truncation removes the zone map and the snapshots by functions of other modules."""
    assert suffixes_of("log/truncation.py") == {*log_files.SUMMED_SUFFIXES}


def test_an_attached_segment_gets_every_file_that_can_be_made_from_its_log() -> None:
    """A zone map is built after the attach, and an attached segment has no snapshot."""
    assert suffixes_of("directory/staging.py") == {".log", *log_files.SUMMED_SUFFIXES}
