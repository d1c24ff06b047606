"""Named runs, as functions that derive from one another. `lpwm recipes` lists them with their predicted cost.

Names are WORLD/METHOD or WORLD/RUNG/METHOD. Methods: lpwm (sparse), lpwm-tj (with temporal Jaccard), lewm (dense,
p=2), relu (plain ReLU), vicreg. A width is an option: `recipe("pusht/lti/lpwm", latent=768)` is the authors' cell at
D=768, also called pusht-768/lti/lpwm. Where the paper is silent, the choice is stated here.
"""

from collections.abc import Callable
from fnmatch import fnmatch
from functools import partial

from lpwm.core.config import to_dict
from lpwm.core.errors import UserError, choose, nearest
from lpwm.losses import ObjectiveConfig, RDMRegConfig
from lpwm.model import PAPER_RUNGS, VIT_TINY, EncoderConfig, ModelConfig, PredictorConfig, ProjectorConfig
from lpwm.optim import OptimConfig
from lpwm.train.run_config import DataConfig, RunConfig, TrainConfig, override

Recipe = Callable[[], RunConfig]

# The authors' λ and η for PushT's Deep-AdaLN; for Wall they published no other cell, so every rung starts from it.
WALL_LAM, WALL_LR = 0.5, 1e-4


def support(options: tuple[str, ...] = (), world: str = "piecewise") -> RunConfig:
    """The support pipeline: ViT-Tiny, D=192, BatchNorm, Deep-AdaLN, AdamW 5e-5 with warm-up and cosine, bf16.

    Data: 10,000 episodes × 100 random steps, of which 9,000 train; 10 epochs are 60,470 steps of 128 clips (the paper
    gives no size, and "10 epochs" means nothing without it).
    """
    return RunConfig(
        data=DataConfig(world=world, options=options, episodes=10_000, steps=100),
        model=ModelConfig(
            latent=192,
            encoder=VIT_TINY,
            projector=ProjectorConfig(norm="batch"),
            predictor=PredictorConfig(rung="deep-adaln", history=3, head_norm="batch", position_std=1.0),
            action_smooth=10,
        ),
        # The authors' Piecewise command divides the target by its root mean square; the paper does not say so.
        objective=ObjectiveConfig(lam=25.0, rdmreg=RDMRegConfig(slices=1024, p=1.0, rms_norm=True)),
        optim=OptimConfig(lr=5e-5, weight_decay=1e-3, mup=False, clip=1.0, schedule="cosine", warmup=0.01),
        train=TrainConfig(steps=60_470, batch=128, log_every=100, eval_every=2000, checkpoint_every=2000),
    )


def full(options: tuple[str, ...] = ()) -> RunConfig:
    """Piecewise at the paper's size, changed until it learned on three selection seeds (results/protocol.md, round 16):
    white pixels, λ=1, LayerNorm, predictions fed back for 3 steps, η=2e-4 for 3,000 steps, and short episodes, which
    cover the arena. The paper's own cell is piecewise-2x2-paper and -3x3-paper."""
    data = {"data.episodes": 3000, "data.steps": 40}
    norms = {"model.projector.norm": "layer", "model.predictor.head_norm": "layer"}
    loss = {"objective.lam": 1.0, "objective.rollout_steps": 3, "optim.lr": 2e-4}
    length = {"train.steps": 3000, "train.log_every": 50, "train.eval_every": 500, "train.checkpoint_every": 1000}
    return override(support(options), {"model.encoder.pixels": "white", **data, **norms, **loss, **length})


def reduced(options: tuple[str, ...] = ()) -> RunConfig:
    """The support pipeline, reduced to a minute on one GPU: 64² frames in patches of 8, 4,000 steps at a tenfold rate.
    λ is 1 where the paper has 25, which saturates the latent distance 10 px from a goal in so few steps. Episodes are
    short because long ones cover little of the arena: the zones' pushes herd the dot."""
    image = {"model.encoder.image_size": 64, "model.encoder.patch": 8}
    rates = {"objective.lam": 1.0, "optim.lr": 5e-4, "train.steps": 4_000}
    return override(support(options), {"data.steps": 40, **image, **rates})


