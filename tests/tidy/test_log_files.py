"""Each kind of file beside a log is a row of `files.LOG_FILES`; no other code lists suffixes."""

import ast
from pathlib import Path

import tidelog
from tidelog.storage import files

SOURCE = Path(tidelog.__file__).parent
SUFFIXES = [row.suffix for row in files.LOG_FILES]
SUFFIX_NAMES = {name for name, value in vars(files).items() if value in SUFFIXES}


def test_no_other_module_lists_suffixes() -> None:
    lists = []
    for path in SOURCE.rglob("*.py"):
        if path == SOURCE / "storage" / "files.py":
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
    assert (".log", *files.LOG_LAST[:-1]) == files.LOG_FIRST
    assert files.LOG_LAST[-1] == ".log"
    assert {*files.LOG_FIRST} == {*files.SEGMENT_SUFFIXES, ".snapshot"}


def test_append_times_are_synced_before_the_log_and_the_log_before_derived_files() -> None:
    assert files.PRIMARY_SUFFIXES == (".appendtime", ".log")
    assert files.SYNCED_SUFFIXES[:2] == files.PRIMARY_SUFFIXES
    ranks = [row.sync_rank for row in files.SYNCED_FILES]
    assert ranks == [*range(len(ranks))]


def test_a_zone_map_has_checksums_of_the_files_beside_its_log() -> None:
    assert {*files.SUMMED_SUFFIXES} == {*files.SEGMENT_SUFFIXES} - {".log", ".zones"}


def test_a_move_to_a_tier_copies_every_file() -> None:
    """Files that the tier does not copy would be lost when the local files are removed."""
    tree = ast.parse((SOURCE / "storage" / "tier_manager" / "tier_store.py").read_text())
    named = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert named & SUFFIX_NAMES == SUFFIX_NAMES
