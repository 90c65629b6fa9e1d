from fedsaddle.cli import main

main()