def ladder(rung: str, mu: float = 0.0) -> RunConfig:
    """The ladder pipeline on Wall: D=384, k=1, μP, constant rate, AdamW with decay 0.01 on matrices. Data as in the
    method: 1,920 episodes × 50 steps, of which 1,728 train; 20 epochs are 12,420 steps of 128 clips."""
    return RunConfig(
        data=DataConfig(world="wall", episodes=1920, steps=50),
        model=ModelConfig(latent=384, predictor=PredictorConfig(rung=rung, history=1)),
        objective=ObjectiveConfig(lam=WALL_LAM, rdmreg=RDMRegConfig(slices=8192, p=1.0, mu=mu)),
        optim=OptimConfig(lr=WALL_LR, input_lr="fan_in"),
        train=TrainConfig(steps=12_420, batch=128, log_every=100, eval_every=1000, checkpoint_every=1000),
    )


# The authors' best PushT cells, (λ, η) at D = 384, 768, 1536, 2048, 4096; one pair where all agree (method §4).
PUSHT_WIDTHS = (384, 768, 1536, 2048, 4096)
Cells = tuple[tuple[float, float], ...]
PUSHT_LPWM: dict[str, Cells] = {
    "deep-adaln": ((0.5, 1e-4),) * 5,
    "shallow-adaln": ((0.1, 5e-4),) * 3 + ((1.0, 5e-4),) * 2,
    "mlp-ltv": ((1.0, 5e-4),) * 5,
    "mlp-lti": ((0.1, 5e-4), *((1.0, 5e-4),) * 4),
    "lti": ((0.1, 5e-5),) * 3 + ((0.1, 5e-4),) * 2,
    "lti1": ((1.0, 5e-4),) * 5,
}
PUSHT_LEWM: dict[str, Cells] = {
    "deep-adaln": ((0.5, 1e-4),) * 5,
    "shallow-adaln": ((0.1, 5e-4), (0.1, 5e-4), (0.1, 5e-4), (1.0, 5e-4), (0.1, 5e-4)),
    "mlp-ltv": ((0.1, 5e-4), (10.0, 5e-5), (0.1, 5e-4), (0.1, 5e-5), (0.1, 5e-5)),
    "mlp-lti": ((0.01, 5e-5),) * 4 + ((0.1, 5e-4),),
    "lti": ((0.1, 5e-4),) * 5,
    "lti1": ((0.1, 5e-4),) * 5,
}


def pusht(method: str, rung: str, width: int = 384) -> RunConfig:
    """PushT's cell of the ladder: k=3, 224² frames, μP, constant rate, the authors' best (λ, η) for this D and method.

    Data: 18,500 trajectories of 100 to 300 steps, of which 16,650 train, with 186 clips each on average: 2 epochs are
    96,780 steps of 64 clips. ReLU takes LpWM's cell, and so does VICReg, of which none is published.
    """
    cells = PUSHT_LEWM if method == "lewm" else PUSHT_LPWM
    lam, lr = cells[rung][PUSHT_WIDTHS.index(width)]
    return METHODS[method](
        RunConfig(
            data=DataConfig(world="pusht", episodes=18_500, steps=0),
            model=ModelConfig(latent=width, predictor=PredictorConfig(rung=rung, history=3)),
            objective=ObjectiveConfig(lam=lam, rdmreg=RDMRegConfig(slices=8192, p=1.0)),
            optim=OptimConfig(lr=lr, input_lr="fan_in"),
            train=TrainConfig(steps=96_780, batch=64, log_every=100, eval_every=4000, checkpoint_every=4000),
        )
    )


