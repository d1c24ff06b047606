"""What the paper claims, one line each, and which of our numbers speak to it. `verdict` has the rules.

Numbers are fractions (0.847 is 84.7 %); `low` and `high` mean, by kind:

    level        the paper's number ± its spread; a level is judged at the paper's recipe and size only
    difference   the smallest and the largest difference the paper reports (a − b); smallest 0: only the direction
    parity       −margin and +margin (the margin is ours: the paper says "on par")
    ceiling      high: a method that "fails" stays below it (ours: the paper gives no number)
    health       every seed trains without collapse
    share        of the cells looked at, at least `low` behave as claimed
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

Kind = Literal["level", "difference", "parity", "ceiling", "health", "share"]
Cost = Literal["end", "path"]  # the paper's two readings: the last predicted code against the goal's, or all of them
Source = Literal[
    "success", "replanning", "contrast", "horizons", "study", "borders", "monitors", "transfer", "large_rate"
]


@dataclass(frozen=True)
class Query:
    """Which runs and which number of them. A recipe FAMILY-SIZE/RUNG/METHOD belongs to FAMILY at the size SIZE."""

    source: Source
    families: tuple[str, ...]
    method: str
    against: str = ""  # the other method, of a difference
    rung: str = ""
    goals: str = "random"
    receding: int | None = None  # R; None is any
    horizon: int = 5
    budgets: tuple[int, ...] = (50,)  # raw steps, the preferred first; other budgets are shown after them
    closed_loop: bool = False  # several plans in an episode; else any number
    quantity: str = ""  # of studies a probe or a correlation, of horizons mean or slope
    cost: Cost = "end"
    versus: str = ""  # another quantity of the same run, of a difference inside it
    latent: int | None = None
    tj: float | None = None  # weight of the temporal Jaccard loss
    sides: tuple[tuple[int, str, str], ...] = ()  # of a contrast: sign, method and rung of what is added up


@dataclass(frozen=True)
class Claim:
    id: str
    row: str  # of the paper's table of claims
    text: str
    paper: str
    kind: Kind
    query: Query
    low: float = 0.0
    high: float = 1.0

    @property
    def title(self) -> str:
        """`Piecewise 2×2 · R=5: LpWM ahead of LeWM`."""
        return f"{ROWS[self.row].partition(':')[0].partition(',')[0]} · {self.text}"


# In the order of the page. The second is the title of its section.
ROWS = {
    "pusht": "PushT: LpWM − LeWM along the ladder",
    "vicreg": "PushT: LpWM against VICReg",
    "wall": "Wall",
    "relu": "Plain ReLU",
    "mup": "μP",
    "piecewise-2x2": "Piecewise 2×2, random goals",
    "piecewise-3x3": "Piecewise 3×3, random goals",
    "ladder": "Piecewise 2×2: the ladder",
    "dataset": "Piecewise, dataset goals",
    "probes": "Piecewise: probes and horizons",
    "cube": "Cube: temporal Jaccard",
    "active": "Active fraction",
}
ON_PAR, FAILS, NEAR = 0.10, 0.20, 0.05  # margins of ours, where the paper gives words or no spread
LADDER = {"mlp-lti": (0.24, 0.57), "mlp-ltv": (0.36, 0.45), "lti": (0.11, 0.23)}
TITLES = {
    "deep-adaln": "Deep-AdaLN",
    "shallow-adaln": "Shallow-AdaLN",
    "mlp-ltv": "MLP∘LTV",
    "mlp-lti": "MLP∘LTI",
    "lti": "LTI(k)",
    "lti1": "LTI(1)",
}
METHODS = {
    "lpwm": "LpWM",
    "lpwm-tj": "LpWM+TJ",
    "lewm": "LeWM",
    "relu": "LpWM with plain ReLU",
    "vicreg": "VICReg",
    "lpwm-mu1": "LpWM μ=−1",
    "lpwm-mu2": "LpWM μ=−2",
}
PIECEWISE = ("piecewise-2x2", "piecewise-3x3")
SEEN = tuple(f"{f}{v}" for f in PIECEWISE for v in ("", "-visible"))
# Piecewise, random goals: mean and spread in %, for R = 1 and R = 5.
RANDOM = {
    "piecewise-2x2": {
        "lpwm": ((84.7, 4.2), (59.3, 2.3)),
        "lpwm-tj": ((82.7, 5.0), (68.7, 4.6)),
        "lewm": ((65.3, 4.2), (36.0, 3.5)),
    },
    "piecewise-3x3": {
        "lpwm": ((58.7, 1.2), (56.0, 4.0)),
        "lpwm-tj": ((60.0, 2.0), (58.0, 5.3)),
        "lewm": ((50.0, 5.3), (47.3, 6.1)),
    },
}
# Cube: correlation of instability with each, without and with temporal Jaccard 0.1.
INSTABILITY = {"effector": (0.87, 0.40), "cube": (0.26, 0.80), "contact": (0.05, 0.61)}
# PushT: active fraction by rung and width (validation, tuned cells, μ = 0).
WIDTHS = (384, 768, 1536, 2048, 4096)
ACTIVE = {
    "deep-adaln": (0.34, 0.44, 0.49, 0.42, 0.48),
    "shallow-adaln": (0.33, 0.37, 0.39, 0.46, 0.49),
    "mlp-ltv": (0.37, 0.54, 0.49, 0.51, 0.47),
    "mlp-lti": (0.28, 0.53, 0.54, 0.46, 0.43),
    "lti": (0.41, 0.41, 0.41, 0.43, 0.44),
    "lti1": (0.63, 0.63, 0.60, 0.61, 0.56),
}


def _pusht() -> Iterator[Claim]:
    def query(rung: str, method: str = "lpwm", against: str = "lewm") -> Query:
        return Query("success", ("pusht",), method, against, rung, "dataset", budgets=(250, 25))

    for rung, (low, high) in LADDER.items():
        text, paper = f"{TITLES[rung]}: LpWM ahead of LeWM", f"+{100 * low:.0f}…+{100 * high:.0f} points over D"
        yield Claim(f"pusht-{rung}", "pusht", text, paper, "difference", query(rung), low, high)
    for rung in ("deep-adaln", "shallow-adaln"):
        text = f"{TITLES[rung]}: LpWM and LeWM on par"
        yield Claim(f"pusht-{rung}", "pusht", text, "on par", "parity", query(rung), -ON_PAR, ON_PAR)
    for m in ("lpwm", "lewm"):
        text = f"LTI(1): {METHODS[m]} fails"
        yield Claim(f"pusht-lti1-{m}", "pusht", text, "fails", "ceiling", query("lti1", m, ""), 0.0, FAILS)
    for rung in ("deep-adaln", "mlp-ltv", "mlp-lti"):
        text, against = f"{TITLES[rung]}: LpWM ahead of VICReg", query(rung, "lpwm", "vicreg")
        yield Claim(f"vicreg-{rung}", "vicreg", text, "LpWM ahead", "difference", against)


def _wall() -> Iterator[Claim]:
    query = Query("success", ("wall",), "lpwm", "lewm", "lti1", "dataset", budgets=(250,), closed_loop=True)
    yield Claim(
        "wall-lti1", "wall", "LTI(1): LpWM and LeWM on par, closed loop", "on par", "parity", query, -ON_PAR, ON_PAR
    )
    for m in ("lpwm", "lpwm-mu1", "lpwm-mu2", "lewm"):
        query = Query("success", ("wall",), m, rung="lti1", goals="dataset", budgets=(250,), closed_loop=True)
        text = f"LTI(1), {METHODS[m]}: nearly always, closed loop"
        yield Claim(f"wall-lti1-{m}", "wall", text, "≈ 100 %", "level", query, 1 - NEAR, 1.0)


def _training() -> Iterator[Claim]:
    query = Query("monitors", (*SEEN, "wall", "pusht"), "relu")
    text = "The plain ReLU link trains without collapse"
    yield Claim("relu", "relu", text, "trains without collapse", "health", query)
    query = Query("transfer", ("pusht", "wall"), "lpwm", goals="dataset")
    text = "The best rate at the smallest D is the best at a larger one"
    yield Claim("mup-transfer", "mup", text, "most of the time", "share", query, 0.5)
    query = Query("large_rate", ("pusht",), "lpwm", rung="mlp-lti", goals="dataset")
    yield Claim("mup-large", "mup", "MLP∘LTI at η ≥ 0.005 scores 0 %", "almost always 0 %", "share", query, 0.9)


def _piecewise(family: str) -> Iterator[Claim]:
    paper = RANDOM[family]
    for i, R in enumerate((1, 5)):
        ahead = (paper["lpwm"][i][0] - paper["lewm"][i][0]) / 100
        query = Query("success", (family,), "lpwm", "lewm", receding=R, budgets=(50, 100))
        text, points = f"R={R}: LpWM ahead of LeWM", f"{100 * ahead:+.1f} points"
        yield Claim(f"{family}-r{R}-ahead", family, text, points, "difference", query, ahead, ahead)
        for m, values in paper.items():
            mean, spread = values[i]
            query = Query("success", (family,), m, receding=R, budgets=(50, 100))
            text, level = f"R={R}: {METHODS[m]}", f"{mean:.1f} ± {spread:.1f} %"
            low, high = (mean - spread) / 100, (mean + spread) / 100
            yield Claim(f"{family}-r{R}-{m}", family, text, level, "level", query, low, high)
    more = (paper["lpwm-tj"][1][0] - paper["lpwm"][1][0]) / 100
    query = Query("success", (family,), "lpwm-tj", "lpwm", receding=5, budgets=(50, 100))
    text, points = "R=5: temporal Jaccard adds to LpWM", f"{100 * more:+.1f} points"
    yield Claim(f"{family}-r5-tj", family, text, points, "difference", query, more, more)
    for m in ("lpwm", "lewm"):
        gain = (paper[m][0][0] - paper[m][1][0]) / 100
        query = Query("replanning", (family,), m, budgets=(50, 100))
        text, points = f"{METHODS[m]}: R=1 ahead of R=5", f"{100 * gain:+.1f} points"
        yield Claim(f"{family}-replan-{m}", family, text, points, "difference", query, gain, gain)


def _ladder() -> Iterator[Claim]:
    """Contrasts of runs that one file has at several rungs. The paper's ladder is PushT's, so it has no such rows."""

    def claim(name: str, text: str, *sides: tuple[int, str, str]) -> Claim:
        query = Query("contrast", ("piecewise-2x2",), "lpwm", receding=5, sides=sides)
        return Claim(f"ladder-{name}", "ladder", text, "on PushT alone", "difference", query)

    low, high = "lti1", "shallow-adaln"
    for rung in reversed([r for r in TITLES if r != "deep-adaln"]):
        yield claim(rung, f"{TITLES[rung]}, R=5: LpWM ahead of LeWM", (1, "lpwm", rung), (-1, "lewm", rung))
    lead = [(s * sign, m, rung) for s, rung in ((1, low), (-1, high)) for sign, m in ((1, "lpwm"), (-1, "lewm"))]
    yield claim("simpler", f"R=5: the lead is larger with {TITLES[low]} than with {TITLES[high]}", *lead)
    for m in ("lpwm", "lewm"):
        yield claim(
            m, f"R=5: {METHODS[m]} is better with {TITLES[high]} than with {TITLES[low]}", (1, m, high), (-1, m, low)
        )


def _dataset() -> Iterator[Claim]:
    for family in PIECEWISE:
        for m in ("lpwm", "lpwm-tj", "lewm"):
            query, text = (
                Query("success", (family,), m, goals="dataset"),
                f"{family[-3:].replace('x', '×')}: {METHODS[m]}",
            )
            yield Claim(f"dataset-{family}-{m}", "dataset", text, "99–100 %", "level", query, 0.99, 1.0)


def _probes() -> Iterator[Claim]:
    query = Query("study", SEEN, "lpwm", quantity="zone_support")
    yield Claim("probe-zone", "probes", "The support decodes the zone", "94–99 %", "level", query, 0.94, 1.0)
    query = Query("study", SEEN, "lpwm", quantity="zone_support", versus="zone_code")
    text = "The support decodes the zone as well as the code does"
    yield Claim("probe-zone-code", "probes", text, "on par", "parity", query, -NEAR, NEAR)
    query = Query("study", SEEN, "lpwm", quantity="position_code", versus="position_support")
    text = "Position (R²) is better decoded from magnitudes than from the support"
    yield Claim("probe-position", "probes", text, "better", "difference", query)
    query = Query("study", SEEN, "lpwm", "lewm", quantity="zone_support")
    text = "The support decodes the zone better than the signs of a dense code"
    yield Claim("probe-zone-signs", "probes", text, "not compared", "difference", query)
    query = Query("borders", SEEN, "lpwm", "lewm")
    text = "Supports change at zone borders more than their distance explains"
    yield Claim("borders", "probes", text, "heat maps show it", "share", query, 0.5)
    query = Query("horizons", PIECEWISE, "lpwm", "lewm", receding=1, budgets=(50, 100), quantity="mean")
    text = "LpWM ahead of LeWM at every horizon, R=1"
    yield Claim("horizon-ahead", "probes", text, "ahead at every H", "difference", query)
    query = Query("horizons", PIECEWISE, "lpwm", "lewm", receding=1, budgets=(50, 100), quantity="slope")
    text = "The gap widens with the horizon, R=1 (points per block)"
    yield Claim("horizon-gap", "probes", text, "widening", "difference", query)


def _cube() -> Iterator[Claim]:
    for what, values in INSTABILITY.items():
        for tj, m, r in zip((0.0, 0.1), ("lpwm", "lpwm-tj"), values, strict=True):
            query = Query("study", ("cube",), m, quantity=f"correlation {what}", tj=tj)
            text = f"Instability correlates with {what} motion, TJ {tj:g}".replace("contact motion", "gripper contact")
            paper = f"r = {r:.2f}" + (" (0.21 in the text)" if (what, tj) == ("cube", 0.0) else "")
            yield Claim(f"cube-{what}-tj{tj:g}", "cube", text, paper, "level", query, r - NEAR, r + NEAR)
    query = Query("success", ("cube",), "lpwm-tj", "lpwm", goals="dataset", tj=0.1)
    text = "Planning is unchanged by TJ 0.1"
    yield Claim("cube-planning", "cube", text, "unchanged", "parity", query, -ON_PAR, ON_PAR)


def _active() -> Iterator[Claim]:
    for rung, values in ACTIVE.items():
        for D, value in zip(WIDTHS, values, strict=True):
            query = Query("monitors", ("pusht",), "lpwm", rung=rung, quantity="active_fraction", latent=D)
            text, paper = f"{TITLES[rung]}, D={D}, μ=0", f"{value:.2f}"
            yield Claim(f"active-{rung}-{D}", "active", text, paper, "level", query, value - NEAR, value + NEAR)


def _on_the_path(claim: Claim) -> Claim:
    """The same claim under the other reading of the planning cost."""
    query = replace(claim.query, cost="path")
    return replace(claim, id=f"{claim.id}-path", text=f"{claim.text} (path cost)", query=query)


PAPER: tuple[Claim, ...] = (
    *_pusht(),
    *_wall(),
    *_training(),
    *_piecewise("piecewise-2x2"),
    *_piecewise("piecewise-3x3"),
    *_ladder(),
    *_dataset(),
    *_probes(),
    *_cube(),
    *_active(),
)
PLANNED = ("success", "replanning", "contrast")
CLAIMS = tuple(both for c in PAPER for both in ((c, _on_the_path(c)) if c.query.source in PLANNED else (c,)))
