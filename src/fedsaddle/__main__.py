"""`python -m fedsaddle`, the command line."""

import signal

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C is quiet until `main` has a word for it

from fedsaddle.cli import main

main()
