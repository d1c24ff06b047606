"""Running a protocol: every cell, every method, every control, each distinct run of the episode loop once."""

import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from lpwm.core.config import to_dict
from lpwm.core.errors import UserError
from lpwm.core.provenance import origin, versions
from lpwm.data import EpisodeData
from lpwm.evaluate.agent import Agent, LatentActor, PlanActor
from lpwm.evaluate.config import EvalConfig
from lpwm.evaluate.controls import Nothing, Oracle, RandomActions
from lpwm.evaluate.episodes import Actor, Record, Store, is_live, run_episodes
from lpwm.evaluate.goals import EpisodeSet, episode_sets
from lpwm.evaluate.measure import Played, Records, distance_curve, measured_cell, measured_row
from lpwm.evaluate.results import VERSION, Cell, Evaluation, Row, WorldName
from lpwm.plan import MPCConfig, Solver

NAMES = {"nothing": "do nothing", "random": "random actions", "oracle": "oracle"}

Tick = Callable[[], None] | None  # called after every plan
MakeActor = Callable[[Tick], Actor]


def evaluate(
    agents: Sequence[Agent],
    world: Any,
    config: EvalConfig | None = None,
    *,
    data: EpisodeData | None = None,
    holdout: float = 0.1,
    sets: Mapping[str, EpisodeSet] | None = None,
    **options: Any,
) -> Evaluation:
    """All cells of `config` for these agents and their controls.

    sets: the episodes, if they are not to be drawn from `config`.
    options: of `Evaluator`: device, store, compile, workers, progress, …
    """
    config = config or EvalConfig()
    check_agents(agents, config)
    if sets is None:
        sets = episode_sets(world, config, data, holdout, max(a.frameskip for a in agents))
    return run(Evaluator(agents, world, config, sets, **options), holdout)


def run(runner: "Evaluator", holdout: float, predicted_s: float | None = None) -> Evaluation:
    """Every cell of an evaluator, measured."""
    began = time.perf_counter()
    config, world, sets, device = runner.config, runner.world, runner.sets, runner.device
    cells = [runner.cell(kind, H, R) for kind in sets for H, R in config.pairs()]
    curves = {}
    for agent in runner.agents if config.curve else ():
        see = functools.partial(agent.see, world)
        curves[agent.name] = distance_curve(see, world, states=config.curve, seed=config.seed, device=device)
    code: dict[str, Any] = origin()
    return Evaluation(
        version=VERSION,
        versions={**versions(), "numpy": np.__version__},
        **code,
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
        threads=torch.get_num_threads(),
        settings=config,
        world=WorldName(world.spec.name, dict(world.spec.options)),
        holdout=holdout,
        runs=tuple(a.entry() for a in runner.agents),
        episode_sets={kind: s.entry() for kind, s in sets.items()},
        cells=tuple(cell for cell, _ in cells),
        curves=curves,
        predicted_s=predicted_s,
        wall_s=time.perf_counter() - began,
        played=Played(world, sets, tuple(records for _, records in cells)),
    )


@dataclass(frozen=True, eq=False)
class Job:
    """One run of the loop, and all its record depends on."""

    depends: dict[str, Any]
    actor: MakeActor
    episodes: EpisodeSet
    frameskip: int
    plans: int  # how many plans it takes: the unit of progress
    store: Store
    workers: int | None = 1  # processes of live simulators


