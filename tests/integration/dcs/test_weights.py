"""Weights on their way: whole or not at all, from those that have them, through deaths of either end."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rljob_api import failpoints
from rljob_api.names import Role, Stream
from rljob_api.wire.identity import WeightId
from rljob_api.wire.observation import EventKind
from rljob_api.wire.weights import OfferedPart, PartRequest, Probe, WeightOffer, WeightPart
from rljob_workers.dcs.errors import (
    CoordinatorRefused,
    CorruptWeights,
    IncarnationOver,
    WeightDead,
    WeightIncomplete,
    WeightTimeout,
)
from rljob_workers.dcs.membership.session import RankSession
from rljob_workers.dcs.tensor_bytes import StagedPart, chunk_checksums, digest_of
from rljob_workers.dcs.weights import WeightPublisher, WeightReceiver, build_publisher, build_receiver
from rljob_workers.dcs.weights.chunk_transfer import (
    ChunkServer,
    PullTerms,
    WantedPart,
    pull,
)
from rljob_workers.models.blob import WHOLE, WeightShare, read_weights
from rljob_workers.models.weights import Buckets, Weights, WeightSource, full_folder
from tests.integration.dcs.world import PATIENCE_SECONDS, World, eventually, read_json
from tests.weights import weight


def tensors(seed: int, size: int = 1 << 18) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "layer.weight": torch.randn(size // 64, 64, generator=generator),
        "layer.bias": torch.randn(7, generator=generator).to(torch.bfloat16),
        "scale": torch.tensor(3.0),
        "empty": torch.zeros(0, 4),
    }


def in_time() -> float:
    return time.monotonic() + PATIENCE_SECONDS


def publish(
    publisher: WeightPublisher,
    stream: Stream,
    weight: WeightId,
    tensors: dict[str, torch.Tensor],
    share: WeightShare = WHOLE,
    *,
    probe: Probe | None = None,
) -> None:
    """Tensors on the host, as one rank's part."""
    publisher.publish(Weights(weight, stream, Buckets.of_host(tensors, share), probe), timeout_seconds=PATIENCE_SECONDS)


def folder_of(staged: Weights[WeightSource]) -> Path:
    """Where a receiver has them."""
    return full_folder(staged.source, "The test")


def assert_is(staged: Weights[WeightSource] | None, expected_id: WeightId, expected: dict[str, torch.Tensor]) -> None:
    assert staged is not None
    assert staged.id == expected_id
    found = read_weights(folder_of(staged))
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


@pytest.fixture
def actor(world: World) -> RankSession:
    world.begin()
    return world.rank(Role.ACTOR)


@pytest.fixture
def publisher(actor: RankSession) -> Iterator[WeightPublisher]:
    publisher = build_publisher(actor.context, actor)
    yield publisher
    publisher.close()


@pytest.fixture
def receiver(world: World, actor: RankSession) -> Iterator[WeightReceiver]:
    session = world.rank(Role.ROLLOUT)
    receiver = build_receiver(session.context, session)
    yield receiver
    receiver.close()


def test_what_is_published_is_staged_by_a_receiver(publisher: WeightPublisher, receiver: WeightReceiver) -> None:
    publish(publisher, Stream.POLICY, weight(0), tensors(0))
    assert_is(receiver.await_newer(Stream.POLICY, None, deadline=in_time()), weight(0), tensors(0))


@pytest.mark.parametrize("probe", [None, Probe(tokens=[1, 2, 3], log_probs=[-0.25, -1.5])])
def test_a_probe_comes_with_the_weights(
    publisher: WeightPublisher, receiver: WeightReceiver, probe: Probe | None
) -> None:
    publish(publisher, Stream.POLICY, weight(0), tensors(0), probe=probe)
    staged = receiver.await_newer(Stream.POLICY, None, deadline=in_time())
    assert staged is not None
    assert staged.probe == probe


def test_a_waiting_receiver_is_woken(publisher: WeightPublisher, receiver: WeightReceiver) -> None:
    staged: list[Weights[WeightSource] | None] = []
    waiting = threading.Thread(
        target=lambda: staged.append(receiver.await_newer(Stream.POLICY, None, deadline=in_time()))
    )
    waiting.start()
    publish(publisher, Stream.POLICY, weight(0), tensors(0))
    waiting.join()
    assert_is(staged[0], weight(0), tensors(0))


