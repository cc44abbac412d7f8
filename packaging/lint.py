"""Lint the recipes: the workflow by its schema, the Dockerfile, and the conda recipe, which is rendered.

    python packaging/lint.py            # or: make lint, which installs what it needs (the extra `lint`)
"""

import subprocess
import sys
from pathlib import Path

import rattler_build

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
COMMANDS = (
    ("check-jsonschema", "--builtin-schema", "vendor.github-workflows", ".github/workflows/tests.yml"),
    ("hadolint", "packaging/Dockerfile"),
)


def rendered(recipe: Path) -> str:
    """The name and version of the one package that a conda recipe makes."""
    (variant,) = rattler_build.Stage0Recipe.from_file(recipe).render(rattler_build.VariantConfig())
    package = variant.recipe.package
    return f"{package.name} {package.version}"


def main() -> int:
    """Run all; return 1 if one finds something."""
    failed = 0
    for program, *arguments in COMMANDS:
        print(f"==== {program} {arguments[-1]}", flush=True)
        failed |= subprocess.run([BIN / program, *arguments], cwd=ROOT, check=False).returncode
    print("==== rattler-build packaging/conda/recipe.yaml", flush=True)
    print(rendered(ROOT / "packaging" / "conda" / "recipe.yaml"))
    return int(failed != 0)


if __name__ == "__main__":
    sys.exit(main())
