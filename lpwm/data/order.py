"""Which clips a step holds: the split, where clips may start, and their order in every epoch.

A clip starts at any frame s of an episode of L frames with s + (T − 1)·frameskip ≤ L − 1. The order is a pure function
of (seed, step): position i = step·B + j of an endless sequence is clip perm_e[i mod n] of epoch e = i div n, so every
epoch sees every clip once, batches are always full, and any step can be drawn alone.
"""

import torch
from torch import Tensor

from lpwm.core import rng
from lpwm.core.errors import UserError, require
from lpwm.data.episodes import EpisodeData


def split_episodes(count: int, holdout: float) -> tuple[Tensor, Tensor]:
    """Training and held-out episodes, int64 and ascending: a function of (count, holdout) alone. A smaller holdout is a
    subset of a larger one."""
    if not 0 <= holdout < 1:
        raise UserError(f"holdout is {holdout}: give a fraction of the episodes, 0 ≤ holdout < 1.")
    held = round(holdout * count)
    if holdout > 0:
        held = min(max(held, 1), count - 1)
    order = permutation(count, rng.seed_of("split"), "cpu")
    return order[held:].sort().values, order[:held].sort().values


def permutation(n: int, key: int, device: torch.device | str) -> Tensor:
    """A permutation of 0…n−1 by sorting keyed 64-bit words: the same on every device, without waiting for it."""
    seed = torch.full((), key, dtype=torch.int64, device=device)  # filled there: copying a number would wait
    words = rng.bits_at(rng.fold(seed, torch.arange(n, device=device)), 1)[:, 0]
    return torch.sort(words, stable=True).indices


def clip_starts(lengths: Tensor, offsets: Tensor, reach: int) -> Tensor:
    """The rows at which a clip that spans `reach` transitions may start, ascending: (n,) int64."""
    counts = (lengths - reach).clamp(min=0)
    first = torch.repeat_interleave(offsets, counts)
    within = torch.arange(int(counts.sum())) - torch.repeat_interleave(counts.cumsum(0) - counts, counts)
    return first + within


def splits(episodes: EpisodeData, holdout: float) -> tuple[Tensor, Tensor]:
    """Training and held-out episodes: as the makers of the data split them, or else by `split_episodes`."""
    if episodes.held_out is None:
        return split_episodes(episodes.episodes, holdout)
    train = torch.ones(episodes.episodes, dtype=torch.bool)
    train[episodes.held_out] = False
    return train.nonzero()[:, 0], episodes.held_out


class ClipIndex:
    """Which clips a step holds. All sources draw from it, so that where frames lie changes nothing.

    clip_length: frames of a clip, frameskip raw steps apart. batch: clips of the global batch, of which rank r of
    `ranks` takes its slice. device: where the order is kept.
    """

    def __init__(
        self,
        episodes: EpisodeData,
        *,
        clip_length: int,
        frameskip: int = 5,
        batch: int,
        seed: int = 0,
        split: str = "train",
        holdout: float = 0.1,
        rank: int = 0,
        ranks: int = 1,
        device: torch.device,
    ):
        for name, value in (("clip_length", clip_length), ("frameskip", frameskip), ("batch", batch)):
            require(name, value, 1)
        if split not in ("train", "val"):
            raise UserError(f"split is {split!r}: give 'train' or 'val'.")
        if not 0 <= rank < ranks:
            raise UserError(f"rank {rank} of {ranks}: give 0 ≤ rank < ranks.")
        self.clip_length, self.frameskip, self.ranks = clip_length, frameskip, ranks
        self.train, held = splits(episodes, holdout)
        self.chosen = self.train if split == "train" else held
        reach = (clip_length - 1) * frameskip
        starts = clip_starts(episodes.lengths[self.chosen], episodes.offsets[self.chosen], reach)
        if not len(starts):
            longest = int(episodes.lengths[self.chosen].max()) if len(self.chosen) else 0
            raise UserError(
                f"the {split} split ({len(self.chosen)} episodes, the longest of {longest} frames) holds no clip of "
                f"{clip_length} frames {frameskip} steps apart, which needs {reach + 1}."
            )
        self.batch, self.seed, self.split, self.device = batch, seed, split, device
        self.slice = (rank * batch // ranks, (rank + 1) * batch // ranks)
        self._n, self._starts = len(starts), starts.to(device)
        self._orders: dict[int, Tensor] = {}

    def __len__(self) -> int:
        return self._n

    def at(self, step: int) -> Tensor:
        """The rows at which this rank's clips of a step start. Nothing here waits for the device."""
        position, last = (step * self.batch + edge for edge in self.slice)
        pieces = []
        while position < last:
            epoch, begin = divmod(position, self._n)
            end = min(self._n, begin + last - position)
            pieces.append(self._order(epoch)[begin:end])
            position += end - begin
        return self._starts[torch.cat(pieces)] if pieces else self._starts[:0]

    def _order(self, epoch: int) -> Tensor:
        if epoch not in self._orders:
            if len(self._orders) > 1:  # a batch spans at most two epochs, unless it is larger than one
                self._orders.pop(next(iter(self._orders)))
            key = rng.seed_of("clips", self.split, self.seed, epoch)
            self._orders[epoch] = permutation(self._n, key, self.device)
        return self._orders[epoch]
