"""An npy file that grows: the same bytes as numpy would save, without ever holding the array."""

from pathlib import Path
from typing import Any

import numpy as np

from weft.disk import writing
from weft.graph.files import Array, write_header


class GrowingArray:
    """Rows are appended; numpy pads the header of an npy file so that it can be written again with the final length."""

    def __init__(self, path: Path, dtype: Any, row_shape: tuple[int, ...] = ()) -> None:
        self.path, self.dtype, self.row_shape, self.length = path, np.dtype(dtype), row_shape, 0
        with writing(path):
            self._file = path.open("w+b")
            self._write_header()
        self._first_byte = self._file.tell()

    def append(self, rows: Array) -> None:
        """Rows [n, ...] of the array's own type."""
        assert rows.dtype == self.dtype and rows.shape[1:] == self.row_shape, f"{self.path} takes other rows"
        with writing(self.path, rows.nbytes):
            self._file.write(np.ascontiguousarray(rows).data)
        self.length += len(rows)

    def read(self, begin: int, end: int) -> Array:
        """Rows that were appended before."""
        rows = np.empty((end - begin, *self.row_shape), self.dtype)
        with writing(self.path):  # what is still in the buffer
            self._seek(begin)
        count = self._file.readinto(rows.data)
        assert count == rows.nbytes, f"{self.path} has not so many rows"
        return rows

    def overwrite(self, begin: int, rows: Array) -> None:
        """Other values for rows that were appended before."""
        with writing(self.path):
            self._seek(begin)
            self._file.write(np.ascontiguousarray(rows).data)

    def close(self) -> None:
        with writing(self.path):
            self._file.seek(0)
            self._write_header()
            assert self._file.tell() == self._first_byte, "the header outgrew its place"
            self._file.close()

    def _seek(self, row: int) -> None:
        row_bytes = int(np.prod(self.row_shape, dtype=np.int64)) * self.dtype.itemsize
        self._file.seek(self._first_byte + row * row_bytes)

    def _write_header(self) -> None:
        write_header(self._file, (self.length, *self.row_shape), self.dtype)
