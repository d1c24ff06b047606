"""A wrong value is one sentence that names it, from every room's configs and constructors."""

import math

import numpy as np
import pytest
import torch

from lpwm.core.errors import UserError
from lpwm.data import ActionStats, ResidentClips, StreamedClips, from_arrays
from lpwm.evaluate.config import EvalConfig
from lpwm.losses import Objective, ObjectiveConfig, RDMRegConfig, SIGRegConfig, temporal_jaccard
from lpwm.losses.base import Group
from lpwm.losses.distribution import RectifiedGeneralizedGaussian
from lpwm.losses.rdmreg import RDMReg
from lpwm.losses.sigreg import SIGReg
from lpwm.losses.slicing import share
from lpwm.losses.vicreg import VICReg, VICRegConfig
from lpwm.model import EncoderConfig, ModelConfig, PredictorConfig, WorldModel
from lpwm.optim import OptimConfig
from lpwm.plan import LatentProblem, MPCConfig, OracleProblem, make_solver
from lpwm.theory import Grid, OneHot, slope
from lpwm.train import DataConfig
from lpwm.train.distributed import Ranks
from lpwm.train.health import HealthConfig
from lpwm.worlds import make, make_policy

DATA = from_arrays([np.zeros((20, 3))] * 3, [np.zeros((19, 2))] * 3, [np.zeros((20, 4, 4, 3), np.uint8)] * 3)
BLIND = from_arrays([np.zeros((9, 3))] * 2, [np.zeros((8, 2))] * 2)
CODES = torch.zeros(8, 2, 3)
ONE = torch.zeros(1, 2)
LAW, UNIT = RectifiedGeneralizedGaussian, Grid.unit(2, 3)
TINY = EncoderConfig(image_size=16, patch=8, width=8, depth=1, heads=1, head_dim=8, mlp=8)


def clips(kind=ResidentClips, data=DATA, **options):
    return kind(data, **(dict(clip_length=2, batch=4) | options))


def latent(goal=(2, 4), past=(2, 1, 4), horizon=2, ids=None, training=False, **options):
    """A problem of two environments with two frames each."""
    model = WorldModel(ModelConfig(latent=4, encoder=TINY, predictor=PredictorConfig("lti")), 4).train(training)
    given = None if past is None else torch.zeros(past)
    return LatentProblem(model, torch.zeros(2, 2, 4), torch.zeros(goal), given, horizon, env_ids=ids, **options)


def oracle(goal=ONE, *more, **options):
    return OracleProblem(make("piecewise"), ONE, goal, *more, **options)


