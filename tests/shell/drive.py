"""Run by p4runtime-shell's Python: reads and changes the job's entry, and prints the results as JSON.

python drive.py ADDRESS DEVICE_ID ELECTION_ID [K]

With K it writes K; without, it only reads.
"""

import json
import sys

import p4runtime_sh.shell as sh  # type: ignore[import-not-found]

JOBS = "jobs"  # an alias of the P4Info: ingress.admission.jobs, and so on


def job(number: int) -> "sh.TableEntry":
    entry = sh.TableEntry(JOBS)(action="set_job")
    entry.match["hdr.kofn.job"] = str(number)
    for name, value in {
        "k": 2,
        "group": number,
        "base": 0,
        "mask": 0xFFF,
        "generation": 1,
        "room": 4,
        "racks": 0,
    }.items():
        entry.action[name] = str(value)
    return entry


def k_of(entry: "sh.TableEntry") -> int:
    return int.from_bytes(entry.action["k"].value, "big")


def main() -> None:
    address, device_id, election_id, *k = sys.argv[1:]
    sh.setup(device_id=int(device_id), grpc_addr=address, election_id=(0, int(election_id)), verbose=False)
    try:
        seen = {"tables": sorted(table.name for table in sh.P4Objects(sh.P4Type.table)), "api": sh.client.api_version()}
        if k:
            entry = job(1)
            entry.insert()
            entry.action["k"] = k[0]
            entry.modify()
        seen["k"] = [k_of(entry) for entry in sh.TableEntry(JOBS).read()]
        seen["verdicts"] = len(list(sh.CounterEntry("verdicts").read()))
        print(json.dumps(seen))
    finally:
        sh.teardown()


if __name__ == "__main__":
    main()
