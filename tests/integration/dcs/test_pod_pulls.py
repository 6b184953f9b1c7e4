"""Two ranks of a pod pull a weight once; one that dies or hangs in its turn keeps the other from nothing for ever."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from rljob_api.names import Role, Stream
from rljob_api.wire.identity import PodKey
from rljob_api.wire.weights import OfferedPart, WeightOffer
from rljob_workers.dcs.errors import WeightTimeout
from rljob_workers.dcs.tensor_bytes import digest_of
from rljob_workers.dcs.weights import build_publisher, build_receiver
from rljob_workers.dcs.weights.host_staged import PodPulls
from tests.integration.dcs.test_weights import assert_is, folder_of, in_time, publish, tensors
from tests.integration.dcs.world import World
from tests.weights import weight

POD = PodKey(role=Role.ROLLOUT, replica=0)


def test_a_rank_links_what_another_one_of_its_pod_has_pulled(world: World) -> None:
    world.begin()
    actor = world.rank(Role.ACTOR)
    first, second = (world.rank(Role.ROLLOUT, rank=rank) for rank in (0, 1))
    with (
        contextlib.closing(build_receiver(first.context, first)) as one,
        contextlib.closing(build_receiver(second.context, second)) as other,
    ):
        with contextlib.closing(build_publisher(actor.context, actor)) as publisher:
            publish(publisher, Stream.POLICY, weight(0), tensors(0))
            pulled = one.await_newer(Stream.POLICY, None, deadline=in_time())
            assert_is(pulled, weight(0), tensors(0))
        one._server.close()  # type: ignore[attr-defined] # now no one serves it
        linked = other.await_newer(Stream.POLICY, None, deadline=in_time())
        assert_is(linked, weight(0), tensors(0))
        assert pulled is not None
        assert linked is not None
        assert folder_of(linked) != folder_of(pulled)
        files = [path.name for path in folder_of(pulled).iterdir()]
        assert files == ["model.safetensors"]
        assert all((folder_of(linked) / name).samefile(folder_of(pulled) / name) for name in files)


def test_what_a_rank_has_linked_outlives_what_its_pod_keeps(world: World) -> None:
    world.begin()
    actor, first = world.rank(Role.ACTOR), world.rank(Role.ROLLOUT)
    with (
        contextlib.closing(build_publisher(actor.context, actor)) as publisher,
        contextlib.closing(build_receiver(first.context, first)) as receiver,
    ):
        for version in range(4):
            publish(publisher, Stream.REFERENCE, weight(version), tensors(version))
            held = weight(version - 1) if version else None
            staged = receiver.await_newer(Stream.REFERENCE, held, deadline=in_time())
            assert_is(staged, weight(version), tensors(version))
    retained = Path(world.endpoints.weights_dir) / "rollout-0.pulled"
    assert sorted(path.name for path in retained.iterdir()) == ["Reference-1-2", "Reference-1-3"]


def test_a_weight_of_the_same_name_with_other_bytes_is_pulled_again(tmp_path: Path) -> None:
    """Of another layout, or of a job that had this memory before: the name is a version's, the digest the bytes'."""
    pulls = PodPulls(tmp_path, POD, 60)
    pulled = offer(b"checksums of then")
    with pulls.turn(lambda: None), pulls.pulling(pulled) as folder:
        pulls.keep(pulled, folder, {0: b"checksums of then"})
    assert pulls.find(pulled) == {0: b"checksums of then"}
    assert pulls.find(offer(b"checksums of now")) is None


def offer(checksums: bytes) -> WeightOffer:
    part = OfferedPart(index=0, num_bytes=1, chunk_bytes=1, digest=digest_of(checksums), owner="127.0.0.1:1")
    return WeightOffer(stream=Stream.POLICY, id=weight(0), layout="whole", parts=[part], peers=[])


def test_a_rank_that_died_in_its_turn_has_lost_it(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        PodPulls(tmp_path, POD, 60).turn(lambda: None).__enter__()
        os._exit(0)
    os.waitpid(child, 0)
    with PodPulls(tmp_path, POD, 60).turn(lambda: None):
        pass


def test_who_waits_for_another_rank_gives_pulses_and_at_last_names_it(tmp_path: Path) -> None:
    signs: list[None] = []
    with PodPulls(tmp_path, POD, 60).turn(lambda: None):
        late = PodPulls(tmp_path, POD, 0.2).turn(lambda: signs.append(None))
        with pytest.raises(WeightTimeout, match=r"rollout-0: another rank of this pod has been pulling"), late:
            pass
    assert signs
