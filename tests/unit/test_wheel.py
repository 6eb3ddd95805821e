"""The installed files: the package with its prompts, from a wheel and a checkout; no bench and no tests."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from kgray.models.prompting.prompts import TASKS
from kgray.server.page_files import BUILT

ROOT = Path(__file__).resolve().parent.parent.parent


pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("setuptools") is None, reason="setuptools is not installed: `make test`"
)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Build the wheel and return the folder of its files."""
    tree = tmp_path_factory.mktemp("wheel") / "tree"
    tree.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    for name in ("kgray", "bench", "prompts", "cluster", "tests/world"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    build = "from setuptools import build_meta as b; print(b.build_wheel('.'))"
    built = subprocess.run(
        [sys.executable, "-c", build], cwd=tree, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr[-2000:]
    (wheel,) = tree.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tree.parent / "installed")
    return tree.parent / "installed"


def test_a_wheel_contains_the_package_with_its_prompts_and_no_bench(installed):
    names = {path.relative_to(installed).as_posix() for path in installed.rglob("*") if path.is_file()}
    assert {f"kgray/prompts/{task}.md" for task in TASKS} <= names
    assert {"kgray/domain/ontology.toml", "kgray/py.typed", "kgray/models/openai_api/client.py"} <= names
    assert {"kgray/cluster/laptop.toml", "kgray/models/rules/words.toml"} <= names
    assert {"kgray/language/stopwords.txt", "kgray/language/dates.toml", "kgray/graph/words.toml"} <= names
    assert not [name for name in names if name.startswith(("prompts/", "cluster/", "bench/", "tests/"))]
    ask = "from kgray.models.prompting import prompts as p; "
    ask += "print(p.folder()); print(len(p.Prompts()['combined'].head))"
    result = subprocess.run(
        [sys.executable, "-c", ask], cwd=installed, capture_output=True, text=True, check=True
    ).stdout.split("\n")
    assert result[0] == str(installed / "kgray" / "prompts")
    assert int(result[1]) > 1000
    job = [sys.executable, "-m", "kgray.cli.job", "communities", "refresh", "--help"]
    help_ = subprocess.run(job, cwd=installed, capture_output=True, text=True, check=True).stdout
    assert "--submit" in help_, "what a schedule submits needs no checkout"


@pytest.mark.skipif(not (BUILT / "index.html").exists(), reason="the page is not built: make page")
def test_a_wheel_contains_the_built_page_and_the_licences_of_its_modules(installed):
    ask = "from kgray.server.page_files import BUILT; print(BUILT)"
    folder = subprocess.run(
        [sys.executable, "-c", ask], cwd=installed, capture_output=True, text=True, check=True
    ).stdout.strip()

    assert folder == str(installed / "kgray" / "server" / "page" / "built")
    built = {path.name: path.read_bytes() for path in BUILT.iterdir()}
    assert {path.name: path.read_bytes() for path in Path(folder).iterdir()} == built
    assert {"index.html", "page.js", "page.css", "layout-worker.js", "licences.txt"} <= built.keys()
    licences = built["licences.txt"].decode()
    lines = (BUILT.parent / "modules.txt").read_text(encoding="utf-8").splitlines()
    modules = [line.split()[:3] for line in lines if line and not line.startswith("#")]
    bundled = [f"{name} {version}" for name, version, use in modules if use == "page"]
    assert len(bundled) > 4
    assert [name for name in bundled if name not in licences] == []
    assert licences.count("Permission is hereby granted") >= 4
