"""How a command ends, for scripts: its exit code."""

BAD_INPUT, ALL_DIVERGED, NOTHING_LEARNT, INTERRUPTED = 2, 3, 4, 130
