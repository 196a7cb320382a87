"""Files of weft's own: read with limits, written whole or not at all, locked while they are written."""

from weft.disk.lock import InUse, hold, is_held
from weft.disk.output import Claim
from weft.disk.reading import open_file, parse_json, parse_yaml, read_json, read_text
from weft.disk.scratch import scratch_folder
from weft.disk.space import explained, reserve, writing

__all__ = [
    "Claim",
    "InUse",
    "explained",
    "hold",
    "is_held",
    "open_file",
    "parse_json",
    "parse_yaml",
    "read_json",
    "read_text",
    "reserve",
    "scratch_folder",
    "writing",
]
