"""Freed memory is kept by the process."""

import resource
import subprocess
import sys

import pytest

LOOP = """
import resource, sys, torch
torch.set_num_threads(1)
if sys.argv[1] == "keep":
    from rljob_workers.trainers.allocator import keep_freed_memory
    keep_freed_memory()

def blocks(number):
    for _ in range(number):
        block = torch.zeros(10 << 20)
        del block

blocks(10)  # the first ones go into different holes of the heap, as it happens to lie
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
blocks(10)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(mode: str) -> int:
    done = subprocess.run([sys.executable, "-c", LOOP, mode], check=True, capture_output=True, text=True)
    return int(done.stdout)


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator")
def test_memory_that_tensors_freed_is_not_mapped_again() -> None:
    pages_of_a_block = (40 << 20) // resource.getpagesize()
    assert faults("keep") < 0.5 * pages_of_a_block
    assert faults("default") > 9.5 * pages_of_a_block  # else the setting would be of no use here
