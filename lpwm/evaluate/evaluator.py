"""The distinct runs of the episode loop as jobs, each run once, and the cells they make up."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from lpwm.core.config import to_dict
from lpwm.core.errors import UserError
from lpwm.evaluate.agent import Agent, LatentActor
from lpwm.evaluate.cache import Store
from lpwm.evaluate.config import EvalConfig
from lpwm.evaluate.controls import Nothing, Oracle, RandomActions
from lpwm.evaluate.episodes import Actor, Record, is_live, run_episodes
from lpwm.evaluate.goals import EpisodeSet
from lpwm.evaluate.measure import Records, measured_cell, measured_row
from lpwm.evaluate.results import Cell, Row
from lpwm.plan import MPCConfig, Solver

NAMES = {"nothing": "do nothing", "random": "random actions", "oracle": "oracle"}

Tick = Callable[[], None] | None  # called after every plan
MakeActor = Callable[[Tick], Actor]


@dataclass(frozen=True, eq=False)
class Job:
    """One run of the loop, and all its record depends on."""

    depends: dict[str, Any]
    actor: MakeActor
    episodes: EpisodeSet
    frameskip: int
    plans: int  # how many plans it takes: the unit of progress
    storable: bool = True  # not for an agent without weights to be known by
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
        finished_only: bool = False,
    ) -> None:
        """either: records kept from a call that compiled, or did not, serve this one too.
        finished_only: run nothing; what is not kept is left out and listed in `missing`.
        workers: processes for live simulators; None is one per core for the oracle's, which branch, and one for the
        others. Nothing depends on it.
        progress: called with the number of plans made; `jobs` tells how many there will be.
        """
        check_agents(agents, config)
        self.agents, self.world, self.config, self.sets = tuple(agents), world, config, sets
        self.device, self.compile, self.either = torch.device(device), compile, either
        self.finished_only, self.missing = finished_only, list[str]()
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
        depends = {
            "world": [spec.name, spec.options],
            "episodes": episodes.digest,
            "steps": self.steps,
            "frameskip": frameskip,
            "device": self.device.type,
            **more,
        }
        plans = math.ceil(self.steps / (receding * frameskip)) if receding else 0
        return Job(depends, actor, episodes, frameskip, plans, workers=self.workers or 1)

    def agent_job(self, agent: Agent, kind: str, horizon: int, receding: int, seed: int) -> Job:
        c, mpc = self.config, self.mpc(horizon, receding, agent)
        autocast = torch.bfloat16 if c.precision == "bfloat16" else None

        def actor(tick: Tick) -> Actor:
            solver = self._solver_for(agent)
            options: dict[str, Any] = {"compile": self.compile, "autocast": autocast, "on_plan": tick}
            return LatentActor(agent, self.world, solver, mpc, seed, **options)

        job = self._job(
            kind,
            agent.frameskip,
            actor,
            receding,
            who=[agent.weights or id(agent), agent.vote, list(agent.images)],
            stats=agent.stats.as_dict(),
            mpc=to_dict(mpc),
            solver=[c.solver, c.options],
            seed=seed,
            precision=c.precision,
            compile=self.compile,
        )
        return replace(job, storable=bool(agent.weights))

    def _solver_for(self, agent: Agent) -> Solver:
        """One for all jobs of an agent that follow one another: it keeps the graphs it captured, and their memory."""
        if self._latest is None or self._latest[0] is not agent:
            self._latest = agent, self.config.build_solver()
        return self._latest[1]

    def control_job(self, name: str, kind: str, horizon: int, receding: int, seed: int) -> Job:
        world, skip, stats = self.world, self.agents[0].frameskip, self.agents[0].stats
        if name == "nothing":
            return self._job(kind, skip, lambda _: Nothing(world, skip), control=name, seed=seed)
        if name == "random":
            return self._job(kind, skip, lambda _: RandomActions(world, skip, seed), control=name, seed=seed)
        mpc = self.mpc(horizon, receding, None)
        job = self._job(
            kind,
            skip,
            lambda tick: Oracle(world, stats, skip, self.config.build_oracle_solver(self.live), mpc, seed, tick),
            receding,
            control=name,
            seed=seed,
            stats=stats.as_dict(),
            mpc=to_dict(mpc),
            solver=list(self.config.oracle_planner(self.live)),
        )
        return replace(job, workers=self.workers)

    def _lines(self, kind: str, horizon: int, receding: int) -> Iterator[tuple[str, str, int | str, list[Job]]]:
        """Of a cell: the row, who acts, the training seed, and the jobs, one for each planner seed."""
        count = {"nothing": 1, "random": self.config.planner_seeds, "oracle": self.config.oracle_seeds}
        for method, agents in by_method(self.agents).items():
            for agent in agents:
                seeds = range(self.config.planner_seeds)
                jobs = [self.agent_job(agent, kind, horizon, receding, seed) for seed in seeds]
                yield method, agent.name, agent.seed, jobs
        for name in self.config.controls if kind != "image" else ():  # a picture has no state to test
            jobs = [self.control_job(name, kind, horizon, receding, seed) for seed in range(count[name])]
            yield NAMES[name], NAMES[name], "control", jobs

    def jobs(self) -> list[Job]:
        """Every distinct job of every cell."""
        lines = (line for kind in self.sets for H, R in self.config.pairs() for line in self._lines(kind, H, R))
        return list({Store.name(job.depends): job for *_, jobs in lines for job in jobs}.values())

    def _kept(self, job: Job) -> dict[str, Any]:
        """Under what its record is kept: the job's own, unless there is only that of the other way to compile."""
        if self.either and "compile" in job.depends and not self.store.has(job.depends):
            other = {**job.depends, "compile": not job.depends["compile"]}
            return other if self.store.has(other) else job.depends
        return job.depends

    def stored(self, job: Job) -> bool:
        return job.storable and self.store.has(self._kept(job))

    def have(self, jobs: Sequence[Job], who: str) -> bool:
        """Whether these, one for each planner seed, may be run: with `finished_only` only if none need be."""
        if not self.finished_only:
            return True
        kept = [job.storable and self.store.load(self._kept(job)) is not None for job in jobs]
        if not all(kept):
            self.missing.append(f"{who} ({sum(kept)} of {len(jobs)} planner seeds are there)")
        return all(kept)

    def run(self, job: Job) -> tuple[Record, bool]:
        name = Store.name(job.depends)
        if name not in self.done:
            before = self.plans_done
            store = self.store if job.storable else Store(None)
            self.done[name] = store.record(
                self._kept(job) if job.storable else job.depends,
                lambda: run_episodes(
                    self.world,
                    job.episodes,
                    job.actor(self._tick),
                    steps=self.steps,
                    frameskip=job.frameskip,
                    device=self.device,
                    workers=job.workers,
                ),
            )
            self.plans_done = before + job.plans
            if self.progress is not None:
                self.progress(self.plans_done)
        return self.done[name]

    def kept_as(self, jobs: Sequence[Job]) -> tuple[str, ...]:
        """The names of their records in the store; none where nothing is stored."""
        if self.store.folder is None or not all(job.storable for job in jobs):
            return ()
        return tuple(Store.name(self._kept(job)) for job in jobs)

    def _tick(self) -> None:
        self.plans_done += 1
        if self.progress is not None:
            self.progress(self.plans_done)

    def cell(self, kind: str, horizon: int, receding: int) -> tuple[Cell, dict[str, Records]] | None:
        """Measured, with the records of each row; None where nothing of it is kept (`finished_only`)."""
        where = f"{kind} goals, H={horizon}, R={receding}"
        lines: dict[str, dict[int | str, list[Job]]] = {}
        for name, who, seed, jobs in self._lines(kind, horizon, receding):
            if self.have(jobs, f"{where}: {who}"):
                lines.setdefault(name, {})[seed] = jobs
        if not lines:
            return None
        played = {name: self._row(name, by_seed, receding) for name, by_seed in lines.items()}
        rows = tuple(row for row, _ in played.values())
        cell = measured_cell(kind, horizon, receding, rows, self.sets[kind].ids, self._groups(kind))
        return cell, {name: records for name, (_, records) in played.items()}

    def _groups(self, kind: str) -> dict[str, np.ndarray]:
        """Episodes to report apart, where the world names some: PushT's goals that need the block to move."""
        episodes = self.sets[kind]
        if episodes.image is not None or not hasattr(self.world, "goal_groups"):
            return {}
        groups = self.world.goal_groups(episodes.start_BS, episodes.goal_BS)
        return {name: np.asarray(which, dtype=bool) for name, which in groups.items()}

    def _planner(self, job: Job) -> dict[str, Any]:
        if "mpc" not in job.depends:
            return {}
        solver = self.config.build_oracle_solver(self.live) if "control" in job.depends else self.solver
        options = to_dict(getattr(solver, "config", {}))
        return {"solver": job.depends["solver"][0], "options": options, **job.depends["mpc"]}

    def _row(self, name: str, lines: dict[int | str, list[Job]], receding: int) -> tuple[Row, Records]:
        """lines: the jobs of each training seed, by planner seed."""
        played = [[self.run(job) for job in jobs] for jobs in lines.values()]
        records = tuple(tuple(record for record, _ in line) for line in played)
        if self.config.test == "plan":  # success counts only at the ends of executed plans
            records = tuple(tuple(replace(r, tested=receding * r.frameskip) for r in line) for line in records)
        names = tuple(self.kept_as(jobs) for jobs in lines.values())
        row = measured_row(
            name,
            name in NAMES.values(),
            records,
            self.config.budgets,
            seeds=tuple(lines),
            planner_seeds=tuple(range(len(records[0]))),
            planner=self._planner(next(iter(lines.values()))[0]),
            stored_records=sum(was for line in played for _, was in line),
            records=names if all(names) else (),
        )
        return row, records


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
            raise UserError(
                f"{method} is given twice with training seed {max(seeds, key=seeds.count)}: runs of one method "
                "must differ in their seed."
            )
        if method in NAMES.values():
            raise UserError(f"a run cannot be called {method!r}: that is the name of a control.")
    if config.test == "plan":
        longest = max(r for _, r in config.pairs()) * max(a.frameskip for a in agents)
        if min(config.budgets) < longest:
            raise UserError(
                f"a budget of {min(config.budgets)} raw steps ends before one plan of {longest} is executed: give at "
                f"least {longest}, or test after every step."
            )
