"""What tests of every folder may ask for."""

from __future__ import annotations

import signal

from hypothesis import settings

from support.temporal import temporal_address, temporal_server

__all__ = ["temporal_address", "temporal_server"]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started in the background without job control: every process of the tests would ignore Ctrl-C, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples in every run. To look for others: pytest --hypothesis-profile=default
settings.register_profile("fixed", derandomize=True)
settings.load_profile("fixed")
