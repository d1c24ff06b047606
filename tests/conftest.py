"""Ctrl-C reaches the programs that tests start, also when the tests themselves run in the background of a shell,
which starts such jobs with the signal ignored."""

import signal
import threading

if (
    threading.current_thread() is threading.main_thread()
    and signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):
    signal.signal(signal.SIGINT, signal.default_int_handler)
