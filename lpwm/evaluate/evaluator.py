"""The distinct runs of the episode loop as jobs, each run once, and the cells they make up."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from lpwm.core.config import to_dict
from lpwm.core.errors import UserError
from lpwm.evaluate.agent import Agent, LatentActor
from lpwm.evaluate.cache import Store
from lpwm.evaluate.config import EvalConfig
from lpwm.evaluate.controls import Nothing, Oracle, RandomActions
from lpwm.evaluate.episodes import Actor, Record, is_live, run_episodes
from lpwm.evaluate.goals import EpisodeSet
from lpwm.evaluate.played import PlayedCell, PlayedRow
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

    def control_seeds(self, name: str) -> tuple[int, ...]:
        count = {"nothing": 1, "random": self.config.planner_seeds, "oracle": self.config.oracle_seeds}[name]
        return tuple(range(count))

    def controls(self, kind: str) -> tuple[str, ...]:
        """An image goal has no state to test."""
        return () if kind == "image" else self.config.controls

    def jobs(self) -> list[Job]:
        """Every distinct job of every cell."""
        distinct: dict[str, Job] = {}
        for kind in self.sets:
            for H, R in self.config.pairs():
                jobs = [
                    self.agent_job(a, kind, H, R, seed)
                    for a in self.agents
                    for seed in range(self.config.planner_seeds)
                ]
                jobs += [self.control_job(n, kind, H, R, s) for n in self.controls(kind) for s in self.control_seeds(n)]
                distinct.update((Store.name(job.depends), job) for job in jobs)
        return list(distinct.values())

    def _names(self, job: Job) -> list[dict[str, Any]]:
        """Under what its record may be kept, the job's own first."""
        if not (self.either and "compile" in job.depends):
            return [job.depends]
        return [job.depends, {**job.depends, "compile": not job.depends["compile"]}]

    def stored(self, job: Job) -> bool:
        return job.storable and any(self.store.has(name) for name in self._names(job))

    def have(self, jobs: Sequence[Job], who: str) -> bool:
        """Whether these, one for each planner seed, may be run: with `finished_only` only if none need be."""
        if not self.finished_only:
            return True
        kept = [job.storable and any(self.store.load(name) is not None for name in self._names(job)) for job in jobs]
        if not all(kept):
            self.missing.append(f"{who} ({sum(kept)} of {len(jobs)} planner seeds are there)")
        return all(kept)

    def run(self, job: Job) -> tuple[Record, bool]:
        name = Store.name(job.depends)
        if name not in self.done:
            before = self.plans_done
            store = self.store if job.storable else Store(None)
            self.done[name] = store.record(
                next((n for n in self._names(job) if store.has(n)), job.depends),
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
        depends = [next((n for n in self._names(job) if self.store.has(n)), job.depends) for job in jobs]
        return tuple(Store.name(d) for d in depends)

    def _tick(self) -> None:
        self.plans_done += 1
        if self.progress is not None:
            self.progress(self.plans_done)

    def cell(self, kind: str, horizon: int, receding: int) -> PlayedCell | None:
        """None where nothing of it is kept (`finished_only`)."""
        where = f"{kind} goals, H={horizon}, R={receding}"
        seeds = tuple(range(self.config.planner_seeds))
        rows = []
        for method, agents in by_method(self.agents).items():
            lines = [(a, [self.agent_job(a, kind, horizon, receding, s) for s in seeds]) for a in agents]
            whole = [(a, jobs) for a, jobs in lines if self.have(jobs, f"{where}: {a.name}")]
            if whole:
                planner = self._planner(self.config.solver, self.solver, self.mpc(horizon, receding, agents[0]))
                rows.append(self._row(method, [jobs for _, jobs in whole], [a.seed for a, _ in whole], planner))
        for name in self.controls(kind):
            jobs = [self.control_job(name, kind, horizon, receding, s) for s in self.control_seeds(name)]
            if not self.have(jobs, f"{where}: {NAMES[name]}"):
                continue
            planner = {}
            if name == "oracle":
                solver, mpc = self.config.build_oracle_solver(self.live), self.mpc(horizon, receding, None)
                planner = self._planner(self.config.oracle_planner(self.live)[0], solver, mpc)
            rows.append(self._row(NAMES[name], [jobs], ["control"], planner, control=True))
        if not rows:
            return None
        cell = PlayedCell(kind, horizon, receding, tuple(rows))
        return cell if self.config.test == "step" else cell.tested_by_plan()

    def _planner(self, name: str, solver: Solver, mpc: MPCConfig) -> dict[str, Any]:
        return {"solver": name, "options": to_dict(getattr(solver, "config", {})), **to_dict(mpc)}

    def _row(
        self,
        name: str,
        jobs: list[list[Job]],
        seeds: Sequence[int | str],
        planner: Mapping[str, Any],
        control: bool = False,
    ) -> PlayedRow:
        """jobs[s][p] of training seed s and planner seed p."""
        played = [[self.run(job) for job in line] for line in jobs]
        records = tuple(tuple(record for record, _ in line) for line in played)
        stored = sum(was for line in played for _, was in line)
        names = tuple(self.kept_as(line) for line in jobs)
        planner_seeds = tuple(range(len(jobs[0])))
        return PlayedRow(
            name, records, tuple(seeds), planner_seeds, control, planner, stored, names if all(names) else ()
        )


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
