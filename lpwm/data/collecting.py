"""Collecting: a policy moves a world, the episodes land in a file.

Episode i is a function of (seed, i). Shards of episodes are made in any order by any number of workers, each written
whole into `FILE.partial/`; the last act is to merge them and rename the result to `FILE`. Interrupted at any moment,
the same call continues.
"""

import hashlib
import json
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
from numpy.typing import NDArray

from lpwm.core.errors import UserError, require
from lpwm.core.files import make_folder, need_space, new_file, read_bytes, refuse_existing, remove, write_whole
from lpwm.core.json import read_json
from lpwm.core.lock import one_writer
from lpwm.core.memory import need_memory
from lpwm.core.plugins import name_of
from lpwm.core.version import DATA_VERSION
from lpwm.data.episodes import SIZE, hash_episodes, pad_action, spec_to_json
from lpwm.data.frames.hdf5 import opened
from lpwm.data.info import Coverage
from lpwm.data.store import create_column, writing
from lpwm.worlds import Key, Policy, TensorWorld, World, make_policy, rollout, row_keys
from lpwm.worlds.pool import check_sendable, cores, start_worker, worker_context

SHARD = 256  # episodes
_DONE = "digest"  # of the merged file, written before it gets its name
LIVE_SHARD = 16  # with frames of a live world, whose drawing may take all the time: enough shards for all cores
_POOL_COSTS = 4.0  # seconds to start workers: each imports torch
Progress = Callable[[int], None]  # called with the number of episodes finished so far


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
    shard: int  # episodes of one; here, since workers have it from here

    def identity(self) -> dict[str, Any]:
        same = {name: getattr(self, name) for name in ("episodes", "steps", "seed", "shard")}
        world, pixels = json.loads(spec_to_json(self.world.spec)), self.size if self.pixels else 0
        return {"world": world, "policy": self.policy_name, "pixels": pixels, "lpwm_version": DATA_VERSION, **same}

    @property
    def shards(self) -> int:
        return -(-self.episodes // self.shard)

    def range(self, shard: int) -> tuple[int, int]:
        """The first episode of a shard, and the first of the next."""
        return shard * self.shard, min(self.episodes, (shard + 1) * self.shard)


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

    steps: by default the lengths the policy chooses (PushT's pusher), or else the world's own. workers: processes; None
    takes all cores when the work is worth starting them. The contents do not depend on it. pixels: store frames of side
    `size` (by default the world's own) next to the states; a world that shows more than its state (`gym:`) always does.
    """
    out = Path(out)
    size = world.spec.frame if size is None else size
    for what, value, least in (("episodes", episodes, 1), ("steps", steps, 1), ("size", size, 8)):
        require(what, value, least)
    pixels = pixels or getattr(world, "live_frames", False)
    if callable(policy) and not hasattr(policy, "act"):
        policy = name_of(policy)
    name = repr(policy)
    if policy is None or isinstance(policy, str):
        name = policy or world.spec.policy
        policy = make_policy(world, name)
    if steps is None and not hasattr(policy, "lengths"):
        steps = world.spec.episode
    slow = pixels and not isinstance(world, TensorWorld)  # a shard takes seconds at least: workers are worth starting
    plan = Plan(world, policy, name, episodes, steps, seed, pixels, size, LIVE_SHARD if slow else SHARD)
    require("workers", workers, 1)
    folder = Path(f"{out}.partial")
    if not overwrite and (digest := _finished(out, folder)):
        with one_writer(folder, f"a process that collects {out.name}"):
            remove(folder)
        return digest
    refuse_existing(out, overwrite)
    make_folder(out.parent)
    rows, frame = (steps or 0) + 1, 3 * size**2 if pixels else 0
    row = 4 * (world.spec.state_dim + world.spec.action_dim)  # bytes
    need_space(out, episodes * rows * row)  # frames are compressed
    need_memory("collecting that much at once", rows * (min(plan.shard, episodes) * row + frame))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # shards are small tensors: threads would wait for one another longer than they work
    try:
        with _partial(out, folder, plan, overwrite):
            _make_shards(plan, folder, workers, slow, progress or (lambda done: None))
            digest = _merge(plan, folder, out)
            remove(folder)
    finally:
        torch.set_num_threads(threads)
    return digest


def _finished(out: Path, folder: Path) -> str:
    """The digest of a collection that was killed after its last act; "" otherwise."""
    try:
        digest = read_bytes(folder / _DONE, 64).decode()
        with opened(out) as file:
            return digest if file.attrs["digest"].decode() == digest else ""
    except (UserError, OSError, KeyError, ValueError, AttributeError):
        return ""


@contextmanager
def _partial(out: Path, folder: Path, plan: Plan, overwrite: bool) -> Iterator[None]:
    """The folder of shards, locked: a new one, or the one an interrupted run of the same plan left."""
    with one_writer(folder, f"a process that collects {out.name}"):
        refuse_existing(out, overwrite)  # it may have been finished just now
        note, wanted = folder / "plan.json", plan.identity()
        try:
            earlier = read_json(note)
        except UserError:  # none, or damaged
            earlier = None
        if earlier is not None and earlier != wanted and not overwrite and any(folder.glob("shard-*-*.h5")):
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
        yield


def _shard(folder: Path, index: int) -> Path | None:
    """The shard of this number if it is there and undamaged: its name ends in the hash of the file."""
    for path in folder.glob(f"shard-{index:06d}-*.h5"):
        if path.is_file() and path.stem.endswith(_hash(path)):
            return path
        remove(path) if path.is_dir() else path.unlink()
    return None


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()[:32]


def make_shard(plan: Plan, folder: Path, index: int) -> int:
    """Roll out, render and write one shard; returns its number of episodes."""
    first, last = plan.range(index)
    path, key = folder / f"shard-{index:06d}.h5", (plan.seed, "collect")
    record = getattr(plan.world, "record", None)  # of a world that shows more than its states
    made = record(plan.policy, key, last - first, first, plan.steps, plan.size) if record else _rolled(plan, key, index)
    states, actions, hashes = [], [], b""
    image: Any
    with new_file(path) as (file, sink):
        if plan.pixels:
            frames = create_column(file, "pixels", (plan.size, plan.size, 3), np.dtype(np.uint8))
        for state, action, image in made:
            states.append(state)
            actions.append(pad_action(action, len(state)))
            if plan.pixels:
                frames.resize(len(frames) + len(image), axis=0)
                frames[-len(image) :] = image
                hashes += hash_episodes(image, np.array([len(image)]))
            sink.check()
        file["state"], file["action"] = np.concatenate(states), np.concatenate(actions)
        file["lengths"] = np.array([len(s) for s in states])
        if plan.pixels:
            file["hashes"] = np.frombuffer(hashes, np.uint8).reshape(len(states), SIZE)
    path.rename(path.with_stem(f"{path.stem}-{_hash(path)}"))
    return last - first


def _rolled(plan: Plan, key: Key, shard: int) -> Iterator[tuple[NDArray, NDArray, NDArray | None]]:
    """States (L, S), actions (L − 1, A) and frames of each episode of a world whose states say what is seen."""
    first, last = plan.range(shard)
    n, world = last - first, plan.world
    keys = row_keys((*key, "policy"), n, first)
    steps = plan.policy.lengths(keys) if plan.steps is None else torch.full((n,), plan.steps)  # type: ignore[attr-defined]
    start, goal = world.sample_state(n, key, first), world.sample_goal(n, key, first)
    states, actions = (x.to(torch.float32) for x in rollout(world, plan.policy, start, goal, keys, steps))
    for state, action, length in zip(states, actions, steps.tolist(), strict=True):
        state, action = state[: length + 1], action[:length]
        if not (torch.isfinite(state).all() and torch.isfinite(action).all()):
            raise UserError(f"the world {world.spec.name!r} made a state or action that is not finite.")
        image = None
        if plan.pixels:
            image = world.render(state, plan.size).permute(0, 2, 3, 1).contiguous().numpy()
        yield state.numpy(), action.numpy(), image


def _make_shards(plan: Plan, folder: Path, workers: int | None, slow: bool, progress: Progress) -> None:
    missing = [i for i in range(plan.shards) if _shard(folder, i) is None]
    done = plan.episodes - sum(last - first for first, last in map(plan.range, missing))
    progress(done)
    if workers is None:
        workers = cores()
        if missing and workers > 1 and not slow:
            began = time.monotonic()
            done += make_shard(plan, folder, missing.pop(0))
            progress(done)
            if (time.monotonic() - began) * len(missing) * (1 - 1 / workers) < _POOL_COSTS:
                workers = 1
    for count in _made(plan, folder, missing, min(workers, len(missing))):
        done += count
        progress(done)


def _made(plan: Plan, folder: Path, missing: list[int], workers: int) -> Iterator[int]:
    """The episodes of each shard as it is finished."""
    if workers <= 1:
        yield from (make_shard(plan, folder, index) for index in missing)
        return
    check_sendable(plan, "the world or the policy")
    context = worker_context("lpwm.data.collecting")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=start_worker)
    try:
        for future in as_completed([pool.submit(make_shard, plan, folder, i) for i in missing]):
            yield future.result()
    except (BrokenProcessPool, EOFError, ConnectionError) as error:  # a worker, or what starts them
        raise UserError(
            "a worker process died (out of memory?): run the same command again to continue, with fewer workers. "
            "A script that calls collect() with workers must do so under if __name__ == '__main__'."
        ) from error
    except (KeyboardInterrupt, GeneratorExit):  # nobody waits for unfinished shards: a file is whole or absent
        for process in list((pool._processes or {}).values()):
            process.kill()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _merge(plan: Plan, folder: Path, out: Path) -> str:
    spec = plan.world.spec
    paths = sorted(folder.glob("shard-*-*.h5"))
    assert len(paths) == plan.shards
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
        about = {"seed": plan.seed, "policy": plan.policy_name, "coverage": seen.fraction()}
        digest = writer.finish(spec, about)
        write_whole(folder / _DONE, digest)
        return digest
