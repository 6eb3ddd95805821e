"""What pyproject.toml cannot say: the folder `prompts` is the package folder `kgray/prompts`."""

from __future__ import annotations

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["kgray", "kgray.*"]), "kgray.prompts"],
    package_dir={"kgray.prompts": "prompts"},
)
