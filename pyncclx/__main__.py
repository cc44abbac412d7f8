"""python -m pyncclx."""

from .tools.cli import main

if __name__ == "__main__":
    main()