class Evaluator:
    """Builds the jobs of an evaluation, and runs each once: cells share what does not depend on (H, R)."""

    def __init__(
        self,
        agents: Sequence[Agent],
        world: Any,
        config: EvalConfig,
        sets: Mapping[str, EpisodeSet],
        *,
        device: torch.device | str = "cpu",
        store: Store | None = None,
        compile: bool = False,
        either: bool = False,
        workers: int | None = 1,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """either: records kept from a call that compiled, or did not, serve this one too. workers: processes for live
        simulators; None is one per core for the oracle's, which branch, and one for the others. Nothing depends on it.
        progress: called with the number of plans made; `jobs` tells how many there will be.
        """
        check_agents(agents, config)
        self.agents, self.world, self.config, self.sets = tuple(agents), world, config, sets
        self.device, self.compile, self.either = torch.device(device), compile, either
        self.solver = config.build_solver()
        self._latest: tuple[Agent, Solver] | None = None
        self.store, self.progress = store or Store(None), progress
        self.live, self.workers = is_live(world), workers
        self.steps = max(config.budgets)
        self.done: dict[str, tuple[Record, bool]] = {}
        self.plans_done = 0

    def mpc(self, horizon: int, receding: int, agent: Agent | None) -> MPCConfig:
        context = 1 if agent is None else self.config.context or agent.history
        return MPCConfig(horizon, receding, self.config.warm, context, self.config.path_discount)

    def _job(self, kind: str, frameskip: int, actor: MakeActor, receding: int = 0, **more: Any) -> Job:
        """receding: blocks between plans; 0 for an actor that does not plan. more: what else its record depends on."""
        spec, episodes = self.world.spec, self.sets[kind]
        depends = {"world": [spec.name, spec.options], "episodes": episodes.digest, "steps": self.steps}
        depends |= {"frameskip": frameskip, "device": self.device.type, **more}
        depends |= {"arrive": True} if self.config.arrive and receding else {}
        plans = math.ceil(self.steps / (receding * frameskip)) if receding else 0
        return Job(depends, actor, episodes, frameskip, plans, self.store, self.workers or 1)

    def _ending(self, actor: PlanActor) -> PlanActor:
        actor.blocks = math.ceil(self.steps / actor.frameskip) if self.config.arrive else None
        return actor

    def agent_job(self, agent: Agent, kind: str, horizon: int, receding: int, seed: int) -> Job:
        c, mpc = self.config, self.mpc(horizon, receding, agent)
        autocast = torch.bfloat16 if c.precision == "bfloat16" else None

        def actor(tick: Tick) -> Actor:
            # One solver for all jobs of an agent that follow one another: it keeps the graphs it captured.
            if self._latest is None or self._latest[0] is not agent:
                self._latest = agent, c.build_solver()
            options: dict[str, Any] = {"compile": self.compile, "autocast": autocast, "on_plan": tick}
            return self._ending(LatentActor(agent, self.world, self._latest[1], mpc, seed, **options))

        who = [agent.weights or id(agent), "borda", [agent.image]]  # as the keys of stored episodes have it
        more: dict[str, Any] = {"who": who, "seed": seed}
        more |= {"stats": agent.stats.as_dict(), "mpc": to_dict(mpc), "solver": [c.solver, c.options]}
        more |= {"precision": c.precision, "compile": self.compile}
        job = self._job(kind, agent.frameskip, actor, receding, **more)
        return job if agent.weights else replace(job, store=Store(None))  # without weights nothing names its records

    def control_job(self, name: str, kind: str, horizon: int, receding: int, seed: int) -> Job:
        world, skip, stats = self.world, self.agents[0].frameskip, self.agents[0].stats
        if name == "nothing":
            return self._job(kind, skip, lambda _: Nothing(world, skip), control=name, seed=seed)
        if name == "random":
            return self._job(kind, skip, lambda _: RandomActions(world, skip, seed), control=name, seed=seed)
        mpc = self.mpc(horizon, receding, None)

        def oracle(tick: Tick) -> Actor:
            solver = self.config.build_oracle_solver(self.live)
            return self._ending(Oracle(world, stats, skip, solver, mpc, seed, tick))

        more = {"solver": list(self.config.oracle_planner(self.live)), "stats": stats.as_dict(), "mpc": to_dict(mpc)}
        return replace(self._job(kind, skip, oracle, receding, control=name, seed=seed, **more), workers=self.workers)

    def _lines(self, kind: str, horizon: int, receding: int) -> Iterator[tuple[str, int | str, list[Job]]]:
        """Of a cell: the row, the training seed, and the jobs, one for each planner seed."""
        count = {"nothing": 1, "random": self.config.planner_seeds, "oracle": self.config.oracle_seeds}
        for method, agents in by_method(self.agents).items():
            for agent in agents:
                seeds = range(self.config.planner_seeds)
                jobs = [self.agent_job(agent, kind, horizon, receding, seed) for seed in seeds]
                yield method, agent.seed, jobs
        possible = getattr(self.world, "controls", self.config.controls)
        for name in (c for c in self.config.controls if c in possible):
            jobs = [self.control_job(name, kind, horizon, receding, seed) for seed in range(count[name])]
            yield NAMES[name], "control", jobs

    def jobs(self) -> list[Job]:
        """Every distinct job of every cell."""
        lines = (line for kind in self.sets for H, R in self.config.pairs() for line in self._lines(kind, H, R))
        return list({Store.name(job.depends): job for *_, jobs in lines for job in jobs}.values())

    def _kept(self, job: Job) -> dict[str, Any]:
        """Under what its record is kept: the job's own, unless there is only that of the other way to compile."""
        if self.either and "compile" in job.depends and not job.store.has(job.depends):
            other = {**job.depends, "compile": not job.depends["compile"]}
            return other if job.store.has(other) else job.depends
        return job.depends

    def stored(self, job: Job) -> bool:
        return job.store.has(self._kept(job))

    def run(self, job: Job) -> tuple[Record, bool]:
        """Its record, made once, and whether it was kept from an earlier call."""
        name = Store.name(job.depends)
        if name not in self.done:
            before = self.plans_done
            how: dict[str, Any] = {"steps": self.steps, "frameskip": job.frameskip, "workers": job.workers}

            def play() -> Record:
                return run_episodes(self.world, job.episodes, job.actor(self._tick), device=self.device, **how)

            self.done[name] = job.store.record(self._kept(job), play)
            record = self.done[name][0]
            for states, actions in zip(record.states_BTS, record.actions_BTA, strict=True):
                if hasattr(self.world, "remember"):  # states that cannot be set, of a record that was kept
                    self.world.remember(torch.from_numpy(states), torch.from_numpy(actions))
            self.plans_done = before + job.plans - 1
            self._tick()
        return self.done[name]

    def _tick(self) -> None:
        self.plans_done += 1
        if self.progress is not None:
            self.progress(self.plans_done)

    def cell(self, kind: str, horizon: int, receding: int) -> tuple[Cell, dict[str, Records]]:
        """Measured, with the records of each row."""
        lines: dict[str, dict[int | str, list[Job]]] = {}
        for name, seed, jobs in self._lines(kind, horizon, receding):
            lines.setdefault(name, {})[seed] = jobs
        played = {name: self._row(name, by_seed, receding) for name, by_seed in lines.items()}
        rows, episodes = tuple(row for row, _ in played.values()), self.sets[kind]
        groups = {}  # episodes to report apart, where the world names some: PushT's goals that need the block to move
        if hasattr(self.world, "goal_groups"):
            groups = self.world.goal_groups(episodes.start_BS, episodes.goal_BS)
        cell = measured_cell(kind, horizon, receding, rows, episodes.ids, groups)
        return cell, {name: records for name, (_, records) in played.items()}

    def _row(self, name: str, lines: dict[int | str, list[Job]], receding: int) -> tuple[Row, Records]:
        """lines: the jobs of each training seed, by planner seed."""
        played = [[self.run(job) for job in jobs] for jobs in lines.values()]
        records = tuple(tuple(record for record, _ in line) for line in played)
        if self.config.test == "plan":  # success counts only at the ends of executed plans
            records = tuple(tuple(replace(r, tested=receding * r.frameskip) for r in line) for line in records)
        first, planner = next(iter(lines.values()))[0], {}
        if "mpc" in first.depends:
            solver = self.config.build_oracle_solver(self.live) if "control" in first.depends else self.solver
            options = to_dict(getattr(solver, "config", {}))
            planner = {"solver": first.depends["solver"][0], "options": options, **first.depends["mpc"]}
        kept = tuple(tuple(Store.name(self._kept(job)) for job in jobs if job.store.folder) for jobs in lines.values())
        more: dict[str, Any] = {"seeds": tuple(lines), "planner_seeds": tuple(range(len(records[0])))}
        more |= {"planner": planner, "stored_records": sum(was for line in played for _, was in line)}
        more["records"] = kept if all(kept) else ()
        return measured_row(name, name in NAMES.values(), records, self.config.budgets, **more), records


def by_method(agents: Sequence[Agent]) -> dict[str, list[Agent]]:
    """Agents of one method are its training seeds; an agent without a method stands alone."""
    out: dict[str, list[Agent]] = {}
    for agent in agents:
        out.setdefault(agent.method or agent.name, []).append(agent)
    return out


def check_agents(agents: Sequence[Agent], config: EvalConfig) -> None:
    if not agents:
        raise UserError("there is nothing to evaluate: give at least one run.")
    for method, members in by_method(agents).items():
        seeds = [a.seed for a in members]
        if len(set(seeds)) != len(seeds):
            raise UserError(f"{method} is given twice with training seed {max(seeds, key=seeds.count)}: leave one out.")
        if method in NAMES.values():
            raise UserError(f"a run cannot be called {method!r}: that is the name of a control.")
    if config.test == "plan":
        longest = max(r for _, r in config.pairs()) * max(a.frameskip for a in agents)
        if min(config.budgets) < longest:
            least = min(config.budgets)
            raise UserError(f"a budget of {least} steps ends before one plan of {longest}: give at least {longest}.")
