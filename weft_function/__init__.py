"""The code that runs inside a function. It needs numpy and a socket, but not torch: it starts fast and is small."""

import time

STARTED = time.monotonic()  # before any slow import
