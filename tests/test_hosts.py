"""Two hosts, as network namespaces on this machine: one chain over both, and a link that is cut and comes back.

Namespaces and their link are made for the test and removed after it; nothing outside of them is touched.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import doubly
from doubly.core.launch import OF_TORCHRUN
from test_ranks import FIELDS, epochs, flags, same, until

HOSTS = {f"doubly-{os.getpid()}-{i}": f"10.231.77.{i + 1}" for i in range(2)}
LINK = "veth0"


def ip(*args: str) -> None:
    subprocess.run(["ip", *args], check=True, capture_output=True, text=True)


@pytest.fixture
def hosts() -> Iterator[dict[str, str]]:
    """Two namespaces with a link between them; a skip, with the reason, where that is not permitted."""
    if shutil.which("ip") is None:
        pytest.skip("there is no ip (iproute2) to make network namespaces with")
    first, second = HOSTS
    try:
        for name in HOSTS:
            ip("netns", "add", name)
        ip("-n", first, "link", "add", LINK, "type", "veth", "peer", "name", LINK, "netns", second)
        for name, address in HOSTS.items():
            ip("-n", name, "addr", "add", f"{address}/24", "dev", LINK)
            for device in (LINK, "lo"):
                ip("-n", name, "link", "set", device, "up")
    except subprocess.CalledProcessError as error:
        _remove()
        pytest.skip(f"network namespaces are not permitted here: {error.stderr.strip()}")
    yield HOSTS
    _remove()


def _remove() -> None:
    for name in HOSTS:
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def test_two_hosts_share_a_chain_over_a_link_that_is_cut_for_a_while(hosts, tmp_path):
    fields, out = FIELDS | {"epochs": 40}, tmp_path / "run"
    first = next(iter(hosts))
    processes = [torchrun_on(name, address, out, fields) for name, address in hosts.items()]
    try:
        until(lambda: epochs(out) >= 2)
        ip("-n", first, "link", "set", LINK, "down")
        before = epochs(out)
        time.sleep(2)
        assert epochs(out) <= before + 1  # nobody goes on alone
        ip("-n", first, "link", "set", LINK, "up")
        for process in processes:
            _, said = process.communicate(timeout=240)
            assert process.returncode == 0, said
    finally:
        for process in processes:
            process.kill()
    assert before < 40
    assert same(out, doubly.fit(tmp_path / "alone", quiet=True, deterministic=True, **fields))


def torchrun_on(name: str, address: str, out: Path, fields: dict) -> subprocess.Popen:
    """`torchrun` on a host, with the rendezvous at the first."""
    endpoint = f"{next(iter(HOSTS.values()))}:29400"
    line = ["ip", "netns", "exec", name, sys.executable, "-m", "torch.distributed.run", "--nnodes", 2]
    line += ["--nproc-per-node", 1, "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--rdzv-id", "test"]
    # by its address alone, a namespace does not know itself
    line += ["--rdzv-conf", f"is_host={int(endpoint.startswith(address))}"]
    line += ["--local-addr", address, "-m", "doubly", "fit", *flags(fields), "--deterministic", "--out", out]
    env = {name: value for name, value in os.environ.items() if not OF_TORCHRUN.fullmatch(name)}
    env |= {"GLOO_SOCKET_IFNAME": LINK}
    return subprocess.Popen(list(map(str, line)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
