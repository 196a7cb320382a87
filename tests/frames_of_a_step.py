"""A model that trains as gcn does, and records the call stack of the first message of each class that is sent."""

import json
import os
import traceback
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor, nn

import weft
from weft.comm import Communicator
from weft.comm.pending import PendingMessages
from weft.layers import ModelConfig, build_model

OUT = "FRAMES_OUT"  # the folder for what was recorded
ROOT = Path(weft.__file__).parents[1]

_post = Communicator.post


def _recording(
    self: Communicator, outgoing: Sequence[Tensor | None], incoming: Sequence[Tensor | None], kind: str, what: str
) -> PendingMessages:
    file = Path(os.environ[OUT]) / f"{self.worker}-{kind}.json"
    if not file.exists():
        frames = [(Path(frame.filename), frame.name) for frame in traceback.extract_stack()[:-1]]
        frames = [frame for frame in frames if frame[1] != "<listcomp>"]  # a frame up to Python 3.11 only
        own = [(str(path.relative_to(ROOT)), name) for path, name in frames if path.is_relative_to(ROOT / "weft")]
        file.write_text(json.dumps(own))
    return _post(self, outgoing, incoming, kind, what)


def build(num_in: int, num_out: int, config: ModelConfig) -> nn.Module:
    """Called in the worker's own process, which ends with the run."""
    Communicator.post = _recording  # type: ignore[method-assign]
    return build_model(config.model_copy(update={"name": "gcn"}), num_in, num_out)