def test_nothing_newer_is_none_at_the_deadline(publisher: WeightPublisher, receiver: WeightReceiver) -> None:
    publish(publisher, Stream.POLICY, weight(0), tensors(0))
    assert receiver.await_newer(Stream.POLICY, weight(0), deadline=time.monotonic() + 0.05) is None


def test_a_late_joiner_gets_the_newest(world: World, publisher: WeightPublisher, receiver: WeightReceiver) -> None:
    for version in range(3):
        publish(publisher, Stream.REFERENCE, weight(version), tensors(version))
    assert_is(receiver.await_newer(Stream.REFERENCE, None, deadline=in_time()), weight(2), tensors(2))
    session = world.rank(Role.ROLLOUT, 1)
    late = build_receiver(session.context, session)
    assert_is(late.await_newer(Stream.REFERENCE, None, deadline=in_time()), weight(2), tensors(2))
    late.close()


def test_only_the_newest_files_stay(publisher: WeightPublisher, receiver: WeightReceiver) -> None:
    held, folders = None, set()
    for version in range(4):
        publish(publisher, Stream.REFERENCE, weight(version), tensors(version))
        staged = receiver.await_newer(Stream.REFERENCE, held, deadline=in_time())
        assert staged is not None
        held = staged.id
        folders.add(folder_of(staged).parent)
    (folder,) = folders
    assert sorted(path.name for path in folder.iterdir()) == [
        "Reference-1-2",
        "Reference-1-3",
    ]


def test_a_version_before_its_turn_is_refused(publisher: WeightPublisher) -> None:
    publish(publisher, Stream.POLICY, weight(0), tensors(0))
    with pytest.raises(WeightIncomplete, match="version 1 cannot be published: train_0"):
        publish(publisher, Stream.POLICY, weight(1), tensors(1))


def test_a_weight_of_a_past_that_was_left_is_refused_and_not_reported(
    world: World, publisher: WeightPublisher, receiver: WeightReceiver
) -> None:
    publish(publisher, Stream.REFERENCE, weight(5), tensors(5))
    world.raise_epoch(2)
    world.order(2)
    with pytest.raises(IncarnationOver):
        publish(publisher, Stream.REFERENCE, weight(6), tensors(6))
    session = world.rank(Role.ACTOR, epoch=2)
    later = build_publisher(session.context, session)
    with pytest.raises(WeightDead, match="its lineage was left before this version"):
        publish(later, Stream.REFERENCE, weight(5, lineage=1), tensors(5))
    assert receiver.await_newer(Stream.REFERENCE, None, deadline=time.monotonic() + 0.05) is None
    publish(later, Stream.REFERENCE, weight(0, lineage=2), tensors(9))
    newest = receiver.await_newer(Stream.REFERENCE, weight(5), deadline=in_time())
    assert_is(newest, weight(0, lineage=2), tensors(9))
    later.close()


def test_publishing_and_waiting_outlive_a_kill_of_the_coordinator(
    world: World, publisher: WeightPublisher, receiver: WeightReceiver
) -> None:
    staged: list[Weights[WeightSource] | None] = []
    waiting = threading.Thread(
        target=lambda: staged.append(receiver.await_newer(Stream.POLICY, None, deadline=in_time()))
    )
    waiting.start()
    world.kill()
    publishing = threading.Thread(target=lambda: publish(publisher, Stream.POLICY, weight(0), tensors(0)))
    publishing.start()
    world.start()
    publishing.join()
    waiting.join()
    assert_is(staged[0], weight(0), tensors(0))
    assert world.status().published == 0


def test_the_pulse_is_called_while_waiting_and_may_end_it(receiver: WeightReceiver) -> None:
    def over() -> None:
        raise IncarnationOver("enough")

    with pytest.raises(IncarnationOver, match="enough"):
        receiver.await_newer(Stream.POLICY, None, deadline=in_time(), pulse=over)


