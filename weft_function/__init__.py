"""What runs inside a function: numpy and a socket, no torch, so that it starts fast and fits in a small archive."""

import time

STARTED = time.monotonic()  # before anything that takes long to import
