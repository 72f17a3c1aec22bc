"""The table layer: writes rows as tables that fit the terminal, or as JSON or CSV for scripts.

A command declares its columns, each with the kind of its cells, and passes rows of plain values. An
example of columns:

    COLUMNS: Final = columns(
        "topic",                                   # text
        prose("remedy"),                           # sentences: if they don't fit, rows are blocks
        wrapped("reason"),                         # never cut, continues on further lines
        number("partition", "end"),                # identifiers and offsets: 1234567
        count("records"),                          # 336,776
        size("bytes"),                             # 125 MB
        duration("behind_ms"),                     # BEHIND 21h35m, in JSON ms (or `_s`: seconds)
        share("lost_share"),                       # 0.2183 -> 22%
        time("timestamp"),                         # TIMESTAMP (UTC) 2013-02-08 17:00:00, from ms
        key("key"), value("value"),                # cut at 40 and 60 characters; (null), (empty)
        minor("topic_id", time("first_append")),   # dropped first if the terminal is narrow
        detail("epoch"),                           # for scripts; in tables only with --wide
        sparse(time("expires")),                   # omitted if no row has a value, even in a pipe
        headers("headers"),                        # by=ten, run=7: sparse, cut like values
        titled(read_again=count("again")),         # READ AGAIN, in JSON `again`
    )
    print_rows(surroundings, COLUMNS, rows, kind, zone=zone)

- `print_rows` writes a whole table, `writer` writes rows as they arrive, `print_summary` writes one
  row as a block, `live` redraws a table. `fields` returns a row as an object for scripts;
  `print_object` writes such an object.
- A row has the same raw values for every format: ms for times, 0.2183 for a share, None for no
  value. Text in a column of numbers is written as it is (`<=12`).
- Tables fit the width of the terminal, or of COLUMNS if it is set. A text column or a minor column
  is left out if no row has a value in it. If a table is too wide, headings are stacked, the last
  text column is shortened, and minor columns are dropped; a line below the table names the dropped
  columns. If cut keys or values would look alike, `…` replaces their common start. If a table has
  only one row and the row is too wide, it is written as a block. `--wide`, which most commands with
  a format option have, turns this fitting off. A long table ends with the number of its rows:
  "1,939 rows", or with `total` "40 of 1,939 rows".
- JSON and CSV have full precision and all columns. A time has two fields: `NAME` in ISO 8601,
  `NAME_ms` in ms. A partition is a number; the name of its topic is a separate field. An unknown or
  missing value is null in JSON, an empty cell in CSV.
- For sentences, `time_text`, `duration_text`, `count_text`, `bytes_text` and `share_text` format
  single values.
"""

from tidelog.amounts import bytes_text, duration_text, plural, share_text
from tidelog.cli.output.column import (
    Cell,
    Column,
    Columns,
    Kind,
    Row,
    columns,
    count,
    detail,
    duration,
    fields,
    headers,
    key,
    minor,
    number,
    prose,
    share,
    size,
    sparse,
    time,
    time_fields,
    titled,
    value,
    wrapped,
)
from tidelog.cli.output.formatters import NULL, cell_text, count_text, data_text, headers_text
from tidelog.cli.output.table import (
    ROWS_AT_ONCE,
    Writer,
    live,
    print_object,
    print_rows,
    print_summary,
    print_text,
    print_verdict,
    writer,
)
from tidelog.timespec import time_text