def test_a_receiver_serves_what_it_has_when_the_trainer_is_gone(
    world: World, publisher: WeightPublisher, receiver: WeightReceiver
) -> None:
    publish(publisher, Stream.POLICY, weight(0), tensors(0))
    assert receiver.await_newer(Stream.POLICY, None, deadline=in_time()) is not None

    def peers() -> bool:
        offer = WeightOffer.model_validate_json(world.call("GET", "/v1/weights/Policy"))
        return len(offer.peers) == 1

    eventually(peers, "the receiver as a source")
    publisher.close()
    session = world.rank(Role.ROLLOUT, 1)
    late = build_receiver(session.context, session)
    assert_is(late.await_newer(Stream.POLICY, None, deadline=in_time()), weight(0), tensors(0))
    late.close()


# --- parts


PARTS = 2


def share(index: int, layout: str = "two") -> WeightShare:
    return WeightShare(index, PARTS, layout)


def half(seed: int, index: int) -> dict[str, torch.Tensor]:
    """Every second tensor."""
    return dict(list(tensors(seed).items())[index::PARTS])


@pytest.fixture
def second(world: World, actor: RankSession) -> Iterator[WeightPublisher]:
    """Another rank of the actor, which owns the other part."""
    session = world.rank(Role.ACTOR, 1)
    publisher = build_publisher(session.context, session)
    yield publisher
    publisher.close()


def test_a_weight_in_parts_is_visible_when_the_last_was_reported(
    world: World, publisher: WeightPublisher, second: WeightPublisher, receiver: WeightReceiver
) -> None:
    publish(publisher, Stream.POLICY, weight(0), half(0, 0), share(0))
    assert receiver.await_newer(Stream.POLICY, None, deadline=time.monotonic() + 0.05) is None
    assert world.status().published is None
    publish(publisher, Stream.POLICY, weight(0), half(0, 0), share(0))  # twice is once
    assert world.status().published is None
    publish(second, Stream.POLICY, weight(0), half(0, 1), share(1))
    assert world.status().published == 0
    staged = receiver.await_newer(Stream.POLICY, None, deadline=in_time())
    assert_is(staged, weight(0), tensors(0))
    assert staged is not None
    assert sorted(path.name for path in folder_of(staged).iterdir()) == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    ]
    index = read_json(folder_of(staged) / "model.safetensors.index.json")["weight_map"]
    assert {name: index[name] for name in half(0, 1)} == dict.fromkeys(half(0, 1), "model-00002-of-00002.safetensors")
    assert len(world.reported(EventKind.PUBLISHED)) == 1
    publish(second, Stream.POLICY, weight(0), half(0, 1), share(1))  # a late retry
    assert len(world.reported(EventKind.PUBLISHED)) == 1


def test_a_part_of_another_layout_is_refused_with_a_sentence(
    publisher: WeightPublisher, second: WeightPublisher, receiver: WeightReceiver
) -> None:
    publish(publisher, Stream.POLICY, weight(0), half(0, 0), share(0))
    with pytest.raises(CoordinatorRefused, match=r"layout \(other, 2 parts\) is not that of the parts before"):
        publish(second, Stream.POLICY, weight(0), half(0, 1), share(1, "other"))
    with pytest.raises(CoordinatorRefused, match="there are 2 parts, counted from 0"):
        publish(second, Stream.POLICY, weight(0), half(0, 1), share(2))
    assert receiver.await_newer(Stream.POLICY, None, deadline=time.monotonic() + 0.05) is None


def test_parts_outlive_a_kill_of_the_coordinator_between_them(
    world: World, publisher: WeightPublisher, second: WeightPublisher, receiver: WeightReceiver
) -> None:
    publish(publisher, Stream.POLICY, weight(0), half(0, 0), share(0))
    world.restart()
    publish(second, Stream.POLICY, weight(0), half(0, 1), share(1))
    assert_is(receiver.await_newer(Stream.POLICY, None, deadline=in_time()), weight(0), tensors(0))


