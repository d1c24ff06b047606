"""The one place where the command line prints: what comes from files loses its control characters."""

import re
import sys

# All but tab and newline: escapes move the cursor, set titles and colors; marks of direction reorder what is read.
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def plain(text: str) -> str:
    """Without control characters; of a name that is not UTF-8, the bytes in hexadecimal."""
    return CONTROL.sub("", text).encode("utf-8", "backslashreplace").decode()


def say(text: str = "", *, end: str = "\n") -> None:
    """To stdout: the result."""
    print(plain(text), end=end)


def tell(text: str) -> None:
    """To stderr: what happens meanwhile."""
    print(plain(text), file=sys.stderr, flush=True)
