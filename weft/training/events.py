"""Curves for TensorBoard, written as one file of events.

torch's SummaryWriter writes the same, but what it imports (tensorboard's file systems, with them boto3) takes a third
of a second at the start of every run, and what waits in its queue is lost when a run is killed.
"""

import os
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_STRING


class EventFile:
    """Adds scalars to a file of its own in a folder; TensorBoard reads all files of a folder as one."""

    def __init__(self, folder: Path, forget_from: int | None = None) -> None:
        """forget_from: the step from which TensorBoard is to forget what earlier files of the folder say."""
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{time.monotonic_ns()}"
        self._file: IO[bytes] = (folder / name).open("xb")
        first = [Event(wall_time=time.time(), file_version="brain.Event:2")]
        if forget_from is not None:
            started = SessionLog(status=SessionLog.START)
            first.append(Event(wall_time=time.time(), step=forget_from, session_log=started))
        self._write(first)

    def add(self, step: int, scalars: Mapping[str, float]) -> None:
        """When this returns, a crash of the process does not lose them."""
        now = time.time()
        values = [Summary(value=[Summary.Value(tag=tag, simple_value=value)]) for tag, value in scalars.items()]
        self._write([Event(wall_time=now, step=step, summary=value) for value in values])

    def add_text(self, tag: str, text: str) -> None:
        """A text in Markdown, which TensorBoard shows under "Text"."""
        content = TensorProto(dtype=DT_STRING, string_val=[text.encode()], tensor_shape=TensorShapeProto())
        about = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
        value = Summary.Value(tag=f"{tag}/text_summary", tensor=content, metadata=about)
        self._write([Event(wall_time=time.time(), summary=Summary(value=[value]))])

    def close(self) -> None:
        self._file.close()

    def _write(self, events: list[Event]) -> None:
        self._file.write(b"".join(_framed(event.SerializeToString()) for event in events))
        self._file.flush()


def _framed(record: bytes) -> bytes:
    """A record as such files hold it: its length and its bytes, each followed by its checksum."""
    length = struct.pack("<Q", len(record))
    return length + _checksum(length) + record + _checksum(record)


def _checksum(content: bytes) -> bytes:
    """CRC-32C, rotated and shifted, so that a record may itself hold checksums."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = (crc >> 8) ^ _CRC[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def _crc_of_byte(byte: int) -> int:
    for _ in range(8):
        byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
    return byte


_CRC = [_crc_of_byte(byte) for byte in range(256)]
