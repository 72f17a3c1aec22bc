"""Converts binary columns of Arrow and Parquet to the types of `--key-as` and similar options.

A column of `auto` or `bytes` stays binary. The other encodings are those of `cells.exact_decoder`:
`int32`, `int64` and `double` become numbers; `string`, `uuid` and `json` become text.
"""

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, cast

from tidelog.cli.cells import Decode, exact_decoder, unreadable
from tidelog.cli.options import Encoding
from tidelog.errors import SerdeError
from tidelog.lazy_dataclass import dataclass

if TYPE_CHECKING:
    import pyarrow as pa

_BINARY: Final = (Encoding.AUTO, Encoding.BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnForm:
    """Form of a binary column, or of the values in the column `headers`.

    Attributes:
        encoding: Encoding of the bytes, which determines the column's type.
        option: `key`, `value` or `headers`; the option `--OPTION-as` names the encoding.
        offset: Column with the records' offsets, for errors.
    """

    encoding: Encoding
    option: str
    offset: str = "offset"


class TypedColumns:
    """Converts batches to a schema in which columns have the types of their forms.

    Attributes:
        schema: Schema of the converted batches.
    """

    def __init__(self, schema: "pa.Schema", topic: str, forms: Mapping[str, ColumnForm]) -> None:
        """Create a converter of batches with a schema.

        Args:
            schema: The schema of the batches.
            topic: The topic, for errors.
            forms: The forms of columns, by column.
        """
        import pyarrow as pa

        self._topic = topic
        self._forms = {
            name: form
            for name, form in forms.items()
            if form.encoding not in _BINARY and name in schema.names
        }
        self._decoders = {name: _decoder(form.encoding) for name, form in self._forms.items()}
        self.schema = pa.schema(
            [
                _typed_field(field, self._forms[field.name].encoding)
                if field.name in self._forms
                else field
                for field in schema
            ]
        )

    def convert(self, batch: "pa.RecordBatch") -> "pa.RecordBatch":
        """Return a batch with typed columns.

        Raises:
            SerdeError: An encoding can't represent a key, a value or a header's value exactly.
        """
        import pyarrow as pa

        if not self._forms:
            return batch
        columns = [
            self._column(batch, name) if name in self._forms else column
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _column(self, batch: "pa.RecordBatch", name: str) -> "pa.Array[pa.Scalar[pa.DataType]]":
        import pyarrow as pa

        column, kind = batch.column(name), self.schema.field(name).type
        if self._forms[name].encoding is Encoding.STRING and not pa.types.is_list(kind):
            try:
                return column.cast(kind)
            except pa.ArrowInvalid:
                pass  # the loop below finds the record whose bytes are not UTF-8
        decode = self._decoders[name]
        convert = _header_values(decode) if pa.types.is_list(kind) else decode
        cells = []
        for at, content in enumerate(column.to_pylist()):
            try:
                cells.append(convert(content))
            except SerdeError as error:
                self.convert(batch.slice(0, at))  # raises the error of an earlier record
                form = self._forms[name]
                offset = batch.column(form.offset)[at].as_py()
                where = f"{self._topic}-{batch.column('partition')[at].as_py()} offset {offset}"
                raise unreadable(error, form.option, where) from error
        typed: pa.Array[pa.Scalar[pa.DataType]] = pa.array(cells, type=kind)
        return typed


def _decoder(encoding: Encoding) -> Decode:
    """Return the decoder of an encoding; infinity and NaN of `double` are numbers, not text."""
    decode = exact_decoder(encoding, text_only=True)
    if encoding is not Encoding.DOUBLE:
        return decode

    def number(data: bytes | None) -> float | None:
        cell = decode(data)
        if cell is None:
            return None
        value = float(cast("float | str", cell))
        assert math.isfinite(value) or isinstance(cell, str)
        return value

    return number


def _header_values(decode: Decode) -> Callable[[object], object]:
    """Return a function that decodes the values of one record's headers."""

    def convert(headers: object) -> object:
        if headers is None:
            return None
        pairs = cast("list[dict[str, bytes | None]]", headers)
        return [{"key": one["key"], "value": decode(one["value"])} for one in pairs]

    return convert


def _typed_field(field: "pa.Field[pa.DataType]", encoding: Encoding) -> "pa.Field[pa.DataType]":
    """Return a field with the encoding's type; the list `headers` gets the type in its values."""
    import pyarrow as pa

    kinds: dict[Encoding, pa.DataType] = {
        Encoding.INT32: pa.int32(),
        Encoding.INT64: pa.int64(),
        Encoding.DOUBLE: pa.float64(),
    }
    kind: pa.DataType = kinds.get(encoding, pa.string())
    if pa.types.is_list(field.type):
        inner = field.type.value_field
        parts = [one.with_type(kind) if one.name == "value" else one for one in inner.type]
        kind = pa.list_(inner.with_type(pa.struct(parts)))
    return pa.field(field.name, kind, nullable=field.nullable)