CASES = [
    # losses
    (lambda: Objective(ObjectiveConfig(tj_weight=0.1), nonnegative=False), "non-negative link"),
    (lambda: ObjectiveConfig("rdmregg"), "did you mean 'rdmreg'"),
    (lambda: ObjectiveConfig(lam=-1.0), "lam = -1.0 must be at least 0"),
    (lambda: ObjectiveConfig(tj_weight=math.nan), "tj_weight = nan must be at least 0"),
    (lambda: ObjectiveConfig(rollout_weight=-1.0), "rollout_weight = -1.0 must be at least 0"),
    (lambda: ObjectiveConfig(rollout_steps=0), "rollout_steps = 0 must be at least 1"),
    (lambda: ObjectiveConfig(rollout_steps=4).validate(True, 4), "needs clips of 5 frames, not 4"),
    (lambda: RDMRegConfig(p=0.0), "shape p"),
    (lambda: RDMRegConfig(slices=0), "slices = 0 must be at least 1"),
    (lambda: RDMRegConfig(axis_fraction=1.5), "axis_fraction must lie in"),
    (lambda: RDMRegConfig(mu=-40.0, rms_norm=True), "raise mu"),
    (lambda: RDMReg(RDMRegConfig(4))(CODES, RDMReg(RDMRegConfig(4)).draw((0,), (16, 2, 3))), "the global batch"),
    (lambda: SIGRegConfig(slices=0), "slices"),
    (lambda: SIGRegConfig(knots=1), "knots"),
    (lambda: SIGRegConfig(reach=0.0), "reach"),
    (lambda: SIGRegConfig(8, axis_fraction=math.nan), "axis_fraction must lie in"),
    (lambda: SIGReg(SIGRegConfig(4))(CODES, SIGReg(SIGRegConfig(4)).draw((0,), (8, 2, 5))), "draw again"),
    (lambda: VICRegConfig(variance=-1.0), "vicreg.variance = -1.0 must be at least 0"),
    (lambda: VICRegConfig(covariance=-1.0), "vicreg.covariance = -1.0 must be at least 0"),
    (lambda: VICReg(VICRegConfig())(torch.zeros(1, 1, 3)), "two codes"),
    (lambda: share(torch.zeros(5, 2), 8, Group()), "the draw has 5 slices"),
    (lambda: temporal_jaccard(torch.zeros(2, 1, 3)), "at least 2 frames"),
    *((lambda p=p: LAW(p), "shape p must be above 0") for p in (-1.0, math.nan, math.inf)),
    (lambda: LAW(mu=math.nan), "mu must be finite"),
    (lambda: LAW(mu=-30.0, rms_norm=True), "raise mu"),
    # model, optim
    (lambda: PredictorConfig(rung="mlplti"), "did you mean 'mlp-lti'"),
    (lambda: PredictorConfig(history=0), "at least 1"),
    (lambda: PredictorConfig(dropout=1.0), "dropout"),
    (lambda: ModelConfig(link="relux"), "did you mean 'relu'"),
    (lambda: ModelConfig(latent=0), "latent"),
    (lambda: PredictorConfig(history=10**30), "more than 1000 codes"),
    (lambda: EncoderConfig(image_size=225), "not divisible by patches of 14: use 224"),
    (lambda: WorldModel(ModelConfig(), 0), "at least one action"),
    (lambda: OptimConfig(name="adan"), "did you mean 'adam'"),
    (lambda: OptimConfig(lr=0.0), "positive"),
    (lambda: OptimConfig(schedule="cosin"), "cosine"),
    (lambda: OptimConfig(warmup=1.5), "share"),
    (lambda: OptimConfig(clip=-1.0), "at least 0"),
    # plan
    (lambda: make_solver("cem", elites=1), "elites is 1"),
    (lambda: make_solver("cem", elites=31, samples=30), "at most as many elites"),
    (lambda: make_solver("cem", iterations=0), "iterations is 0"),
    (lambda: make_solver("cem", std=math.nan), "std is nan"),
    (lambda: make_solver("icem", elites=0), "elites is 0"),
    (lambda: make_solver("icem", keep=1.5), "keep"),
    (lambda: make_solver("icem", decay=0.5), "decay"),
    (lambda: make_solver("mppi", temperature=0.0), "temperature"),
    (lambda: make_solver("mppi", samples=0), "samples"),
    (lambda: make_solver("gradient", restarts=0), "restarts"),
    (lambda: make_solver("gradient", beta1=1.0), "beta1"),
    (lambda: make_solver("lqr", control=-1.0), "control"),
    (lambda: make_solver("cme"), "did you mean 'cem'"),
    (lambda: make_solver("cem", elite=3), "did you mean 'elites'"),
    (lambda: MPCConfig(horizon=0), "horizon is 0"),
    (lambda: MPCConfig(receding=0), "receding is 0"),
    (lambda: MPCConfig(horizon=3, receding=4), "lengthen the horizon"),
    (lambda: MPCConfig(context=0), "context is 0"),
    (lambda: latent(horizon=0), "horizon is 0"),
    (lambda: latent(goal=(2, 3)), "do not match"),
    (lambda: latent(past=(2, 2, 4)), "past actions have shape"),
    (lambda: latent(past=None), "blocks executed between"),
    (lambda: latent(ids=torch.zeros(3, dtype=torch.int64)), "one int64 per environment"),
    (lambda: latent(training=True), "model.eval()"),
    (lambda: oracle(ONE[0]), "do not match"),
    (lambda: oracle(ONE, 2, 0), "frameskip"),
    *(
        (
            lambda make=make, x=x: make(path_discount=x),
            f"path_discount is {x}: give at {'most 1' if x > 1 else 'least 0'}.",
        )
        for make in (MPCConfig, EvalConfig, latent, oracle)
        for x in (-0.1, 1.01, math.nan)
    ),
    # evaluate
    (lambda: EvalConfig(goals=("rnadom",)), "unknown kind of goals 'rnadom': did you mean 'random'"),
    (lambda: EvalConfig(controls=("oracel",)), "did you mean 'oracle'"),
    (lambda: EvalConfig(options={"elites": "many"}), "cem.elites = 'many' must be of type int"),
    (lambda: EvalConfig(options={"elite": 3}), "unknown field 'cem.elite'"),
    (lambda: EvalConfig(oracle_options={"samples": 1}), "samples is 1"),
    (lambda: EvalConfig(budgets=()), "budgets = []"),
    (lambda: EvalConfig(budgets=(0, 50)), "positive"),
    (lambda: EvalConfig(receding=(-1,)), "whole horizon"),
    (lambda: EvalConfig(planner_seeds=0), "planner_seeds = 0"),
    (lambda: EvalConfig(episodes=0), "episodes = 0"),
    # worlds
    (lambda: make("picewise"), "did you mean 'piecewise'"),
    (lambda: make("piecewise", gg=3), "did you mean 'g'"),
    (lambda: make("piecewise", g=0), "1 to 14"),
    (lambda: make("piecewise", g=2.5), "takes g as int"),
    (lambda: make("piecewise", scale=math.nan), "finite"),
    (lambda: make("piecewise", visible=1), "takes visible as bool"),
    (lambda: make("two_room", doors=()), "door centers"),
    (lambda: make("two_room", doors=(300,)), "door centers"),
    (lambda: make("two_room", door_half=2), "8 to 21"),
    (lambda: make("two_room", thickness=100), "7 to 41"),
    (lambda: make("wall", wall=2), "16…48"),
    (lambda: make("wall", door=2), "10…54"),
    (lambda: make_policy(make("piecewise"), "exprt"), "did you mean 'expert'"),
    (lambda: make_policy(make("piecewise"), "expert", noize=1.0), "no option 'noize': did you mean 'noise'"),
    # data, train
    (lambda: clips(clip_length=0), "clip_length is 0"),
    (lambda: clips(frameskip=0), "frameskip is 0"),
    (lambda: clips(batch=0), "batch is 0"),
    (lambda: clips(image_size=0), "image_size is 0"),
    (lambda: clips(split="test"), "'train' or 'val'"),
    (lambda: clips(holdout=1.0), "holdout is 1.0"),
    (lambda: clips(holdout=0.0, split="val"), "holds no clip"),
    (lambda: clips(rank=2, ranks=2), "rank 2 of 2"),
    (lambda: clips(clip_length=50), "which needs 246"),
    (lambda: clips(stats=ActionStats((0.0,), (1.0,))), "1 action dimensions"),
    (lambda: clips(data=BLIND, batch=1), "no pixels"),
    (lambda: clips(data=BLIND, batch=1, world=make("piecewise")), "3 state entries, the world 'piecewise' has 2"),
    (lambda: clips(StreamedClips), "in memory already"),
    (lambda: DataConfig(source="stream"), "data.source"),
    (lambda: DataConfig(pixels="drawn"), "data.pixels"),
    (lambda: DataConfig(workers=-1), "data.workers"),
    (lambda: DataConfig(steps=-1), "data.steps"),
    (lambda: HealthConfig(grace=1.5), "health.grace"),
    (lambda: HealthConfig(patience=0), "health.patience"),
    (lambda: HealthConfig(min_dimension=-1.0), "health.min_dimension"),
    (lambda: HealthConfig(min_std=math.nan), "health.min_std"),
    (lambda: Ranks(0, 4).sizes(3), "cannot feed 4"),
    # theory
    (lambda: Grid((0.0,), (0.0,), 3), "is empty"),
    (lambda: Grid.unit(3, 5000), "cannot be numbered: use 1 to"),
    (lambda: UNIT.encode([[0.5, 1.2]]), "is outside the box"),
    (lambda: UNIT.encode([[0.5, np.nan]]), "is outside the box"),
    (lambda: UNIT.encode([0.5, 0.2]), "not of shape"),
    (lambda: OneHot.of(lambda x, a: x + 1, Grid.unit(1, 3), [[0.0]]), "widen it or clamp the map"),
    (lambda: OneHot.of(lambda x, a: x, Grid.unit(1, 3), []), "actions come as"),
    (lambda: slope([10], [0.1]), "at least two sizes"),
]


@pytest.mark.parametrize(("wrong", "words"), CASES, ids=[words for _, words in CASES])
def test_a_wrong_value_is_one_sentence(wrong, words):
    with pytest.raises(UserError) as caught:
        wrong()
    message = str(caught.value)
    assert words in message and "\n" not in message and message.endswith("."), message