def test_a_weight_whose_owner_died_before_it_was_whole_stays_invisible(
    world: World, publisher: WeightPublisher, receiver: WeightReceiver, tmp_path: Path
) -> None:
    owner = world.rank(Role.ACTOR, 1)
    other = build_publisher(owner.context, owner)
    publish(other, Stream.POLICY, weight(0), half(0, 1), share(1))
    other.close()
    world.call("POST", "/v1/failures", world.failure(owner))
    publish(publisher, Stream.POLICY, weight(0), half(0, 0), share(0))
    assert receiver.await_newer(Stream.POLICY, None, deadline=time.monotonic() + 0.05) is None
    world.raise_epoch(2)
    world.order(2)
    with contextlib.ExitStack() as until_received:
        for index in range(PARTS):
            session = world.rank(Role.ACTOR, index, epoch=2)
            later = until_received.enter_context(contextlib.closing(build_publisher(session.context, session)))
            assert receiver.await_newer(Stream.POLICY, None, deadline=time.monotonic() + 0.05) is None
            publish(later, Stream.POLICY, weight(0, lineage=2), half(7, index), share(index))
        assert_is(receiver.await_newer(Stream.POLICY, None, deadline=in_time()), weight(0, lineage=2), tensors(7))


def test_an_owner_killed_with_its_part_staged_leaves_nothing_visible(
    world: World, publisher: WeightPublisher, receiver: WeightReceiver, tmp_path: Path
) -> None:
    publish(publisher, Stream.POLICY, weight(0), half(0, 0), share(0))
    world.register(Role.ACTOR, 1)
    context = world.context(world.incarnation(Role.ACTOR, 1))
    pid = os.fork()
    if pid == 0:
        failpoints._ARMED["publish.part_staged"] = 1
        os.environ["RLJOB_FAILPOINTS_DIR"] = str(tmp_path)
        session = RankSession(context)
        publish(
            build_publisher(context, session),
            Stream.POLICY,
            weight(0),
            half(0, 1),
            share(1),
        )
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert receiver.await_newer(Stream.POLICY, None, deadline=time.monotonic() + 0.05) is None
    assert world.status().published is None


def test_a_version_is_offered_while_every_part_has_a_live_source(
    world: World, publisher: WeightPublisher, receiver: WeightReceiver
) -> None:
    owner = world.rank(Role.ACTOR, 1)
    other = build_publisher(owner.context, owner)
    publish(publisher, Stream.REFERENCE, weight(0), half(0, 0), share(0))
    publish(other, Stream.REFERENCE, weight(0), half(0, 1), share(1))
    publish(publisher, Stream.POLICY, weight(0), half(1, 0), share(0))
    publish(other, Stream.POLICY, weight(0), half(1, 1), share(1))
    assert_is(receiver.await_newer(Stream.POLICY, None, deadline=in_time()), weight(0), tensors(1))
    eventually(lambda: _offer(world, Stream.POLICY).peers, "the receiver as a source")
    other.close()
    world.call("POST", "/v1/failures", world.failure(owner))
    assert world.call("GET", "/v1/weights/Reference") == b"null", "nobody has part 1"
    offer = _offer(world, Stream.POLICY)
    assert [part.owner is None for part in offer.parts] == [False, True]
    session = world.rank(Role.ROLLOUT, 1)
    late = build_receiver(session.context, session)
    assert_is(late.await_newer(Stream.POLICY, None, deadline=in_time()), weight(0), tensors(1))
    late.close()


def test_what_the_coordinator_holds_of_a_weight_does_not_grow_with_it(world: World, actor: RankSession) -> None:
    """A receiver's every poll carries it: of 140 GB it is a few hundred bytes."""
    part = WeightPart(
        stream=Stream.POLICY,
        id=weight(0),
        index=0,
        count=1,
        layout="x" * 32,
        num_bytes=140 * 10**9,
        chunk_bytes=4 << 20,
        digest="0" * 32,
        address="127.0.0.1:9",
    )
    world.call("POST", "/v1/weights/parts", PartRequest(incarnation=actor.incarnation, part=part))
    assert len(world.call("GET", "/v1/weights/Policy")) < 1000


def _offer(world: World, stream: Stream) -> WeightOffer:
    return WeightOffer.model_validate_json(world.call("GET", f"/v1/weights/{stream.value}"))


# --- pulls against sources that fail


