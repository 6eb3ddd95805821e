"""The installed files: the package with its prompts, from a wheel and from a checkout; not the bench."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from kgray.prompting.prompts import TASKS

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.skipif(
    importlib.util.find_spec("setuptools") is None, reason="setuptools is not installed: `make test`"
)
def test_a_wheel_holds_the_package_with_its_prompts_and_no_bench(tmp_path):
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    for name in ("kgray", "bench", "prompts", "cluster"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    build = "from setuptools import build_meta as b; print(b.build_wheel('.'))"

    built = subprocess.run(
        [sys.executable, "-c", build], cwd=tree, capture_output=True, text=True, check=False
    )

    assert built.returncode == 0, built.stderr[-2000:]
    (wheel,) = tree.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        archive.extractall(tmp_path / "installed")
    assert {f"kgray/prompts/{task}.md" for task in TASKS} <= names
    assert {"kgray/ontology.toml", "kgray/py.typed", "kgray/backends/openai_api/client.py"} <= names
    assert {"kgray/cluster/laptop.toml", "kgray/backends/rules/words.toml"} <= names
    assert {"kgray/search/stopwords.txt", "kgray/dates.toml", "kgray/derivation/words.toml"} <= names
    assert not [name for name in names if name.startswith(("prompts/", "cluster/", "bench/", "tests/"))]
    ask = "import kgray.prompting.prompts as p; print(p.folder()); print(len(p.Prompts()['combined'].head))"
    result = subprocess.run(
        [sys.executable, "-c", ask], cwd=tmp_path / "installed", capture_output=True, text=True, check=True
    ).stdout.split("\n")
    assert result[0] == str(tmp_path / "installed" / "kgray" / "prompts")
    assert int(result[1]) > 1000
    job = [sys.executable, "-m", "kgray.cli.job", "communities", "refresh", "--help"]
    help_ = subprocess.run(job, cwd=tmp_path / "installed", capture_output=True, text=True, check=True).stdout
    assert "--submit" in help_, "what a schedule submits needs no checkout"
