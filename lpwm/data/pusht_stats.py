"""PushT data beside the public set of 18,500 trajectories: how far the pusher's data are from what people made.

Of the public set only its published statistics are used.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lpwm.data.episodes import EpisodeData
from lpwm.worlds.pusht.policy import PUBLIC
from lpwm.worlds.pusht.world import block_moved, turn

AHEAD = 25  # raw steps
STILL, STILL_TURN = 1e-3, 1e-4  # px and rad in one step: numerical rest


def beside_public(data: EpisodeData) -> list[dict[str, Any]]:
    """Rows of {"name", "ours", "public"}; shares in %, lengths in frames less one."""
    names = data.spec.state_names if data.spec is not None else tuple(map(str, range(7)))
    actions = data.actions[torch.isfinite(data.actions).all(dim=1)].to(torch.float64)
    rows = []
    for k, axis in enumerate("xy"):
        rows.append((f"action {axis} mean", float(actions[:, k].mean()), PUBLIC["action mean"][k]))
        rows.append((f"action {axis} std", float(actions[:, k].std(correction=0)), PUBLIC["action std"][k]))
    spread = data.states.to(torch.float64).std(0, correction=0)
    rows += [(f"{n} std", float(v), p) for n, v, p in zip(names, spread, PUBLIC["state std"], strict=True)]
    rows.append(("steps in which the block is still, %", 100 * _share(data, 1, _still), PUBLIC["block still"]))
    least, most = (float(x) - 1 for x in (data.lengths.min(), data.lengths.max()))
    if most >= AHEAD:
        free = 100 * _share(data, AHEAD, lambda a, b: ~block_moved(a, b))
        rows.append((f"goals {AHEAD} steps ahead without block motion, %", free, PUBLIC["free goals"]))
    rows += [("shortest, steps", least, PUBLIC["steps"][0]), ("longest, steps", most, PUBLIC["steps"][1])]
    return [{"name": name, "ours": ours, "public": public} for name, ours, public in rows]


def _still(before: Tensor, after: Tensor) -> Tensor:
    moved = torch.linalg.vector_norm((after - before)[:, 2:4], dim=-1)
    return (moved < STILL) & (turn(before, after) < STILL_TURN)


def _share(data: EpisodeData, ahead: int, what: Any) -> float:
    """Of the pairs of frames `ahead` steps apart in one episode, how many satisfy `what(before, after)`."""
    number = torch.repeat_interleave(torch.arange(data.episodes), data.lengths)
    together = number[ahead:] == number[:-ahead]
    found = what(data.states[:-ahead][together], data.states[ahead:][together])
    return float(found.to(torch.float64).mean())