class Sources:
    """Chunk servers in processes of their own, over one blob; some are not what they should be."""

    def __init__(self, folder: Path, chunk_bytes: int, num_chunks: int) -> None:
        self.token = "token"
        self.blob = os.urandom(chunk_bytes * num_chunks - 5)
        self._folder = folder
        self._chunk_bytes = chunk_bytes
        self._processes: list[multiprocessing.process.BaseProcess] = []

    def wanted(self) -> WantedPart:
        part = OfferedPart(
            index=0,
            num_bytes=len(self.blob),
            chunk_bytes=self._chunk_bytes,
            digest=digest_of(_checksums(self.blob, self._chunk_bytes)),
            owner=None,
        )
        return WantedPart(Stream.POLICY, weight(1), part)

    def good(self) -> str:
        return self._serve(self.blob)

    def corrupt(self, chunk: int) -> str:
        wrong = bytearray(self.blob)
        wrong[chunk * self._chunk_bytes] ^= 1
        return self._serve(bytes(wrong))

    def other(self) -> str:
        """Serves another blob of the same size, with checksums that fit it."""
        other = os.urandom(len(self.blob))
        return self._serve(other, _checksums(other, self._chunk_bytes))

    def dying(self, after_chunks: int) -> str:
        """Dies by SIGKILL once it has sent so much."""
        return self._serve(self.blob, die_at=after_chunks * self._chunk_bytes)

    def stopped(self) -> str:
        """Has got a SIGSTOP: its kernel takes connections and requests, and it answers none."""
        address = self.good()
        pid = self._processes[-1].pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        return address

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()

    def _serve(self, content: bytes, checksums: bytes | None = None, die_at: int | None = None) -> str:
        path = self._folder / f"source-{len(self._processes)}"
        path.write_bytes(content)
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("fork").Process(
            target=_serve_file,
            args=(path, self.token, self._chunk_bytes, checksums or self._checksums(), die_at, theirs),
            daemon=True,
        )
        process.start()
        self._processes.append(process)
        address: str = ours.recv()
        ours.close()
        theirs.close()
        return address

    def _checksums(self) -> bytes:
        return _checksums(self.blob, self._chunk_bytes)


def _checksums(content: bytes, chunk_bytes: int) -> bytes:
    return b"".join(chunk_checksums([memoryview(content)], chunk_bytes))


def _serve_file(path: Path, token: str, chunk_bytes: int, checksums: bytes, die_at: int | None, report: object) -> None:
    from rljob_workers.dcs.weights import chunk_transfer

    if die_at is not None:
        chunk_transfer._send_range = lambda connection, descriptor, start, end: _send_and_die(
            connection, descriptor, start, die_at
        )
    server = ChunkServer("127.0.0.1", token)
    descriptor = os.open(path, os.O_RDONLY)
    part = StagedPart(descriptor, path.stat().st_size, chunk_bytes, checksums)
    server.serve(Stream.POLICY, weight(1), {0: part})
    report.send(server.address)  # type: ignore[attr-defined]
    signal.pause()


def _send_and_die(connection: object, descriptor: int, start: int, length: int) -> None:
    connection.sendall(os.pread(descriptor, length, start))  # type: ignore[attr-defined]
    os.kill(os.getpid(), signal.SIGKILL)


PULSE_SECONDS = 10.0
"""More than a source may be silent."""


def terms_of_pulses(token: str, pulses: int) -> PullTerms:
    """Over after so many pulses, a chunk or a round each: no try is cut off because this machine is slow."""
    received: list[None] = []
    return PullTerms(
        token,
        pulses * PULSE_SECONDS,
        pulse=lambda: received.append(None),
        clock=lambda: len(received) * PULSE_SECONDS,
        sleep=lambda _: None,
    )


@pytest.fixture
def sources(tmp_path: Path) -> Iterator[Sources]:
    sources = Sources(tmp_path, 1 << 16, 8)
    yield sources
    sources.stop()


def test_a_source_that_dies_in_the_middle_is_replaced_and_its_chunks_are_retained(
    sources: Sources, tmp_path: Path
) -> None:
    path = tmp_path / "weights.safetensors"
    rounds = [[sources.dying(3), sources.good()]]
    assert pull(sources.wanted(), path, PullTerms("token", time.monotonic() + 20, lambda: None), rounds)
    assert path.read_bytes() == sources.blob


