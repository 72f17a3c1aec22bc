"""`python -m tidelog`: the command line."""

from tidelog.cli.app import main

if __name__ == "__main__":
    main()
