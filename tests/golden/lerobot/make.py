"""Makes the data sets of this folder with LeRobot's own writer, and stores what its own reader says of them.

    python tests/golden/lerobot/make.py [OUT]                       lerobot 0.4.4 makes v3.0, 0.3.3 makes v2.1
    python tests/golden/lerobot/make.py --read FOLDER OUT.npz       what its reader says of another data set

Either version runs without most of its dependencies: `pip install --no-deps lerobot==0.4.4`, then torch, numpy<2.4,
datasets<5 (0.3.3: <4), huggingface_hub<0.36, av, pyarrow, pandas, jsonlines, draccus==0.10, accelerate, psutil,
opencv-python-headless, imageio, gymnasium, deepdiff, termcolor, packaging, einops. Torchvision is stood in for by the
few names that are imported.
"""

import shutil
import sys
import types
from pathlib import Path

import av
import numpy as np
import torch

HERE = Path(__file__).parent
FPS, SIDE, LENGTHS = 10, 64, (9, 6, 11)
CAMERAS = ("observation.images.top", "observation.images.wrist")


class VideoReader:
    """As torchvision's with PyAV: the frames of a file from a key frame on, as RGB."""

    def __init__(self, path, _stream):
        self.container = av.open(path)

    def seek(self, seconds, keyframes_only=False):
        stream = self.container.streams.video[0]
        self.container.seek(int(seconds / stream.time_base), stream=stream, backward=True, any_frame=not keyframes_only)

    def __iter__(self):
        for frame in self.container.decode(video=0):
            yield {"data": torch.from_numpy(frame.to_rgb().to_ndarray()).permute(2, 0, 1), "pts": frame.time}


def stand_in_for_torchvision():
    try:
        import torchvision  # noqa: F401

        return
    except ImportError:
        pass
    names = ["torchvision", "torchvision.io", "torchvision.transforms", "torchvision.transforms.v2"]
    names.append("torchvision.transforms.v2.functional")
    modules = {name: types.ModuleType(name) for name in names}
    for name, module in modules.items():
        module.__path__ = []
        module.__spec__ = types.SimpleNamespace(name=name, submodule_search_locations=[], origin=None)
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(modules[parent], child, module)
    modules["torchvision"].set_video_backend = lambda backend: None
    modules["torchvision"].__version__ = "0.0"
    modules["torchvision.io"].VideoReader = VideoReader

    class ToTensor:
        def __call__(self, picture):
            return torch.from_numpy(np.array(picture)).permute(2, 0, 1).float() / 255

    modules["torchvision.transforms"].ToTensor = ToTensor
    modules["torchvision.transforms.v2"].Transform = type("Transform", (), {})
    modules["torchvision.transforms.v2.functional"].to_tensor = ToTensor()
    sys.modules.update(modules)


def picture(episode, t, camera):
    """Blocks that survive compression, and tell episode, frame and camera apart."""
    frame = np.full((SIDE, SIDE, 3), (40, 60, 90) if camera == 0 else (90, 50, 30), np.uint8)
    cell = SIDE // 8
    for bit in range(8):
        if t >> bit & 1:
            frame[: SIDE // 2, bit * cell : (bit + 1) * cell] = (215, 200, 60)
        if episode >> bit & 1:
            frame[SIDE // 2 :, bit * cell : (bit + 1) * cell] = (60, 190, 215)
    return frame


def make(out, name, kind, **options):
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    features = {
        "action": {"dtype": "float32", "shape": (2,), "names": ["dx", "dy"]},
        "observation.state": {"dtype": "float32", "shape": (3,), "names": ["x", "y", "grip"]},
        "next.reward": {"dtype": "float32", "shape": (1,), "names": None},
    }
    for camera in CAMERAS:
        features[camera] = {"dtype": kind, "shape": (SIDE, SIDE, 3), "names": ["height", "width", "channels"]}
    folder = out / name
    shutil.rmtree(folder, ignore_errors=True)
    data = LeRobotDataset.create(
        f"lpwm/{name}", FPS, features, root=folder, use_videos=kind == "video", video_backend="pyav", **options
    )
    row = 0
    for episode, length in enumerate(LENGTHS):
        for t in range(length):
            frame = {
                "action": np.array([row, -row / 4], np.float32),
                "observation.state": np.array([row, row**2, np.sin(row)], np.float32),
                "next.reward": np.array([t / length], np.float32),
            } | {camera: picture(episode, t, number) for number, camera in enumerate(CAMERAS)}
            task = "push" if episode % 2 else "pick"
            try:
                data.add_frame({**frame, "task": task})
            except TypeError:  # 0.3.3
                data.add_frame(frame, task)
            row += 1
        data.save_episode()
    if hasattr(data, "finalize"):
        data.finalize()
    shutil.rmtree(folder / "images", ignore_errors=True)
    read(folder, out / f"{name}.npz", every=5)


def read(folder, out, every=1, backend="pyav"):
    """All numbers, the borders, and every few frames, as its reader gives them."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    data = LeRobotDataset("lpwm/golden", root=folder, video_backend=backend)
    cameras = data.meta.camera_keys
    items = [data[i] for i in range(len(data))]
    ends = np.flatnonzero(np.diff([int(i["episode_index"]) for i in items])) + 1
    arrays = {
        "action": torch.stack([i["action"].reshape(-1) for i in items]).numpy(),
        "state": torch.stack([i["observation.state"].reshape(-1) for i in items]).numpy(),
        "lengths": np.diff([0, *ends, len(items)]),
        "rows": np.arange(0, len(items), every),
        "tasks": np.array([i["task"] for i in items]),
    }
    if "next.reward" in items[0]:
        arrays["reward"] = torch.stack([i["next.reward"].reshape(()) for i in items]).numpy()
    for camera in cameras:
        frames = torch.stack([items[i][camera] for i in arrays["rows"]])
        arrays[camera] = (frames * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    np.savez_compressed(out, **arrays)


def main():
    stand_in_for_torchvision()
    import lerobot.datasets.video_utils as video
    from lerobot.datasets import lerobot_dataset

    if sys.argv[1:2] == ["--read"]:
        read(Path(sys.argv[2]), Path(sys.argv[3]))
        return
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    version = lerobot_dataset.CODEBASE_VERSION
    if version == "v3.0":
        make(out, "v30_av1", "video")
        make(out, "v30_h264", "video", vcodec="h264")
        make(out, "v30_images", "image")
    else:
        make(out, "v21_av1", "video")
        plain = video.encode_video_frames
        lerobot_dataset.encode_video_frames = lambda *args, **more: plain(*args, **{**more, "vcodec": "h264"})
        make(out, "v21_h264", "video")
        make(out, "v21_images", "image")


if __name__ == "__main__":
    main()
