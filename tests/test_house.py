"""The house rules that no tool checks: sizes, names, layers, and that the pages tell the truth."""

from __future__ import annotations

import ast
import re
import statistics
import tomllib
from functools import cache
from pathlib import Path

import click
import pytest

from kgray.cli import cli

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
MODULES = sorted(
    path for package in ("kgray", "bench", "tests/world") for path in (ROOT / package).rglob("*.py")
)
PACKAGE = [path for path in MODULES if path.is_relative_to(ROOT / "kgray")]
SCRIPTS = sorted((ROOT / "examples").rglob("*.py"))
FORBIDDEN_NAMES = {"utils", "helpers", "common", "base", "manager", "core", "misc"}
TOP_LEVEL = {"bench", "examples", "tests", "docs", "prompts", "cluster", "jobs", "k8s", "Makefile", ".ci"}
DOCUMENTED = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module
UNVERSIONED = {".git", ".venv", ".demo", "build", "kgray-data", "__pycache__"}
IMPORTLINTER = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
CONTRACTS = {contract["id"]: contract for contract in IMPORTLINTER["contracts"]}
# Names that denote no thing, and patterns of sentences that a stranger must read twice. Some remain in stable
# formats, such as the columns of tables and the fields of JSON.
VAGUE_NAMES = frozenset(
    "found told said asked shown held kept gone given taken made meant wanted one ones these those them they "
    "what who whom whose beside besides own thing things stuff anew".split()
)
RIDDLES = re.compile(
    r"\b(?:[Rr]eturn|[Gg]ive|[Ss]how|[Tt]ell|for|of|by|with|from|in|is|are)"
    r" (?:what|who|whom|those (?:that|who|of))\b"
    r"|\b(?:of|in|by|from|to) (?:which|whom|whose)\b"
    r"|\b(?:anew|thereby|whoever|so many|told of|tells? of|as of when)\b"
    r"|\b(?:a|the|this|each|every|such|another|no) ones?\b"
)
MAX_VAGUE = 0.3  # vague names and riddles in a hundred lines
parsed = cache(ast.parse)  # two tests read each module
PARTS = {
    path.stem
    for path in (ROOT / "kgray").iterdir()
    if path.suffix == ".py" or (path / "__init__.py").exists()
} - {"__init__"}


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def relative_name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def commands() -> dict[str, click.Command]:
    context = click.Context(cli, info_name="kgray")
    results = {name: cli.get_command(context, name) for name in cli.list_commands(context)}
    return {name: command for name, command in results.items() if command is not None}


def test_modules_are_small():
    sizes = {relative_name(path): lines(path) for path in MODULES}

    assert {name: size for name, size in sizes.items() if size > 500} == {}
    # Nearly empty modules would hide large ones.
    assert statistics.median(size for path in PACKAGE if (size := lines(path)) > 15) <= 200


