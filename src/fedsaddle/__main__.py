"""`python -m fedsaddle`, the command line."""

from fedsaddle.cli import main

main()