def pusht_112(method: str, rung: str) -> RunConfig:
    """PushT's cell with 112² frames (64 patches) and 10,000 steps, a tenth; model, data, λ and η are the full one's."""
    length = {"train.steps": 10_000, "train.eval_every": 2500, "train.checkpoint_every": 5000}
    return override(pusht(method, rung), {"model.encoder.image_size": 112, **length})


def pusht_small(method: str, rung: str) -> RunConfig:
    """PushT for minutes on one GPU: 112² frames in 64 patches, a ViT of width 192 with 6 layers, 1024 slices, 12,000
    steps; D=384 and the 18,500 trajectories are the paper's.

    The authors' cells belong to eight times as many steps. Here every method and rung has λ=1 (0.1 leaves codes of
    1 to 3 dimensions), η=5e-4 falling to 0, and predictions fed back for 3 steps.
    """
    encoder = EncoderConfig(image_size=112, patch=14, width=192, depth=6, heads=3, head_dim=64, mlp=384)
    model = {"model.encoder": to_dict(encoder), "model.projector.hidden": 512}
    loss = {"objective.lam": 1.0, "objective.rollout_steps": 3, "objective.rdmreg.slices": 1024}
    rates = {"optim.lr": 5e-4, "optim.schedule": "cosine", "optim.warmup": 0.02}
    length = {"train.steps": 12_000, "train.eval_every": 3000, "train.checkpoint_every": 6000}
    return override(pusht(method, rung), {**model, **loss, **rates, **length})


def small(options: tuple[str, ...] = ()) -> RunConfig:
    """Piecewise for two CPU cores, reduced in every direction: 32² frames in 4 patches, width 64, D=64, MLP∘LTI. Short
    episodes from uniform starts cover the arena. Predictions are fed back for 3 steps (the paper trains one), so that
    the latent distance keeps growing further from the goal. What was tried is in results/notes.md."""
    return RunConfig(
        data=DataConfig(world="piecewise", options=options, episodes=3000, steps=40),
        model=ModelConfig(
            latent=64,
            encoder=EncoderConfig(
                image_size=32, patch=16, width=64, depth=3, heads=2, head_dim=32, mlp=128, pixels="white"
            ),
            projector=ProjectorConfig(hidden=256),
            predictor=PredictorConfig(rung="mlp-lti", history=3),
        ),
        objective=ObjectiveConfig(lam=1.0, rollout_steps=3, rdmreg=RDMRegConfig(slices=256, p=1.0)),
        optim=OptimConfig(lr=3e-3, mup=False, clip=1.0, schedule="cosine", warmup=0.02),
        train=TrainConfig(steps=2500, batch=64, log_every=50, eval_every=500, checkpoint_every=500),
    )


def wall_small(rung: str, mu: float = 0.0) -> RunConfig:
    """Wall for two CPU cores: `small`'s model and steps, k=1, any rung, the paper's 1,920 episodes. Transformers are
    reduced as the encoder is."""
    data = to_dict(DataConfig(world="wall", episodes=1920, steps=50))
    predictor = PredictorConfig(rung=rung, history=1, heads=2, head_dim=32, mlp=128, head_hidden=256)
    return override(small(), {"data": data, "model.predictor": to_dict(predictor), "objective.rdmreg.mu": mu})


def demo(options: tuple[str, ...] = ()) -> RunConfig:
    """`small` with sparser codes: a target that is above 0 with probability 0.12 (μ=−1), at root mean square 1. What
    `lpwm demo` trains. Held-out activity falls from 0.43 to 0.15 (results/small-recipe.md)."""
    return override(small(options), {"objective.rdmreg.mu": -1.0, "objective.rdmreg.rms_norm": True})


