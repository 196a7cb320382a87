"""Short texts between workers: broadcast from worker 0, or gathered from all."""

import torch

from weft.comm.communicator import Communicator


def broadcast_text(comm: Communicator, text: str, what: str) -> str:
    """Worker 0's text, at every worker."""
    if comm.num_workers == 1:
        return text
    size = comm.broadcast(torch.tensor([len(text.encode())]), 0, "control", f"the length of {what}")
    letters = torch.zeros(int(size), dtype=torch.uint8)
    if comm.worker == 0:
        letters = _letters(text)
    return _text(comm.broadcast(letters, 0, "control", what).tolist())


def gather_texts(comm: Communicator, text: str, what: str) -> list[str]:
    """Every worker's text, by worker, at every worker."""
    if comm.num_workers == 1:
        return [text]
    letters = _letters(text)
    sizes = comm.all_gather(torch.tensor([letters.numel()]), "control", f"the lengths of {what}").flatten().tolist()
    padded = torch.zeros(max(sizes), dtype=torch.uint8)
    padded[: letters.numel()] = letters
    rows = comm.all_gather(padded, "control", what).tolist()
    return [_text(row[:size]) for row, size in zip(rows, sizes, strict=True)]


def _letters(text: str) -> torch.Tensor:
    return torch.tensor(list(text.encode()), dtype=torch.uint8)


def _text(letters: list[int]) -> str:
    return bytes(letters).decode()
