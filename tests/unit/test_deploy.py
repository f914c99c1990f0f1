"""What deploy/ promises, as far as it can be checked without Docker, systemd or Kubernetes."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from cobali_ray.actors.layout import places
from cobali_ray.settings import read_settings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


HADOLINT = shutil.which("hadolint", path=Path(sys.executable).parent)


@pytest.mark.skipif(not HADOLINT, reason="there is no hadolint for this machine")
def test_the_dockerfile_is_clean():
    command = [HADOLINT, "--no-color", DEPLOY / "Dockerfile"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (0, "")


def test_an_image_has_what_installing_needs():
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert all((ROOT / name).exists() for name in kept)
    read = set(re.findall(r'ROOT / "([\w./]+)"', (ROOT / "tools/install.py").read_text()))
    pyproject = (ROOT / "pyproject.toml").read_text()
    read |= {"constraints.txt", *re.findall(r'^readme = "(.+)"', pyproject, re.MULTILINE)}
    assert not {name for name in read - {".venv"} if not any(name.startswith(one) for one in kept)}


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze on this machine")
def test_systemd_understands_the_unit():
    command = ["systemd-analyze", "verify", DEPLOY / "cobali.service"]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stderr.splitlines()
    assert [line for line in said if "is not executable" not in line] == []


def test_the_ray_service_deploys_what_its_settings_name():
    service, _ = yaml.safe_load_all((DEPLOY / "rayservice.yaml").read_text())
    (application,) = yaml.safe_load(service["spec"]["serveConfigV2"])["applications"]
    settings = read_settings(application["args"])
    named = {deployment["name"] for deployment in application["deployments"]}
    assert named == {place.deployment for place in places(settings)} | {"ingress"}
