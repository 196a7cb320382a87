import os

import pytest


@pytest.fixture(autouse=True)
def unflushed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files need not outlive the machine's power here, and many small ones are written."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
