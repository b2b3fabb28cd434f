"""Installs each AWS SDK of the conformance suite into an environment of its own below `.sdks/`.

It needs only the standard library, so that any interpreter can run it. A stamp in each environment
records its contents; an environment with a matching stamp is not changed.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

SDKS = Path(__file__).resolve().parents[2] / ".sdks"
STAMP = ".installed"

# The cbor2 versions that the SDKs declare, pinned: another decoder would make this a test of
# another client.
PYTHON_SDKS = {
    "stream-manager-1.1.2": ["stream-manager==1.1.2", "cbor2==5.9.0"],
    "greengrasssdk-1.6.1": ["greengrasssdk==1.6.1", "cbor2==5.4.6"],
    "greengrasssdk-1.5.0": ["greengrasssdk==1.5.0", "cbor2==4.1.2"],
}
NODE_SDK = {
    "aws-greengrass-core-sdk": "1.7.0",
    "cbor": "5.0.1",
    "bignumber.js": "9.3.1",
    "nofilter": "1.0.4",
}


class InstallError(Exception):
    pass


def run(command: list[str], cwd: Path) -> None:
    done = subprocess.run(
        command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode != 0:
        # The build log does not show this machine's package index.
        output = re.sub(r"(https?|file)://\S+", "<registry>", done.stdout)
        raise InstallError(f"{Path(command[0]).name} ended with {done.returncode}:\n{output}")


def empty_environment(name: str, content: str) -> Path | None:
    """Returns an empty environment, or None if the environment is up to date."""
    environment = SDKS / name
    stamp = environment / STAMP
    if stamp.is_file() and stamp.read_text() == content:
        return None
    shutil.rmtree(environment, ignore_errors=True)
    environment.mkdir(parents=True)
    print(f"installing {name}", flush=True)
    return environment


def install_python_sdk(name: str, requirements: list[str]) -> None:
    content = "\n".join([sys.version, *requirements])
    environment = empty_environment(name, content)
    if environment is None:
        return
    run([sys.executable, "-m", "venv", str(environment)], SDKS)
    pip = [str(environment / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
    run([*pip, "install", "--quiet", *requirements], SDKS)
    (environment / STAMP).write_text(content)


def install_node_sdk() -> None:
    content = json.dumps({"private": True, "dependencies": NODE_SDK}, indent=2)
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        raise InstallError("the Node.js SDK needs `node` (12 or newer) and `npm` on the PATH")
    environment = empty_environment("node", content)
    if environment is None:
        return
    (environment / "package.json").write_text(content)
    run([npm, "install", "--no-package-lock", "--no-audit", "--no-fund"], environment)
    (environment / STAMP).write_text(content)


def main() -> int:
    try:
        for name, requirements in PYTHON_SDKS.items():
            install_python_sdk(name, requirements)
        install_node_sdk()
    except InstallError as error:
        print(f"install_sdks: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
