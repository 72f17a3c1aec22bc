"""docs/config.md, docs/serve.md and docs/jobs.md match the settings and options of the code."""

from tools import job_docs, serve_docs
from tools.config_docs import TARGET, render

from tidelog.config import TOPIC_CONFIGS


def test_the_file_equals_the_scripts_output() -> None:
    assert TARGET.read_text(encoding="utf-8") == render(), "run tools/config_docs.py"


def test_every_setting_and_every_name_of_it_is_in_the_file() -> None:
    text = TARGET.read_text(encoding="utf-8")
    names = {key.name for key in TOPIC_CONFIGS}
    names |= {synonym.name for key in TOPIC_CONFIGS for synonym in key.synonyms}
    assert [name for name in sorted(names) if f"`{name}`" not in text] == []


def test_the_table_of_broker_settings_equals_the_scripts_output() -> None:
    text = serve_docs.TARGET.read_text(encoding="utf-8")
    assert text == serve_docs.render(text), "run tools/serve_docs.py"


def test_the_tables_of_job_options_equal_the_scripts_output() -> None:
    text = job_docs.TARGET.read_text(encoding="utf-8")
    assert text == job_docs.render(text), "run tools/job_docs.py"
