"""`python -m tidelog.demo`, which `./run demo` calls."""

from tidelog.demo.main import main

if __name__ == "__main__":
    main()
