"""Files of columns as rows: Parquet, and the folders of Arrow files that `datasets.save_to_disk` writes.

Used by the sources of prompts and by the checks of a manifest. Needs pyarrow, which is imported when such a file is
opened. A Parquet file is held in memory, since rows are read in any order; Arrow files are mapped.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow

PARQUET_MAGIC = b"PAR1"


_STATE, _SPLITS = "state.json", "dataset_dict.json"


class NoReader(ValueError):
    """pyarrow is not installed here."""


class Table:
    """Rows by their index, from 0. Threads may read at the same time."""

    def __init__(self, table: pyarrow.Table) -> None:
        self._table = table

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def row(self, index: int) -> dict[str, Any]:
        """Its columns as Python's own values; a null is None, and a map is a dict."""
        (row,) = self._table.slice(index, 1).to_pylist(maps_as_pydicts="lossy")
        return dict(row)


def is_table(path: Path) -> bool:
    """Whether `open_table` is what opens it: a folder, a pattern, or a file that begins as Parquet does."""
    if os.path.isdir(path) or _is_pattern(path):  # noqa: PTH112 - of pathlib's some errors come out
        return True
    try:
        with path.open("rb") as file:
            return file.read(len(PARQUET_MAGIC)) == PARQUET_MAGIC
    except OSError:
        return False


def open_table(path: Path, field: str) -> Table:
    """The rows of `path`, which `field` of the manifest names; ValueError with a sentence where it has none."""
    try:
        import pyarrow as pa
    except ImportError:
        raise NoReader(
            f"{field}: {path} has columns, and pyarrow, which reads it, is not installed. Install it: pip install"
            " 'rljob[worker]'."
        ) from None
    try:
        table = _of_folder(path, field) if path.is_dir() else _of_parquet(path, field)
    except (OSError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{field}: {path} cannot be read ({reason}). Write the file again.") from error
    if not table.num_rows:
        raise ValueError(f"{field}: {path} has no rows. Give a file with prompts.")
    return Table(table)


def _is_pattern(path: Path) -> bool:
    return "*" in path.name and not path.exists()


def _of_parquet(path: Path, field: str) -> pyarrow.Table:
    import pyarrow as pa
    from pyarrow import parquet

    files = sorted(path.parent.glob(path.name)) if _is_pattern(path) else [path]
    if not files:
        raise ValueError(f"{field}: no file matches {path}. Give the name of a file, or a pattern of Parquet files.")
    parts = [parquet.ParquetFile(file).read() for file in files]
    other = next((file for file, part in zip(files, parts, strict=True) if not part.schema.equals(parts[0].schema)), 0)
    if other:
        raise ValueError(f"{field}: {other} has other columns than {files[0]}. Make them data.sources of their own.")
    return pa.concat_tables(parts)


def _of_folder(folder: Path, field: str) -> pyarrow.Table:
    """As save_to_disk writes it: a state that names the files, each a stream of record batches."""
    import pyarrow as pa

    if (folder / _SPLITS).is_file():
        splits = json.loads((folder / _SPLITS).read_bytes())["splits"]
        raise ValueError(f"{field}: {folder} has the splits {', '.join(splits)}. Give the folder of one of them.")
    if not (folder / _STATE).is_file():
        raise ValueError(
            f"{field}: {folder} is a folder without {_STATE}, which datasets.save_to_disk writes. Give such a folder,"
            f" or for Parquet files a pattern, such as {folder / '*.parquet'}."
        )
    state = json.loads((folder / _STATE).read_bytes())
    parts = [
        pa.ipc.open_stream(pa.memory_map(str(folder / each["filename"]))).read_all() for each in state["_data_files"]
    ]
    return pa.concat_tables(parts)
