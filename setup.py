"""The packages, one of which lies in a folder of another name; everything else is in pyproject.toml."""

from setuptools import find_packages, setup

setup(
    packages=["aorta_workloads", *find_packages(include=["pytest_aorta", "pytest_aorta.*"])],
    package_dir={"aorta_workloads": "workloads"},
)
