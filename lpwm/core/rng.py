"""Randomness as a pure function of a key.

Everything random is keyed by integers (seed, stream, step, …), so that a batch, a set of slices or a plan
can be drawn again anywhere: on another rank, after a crash, alone or with others.

Two sources:
  generator(*key)   a torch.Generator; fast on every device, and equal on all ranks of one device type.
  normal_at(...)    counter-based: element i of row r depends only on (key, row id, i), never on the shape
                    of the batch around it. It is made of tensor operations, so it compiles into graphs.
"""

import hashlib
import math

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)  # 2^64/φ as a signed 64-bit integer
_MIX_1 = 0xBF58476D1CE4E5B9 - (1 << 64)
_MIX_2 = 0x94D049BB133111EB - (1 << 64)


def seed_of(*key: int | str) -> int:
    """A 63-bit seed from a key; independent for keys that differ anywhere."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(*key: int | str, device: torch.device | str = "cpu") -> torch.Generator:
    g = torch.Generator(device=device)
    g.manual_seed(seed_of(*key))
    return g


def _shift_right(x: Tensor, n: int) -> Tensor:
    """Logical shift of signed 64-bit integers."""
    return (x >> n) & ((1 << (64 - n)) - 1)


def _mix(x: Tensor) -> Tensor:
    """The splitmix64 finalizer: a bijection of 64-bit integers whose output bits look independent."""
    x = (x ^ _shift_right(x, 30)) * _MIX_1
    x = (x ^ _shift_right(x, 27)) * _MIX_2
    return x ^ _shift_right(x, 31)


def bits_at(key: Tensor, n: int) -> Tensor:
    """n 64-bit words for each entry of `key` (int64, any shape): shape (*key.shape, n)."""
    # `| 0` changes nothing, but a compiler that does index arithmetic in 32 bits would otherwise pull the
    # multiplication into it and fail on the 64-bit constant.
    counter = torch.arange(1, n + 1, device=key.device, dtype=torch.int64) | 0
    return _mix(_mix(key).unsqueeze(-1) + counter * _GOLDEN)


def normal_at(key: Tensor, n: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """n standard normals per key by Box–Muller, 32 bits for the radius and 32 for the angle."""
    half = (n + 1) // 2
    word = bits_at(key, half)
    u = (_shift_right(word, 32).to(dtype) + 0.5) * 2.0**-32  # in (0, 1)
    v = (word & 0xFFFFFFFF).to(dtype) * (2.0**-32 * 2 * math.pi)
    radius = torch.sqrt(-2 * torch.log(u.clamp(max=1 - 2.0**-24)))
    return torch.cat((radius * torch.cos(v), radius * torch.sin(v)), dim=-1)[..., :n]


def fold(key: int | Tensor, data: Tensor) -> Tensor:
    """A new key per entry of `data` (int64): fold(fold(seed, env), iteration) and so on."""
    if not isinstance(key, Tensor):
        key = torch.tensor(key, dtype=torch.int64, device=data.device)
    return _mix(_mix(key) ^ (data + 1) * _GOLDEN)
