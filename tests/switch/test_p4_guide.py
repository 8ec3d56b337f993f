"""PTF tests and demos of jafingerhut/p4-guide, unmodified, with this switch under BMv2's name on the PATH.

KOFN_P4_GUIDE names a checkout of github.com/jafingerhut/p4-guide. Its scripts need p4c, and ptf, p4runtime-shell and
scapy for ptf's python3. Each script runs on a separate machine, and all its tests pass here; if BMv2 is on the PATH,
those that pass there. Demos are run on both switches with their README's input: the same packets come out, and the same
cells and groups are read.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from kofn_switch.identity import bmv2
from tests.switch.machine import OWN_MACHINE, PTF_OUTCOME, path_with

CHECKOUT = Path(os.environ.get("KOFN_P4_GUIDE") or "/nonesuch")
PORTS = 9
TIMEOUT_S = 1200
SEEN = re.compile(r"^(?:sent|veth|Index|Members).*|^.*\]= .*", re.MULTILINE)

MACHINE = f"""
ip link set lo up
for port in $(seq 0 2 {2 * PORTS - 2}); do
  ip link add veth$port mtu 9500 type veth peer name veth$((port + 1)) mtu 9500
  for end in veth$port veth$((port + 1)); do
    sysctl -q net.ipv6.conf.$end.disable_ipv6=1
    ip link set $end up
  done
done
exec "$@"
"""
"""The interfaces that p4-guide's veth_setup.sh creates."""

pytestmark = [
    pytest.mark.root,
    pytest.mark.long,
    pytest.mark.timeout(2 * TIMEOUT_S + 60),
    pytest.mark.skipif(not CHECKOUT.is_dir(), reason="KOFN_P4_GUIDE names no checkout of jafingerhut/p4-guide"),
    *(pytest.mark.skipif(not shutil.which(name), reason=f"{name} is not on the PATH") for name in ("p4c", "ptf")),
]

SCRIPTS = sorted(
    str(path.relative_to(CHECKOUT))
    for path in CHECKOUT.glob("**/*runptf.sh")
    if "simple_switch_grpc" in path.read_text() and "testgen" not in path.name
)
P4_14 = "v1model-special-ops/p414-{}.json"
DEMOS = [
    *((f"demo{number}/README.md", f"demo{number}/demo{number}.p4_16.p4") for number in (1, 2, 3, 5, 6)),
    ("demo1/README-p4runtime.md", "demo1/demo1.p4_16.p4"),
    ("demo7/README.md", "demo7/demo7.p4"),
    ("action-profile-and-selector/README.md", "action-profile-and-selector/action-profile.p4"),
    ("action-profile-and-selector/README-selector.md", "action-profile-and-selector/action-selector.p4"),
    ("v1model-special-ops/README.md", "v1model-special-ops/v1model-special-ops.p4"),
    ("v1model-special-ops/README-more-externs.md", "v1model-special-ops/v1model-more-externs.p4"),
    ("v1model-special-ops/README-p414.md", P4_14.format("special-ops.p4c-2019-01-18")),
    ("v1model-special-ops/README-p414.md", P4_14.format("multicast-bmv2.p4c-2019-01-25")),
]
"""READMEs with commands, and each one's program; for those in P4_14 the earlier output of p4c."""


def run(command: list[str], folder: Path, path: str) -> str:
    """Run the command on a separate machine and return its output."""
    result = subprocess.run(
        [*OWN_MACHINE, "bash", "-ec", MACHINE, "machine", *command],
        cwd=folder,
        env=os.environ | {"PATH": path, "PYTHONPATH": str(CHECKOUT / "testlib")},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    return result.stderr + result.stdout


def outcomes(script: str, folder: Path, *, ours: bool) -> dict[str, str]:
    """Return the outcome of each of a script's tests, in a copy of the checkout."""
    shutil.copytree(CHECKOUT, folder / "checkout", symlinks=True)
    place = folder / "checkout" / script
    said = run(["bash", place.name], place.parent, path_with(folder / "names", ours=ours))
    found = dict(PTF_OUTCOME.findall(said))
    assert found, said
    return found


def seen(readme: str, program: str, folder: Path, *, ours: bool) -> list[str]:
    """Return the packets, cells and groups that the README has shown."""
    path, compiled = path_with(folder / "names", ours=ours), CHECKOUT / program
    if compiled.suffix == ".p4":
        info = ["--p4runtime-files", f"{compiled.stem}.p4info.txtpb"] if "p4runtime_sh" in read(readme) else []
        command = ["p4c", "--target", "bmv2", "--arch", "v1model", *info, str(compiled)]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        compiled = folder / f"{compiled.stem}.json"
    script = Path(__file__).with_name("readme.py")
    said = run(["python3", str(script), str(CHECKOUT / readme), str(compiled)], folder, path)
    assert "sent" in said or "sendp" not in read(readme), said
    return SEEN.findall(said)


def read(readme: str) -> str:
    return (CHECKOUT / readme).read_text()


@pytest.mark.parametrize("script", SCRIPTS)
def test_tests_that_pass_with_bmv2_pass(script: str, tmp_path: Path) -> None:
    found = outcomes(script, tmp_path / "ours", ours=True)
    wanted = outcomes(script, tmp_path / "theirs", ours=False) if bmv2() else dict.fromkeys(found, "ok")
    assert {test for test, end in wanted.items() if end == "ok"} <= {test for test, end in found.items() if end == "ok"}
    assert wanted.keys() == found.keys()


@pytest.mark.parametrize(("readme", "program"), DEMOS)
def test_demo_shows_the_same_as_on_bmv2(readme: str, program: str, tmp_path: Path) -> None:
    found = seen(readme, program, tmp_path / "ours", ours=True)
    if bmv2():
        assert found == seen(readme, program, tmp_path / "theirs", ours=False)
