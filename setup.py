"""What pyproject.toml cannot say: `prompts` and `cluster` are package folders below `kgray`."""

from __future__ import annotations

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["kgray", "kgray.*"]), "kgray.prompts", "kgray.cluster"],
    package_dir={"kgray.prompts": "prompts", "kgray.cluster": "cluster"},
)
