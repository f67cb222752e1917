"""A column of bytes to a column of values, in a Python worker."""

import pickle
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from penstock.pipeline.formats import BadRecordError, Decoder

_decoders: dict[bytes, Decoder] = {}


def decode_column(
    values: pa.Array, make: Callable[[], Decoder], target: pa.DataType, column: str
) -> pa.Array:
    """A struct of value and error for each of the values."""
    settings = pickle.dumps(make)
    decode = _decoders.get(settings)
    if decode is None:
        decode = _decoders[settings] = make()
    found: list[Any] = []
    errors: list[str | None] = []
    for data in values.to_pylist():
        value = error = None
        if data is not None:
            try:
                value = decode(data)
            except BadRecordError as bad:
                error = f"The {column} {bad}"
        found.append(value)
        errors.append(error)
    return pa.StructArray.from_arrays(
        [_fitted(found, errors, target, column), pa.array(errors, pa.string())], ["value", "error"]
    )


def _fitted(found: list[Any], errors: list[str | None], target: pa.DataType, column: str) -> pa.Array:
    """Values as Arrow has them; one that it has no room for (a date in the year 20000) is a bad record."""
    try:
        return pa.array(found, target)
    except (pa.ArrowException, ValueError, OverflowError, TypeError):
        for at, value in enumerate(found):
            try:
                pa.array([value], target)
            except (pa.ArrowException, ValueError, OverflowError, TypeError) as error:
                found[at] = None
                errors[at] = f"The {column} does not fit its column: {str(error).splitlines()[0]}"
        return pa.array(found, target)
