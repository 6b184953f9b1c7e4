"""Python values as bytes and back, without pickle: what is no tensor column.

Pure. A value is UTF-8 text, or JSON in which what JSON does not know stands as a marked object: tensors and arrays
(dtype, shape, bytes), bytes, tuples, non-finite floats, big integers. Anything else is refused: nothing that is read
can run code.
"""

from __future__ import annotations

import base64
import math
from typing import Any, Final

import numpy as np
import orjson
import torch

TEXT: Final = 1
DOCUMENT: Final = 2
_MARK = "$rljob"
_MAX_INTEGER = (1 << 63) - 1


def encode_value(value: object, where: str) -> tuple[int, bytes]:
    """Form (TEXT or DOCUMENT) and bytes of one value; `where` names the field for the refusal."""
    if type(value) is str:
        return TEXT, value.encode()
    return DOCUMENT, encode_document(value, where)


def decode_value(form: int, data: bytes) -> Any:  # noqa: ANN401 - any of the values above
    """The reverse."""
    return data.decode() if form == TEXT else decode_document(data)


def encode_document(value: object, where: str) -> bytes:
    """JSON of one value."""
    return orjson.dumps(_to_json(value, where))


def decode_document(data: bytes) -> Any:  # noqa: ANN401 - any of the values above
    """The reverse."""
    return _from_json(orjson.loads(data))


def _to_json(value: object, where: str) -> object:
    if value is None or type(value) in (str, bool):
        return value
    if type(value) is int:
        return value if -_MAX_INTEGER <= value <= _MAX_INTEGER else _marked("int", str(value))
    if type(value) is float:
        return value if math.isfinite(value) else _marked("float", str(value))
    if isinstance(value, dict):
        return _object(value, where)
    if isinstance(value, list):
        return [_to_json(item, where) for item in value]
    if isinstance(value, tuple):
        return _marked("tuple", [_to_json(item, where) for item in value])
    if isinstance(value, bytes):
        return _marked("bytes", base64.b64encode(value).decode())
    if isinstance(value, torch.Tensor):
        return _tensor(value, where)
    if isinstance(value, np.generic | np.ndarray):
        return _array(np.asarray(value), where, scalar=isinstance(value, np.generic))
    raise TypeError(
        f"{where}: a value of type {type(value).__qualname__} cannot be carried, since nothing is pickled here. Put"
        " tensors, arrays, text, numbers, bytes, or lists and dicts of them."
    )


def _object(value: dict[Any, Any], where: str) -> object:
    for name in value:
        if type(name) is not str:
            raise TypeError(f"{where}: a dict has the key {name!r}, which is no text. Use text as keys of dicts.")
    inner = {name: _to_json(item, where) for name, item in value.items()}
    return _marked("dict", inner) if _MARK in value else inner


def _tensor(value: torch.Tensor, where: str) -> object:
    if value.is_nested or value.layout is not torch.strided:
        raise TypeError(f"{where}: a nested or sparse tensor inside a value cannot be carried. Make it a column.")
    dense = value.detach().cpu().contiguous()
    raw = dense.reshape(-1).view(torch.uint8).numpy().tobytes()
    name = str(dense.dtype).removeprefix("torch.")
    return _marked("tensor", [name, list(dense.shape), base64.b64encode(raw).decode()])


def _array(value: np.ndarray[Any, Any], where: str, *, scalar: bool) -> object:
    if value.dtype.kind == "V":
        raise TypeError(
            f"{where}: an array of records ({value.dtype}) cannot be carried. Give each part its own array."
        )
    if value.dtype.hasobject:
        return _marked("objects", [list(value.shape), [_to_json(item, where) for item in value.ravel().tolist()]])
    kind = "scalar" if scalar else "array"
    raw = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
    return _marked(kind, [value.dtype.str, list(value.shape), raw])


def _marked(kind: str, content: object) -> dict[str, object]:
    return {_MARK: kind, "is": content}


def _from_json(value: Any) -> Any:  # noqa: ANN401 - see the module
    if isinstance(value, list):
        return [_from_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    if _MARK not in value:
        return {name: _from_json(item) for name, item in value.items()}
    return _read_marked(value[_MARK], value["is"])


def _read_marked(kind: str, content: Any) -> Any:  # noqa: ANN401 - see the module
    match kind:
        case "int":
            return int(content)
        case "float":
            return float(content)
        case "tuple":
            return tuple(_from_json(item) for item in content)
        case "bytes":
            return base64.b64decode(content)
        case "dict":
            return {name: _from_json(item) for name, item in content.items()}
        case "objects":
            return _objects(*content)
        case "tensor":
            return _read_tensor(*content)
        case "array" | "scalar":
            array = np.frombuffer(base64.b64decode(content[2]), np.dtype(content[0])).reshape(content[1]).copy()
            return array[()] if kind == "scalar" else array
    raise ValueError(f"TransferQueue: a stored value is marked {kind!r}, which this version does not know.")


def _objects(shape: list[int], items: list[Any]) -> np.ndarray[Any, Any]:
    array = np.empty(len(items), object)
    for place, item in enumerate(items):
        array[place] = _from_json(item)
    return array.reshape(shape)


def _read_tensor(name: str, shape: list[int], raw: str) -> torch.Tensor:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"TransferQueue: a stored tensor has the dtype {name!r}, which this version does not know.")
    data = bytearray(base64.b64decode(raw))
    if not data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(data, dtype=torch.uint8).view(dtype).reshape(shape)
