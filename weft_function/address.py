"""Addresses of graph servers: tcp://HOST:PORT."""

import re


def parse_address(address: str) -> tuple[str, int]:
    """Host and port of tcp://HOST:PORT; an IPv6 address is written in brackets."""
    found = re.fullmatch(r"tcp://(?:\[([0-9a-fA-F:.%\w]+)\]|([^:/\[\]]+)):(\d+)", address)
    if found is None or int(found[3]) > 65535:
        raise ValueError(f"{address} is not an address of the form tcp://HOST:PORT")
    return found[1] or found[2], int(found[3])