def test_functions_are_short():
    long = {}
    for path in [*MODULES, *SCRIPTS]:
        for node in ast.walk(parsed(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > 50:
                    long[f"{relative_name(path)}:{node.name}"] = length

    assert long == {}


def test_a_module_is_named_after_its_task():
    names = {part for path in MODULES for part in path.relative_to(ROOT).with_suffix("").parts}

    assert names & FORBIDDEN_NAMES == set()


def named(tree: ast.AST) -> list[str]:
    """Return the names of all functions, classes, parameters, variables and attributes of a module."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.append(node.name)
        elif isinstance(node, ast.arg):
            names.append(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.append(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.append(node.attr)
    return names


def prose(source: str, tree: ast.AST) -> str:
    """Return the docstrings and the comments of a module."""
    documented = (node for node in ast.walk(tree) if isinstance(node, DOCUMENTED))
    comments = re.findall(r"(?:^|  )# .*", source, re.MULTILINE)
    return "\n".join([*(ast.get_docstring(node) or "" for node in documented), *comments])


def vague_words(source: str) -> list[str]:
    """Return the vague names of a module, and the riddles in its docstrings and comments."""
    tree = parsed(source)
    return [name for name in named(tree) if name.strip("_").lower() in VAGUE_NAMES] + RIDDLES.findall(
        prose(source, tree)
    )


def test_vague_words_are_recognised():
    source = (
        '"""Return what is asked."""\n\n\ndef ask(told, answer):  # of those that hold\n    found = told\n'
    )

    assert vague_words(source) == ["told", "found", "Return what", "of those that"]
    assert vague_words('"""Return the question."""\nreply = answer(question)  # the first\n') == []


def test_names_and_sentences_are_plain():
    """The package speaks to strangers; the number may fall, and never rises."""
    sources = {relative_name(path): path.read_text(encoding="utf-8") for path in PACKAGE}
    words = {name: vague_words(source) for name, source in sources.items()}
    total = sum(map(lines, PACKAGE))

    worst = sorted(words.items(), key=lambda item: -len(item[1]))[:5]
    assert 100 * sum(map(len, words.values())) / total <= MAX_VAGUE, worst


def test_every_package_can_be_installed():
    """A folder without __init__.py would work from the checkout and be missing from an installation."""
    folders = {path.parent for path in MODULES}

    assert [
        relative_name(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()
    ] == []


def test_every_module_has_a_layer():
    listed = {part for layer in CONTRACTS["layers"]["layers"] for part in re.findall(r"[a-z_]+", layer)}

    assert PARTS - listed == set()


@pytest.mark.parametrize(
    ("contract", "door"),
    [
        ("databases", "storage"),
        ("ray", "runtime"),
        ("dateparser", "language"),
        ("models", "models"),
        ("agents", "adapters"),
    ],
)
def test_only_one_package_imports_a_restricted_library(contract, door):
    """A new module must not be able to slip past a contract by not being listed in it.

    Ray is open to the bench, which starts a cluster of several nodes on one machine.
    """
    inner_modules = {f"kgray.{part}" for part in PARTS - {door}}
    assert set(CONTRACTS[contract]["source_modules"]) == inner_modules | (
        {"bench", "tests.world"} if contract != "ray" else set()
    )


def test_the_tree_in_the_architecture_equals_the_folders():
    block = ARCHITECTURE.split("## The tree")[1].split("```")[1]
    listed = {line.split()[0] for line in block.splitlines() if line and not line.startswith(" ")}
    paths = {f"kgray/{part}/" if (ROOT / "kgray" / part).is_dir() else f"kgray/{part}.py" for part in PARTS}
    paths |= {
        f"{path.name}/" if path.is_dir() else path.name
        for path in ROOT.iterdir()
        if path.name in TOP_LEVEL and (path.is_file() or any(path.iterdir()))
    }

    assert listed == paths


def test_every_path_that_architecture_names_exists():
    """A path is between backticks; a file without its folder is a module that is named in full nearby."""
    named = set(re.findall(r"`([\w./-]+/[\w./-]*|[\w.-]+\.(?:py|toml|md))`", ARCHITECTURE))

    assert len(named) > 50
    modules = {path.name for path in MODULES}
    assert sorted(path for path in named if not (ROOT / path).exists() and path not in modules) == []


def test_every_command_has_help_with_an_example_and_a_line_in_the_readme():
    silent, unlisted = [], []
    for name, command in commands().items():
        text = command.get_help(click.Context(command, info_name=f"kgray {name}"))
        if "kgray " not in text.split("\n", 1)[1] or "\\b" in text:
            silent.append(name)
        if not re.search(rf"^\| `kgray {name}\b", README, re.MULTILINE):
            unlisted.append(name)

    assert (silent, unlisted) == ([], [])


def test_the_readme_lists_only_existing_commands():
    assert set(re.findall(r"^\| `kgray ([a-z]+)", README, re.MULTILINE)) <= set(commands())


def test_links_of_the_pages_have_targets():
    broken = []
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if not (page.parent / target).exists():
                broken.append(f"{relative_name(page)}: {target}")

    assert broken == []


def test_the_site_has_every_page():
    """The other checks of the site, such as its links, need mkdocs: `make docs`."""
    listed = set(re.findall(r"^ +- ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}

    assert listed - {"index.md", "contributing.md", "changelog.md", "security.md", "kubernetes.md"} == pages


def test_pages_use_plain_sentences():
    """A pattern is not a verdict, so a few matches in a hundred lines of prose are allowed."""
    dense = {}
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        matches = [match[0] for match in RIDDLES.finditer(prose)]
        if len(matches) > 1 + 0.01 * len(prose) / 100:
            dense[relative_name(page)] = matches

    assert dense == {}


def test_no_file_contains_a_path_of_a_developers_machine():
    homes = re.compile(rb"/(?:home|Users|root)" + rb"/[a-z]|" + re.escape(f"{ROOT}".encode()))
    results = []
    for path in ROOT.rglob("*"):
        parts = path.relative_to(ROOT).parts
        hidden = any(
            part in UNVERSIONED or part.endswith(("_cache", ".egg-info", ".hypothesis")) for part in parts
        )
        if not hidden and path.is_file() and homes.search(path.read_bytes()):
            results.append(relative_name(path))

    assert results == []


PRIVATE = re.compile(r"(?:.*\.)?_[A-Za-z]\w*")  # a name with one underscore before it


def private_patches(source: str) -> list[str]:
    """Return the private names that a test replaces: by `setattr`, by a patch of `mock`, by an assignment.

    The prefix `ray` is exempt: Ray's own calls are replaced where Ray itself must fail.
    """
    patches: list[str] = []
    if not re.search(r"[\"'.]_[A-Za-z]", source):
        return patches
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Call):
            names = [item.value for item in node.args[:2] if isinstance(item, ast.Constant)]
            private = [name for name in names if isinstance(name, str) and PRIVATE.fullmatch(name)]
            if private and re.search(r"\b(setattr|delattr|patch(\.object)?)$", ast.unparse(node.func)):
                patches += private
        elif isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
            is_own = isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}
            if PRIVATE.fullmatch(node.attr) and not is_own:
                patches.append(ast.unparse(node))
    return [name for name in patches if not name.startswith("ray.")]


def test_private_patches_are_recognised():
    source = (
        'patch.setattr(store, "_beat", 1)\nmock.patch("kgray.graph._row")\nmock.patch("ray._private.call")\n'
        'store._db = None\nself._own = 1\npatch.setattr(store, "beat", 1)\nvars(store)["__doc__"] = ""\n'
    )

    assert private_patches(source) == ["_beat", "kgray.graph._row", "store._db"]


def test_no_test_patches_a_private_name():
    """Such a test holds the code in its present form: a parameter or a public constant makes it possible."""
    patches = {
        relative_name(path): private_patches(path.read_text(encoding="utf-8"))
        for path in (ROOT / "tests").rglob("*.py")
    }

    assert {name: names for name, names in patches.items() if names} == {}


def test_the_required_check_runs_lint_and_then_the_tests():
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()

    assert script[0] == "#!/usr/bin/env bash"
    assert "set -euo pipefail" in script
    assert [line for line in script if line.startswith("make")] == ["make lint", "make test"]


def test_every_pin_is_a_plain_version():
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]

    assert [pin for pin in pins if not re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][0-9A-Za-z.]*", pin)] == []
