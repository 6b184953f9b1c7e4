"""A packet filter that cuts a process of this machine off from all coordinators. No one is refused: packets are lost.

Needs the cluster of this machine. The process is known by its group; the kubelet, which probes the same pods from the
same addresses, keeps its way.
"""

import subprocess

from rljob_api.cluster import COORDINATOR_PORT
from tests.cluster.harness.machine import Node

GROUP = 42424
"""Of the process that is cut off; no one else has it."""

_TABLE = "inet rljob_test_cut"

_RULES = f"""
table {_TABLE} {{
  chain out {{
    type filter hook output priority 0
    meta skgid {GROUP} tcp dport {COORDINATOR_PORT} drop
  }}
}}
"""


class Cut:
    """`with Cut(node) as cut:` loses packets until `cut.end()`, at the latest until the end of the block."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._is_cut = False

    def end(self) -> None:
        """They come through again."""
        if self._is_cut:
            self._nft(f"delete table {_TABLE}\n")
        self._is_cut = False

    def __enter__(self) -> "Cut":
        self._nft(_RULES)
        self._is_cut = True
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def _nft(self, rules: str) -> None:
        subprocess.run(self._node.within("nft", "-f", "-"), input=rules, text=True, check=True, timeout=60)
