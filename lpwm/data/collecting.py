"""Collecting: a policy moves a world, the episodes land in a file.

Episode i is a function of (seed, i): starts, goals and the policy's noise are drawn by rows. Shards of SHARD
episodes (LIVE_SHARD with frames of a live world) are made in any order by any number of workers, each written whole
into `FILE.partial/`; the last act is to merge them and rename the result to `FILE`. Interrupted at any moment, the
same call continues.

A worker rolls its shard out whole, so a world of live simulators (PushT) has them in the worker itself.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

from lpwm.core.errors import UserError
from lpwm.core.files import disk_errors, make_folder, need_space, new_file, refuse_existing, write_whole
from lpwm.core.version import DATA_VERSION
from lpwm.data.episodes import SIZE, hash_episodes, spec_to_json
from lpwm.data.info import Coverage
from lpwm.data.store import create_column, writing
from lpwm.worlds import Policy, TensorWorld, World, make_policy, rollout, row_keys
from lpwm.worlds.policies import OwnLengths
from lpwm.worlds.pool import check_sendable, cores, start_worker, worker_context

SHARD = 256  # episodes
LIVE_SHARD = 16  # with frames of a live world, whose drawing may take all the time: enough shards for all cores
_POOL_COSTS = 4.0  # seconds to start workers: each imports torch
Progress = Callable[[int], None]  # called with the number of episodes finished so far


class Busy(UserError):
    """Another process is making this file."""


@dataclass(frozen=True)
class Plan:
    """What is being collected; two plans with equal `identity` make the same file."""

    world: World
    policy: Policy
    policy_name: str
    episodes: int
    steps: int | None  # of each episode; None: the policy says, episode by episode
    seed: int
    pixels: bool
    size: int

    def identity(self) -> dict[str, Any]:
        return {
            "world": json.loads(spec_to_json(self.world.spec)),
            "policy": self.policy_name,
            "episodes": self.episodes,
            "steps": self.steps,
            "seed": self.seed,
            "pixels": self.size if self.pixels else 0,
            "shard": self.shard,
            "lpwm_version": DATA_VERSION,
        }

    @property
    def slow(self) -> bool:
        """Frames of a live world: a shard takes seconds at least, so workers are always worth starting."""
        return self.pixels and not isinstance(self.world, TensorWorld)

    @property
    def shard(self) -> int:
        return LIVE_SHARD if self.slow else SHARD

    @property
    def shards(self) -> int:
        return -(-self.episodes // self.shard)


def collect(
    world: World,
    out: str | Path,
    *,
    episodes: int,
    steps: int | None = None,
    policy: str | Policy | None = None,
    seed: int = 0,
    workers: int | None = 1,
    pixels: bool = False,
    size: int | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> str:
    """Collect `episodes` of `steps` transitions into the file `out`; returns its content digest.

    steps: by default the lengths the policy chooses (PushT's pusher), or else the world's own.
    workers: processes; None takes all cores when the work is worth starting them. The contents do not depend
    on it. pixels: store frames of side `size` (by default the world's own) next to the states.
    """
    out = Path(out)
    size = world.spec.frame if size is None else size
    for what, value, least in (("episodes", episodes, 1), ("steps", steps, 1), ("size", size, 8)):
        if value is not None and value < least:
            raise UserError(f"{what} is {value}: give at least {least}.")
    name = repr(policy)
    if policy is None or isinstance(policy, str):
        name = policy or world.spec.policy
        policy = make_policy(world, name)
    if steps is None and not isinstance(policy, OwnLengths):
        steps = world.spec.episode
    plan = Plan(world, policy, name, episodes, steps, seed, pixels, size)
    if workers is not None and workers < 1:
        raise UserError(f"{workers} workers cannot work: give at least 1.")
    refuse_existing(out, overwrite)
    make_folder(out.parent)
    with _one_thread(), _partial(out, plan, overwrite) as folder:
        _make_shards(plan, folder, workers, progress or (lambda done: None))
        digest = _merge(plan, folder, out)
        shutil.rmtree(folder, ignore_errors=True)
    return digest


@contextmanager
def _one_thread() -> Iterator[None]:
    """Shards are small tensors: on a busy machine threads wait for one another longer than they work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _partial(out: Path, plan: Plan, overwrite: bool) -> Iterator[Path]:
    """The folder of shards, locked: a new one, or the one an interrupted run of the same plan left."""
    folder = out.with_name(out.name + ".partial")
    make_folder(folder)
    with disk_errors(folder):
        lock = (folder / "lock").open("w")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise Busy(f"another process is collecting into {out}: wait for it or choose another name.") from error
        note, wanted = folder / "plan.json", plan.identity()
        earlier = _read_note(note)
        if earlier is not None and earlier != wanted and not overwrite:
            changed = sorted(k for k in wanted if earlier.get(k) != wanted[k])
            raise UserError(
                f"{folder} holds an unfinished collection that differs in {', '.join(changed)}: finish it with its "
                "own arguments, remove the folder, or pass --overwrite to drop it."
            )
        for stale in folder.glob("*.h5" if earlier != wanted else "none"):
            stale.unlink()
        for stale in folder.glob(".*.tmp"):  # left by a killed process
            stale.unlink()
        write_whole(note, json.dumps(wanted, indent=1))
        yield folder


def _read_note(note: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(note.read_text())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _shard_path(folder: Path, index: int) -> Path:
    return folder / f"shard-{index:06d}.h5"


def _shard_range(plan: Plan, index: int) -> tuple[int, int]:
    return index * plan.shard, min(plan.episodes, (index + 1) * plan.shard)


def make_shard(plan: Plan, folder: Path, index: int) -> int:
    """Roll out, render and write one shard; returns its number of episodes."""
    first, last = _shard_range(plan, index)
    states, actions, lengths = _roll(plan, first, last - first)
    with new_file(_shard_path(folder, index)) as (file, sink):
        file["state"] = states.numpy()
        file["action"] = actions.numpy()
        file["lengths"] = lengths.numpy()
        if plan.pixels:
            frames = create_column(file, "pixels", (plan.size, plan.size, 3), np.dtype(np.uint8))
            frames.resize(len(states), axis=0)
            hashes, row = b"", 0
            for episode in states.split(lengths.tolist()):
                image = plan.world.render(episode, plan.size).permute(0, 2, 3, 1).contiguous().numpy()
                frames[row : row + len(image)] = image
                hashes += hash_episodes(image, np.array([len(image)]))
                row += len(image)
                sink.check()
            file["hashes"] = np.frombuffer(hashes, np.uint8).reshape(len(lengths), SIZE)
    return last - first


def _roll(plan: Plan, first: int, n: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Episodes first…first+n−1, one after another: states (rows, S), actions (rows, A), frames of each (n,).

    The last row of an episode has no action: NaN.
    """
    key = (plan.seed, "collect")
    state = plan.world.sample_state(n, key, first)
    goal = plan.world.sample_goal(n, key, first)
    keys = row_keys((*key, "policy"), n, first)
    if plan.steps is None:
        assert isinstance(plan.policy, OwnLengths)
        steps = plan.policy.lengths(keys)
    else:
        steps = torch.full((n,), plan.steps)
    states, actions = rollout(plan.world, plan.policy, state, goal, keys, steps)
    last_row = torch.full((n, 1, actions.shape[2]), torch.nan)
    actions = torch.cat((actions.to(torch.float32), last_row), dim=1)
    states = states.to(torch.float32)
    kept = torch.arange(states.shape[1]) <= steps.unsqueeze(1)
    moves = torch.arange(states.shape[1]) < steps.unsqueeze(1)
    if not (torch.isfinite(states[kept]).all() and torch.isfinite(actions[moves]).all()):
        raise UserError(f"the world {plan.world.spec.name!r} made a state or action that is not finite.")
    return states[kept], actions[kept], steps + 1


def _is_whole(plan: Plan, folder: Path, index: int) -> bool:
    """Shards are renamed when complete, so one that opens is whole; a damaged one is made again."""
    first, last = _shard_range(plan, index)
    try:
        with h5py.File(_shard_path(folder, index), "r") as file:
            return len(file["lengths"]) == last - first and ("hashes" in file) == plan.pixels
    except (OSError, KeyError, RuntimeError):
        return False


def _make_shards(plan: Plan, folder: Path, workers: int | None, progress: Progress) -> None:
    missing = [i for i in range(plan.shards) if not _is_whole(plan, folder, i)]
    done = plan.episodes - sum(last - first for first, last in (_shard_range(plan, i) for i in missing))
    progress(done)
    if workers is None:
        workers = cores()
        if missing and workers > 1 and not plan.slow:
            began = time.monotonic()
            done += make_shard(plan, folder, missing.pop(0))
            progress(done)
            if (time.monotonic() - began) * len(missing) * (1 - 1 / workers) < _POOL_COSTS:
                workers = 1
    workers = min(workers, len(missing))
    if workers <= 1:
        for index in missing:
            done += make_shard(plan, folder, index)
            progress(done)
        return
    for count in _in_pool(plan, folder, missing, workers):
        done += count
        progress(done)


def _in_pool(plan: Plan, folder: Path, missing: list[int], workers: int) -> Iterator[int]:
    check_sendable(plan, "the world or the policy")
    context = worker_context("lpwm.data.collecting")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=start_worker)
    try:
        for future in as_completed([pool.submit(make_shard, plan, folder, i) for i in missing]):
            yield future.result()
    except BrokenProcessPool as error:
        raise UserError(
            "a worker process died (out of memory?): run the same command again to continue, with fewer workers. "
            "A script that calls collect() with workers must do so under if __name__ == '__main__'."
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _merge(plan: Plan, folder: Path, out: Path) -> str:
    spec = plan.world.spec
    paths = [_shard_path(folder, i) for i in range(plan.shards)]
    need_space(out, sum(path.stat().st_size for path in paths))
    seen = Coverage(plan.world)
    felt = list(spec.proprio)
    with writing(out, overwrite=True, folder=folder) as writer:
        for path in paths:
            with h5py.File(path, "r") as shard:
                state, lengths = shard["state"][:], shard["lengths"][:]
                columns = {"state": state, "action": shard["action"][:]}
                if felt:
                    columns["proprio"] = np.ascontiguousarray(state[:, felt])
                writer.append(columns, lengths)
                if plan.pixels:
                    writer.append_frames(shard["pixels"], shard["hashes"][:].tobytes())
            seen.add(torch.from_numpy(state))
        return writer.finish(spec, {"seed": plan.seed, "policy": plan.policy_name, "coverage": seen.fraction()})
