"""Download the wheels that `python -m bench accelerate` needs on a bare machine.

    python bench/accelerate/wheels.py .whl

See docs/gpu-measure.md, "One prepared run", for the requirements of such a machine and the use of
the wheels. The folder gets hotloop, built by `python3.12` with a C compiler, and the simulators. Of
EnvPool's environments only the Atari family is included.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Versions are those of constraints.txt. MuJoCo's studio and PyOpenGL only serve rendering.
PACKAGES = (
    "mujoco", "mujoco-core", "gymnasium", "farama-notifications", "ale-py", "glfw", "tyro",
    "docstring-parser", "typeguard", "optree", "dm-tree", "dm-env", "tomli-w", "gymnax==1.0.1",
)  # fmt: skip
PLATFORMS = ("2_28", "2_27", "2_17", "2_5")


def download(packages: tuple[str, ...], folder: Path) -> None:
    """Download wheels for CPython 3.12 on x86-64 Linux."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--constraint", str(ROOT / "constraints.txt")]
    command += ["--only-binary=:all:", "--python-version", "3.12", "--implementation", "cp"]
    for number in PLATFORMS:
        command += ["--platform", f"manylinux_{number}_x86_64"]
    command += ["--platform", "manylinux2014_x86_64", "--platform", "manylinux1_x86_64"]
    subprocess.run([*command, "--dest", str(folder), *packages], check=True)


def prune(envpool: Path, assets: Path, target: Path) -> None:
    """Write EnvPool's wheel with only Atari and its ROMs.

    Args:
        envpool: EnvPool's wheel.
        assets: wheel of EnvPool's data files, with the ROMs.
        target: folder of the new wheel, which has the same name.
    """
    with (
        zipfile.ZipFile(envpool) as code,
        zipfile.ZipFile(assets) as files,
        zipfile.ZipFile(target / envpool.name, "w", zipfile.ZIP_DEFLATED) as output,
    ):
        for name in code.namelist():
            parts = name.split("/")
            is_kept = parts[0].endswith(".dist-info") or parts[1] in ("atari", "python")
            if is_kept or (parts[0] == "envpool" and len(parts) == 2):
                content = code.read(name)
                if name == "envpool/entry.py":
                    content = b"import envpool.atari.registration  # noqa: F401\n"
                output.writestr(name, content)
        for name in files.namelist():
            if name.startswith("envpool_assets/atari/"):
                output.writestr(name.replace("envpool_assets/", "envpool/", 1), files.read(name))


def main() -> None:
    """Fill the folder and print its size."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.whl"):
        old.unlink()  # two versions of one package stop the installation
    build = ["python3.12", "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(folder)]
    subprocess.run([*build, str(ROOT)], check=True)
    download(PACKAGES, folder)
    with tempfile.TemporaryDirectory() as name:
        download(("envpool", "envpool-assets"), Path(name))
        (envpool,) = Path(name).glob("envpool-1*.whl")
        (assets,) = Path(name).glob("envpool_assets*.whl")
        prune(envpool, assets, folder)
    sizes = {path.name: path.stat().st_size for path in sorted(folder.glob("*.whl"))}
    for path, size in sizes.items():
        print(f"{size / 1e6:6.2f} MB  {path}")
    print(f"{sum(sizes.values()) / 1e6:6.2f} MB")


if __name__ == "__main__":
    main()
