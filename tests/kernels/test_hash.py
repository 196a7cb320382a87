"""One hash, three implementations: Python integers, tensors, and NumPy in what runs in a cloud function."""

import numpy as np
import torch

from weft.kernels.hash import MASK64, hash_key, hash_uniform, signed, splitmix64, splitmix64_int
from weft_function import rng

VALUES = (0, 1, 2**31, 2**63 - 1, 2**63, MASK64, 0x1234_5678_9ABC_DEF0)


def test_the_first_number_of_the_published_generator() -> None:
    assert splitmix64_int(0) == 0xE220A8397B1DCDAF


def test_tensors_numpy_and_integers_agree() -> None:
    tensor = torch.tensor([signed(value) for value in VALUES])
    wanted = [splitmix64_int(value) for value in VALUES]
    assert [value & MASK64 for value in splitmix64(tensor).tolist()] == wanted
    assert rng.splitmix64(np.array(VALUES, np.uint64)).tolist() == wanted


def test_a_key_depends_on_every_part_and_their_order() -> None:
    keys = {hash_key(*parts) for parts in ((), (0,), (1,), (1, 2), (2, 1), (1, -2), (1, 2, 0))}
    assert len(keys) == 7 and all(-(2**63) <= key < 2**63 for key in keys)


def test_uniform_numbers_belong_to_ids_and_columns() -> None:
    ids = torch.arange(4000)
    uniform = hash_uniform(ids, 3, hash_key(7))
    assert torch.equal(hash_uniform(ids[100:], 3, hash_key(7)), uniform[100:])
    assert float(uniform.min()) >= 0 and float(uniform.max()) < 1 and abs(float(uniform.mean()) - 0.5) < 0.02
