"""The public data of DINO-WM, read as they were published.

    pusht_noise/{train,val}/   states.pth (N, Tmax, 5)   velocities.pth (N, Tmax, 2)   rel_actions.pth (N, Tmax, 2)
                               seq_lengths.pkl (N)       obses/episode_000.mp4
    wall_single/               states.pth (N, T, 2)      actions.pth (N, T or T − 1, 2)
                               door_locations.pth, wall_locations.pth (N)   obses/episode_000.pth (T, 3, h, w)

PushT's state here is the world's: agent, block, angle, then the agent's velocity; its actions are pixels and are
divided by 100. Its own val folder is the held-out set. An episode of L states has L − 1 actions: the last one leads
nowhere.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lpwm import worlds
from lpwm.core.errors import UserError
from lpwm.core.memory import need_memory
from lpwm.data.episodes import EpisodeData, assemble, runs_to_json
from lpwm.data.frames import StoredFrames
from lpwm.data.frames.tensors import TensorFrames, load_numbers, load_tensor
from lpwm.data.frames.video import VideoFrames
from lpwm.worlds.base import WorldSpec

PIXELS_PER_UNIT = 100.0  # of PushT's actions


# States and actions of all episodes, one after another; their lengths; the files of their frames.
Part = tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int64], list[Path]]


def read_dino(folder: Path, pixels: bool | None = None) -> EpisodeData:
    """The whole data set: `train` and `val` one after the other where there are both, or this folder."""
    parts = [folder / name for name in ("train", "val") if (folder / name).is_dir()] or [folder]
    push = any((part / "rel_actions.pth").exists() for part in parts)
    if not push and not (parts[0] / "actions.pth").exists():
        raise UserError(f"{parts[0]} has no rel_actions.pth (PushT) and no actions.pth (Wall): copy it all.")
    read = [(_pusht if push else _wall)(part) for part in parts]
    spec = worlds.make("pusht").spec if push else _wall_spec(parts)
    states, actions, lengths = (np.concatenate([part[i] for part in read]) for i in range(3))
    actions[np.cumsum(lengths) - 1] = np.nan  # the last one leads nowhere
    files = [file for part in read for file in part[3]]
    frames: StoredFrames | None = None
    if pixels or (pixels is None and all((part / "obses").is_dir() for part in parts)):
        frames = (VideoFrames if push else TensorFrames)(files, lengths)
    columns = {"state": states, "action": actions}
    attributes = {"made_by": "DINO-WM"}
    if len(read) == 2:
        attributes["held_out"] = runs_to_json(range(len(read[0][2]), len(lengths)))
    return assemble(columns, lengths, pixels=frames, spec=spec, attributes=attributes)


def _table(path: Path, width: int, episodes: int | None = None, steps: tuple[int, ...] = ()) -> NDArray[np.float32]:
    """A tensor (N, T, width) as float32; N and T as given, where they are."""
    tensor = load_tensor(path)
    fits = tensor.ndim == 3 and tensor.shape[2] == width and tensor.dtype.is_floating_point and tensor.numel()
    if fits and episodes is not None:
        fits = len(tensor) == episodes and tensor.shape[1] in steps
    if not fits:
        expected = f"({episodes or 'episodes'}, {' or '.join(map(str, steps)) or 'steps'}, {width})"
        raise UserError(
            f"{path} is {str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}, expected floats {expected}: "
            "copy it again."
        )
    need_memory(str(path), 4 * tensor.numel())
    return tensor.float().numpy()


def _rows(path: Path, values: NDArray, lengths: NDArray, free: int = 0) -> NDArray[np.float32]:
    """The rows of all episodes, one after another; all but the last `free` of each are finite. Padding is dropped."""
    step = np.arange(values.shape[1])
    bad = ~np.isfinite(values).all(axis=2) & (step < lengths[:, None] - free)
    if bad.any():
        episode, at = np.argwhere(bad)[0]
        raise UserError(f"{path} is not finite in episode {episode}, step {at}: copy it again.")
    return values[step < lengths[:, None]]


def _pusht(folder: Path) -> Part:
    states = _table(folder / "states.pth", 5)
    count, steps = states.shape[:2]
    velocities = _table(folder / "velocities.pth", 2, count, (steps,))
    actions = _table(folder / "rel_actions.pth", 2, count, (steps,)) / np.float32(PIXELS_PER_UNIT)
    path = folder / "seq_lengths.pkl"
    lengths = load_numbers(path)
    whole = lengths.dtype.kind in "iu" or (lengths.dtype.kind == "f" and (lengths == np.round(lengths)).all())
    if lengths.shape != (count,) or not whole or lengths.min() < 1 or lengths.max() > steps:
        raise UserError(f"{path} must hold {count} lengths from 1 to {steps}, one per episode: copy it again.")
    lengths = lengths.astype(np.int64)
    states = _rows(folder / "states.pth", states, lengths)
    states = np.concatenate((states, _rows(folder / "velocities.pth", velocities, lengths)), axis=1)
    files = [folder / "obses" / f"episode_{i:03d}.mp4" for i in range(count)]
    return states, _rows(folder / "rel_actions.pth", actions, lengths, 1), lengths, files


def _wall(folder: Path) -> Part:
    states = _table(folder / "states.pth", 2)
    count, steps = states.shape[:2]
    actions = _table(folder / "actions.pth", 2, count, (steps - 1, steps))
    lengths = np.full(count, steps, np.int64)
    actions = np.pad(actions, ((0, 0), (0, steps - actions.shape[1]), (0, 0)))
    states, actions = _rows(folder / "states.pth", states, lengths), _rows(folder / "actions.pth", actions, lengths, 1)
    return states, actions, lengths, [folder / "obses" / f"episode_{i:03d}.pth" for i in range(count)]


def _wall_spec(parts: list[Path]) -> WorldSpec | None:
    """The world with this wall and door, if they are the same in all episodes; else the states cannot be drawn."""
    place: dict[str, int] = {}
    for option in ("wall", "door"):
        paths = [part / f"{option}_locations.pth" for part in parts]
        if not all(path.exists() for path in paths):
            return None
        values = np.unique(np.concatenate([load_tensor(path).double().flatten().numpy() for path in paths]))
        if len(values) != 1 or values[0] != round(values[0]):
            return None
        place[option] = int(values[0])
    try:
        return worlds.make("wall", **place).spec
    except UserError:
        return None