def tiny() -> RunConfig:
    """Seconds on one core: for tests and for trying the command line. Too small to plan with."""
    encoder = EncoderConfig(image_size=16, patch=8, width=16, depth=1, heads=1, head_dim=16, mlp=16)
    model = {"model.latent": 16, "model.encoder": to_dict(encoder), "model.projector.hidden": 32}
    loss = {"objective.rollout_steps": 1, "objective.rdmreg.slices": 32}
    train = TrainConfig(steps=60, batch=8, log_every=10, eval_every=30, checkpoint_every=20)
    return override(small(), {"data.episodes": 60, "data.steps": 20, **model, **loss, "train": to_dict(train)})


def dense(config: RunConfig) -> RunConfig:
    """LeWM as the paper compares with it: identity link and a Gaussian target, the rest unchanged."""
    target = {"p": 2.0, "mu": 0.0, "rms_norm": False}
    return override(config, {"model.link": "identity", **{f"objective.rdmreg.{k}": v for k, v in target.items()}})


def with_jaccard(config: RunConfig, weight: float = 0.01) -> RunConfig:
    return override(config, {"objective.tj_weight": weight})


METHODS: dict[str, Callable[[RunConfig], RunConfig]] = {
    "lpwm": lambda config: config,
    "lpwm-tj": with_jaccard,
    "lewm": dense,
    "relu": lambda config: override(config, {"model.link": "relu"}),  # the paper claims that it trains too
    # Weights of our own choosing (1 and 1 inside λ), as nobody published any.
    "vicreg": lambda config: override(config, {"model.link": "identity", "objective.regularizer": "vicreg"}),
}


CUBE_JACCARD = (0.005, 0.01, 0.05, 0.1)  # the paper's weights next to 0: cube/lpwm-tj0.1 and so on


def cube() -> RunConfig:
    """Cube: the support pipeline with λ=10 and no RMS normalization, as the authors' command has it.

    Data: 1,000 episodes × 200 steps of the noisy expert with 224² frames (30 GB; the public collector makes ten times
    as many), of which 900 train; 10 epochs are 13,080 steps of 128 clips.
    """
    data = {"data.episodes": 1000, "data.steps": 200, "data.frames": 224}
    length = {"train.steps": 13_080, "train.eval_every": 1000, "train.checkpoint_every": 1000}
    return override(support((), "cube"), {**data, "objective.lam": 10.0, "objective.rdmreg.rms_norm": False, **length})


def cube_112() -> RunConfig:
    """Cube reduced to minutes on one GPU: 112² frames (64 patches), 6 of the encoder's 12 layers, a tenfold rate.

    Data: 512 episodes × 200 steps, drawn at 112² (a third of the memory of 224², and no resizing), of which 461 train:
    5,000 steps of 128 clips are 7.5 epochs. D, λ, the target, the predictor and the batch are the full recipe's.
    """
    model = {"model.encoder.image_size": 112, "model.encoder.depth": 6, "optim.lr": 5e-4}
    length = {"train.steps": 5000, "train.eval_every": 2500, "train.checkpoint_every": 2500}
    return override(cube(), {"data.episodes": 512, "data.frames": 112, **model, **length})


def cube_small() -> RunConfig:
    """Cube in minutes on two cores: 20 episodes of 100 steps, 32² frames. To try the pipeline, not to plan with."""
    data = to_dict(DataConfig(world="cube", episodes=20, steps=100, frames=32))
    model = {"model.encoder.patch": 8, "model.encoder.pixels": "half"}  # no white there
    train = to_dict(TrainConfig(steps=200, batch=32, log_every=20, eval_every=100, checkpoint_every=100))
    return override(small(), {"data": data, **model, "objective.lam": 10.0, "train": train})


def _made(method: Callable[[RunConfig], RunConfig], base: Callable[..., RunConfig], *args: object) -> RunConfig:
    return method(base(*args))


def _pusht_name(width: int) -> str:
    return "pusht" if width == PUSHT_WIDTHS[0] else f"pusht-{width}"


