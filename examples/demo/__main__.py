"""`python -m examples.demo`, which `./run demo` calls."""

from examples.demo.main import main

if __name__ == "__main__":
    main()