def test_a_corrupt_chunk_is_refused_and_taken_from_another_source(sources: Sources, tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    rounds = [[sources.corrupt(5), sources.good()]]
    assert pull(sources.wanted(), path, PullTerms("token", time.monotonic() + 20, lambda: None), rounds)
    assert path.read_bytes() == sources.blob


def test_only_corrupt_sources_are_an_error_that_states_it(sources: Sources, tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    address = sources.corrupt(5)
    with pytest.raises(CorruptWeights, match=r"5 of 8 chunks came.*chunk 5 does not match its checksum"):
        pull(sources.wanted(), path, terms_of_pulses("token", 5 + 3), iter(lambda: [address], None))
    assert list(tmp_path.glob("weights*")) == []


def test_another_blob_is_refused_though_its_checksums_fit_it(sources: Sources, tmp_path: Path) -> None:
    """What a part is published with is one digest: a source cannot bring its own checksums."""
    path = tmp_path / "weights.safetensors"
    address = sources.other()
    with pytest.raises(CorruptWeights, match=r"0 of 8 chunks came.*checksums do not match the digest"):
        pull(sources.wanted(), path, terms_of_pulses("token", 3), iter(lambda: [address], None))
    assert pull(sources.wanted(), path, terms_of_pulses("token", 99), [[address, sources.good()]])
    assert path.read_bytes() == sources.blob


def test_a_wrong_token_is_refused(sources: Sources, tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    address = sources.good()
    with pytest.raises(WeightTimeout, match="wrong token"):
        pull(sources.wanted(), path, terms_of_pulses("other", 3), iter(lambda: [address], None))


def test_a_try_that_the_deadline_cuts_short_hides_no_reason(sources: Sources, tmp_path: Path) -> None:
    received: list[None] = []
    terms = PullTerms(
        "other",
        time.monotonic() + PULSE_SECONDS + 2.0,
        pulse=lambda: received.append(None),
        clock=lambda: time.monotonic() + len(received) * PULSE_SECONDS,
        sleep=lambda _: None,
    )
    with socket.create_server(("127.0.0.1", 0)) as silent:
        rounds = [[sources.good()], [f"127.0.0.1:{silent.getsockname()[1]}"]]
        with pytest.raises(WeightTimeout, match=r"failed 1 times, .*wrong token"):
            pull(sources.wanted(), tmp_path / "weights.safetensors", terms, rounds)


def test_a_receiver_pulses_while_its_source_is_stopped_and_takes_another(sources: Sources, tmp_path: Path) -> None:
    """The rank that pulls would be named as the one that hangs, and not the rank that is stopped."""
    path = tmp_path / "weights.safetensors"
    pulses: list[float] = []
    terms = PullTerms("token", time.monotonic() + 60, lambda: pulses.append(time.monotonic()))
    rounds = [[sources.stopped(), sources.good()]]
    begun = time.monotonic()
    assert pull(sources.wanted(), path, terms, rounds)
    assert path.read_bytes() == sources.blob
    before_the_other = len(pulses) - 8  # one for each of its chunks
    assert before_the_other >= 3, [round(at - begun, 1) for at in pulses]


def test_no_source_at_all_is_an_error_by_name(sources: Sources, tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    with pytest.raises(WeightTimeout, match=r"Policy v1@1, part 0: 0 of 8 chunks came .* no source was offered"):
        pull(sources.wanted(), path, PullTerms("token", time.monotonic() + 0.2, lambda: None), iter(list, None))


def test_a_receiver_killed_in_the_middle_leaves_nothing_that_looks_whole(sources: Sources, tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    address, wanted = sources.good(), sources.wanted()
    pid = os.fork()
    if pid == 0:
        chunks = iter(range(4))

        def die_at_the_fourth() -> None:
            if next(chunks) == 3:
                os.kill(os.getpid(), signal.SIGKILL)

        pull(wanted, path, PullTerms("token", time.monotonic() + 20, die_at_the_fourth), [[address]])
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert not path.exists()
    assert pull(wanted, path, PullTerms("token", time.monotonic() + 20, lambda: None), [[address]])
    assert path.read_bytes() == sources.blob