def _table() -> dict[str, Recipe]:
    table: dict[str, Recipe] = {f"tiny/{m}": partial(_made, METHODS[m], tiny) for m in ("lpwm", "lewm")}
    for zones in ("2x2", "3x3"):
        for seen in ("", "-visible"):
            options = (f"g={zones[0]}", *(("visible=true",) if seen else ()))
            for size, base in (("", full), ("-paper", support), ("-64", reduced), ("-small", small)):
                for m in ("lpwm", "lpwm-tj", "lewm", "relu"):
                    table[f"piecewise-{zones}{seen}{size}/{m}"] = partial(_made, METHODS[m], base, options)
    for m in ("lpwm", "lewm"):
        table[f"piecewise-2x2-demo/{m}"] = partial(_made, METHODS[m], demo, ("g=2",))
        table[f"two-room/{m}"] = partial(_made, METHODS[m], support, (), "two_room")
    for rung in PAPER_RUNGS:
        on_ladder = ("lpwm", "lewm", "relu", "vicreg")
        for m in on_ladder if rung in ("deep-adaln", "mlp-ltv", "mlp-lti") else on_ladder[:3]:  # as in the paper
            table[f"wall/{rung}/{m}"] = partial(_made, METHODS[m], ladder, rung)
            table[f"wall-small/{rung}/{m}"] = partial(_made, METHODS[m], wall_small, rung)
            for width in PUSHT_WIDTHS:
                table[f"{_pusht_name(width)}/{rung}/{m}"] = partial(pusht, m, rung, width)
            table[f"pusht-112/{rung}/{m}"] = partial(pusht_112, m, rung)
            table[f"pusht-small/{rung}/{m}"] = partial(pusht_small, m, rung)
        for name, mu in (("lpwm-mu1", -1.0), ("lpwm-mu2", -2.0)):
            table[f"wall/{rung}/{name}"] = partial(ladder, rung, mu)
            table[f"wall-small/{rung}/{name}"] = partial(wall_small, rung, mu)
    for name, build in (("cube", cube), ("cube-112", cube_112), ("cube-small", cube_small)):
        for m in ("lpwm", "lewm"):
            table[f"{name}/{m}"] = partial(_made, METHODS[m], build)
        for weight in CUBE_JACCARD:
            table[f"{name}/lpwm-tj{weight:g}"] = partial(_made, partial(with_jaccard, weight=weight), build)
    return table


RECIPES: dict[str, Recipe] = _table()

# What `lpwm recipes` lists, with the methods lpwm and lewm; the others are variants of these, found by a pattern.
_MAIN = (
    *("tiny", "piecewise-2x2", "piecewise-2x2-64", "piecewise-2x2-small", "piecewise-2x2-demo", "two-room"),
    *("wall/deep-adaln", "wall/lti1", "wall-small/lti1", "pusht/deep-adaln", "pusht/mlp-lti", "pusht-small/mlp-lti"),
    *("cube", "cube-112", "cube-small"),
)


def recipes(pattern: str = "") -> tuple[str, ...]:
    """The names of recipes: the main ones, or all that match a pattern such as "wall/*"."""
    if not pattern:
        ends = ("/lpwm", "/lewm")
        return tuple(n for main in _MAIN for n in RECIPES if n.startswith(f"{main}/") and n.endswith(ends))
    names = tuple(name for name in RECIPES if fnmatch(name, pattern))
    if not names:
        raise UserError(f"no recipe matches {pattern!r}: {nearest(pattern, RECIPES)}.")
    return names


def recipe(name: str, latent: int | None = None) -> RunConfig:
    """The config of a named run; `latent` gives it another width, on PushT with the authors' λ and η for it."""
    build = choose("recipe", name, RECIPES)
    if latent is None:
        return build()
    if name.startswith("pusht/") and latent in PUSHT_WIDTHS:
        return RECIPES[_pusht_name(latent) + name.removeprefix("pusht")]()
    return override(build(), {"model.latent": latent})
