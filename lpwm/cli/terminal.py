"""The one place where the command line prints: what comes from files loses its control characters."""

import re
import shutil
import sys
import textwrap

# All but tab and newline: escapes move the cursor, set titles and colors; marks of direction reorder what is read.
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def plain(text: str) -> str:
    """Without control characters; of a name that is not UTF-8, the bytes in hexadecimal."""
    return CONTROL.sub("", text).encode("utf-8", "backslashreplace").decode()


def width() -> int:
    return shutil.get_terminal_size((80, 24)).columns


def say(text: str = "", *, end: str = "\n") -> None:
    """To stdout: the result."""
    print(plain(text), end=end)


def tell(text: str) -> None:
    """To stderr: what happens meanwhile. On a terminal, long lines break between words."""
    fill = textwrap.TextWrapper(width(), subsequent_indent="  ", break_long_words=False, break_on_hyphens=False).fill
    lines = plain(text).split("\n")
    print("\n".join(map(fill, lines) if sys.stderr.isatty() else lines), file=sys.stderr, flush=True)
