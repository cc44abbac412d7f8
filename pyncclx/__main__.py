"""python -m pyncclx."""

from .tools.cli.main import main

if __name__ == "__main__":
    main()
