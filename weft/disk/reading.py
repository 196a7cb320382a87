"""Reading files that may be anything: each mistake is one sentence that names the file, in bounded time and memory."""

import errno
import io
import json
import os
import stat
from pathlib import Path
from typing import Any

import yaml

from weft.errors import UserError

MAX_JSON_BYTES = 256 << 20  # the manifest of 32,767 parts is a tenth of it
MAX_YAML_BYTES = 1 << 20  # a parser in Python takes a second for it
MAX_YAML_NODES = 100_000  # after aliases are expanded
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_REASONS = {
    errno.ENOENT: "is missing",
    errno.ENOTDIR: "is missing",
    errno.ELOOP: "is a link that leads to itself",
    errno.EACCES: "may not be read (permission denied)",
    errno.ENXIO: "is a socket, not a file",
}


def open_file(path: Path, advice: str) -> io.BufferedReader:
    """A regular file, open to be read; whatever else lies there is refused, and nothing waits."""
    try:
        # Without O_NONBLOCK the opening of a named pipe waits until somebody writes to it.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
    except OSError as error:
        raise _unreadable(path, error, advice) from None
    except ValueError:  # a NUL in the name
        raise UserError(f"{str(path)!r} is no name of a file: {advice}") from None
    kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
    if kind != stat.S_IFREG:
        os.close(descriptor)
        raise UserError(f"{path} is {_KINDS.get(kind, 'something else')}, not a file: {advice}")
    return os.fdopen(descriptor, "rb")


def check_file(path: Path, advice: str) -> os.stat_result:
    """Refuses whatever is no regular file that can be opened."""
    with open_file(path, advice) as file:
        return os.fstat(file.fileno())


def read_bytes(path: Path, limit: int, advice: str) -> bytes:
    with open_file(path, advice) as file:
        try:
            # A read takes memory for as much as it is asked for, however small the file is.
            data = file.read(min(limit, os.fstat(file.fileno()).st_size) + 1)
        except OSError as error:
            raise _unreadable(path, error, advice) from None
    if len(data) > limit:
        raise UserError(f"{path} has more than {limit:,} bytes, which is more than such a file can have: {advice}")
    return data


def read_text(path: Path, limit: int, advice: str) -> str:
    try:
        return read_bytes(path, limit, advice).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is damaged (byte {error.start} is no UTF-8): {advice}") from None


def read_json(path: Path, advice: str) -> Any:
    return parse_json(read_bytes(path, MAX_JSON_BYTES, advice), str(path), advice)


def parse_json(data: bytes | str, where: str, advice: str) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise UserError(f"{where} is damaged ({reason}): {advice}") from None


def read_yaml(path: Path, advice: str) -> Any:
    return parse_yaml(read_text(path, MAX_YAML_BYTES, advice), str(path), advice)


def parse_yaml(text: str, where: str, advice: str) -> Any:
    """Plain values of a YAML text. Aliases that would expand to more than can be meant are refused."""
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        if _expanded(node, {}) > MAX_YAML_NODES:
            raise UserError(f"{where} has more than {MAX_YAML_NODES:,} values, with its aliases expanded: {advice}")
        return loader.construct_document(node)
    except UserError:
        raise
    except RecursionError:
        raise UserError(f"{where} is nested too deeply: {advice}") from None
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, OverflowError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{where} cannot be read as YAML ({reason}): {advice}") from None


def _expanded(node: yaml.Node, known: dict[int, int]) -> int:
    """How many values a node stands for; a node that holds itself stands for endlessly many."""
    if id(node) in known:
        return known[id(node)]
    known[id(node)] = MAX_YAML_NODES + 1  # while its own values are counted
    count = 1
    for child in node.value if isinstance(node.value, list) else ():
        for value in child if isinstance(child, tuple) else (child,):
            count += _expanded(value, known)
    known[id(node)] = count
    return count


def _unreadable(path: Path, error: OSError, advice: str) -> UserError:
    reason = _REASONS.get(error.errno or 0, f"cannot be read ({error.strerror or error})")
    return UserError(f"{path} {reason}: {advice}")
