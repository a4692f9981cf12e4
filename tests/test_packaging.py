"""The Dockerfile and conda's recipe match the package, as far as this shows without a network."""

from __future__ import annotations

import fnmatch
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

import hotloop
from hotloop.cli import main

ROOT = Path(__file__).parent.parent
PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
PAGE = (ROOT / "docs" / "containers.md").read_text(encoding="utf-8")
RECIPE = yaml.safe_load((ROOT / "recipe" / "recipe.yaml").read_text(encoding="utf-8"))
WORKFLOW = yaml.safe_load((ROOT / ".github/workflows/wheels.yml").read_text(encoding="utf-8"))
# Packages with another name on conda-forge.
CONDA_NAMES = {"torch": "pytorch", "matplotlib": "matplotlib-base"}


def requirements(name: str) -> set[str]:
    """Return a list of pyproject.toml in conda's form, without conditions on Python."""
    listed = re.search(rf"^{name} = \[(.*?)\]$", PYPROJECT, re.MULTILINE | re.DOTALL)[1]
    pairs = re.findall(r'"([\w-]+)>=([\d.]+)[^"]*"', listed)
    return {f"{CONDA_NAMES.get(package, package)} >={version}" for package, version in pairs}


def instructions(name: str) -> list[str]:
    """Return the arguments of the Dockerfile's instructions of one name."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.MULTILINE).replace("\\\n", " ")
    return re.findall(rf"^{name} (.*)$", text, re.MULTILINE)


def test_the_recipe_has_the_requirements_of_the_package():
    needs = RECIPE["requirements"]
    assert set(needs["run"]) == {"python"} | requirements("dependencies")
    assert set(needs["run_constraints"]) == requirements("train")
    backend = re.search(r'requires = \["setuptools(>=\d+)"\]', PYPROJECT)[1]
    assert f"setuptools {backend}" in needs["host"]
    python = re.search(r'requires-python = ">=([\d.]+)"', PYPROJECT)[1]
    assert f'match(python, "<{python}")' in RECIPE["build"]["skip"]


def test_the_recipe_describes_the_package():
    assert RECIPE["schema_version"] == 1
    assert RECIPE["context"]["version"] == hotloop.__version__
    about = RECIPE["about"]
    assert f'description = "{about["summary"]}"' in PYPROJECT
    assert f'Homepage = "{about["homepage"]}"' in PYPROJECT
    assert f'license = "{about["license"]}"' in PYPROJECT
    assert (ROOT / about["license_file"]).is_file()
    assert (ROOT / "recipe" / RECIPE["source"]["path"] / "pyproject.toml").is_file()


def test_the_recipes_tests_pass_here(capsys):
    for name in RECIPE["tests"][0]["python"]["imports"]:
        __import__(name)
    for command in RECIPE["tests"][1]["script"]:
        program, *args = command.split()
        assert program == "hotloop"
        try:
            code = main(args)
        except SystemExit as stop:
            code = stop.code
        assert not code, command


def test_the_page_installs_the_packages_of_the_extra_with_conda():
    (command,) = re.findall(r"^conda install .*$", PAGE, re.MULTILINE)
    named = command.partition("--channel conda-forge ")[2].split()
    constraints = {text.split()[0] for text in RECIPE["requirements"]["run_constraints"]}
    assert set(named) == {"hotloop"} | constraints - {"tomli"}  # only for Python 3.10


def test_the_dockerfile_copies_existing_files_which_are_sent_to_docker():
    rules = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert rules[0] == "*"
    for copy in instructions("COPY"):
        for source in copy.split()[:-1]:
            assert (ROOT / source).exists()
            assert f"!{source}" in rules
    # A build must not get extensions for another Python.
    assert any(fnmatch.fnmatch("src/hotloop/_x.so", rule.replace("**/", "*")) for rule in rules[1:])


@pytest.mark.parametrize("command", instructions("RUN"))
def test_the_dockerfiles_commands_are_shell(command):
    subprocess.run(["sh", "-n", "-c", command], check=True)
    assert not re.search(r"pip install (?!--no-cache-dir)", command)


def test_the_dockerfile_installs_existing_extras_and_starts_the_command():
    arguments = dict(argument.split("=") for argument in instructions("ARG"))
    for extra in arguments["EXTRAS"].split(","):
        assert re.search(rf"^{extra} = \[", PYPROJECT, re.MULTILINE)
    assert instructions("ENTRYPOINT") == ['["hotloop"]']
    assert 'hotloop = "hotloop.cli:main"' in PYPROJECT
    for name, default in arguments.items():
        assert f"| `{name}` | `{default}` |" in PAGE


def test_the_release_builds_both_images_and_trains_in_them(tmp_path):
    job = WORKFLOW["jobs"]["images"]
    build, train = (shlex.split(step["run"]) for step in job["steps"] if "run" in step)
    devices = job["strategy"]["matrix"]["device"]
    assert build[:2] == ["docker", "build"]
    assert "DEVICE=${{" in build
    for device in devices:
        assert f" {device}) pip install" in DOCKERFILE
    assert "images" in WORKFLOW["jobs"]["publish"]["needs"]
    args = train[train.index("hotloop") + 1 :]
    assert main([*args, "--save-config", str(tmp_path / "read.toml")]) == 0


@pytest.mark.parametrize("command", re.findall(r"^docker run .*$", PAGE, re.MULTILINE))
def test_the_pages_containers_run_valid_commands(command, tmp_path):
    args = shlex.split(re.search(r" hotloop(?::cuda)? (train .*)$", command)[1])
    if "cuda" in args:  # there may be no GPU here
        args = args[: args.index("--device")]
    assert main([*args, "--save-config", str(tmp_path / "read.toml")]) == 0
