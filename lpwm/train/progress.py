"""The progress line of a run: position, rate, time left, loss and the main monitors."""

import math
from collections.abc import Callable, Mapping
from typing import Any, TextIO

_QUIET = 30.0  # seconds between plain lines, where no terminal can redraw one
_WIDTH = 120  # of plain lines
# (monitor, label, digits), the most telling first: what does not fit the terminal is left out from the end.
_SHOWN = (
    ("loss", "loss", 3),
    ("relative_error", "err", 2),
    ("copy_error", "copy", 2),
    ("effective_dimension", "dim", 2),
    ("active_fraction", "on", 2),
    ("action_sensitivity", "act", 2),
    ("temporal_variation", "tv", 2),
    ("dead_units", "dead", 2),
)

LEGEND = """\
  err, copy   error of predictions, and of copying the last frame
  dim         effective dimension of the codes
  on, dead    share of units that are active, and that never are
  act, tv     what other actions change, and what differs between frames"""


def progress_line(
    step: int, total: int, rate: float, numbers: Mapping[str, float], width: int, waited: float = 0.0
) -> str:
    """One line of at most `width` columns, in ASCII. `waited`: seconds since its log point."""
    parts = [f"{step}/{total}"]
    if math.isfinite(rate) and rate > 0:
        parts.append(f"{rate:.0f}/s" if rate >= 10 else f"{rate:.2g}/s")
        parts.append(f"ETA {duration(max(0.0, (total - step) / rate - waited))}")
    parts += [f"{label} {numbers[name]:.{n}g}" for name, label, n in _SHOWN if name in numbers]
    line = parts[0]
    for part in parts[1:]:
        if len(line) + 2 + len(part) > width:
            break
        line += "  " + part
    return line[:width]


def duration(seconds: float) -> str:
    """75 -> 1:15, 3675 -> 1:01:15, 200000 -> 2d 7h."""
    s = round(seconds)
    if s >= 86_400:
        return f"{s // 86_400}d {s % 86_400 // 3600}h"
    hours, minutes, s = s // 3600, s % 3600 // 60, s % 60
    return f"{hours}:{minutes:02}:{s:02}" if hours else f"{minutes}:{s:02}"


class Progress:
    """On a terminal a line that redraws itself (rich, which honors NO_COLOR); elsewhere plain lines now and then."""

    def __init__(self, total: int, start: int, stream: TextIO, clock: Callable[[], float]) -> None:
        self.total, self._stream, self._clock = total, stream, clock
        self._step, self._rate, self._at = start, math.nan, clock()
        self._numbers: dict[str, float] = {}
        self._spoke: float | None = None
        self._live = self._open_live()

    def show(self, step: int, kind: str, numbers: Mapping[str, float]) -> None:
        if kind == "train":
            self._step, self._numbers, self._at = step, dict(numbers), self._clock()
            self._rate = numbers.get("steps_per_second", math.nan)
        if kind == "val":
            self.say(f"{step}/{self.total}  {_validation(numbers)}")
        elif self._live is not None:
            self._live.refresh()
        elif self._spoke is None or step >= self.total or self._clock() - self._spoke >= _QUIET:
            self._spoke = self._clock()
            self._plain(self.line(_WIDTH))

    def say(self, message: str) -> None:
        if self._live is None:
            self._plain(message)
        else:  # above the line; square brackets in a sentence are no markup
            self._live.console.print(message, markup=False, highlight=False)

    def line(self, width: int) -> str:
        return progress_line(self._step, self.total, self._rate, self._numbers, width, self._clock() - self._at)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _plain(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()

    def _open_live(self) -> Any:
        if not self._stream.isatty():
            return None
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        console = Console(file=self._stream)
        if console.is_dumb_terminal or not console.is_terminal:
            return None

        def draw() -> Text:  # fits the terminal of that moment
            text = Text(self.line(console.width), no_wrap=True, overflow="crop")
            text.highlight_words([*(label for _, label, _ in _SHOWN), "ETA"], "dim")
            return text

        live = Live(get_renderable=draw, console=console, refresh_per_second=2, redirect_stdout=False)
        live.start()
        return live


def _validation(numbers: Mapping[str, float]) -> str:
    """The held-out errors at the first and the last depth, with the copy predictor's."""
    depths = [int(n.rpartition("_")[2]) for n in numbers if n.startswith("error_depth_")]
    shown = [
        f"depth {d} err {numbers[f'error_depth_{d}']:.2g} copy {numbers.get(f'copy_error_depth_{d}', math.nan):.2g}"
        for d in sorted({min(depths), max(depths)} if depths else ())
    ]
    return "  ".join(["held-out", *shown])
