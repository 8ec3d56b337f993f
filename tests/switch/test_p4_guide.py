"""The PTF tests of jafingerhut/p4-guide, unmodified, with this switch under BMv2's name on the PATH.

KOFN_P4_GUIDE names a checkout of github.com/jafingerhut/p4-guide.  What its scripts call has to be there: p4c, ptf,
p4runtime-shell and scapy for the python3 of ptf, sudo.  Each script has a network, and processes, of its own.  All of
its tests pass here; where BMv2 is on the PATH as well, those that pass there.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from kofn.switch.cli.names import make_names
from tests.targets import BMV2

CHECKOUT = Path(os.environ.get("KOFN_P4_GUIDE") or "/nonesuch")
PORTS = 8
TIMEOUT_S = 1200
OUTCOME = re.compile(r"^(\S+) \.\.\..*?\b(ok|FAIL|ERROR)$", re.MULTILINE | re.DOTALL)

MACHINE = f"""
ip link set lo up
for port in $(seq 0 2 {2 * PORTS - 2}); do
  ip link add veth$port mtu 9500 type veth peer name veth$((port + 1)) mtu 9500
  for end in veth$port veth$((port + 1)); do
    sysctl -q net.ipv6.conf.$end.disable_ipv6=1
    ip link set $end up
  done
done
exec bash "$1"
"""
"""What p4-guide's veth_setup.sh makes."""

pytestmark = [
    pytest.mark.root,
    pytest.mark.long,
    pytest.mark.skipif(not CHECKOUT.is_dir(), reason="KOFN_P4_GUIDE names no checkout of jafingerhut/p4-guide"),
    pytest.mark.skipif(not shutil.which("p4c"), reason="p4c is not on the PATH"),
    pytest.mark.skipif(not shutil.which("ptf"), reason="ptf is not on the PATH"),
]

SCRIPTS = sorted(
    str(path.relative_to(CHECKOUT))
    for path in CHECKOUT.glob("**/*runptf.sh")
    if "simple_switch_grpc" in path.read_text() and "testgen" not in path.name
)


def outcomes(script: str, folder: Path, path: str) -> dict[str, str]:
    """How each of its tests ends, in a copy of the checkout."""
    shutil.copytree(CHECKOUT, folder, symlinks=True)
    place = folder / script
    command = [
        "unshare",
        "--net",
        "--pid",
        "--kill-child",
        "--mount-proc",
        "bash",
        "-ec",
        MACHINE,
        "machine",
        place.name,
    ]
    environment = os.environ | {"PATH": path}
    result = subprocess.run(
        command, cwd=place.parent, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    found = dict(OUTCOME.findall(result.stderr + result.stdout))
    assert found, result.stderr + result.stdout
    return found


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.timeout(2 * TIMEOUT_S + 60)
def test_what_passes_with_bmv2_passes(script: str, tmp_path: Path) -> None:
    make_names(tmp_path / "names")
    found = outcomes(script, tmp_path / "ours", f"{tmp_path}/names:{os.environ['PATH']}")
    wanted = (
        outcomes(script, tmp_path / "theirs", os.environ["PATH"]) if shutil.which(BMV2) else dict.fromkeys(found, "ok")
    )
    assert {test for test, end in wanted.items() if end == "ok"} <= {test for test, end in found.items() if end == "ok"}
    assert wanted.keys() == found.keys()
