"""What the paper claims, one line each, and which of our numbers speak to it. `claims_verdict` has the rules.

Numbers are fractions (0.847 is 84.7 %); `low` and `high` mean, by kind:

    level        the paper's number ± its spread
    difference   the smallest and the largest difference the paper reports (a − b); smallest 0: only the direction
    parity       −margin and +margin (the margin is ours: the paper says "on par")
    ceiling      high: a method that "fails" stays below it (ours: the paper gives no number)
    health       every seed trains without collapse
    share        of the cells looked at, at least `low` behave as claimed
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lpwm.interpret.sparsity import PAPER, PAPER_WIDTHS

Kind = Literal["level", "difference", "parity", "ceiling", "health", "share"]
Source = Literal["success", "horizons", "study", "monitors", "transfer", "large_rate"]


@dataclass(frozen=True)
class Reads:
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
    loop: Literal["", "open", "closed"] = ""  # open: one plan; closed: several; "" is both
    quantity: str = "latched"  # latched or terminal; of studies a name in interpret.compare.MEASURES or a correlation
    versus: str = ""  # another quantity of the same run, of a difference inside it
    latent: int | None = None
    tj: float | None = None  # weight of the temporal Jaccard loss


@dataclass(frozen=True)
class Claim:
    id: str
    row: str  # of the paper's table of claims
    text: str
    paper: str
    kind: Kind
    reads: Reads
    low: float = 0.0
    high: float = 1.0


# In the order of the page. The second is the title of its section.
ROWS = {
    "pusht": "PushT: LpWM − LeWM along the ladder",
    "vicreg": "PushT: LpWM against VICReg",
    "wall": "Wall",
    "relu": "Plain ReLU",
    "mup": "μP",
    "piecewise-2x2": "Piecewise 2×2, random goals",
    "piecewise-3x3": "Piecewise 3×3, random goals",
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
# mean and spread in %, for R = 1 and R = 5
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


def _pusht() -> list[Claim]:
    def reads(rung: str, method: str = "lpwm", against: str = "lewm") -> Reads:
        return Reads("success", ("pusht",), method, against, rung, "dataset", budgets=(250, 25))

    out = [
        Claim(
            f"pusht-{rung}",
            "pusht",
            f"{TITLES[rung]}: LpWM ahead of LeWM",
            f"+{100 * low:.0f}…+{100 * high:.0f} points over D",
            "difference",
            reads(rung),
            low,
            high,
        )
        for rung, (low, high) in LADDER.items()
    ]
    out += [
        Claim(
            f"pusht-{rung}",
            "pusht",
            f"{TITLES[rung]}: LpWM and LeWM on par",
            "on par",
            "parity",
            reads(rung),
            -ON_PAR,
            ON_PAR,
        )
        for rung in ("deep-adaln", "shallow-adaln")
    ]
    out += [
        Claim(
            f"pusht-lti1-{m}",
            "pusht",
            f"LTI(1): {METHODS[m]} fails",
            "fails",
            "ceiling",
            reads("lti1", m, ""),
            0.0,
            FAILS,
        )
        for m in ("lpwm", "lewm")
    ]
    out += [
        Claim(
            f"vicreg-{rung}",
            "vicreg",
            f"{TITLES[rung]}: LpWM ahead of VICReg",
            "LpWM ahead",
            "difference",
            reads(rung, "lpwm", "vicreg"),
        )
        for rung in ("deep-adaln", "mlp-ltv", "mlp-lti")
    ]
    return out


def _wall() -> list[Claim]:
    def reads(method: str, rung: str = "lti1", against: str = "") -> Reads:
        return Reads("success", ("wall",), method, against, rung, "dataset", budgets=(250,), loop="closed")

    return [
        Claim(
            f"wall-lti1-{m}",
            "wall",
            f"LTI(1), {METHODS[m]}: nearly always, closed loop",
            "≈ 100 %",
            "level",
            reads(m),
            1 - NEAR,
            1.0,
        )
        for m in ("lpwm", "lpwm-mu1", "lpwm-mu2", "lewm")
    ]


def _training() -> list[Claim]:
    everywhere = (*SEEN, "wall", "pusht")
    return [
        Claim(
            "relu",
            "relu",
            "The plain ReLU link trains without collapse",
            "trains without collapse",
            "health",
            Reads("monitors", everywhere, "relu"),
        ),
        Claim(
            "mup-transfer",
            "mup",
            "The best rate at the smallest D is the best at a larger one",
            "most of the time",
            "share",
            Reads("transfer", ("pusht", "wall"), "lpwm", goals="dataset"),
            0.5,
        ),
        Claim(
            "mup-large",
            "mup",
            "MLP∘LTI at η ≥ 0.005 scores 0 %",
            "almost always 0 %",
            "share",
            Reads("large_rate", ("pusht",), "lpwm", rung="mlp-lti", goals="dataset"),
            0.9,
        ),
    ]


def _piecewise(family: str) -> list[Claim]:
    out, paper = [], RANDOM[family]
    for i, receding in enumerate((1, 5)):
        ahead = (paper["lpwm"][i][0] - paper["lewm"][i][0]) / 100
        reads = Reads("success", (family,), "lpwm", "lewm", receding=receding, budgets=(50, 100))
        out.append(
            Claim(
                f"{family}-r{receding}-ahead",
                family,
                f"R={receding}: LpWM ahead of LeWM",
                f"+{100 * ahead:.1f} points",
                "difference",
                reads,
                ahead,
                ahead,
            )
        )
        for method, values in paper.items():
            mean, spread = values[i]
            reads = Reads("success", (family,), method, receding=receding, budgets=(50, 100))
            low, high = (mean - spread) / 100, (mean + spread) / 100
            out.append(
                Claim(
                    f"{family}-r{receding}-{method}",
                    family,
                    f"R={receding}: {METHODS[method]}",
                    f"{mean:.1f} ± {spread:.1f} %",
                    "level",
                    reads,
                    low,
                    high,
                )
            )
    return out


def _reading() -> list[Claim]:
    out = [
        Claim(
            f"dataset-{family}-{m}",
            "dataset",
            f"{family[-3:].replace('x', '×')}: {METHODS[m]}",
            "99–100 %",
            "level",
            Reads("success", (family,), m, goals="dataset", budgets=(50,)),
            0.99,
            1.0,
        )
        for family in PIECEWISE
        for m in ("lpwm", "lpwm-tj", "lewm")
    ]
    study = Reads("study", SEEN, "lpwm", quantity="zone_support")
    out += [
        Claim("probe-zone", "probes", "The support decodes the zone", "94–99 %", "level", study, 0.94, 1.0),
        Claim(
            "probe-zone-code",
            "probes",
            "… as well as the code",
            "on par",
            "parity",
            Reads("study", SEEN, "lpwm", quantity="zone_support", versus="zone_code"),
            -NEAR,
            NEAR,
        ),
        Claim(
            "probe-position",
            "probes",
            "Position (R²) is better decoded from magnitudes than from the support",
            "better",
            "difference",
            Reads("study", SEEN, "lpwm", quantity="position_code", versus="position_support"),
        ),
        Claim(
            "horizon-ahead",
            "probes",
            "LpWM ahead of LeWM at every horizon, R=1",
            "ahead at every H",
            "difference",
            Reads("horizons", PIECEWISE, "lpwm", "lewm", receding=1, budgets=(50, 100), quantity="mean"),
        ),
        Claim(
            "horizon-gap",
            "probes",
            "The gap widens with the horizon, R=1 (points per block)",
            "widening",
            "difference",
            Reads("horizons", PIECEWISE, "lpwm", "lewm", receding=1, budgets=(50, 100), quantity="slope"),
        ),
    ]
    return out


def _cube() -> list[Claim]:
    paper = {"effector": (0.87, 0.40), "cube": (0.26, 0.80), "contact": (0.05, 0.61)}
    out = []
    for what, values in paper.items():
        for tj, r in zip((0.0, 0.1), values, strict=True):
            reads = Reads("study", ("cube",), "lpwm" if tj == 0 else "lpwm-tj", quantity=f"correlation {what}", tj=tj)
            text = f"Instability correlates with {what} motion, TJ {tj:g}".replace("contact motion", "gripper contact")
            said = f"r = {r:.2f}" + (" (0.21 in the text)" if (what, tj) == ("cube", 0.0) else "")
            out.append(Claim(f"cube-{what}-tj{tj:g}", "cube", text, said, "level", reads, r - NEAR, r + NEAR))
    reads = Reads("success", ("cube",), "lpwm-tj", "lpwm", goals="dataset", tj=0.1)
    out.append(
        Claim("cube-planning", "cube", "Planning is unchanged by TJ 0.1", "unchanged", "parity", reads, -ON_PAR, ON_PAR)
    )
    return out


def _active() -> list[Claim]:
    return [
        Claim(
            f"active-{rung}-{width}",
            "active",
            f"{TITLES[rung]}, D={width}, μ=0",
            f"{value:.2f}",
            "level",
            Reads("monitors", ("pusht",), "lpwm", rung=rung, quantity="active_fraction", latent=width),
            value - NEAR,
            value + NEAR,
        )
        for rung, values in PAPER.items()
        for width, value in zip(PAPER_WIDTHS, values, strict=True)
    ]


CLAIMS: tuple[Claim, ...] = (
    *_pusht(),
    *_wall(),
    *_training(),
    *_piecewise("piecewise-2x2"),
    *_piecewise("piecewise-3x3"),
    *_reading(),
    *_cube(),
    *_active(),
)
