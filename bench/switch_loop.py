"""Contributions per second of the embedded switch: two workers in a closed loop over veth pairs.  Needs root and cc.

python bench/switch_loop.py [--seconds 3] [--window 256] [--bypass]

Runs in a network namespace of its own that ends with it.  The workers are bench/switch_loop.c.
"""

import argparse
import ctypes
import subprocess
import tempfile
from pathlib import Path

from switch.engine import Engine
from switch.entries import Entry, Exact, Key, Replica

HERE = Path(__file__).parent
PROGRAM = HERE.parent / "p4src" / "build" / "kofn.json"
CLONE_NEWNET = 0x40000000
SIZES = (1024, 8192)  # bytes of values in a packet
SLOTS_MASK = 0xFFF


def make_links() -> None:
    """A namespace with the pairs s1-h1 and s2-h2."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET) != 0:
        raise SystemExit("a network namespace needs root")
    for worker in (1, 2):
        pair = f"ip link add s{worker} mtu 9000 type veth peer name h{worker} mtu 9000"
        for command in (pair, f"ip link set s{worker} up", f"ip link set h{worker} up"):
            subprocess.run(command.split(), check=True)


def set_up(engine: Engine) -> None:
    """Job 1: two workers behind ports 1 and 2, k = 2, lanes of 32 bits."""
    job, admission = Exact(value=1), "ingress.admission."
    high = sum(1 << (32 * lane + 31) for lane in range(64))
    engine.set_group(1, [Replica(port=1), Replica(port=2)])
    rows: list[tuple[str, Key, str, tuple[int, ...]]] = [
        (f"{admission}jobs", (job,), f"{admission}set_job", (2, 1, 0, SLOTS_MASK)),
        (f"{admission}lanes", (Exact(value=0),), f"{admission}set_lanes", (high,)),
    ]
    for rank, port in enumerate((1, 2)):
        me, at = Exact(value=rank), Exact(value=port)
        to = (0x080000000001 + rank, 0x0A000001 + rank, rank)
        rows.append((f"{admission}members", (at, job, me), f"{admission}admit", (1,)))
        rows.append(("egress.deliver.hosts", (at, job), "egress.deliver.to_host", to))
    for table, key, action, parameters in rows:
        engine.insert(Entry(table=table, key=key, action=action, parameters=parameters))


def main() -> None:
    """Print a line for each packet size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--window", type=int, default=256, help="blocks in flight of each worker")
    parser.add_argument("--bypass", action="store_true", help="send past the queueing disciplines")
    options = parser.parse_args()
    make_links()
    engine = Engine({1: "s1", 2: "s2"}, qdisc_bypass=options.bypass)
    with tempfile.TemporaryDirectory() as folder:
        workers = Path(folder, "switch_loop")
        subprocess.run(["cc", "-O2", "-o", str(workers), str(HERE / "switch_loop.c")], check=True)
        engine.start()
        for size in SIZES:
            engine.load(PROGRAM.read_bytes())
            set_up(engine)
            command = [str(workers), str(options.seconds), str(size), str(options.window), "h1", "h2"]
            subprocess.run(command, check=True)
        engine.stop()


if __name__ == "__main__":
    main()
