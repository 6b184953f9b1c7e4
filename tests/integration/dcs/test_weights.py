"""Weights on their way: whole or not at all, from whoever has them, through deaths of either end."""

from __future__ import annotations

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
from safetensors.torch import load_file

from rljob_api.names import Lineage, Role, WeightVersion
from rljob_api.wire.identity import WeightId
from rljob_api.wire.weights import Stream, WeightOffer
from rljob_workers.dcs.errors import CorruptWeights, LifeOver, WeightDead, WeightIncomplete, WeightTimeout
from rljob_workers.dcs.session import RankSession
from rljob_workers.dcs.weights import StagedWeights, WeightPublisher, WeightReceiver, build_publisher, build_receiver
from rljob_workers.dcs.weights.pulling import PullTerms, monotonic_terms, pull
from rljob_workers.dcs.weights.serving import ChunkServer, ServedWeight
from tests.integration.dcs.world import PATIENCE_SECONDS, World, eventually


def weight(version: int, lineage: int = 1) -> WeightId:
    return WeightId(lineage=Lineage(lineage), version=WeightVersion(version))


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


def assert_is(staged: StagedWeights | None, expected_id: WeightId, expected: dict[str, torch.Tensor]) -> None:
    assert staged is not None
    assert staged.weight == expected_id
    found = load_file(staged.path)
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
    publisher.publish(Stream.POLICY, weight(0), tensors(0), deadline=in_time())
    assert_is(receiver.await_newer(Stream.POLICY, None, deadline=in_time()), weight(0), tensors(0))


def test_a_waiting_receiver_is_woken(publisher: WeightPublisher, receiver: WeightReceiver) -> None:
    staged: list[StagedWeights | None] = []
    waiting = threading.Thread(
        target=lambda: staged.append(receiver.await_newer(Stream.POLICY, None, deadline=in_time()))
    )
    waiting.start()
    publisher.publish(Stream.POLICY, weight(0), tensors(0), deadline=in_time())
    waiting.join()
    assert_is(staged[0], weight(0), tensors(0))


def test_nothing_newer_is_none_at_the_deadline(publisher: WeightPublisher, receiver: WeightReceiver) -> None:
    publisher.publish(Stream.POLICY, weight(0), tensors(0), deadline=in_time())
    assert receiver.await_newer(Stream.POLICY, weight(0), deadline=time.monotonic() + 0.05) is None


def test_a_late_joiner_gets_the_newest(world: World, publisher: WeightPublisher, receiver: WeightReceiver) -> None:
    for version in range(3):
        publisher.publish(Stream.REFERENCE, weight(version), tensors(version), deadline=in_time())
    assert_is(receiver.await_newer(Stream.REFERENCE, None, deadline=in_time()), weight(2), tensors(2))
    session = world.rank(Role.ROLLOUT, 1)
    late = build_receiver(session.context, session)
    assert_is(late.await_newer(Stream.REFERENCE, None, deadline=in_time()), weight(2), tensors(2))
    late.close()


def test_only_the_newest_files_stay(publisher: WeightPublisher, receiver: WeightReceiver) -> None:
    held, folders = None, set()
    for version in range(4):
        publisher.publish(Stream.REFERENCE, weight(version), tensors(version), deadline=in_time())
        staged = receiver.await_newer(Stream.REFERENCE, held, deadline=in_time())
        assert staged is not None
        held = staged.weight
        folders.add(staged.path.parent)
    (folder,) = folders
    assert sorted(path.name for path in folder.iterdir()) == [
        "Reference-1-2.safetensors",
        "Reference-1-3.safetensors",
    ]


def test_a_version_before_its_turn_is_refused(publisher: WeightPublisher) -> None:
    publisher.publish(Stream.POLICY, weight(0), tensors(0), deadline=in_time())
    with pytest.raises(WeightIncomplete, match="version 1 cannot be published: train_0"):
        publisher.publish(Stream.POLICY, weight(1), tensors(1), deadline=in_time())


def test_a_weight_of_a_past_that_was_left_is_refused_and_not_told(
    world: World, publisher: WeightPublisher, receiver: WeightReceiver
) -> None:
    publisher.publish(Stream.REFERENCE, weight(5), tensors(5), deadline=in_time())
    world.raise_epoch(2)
    world.order(2)
    with pytest.raises(LifeOver):
        publisher.publish(Stream.REFERENCE, weight(6), tensors(6), deadline=in_time())
    session = world.rank(Role.ACTOR, epoch=2)
    later = build_publisher(session.context, session)
    with pytest.raises(WeightDead, match="its lineage was left before this version"):
        later.publish(Stream.REFERENCE, weight(5, lineage=1), tensors(5), deadline=in_time())
    assert receiver.await_newer(Stream.REFERENCE, None, deadline=time.monotonic() + 0.05) is None
    later.publish(Stream.REFERENCE, weight(0, lineage=2), tensors(9), deadline=in_time())
    newest = receiver.await_newer(Stream.REFERENCE, weight(5), deadline=in_time())
    assert_is(newest, weight(0, lineage=2), tensors(9))
    later.close()


def test_publishing_and_waiting_outlive_a_kill_of_the_coordinator(
    world: World, publisher: WeightPublisher, receiver: WeightReceiver
) -> None:
    staged: list[StagedWeights | None] = []
    waiting = threading.Thread(
        target=lambda: staged.append(receiver.await_newer(Stream.POLICY, None, deadline=in_time()))
    )
    waiting.start()
    world.kill()
    publishing = threading.Thread(
        target=lambda: publisher.publish(Stream.POLICY, weight(0), tensors(0), deadline=in_time())
    )
    publishing.start()
    world.start()
    publishing.join()
    waiting.join()
    assert_is(staged[0], weight(0), tensors(0))
    assert world.status().published == 0


def test_the_pulse_is_called_while_waiting_and_may_end_it(receiver: WeightReceiver) -> None:
    def over() -> None:
        raise LifeOver("enough")

    with pytest.raises(LifeOver, match="enough"):
        receiver.await_newer(Stream.POLICY, None, deadline=in_time(), pulse=over)


def test_a_receiver_serves_what_it_has_when_the_trainer_is_gone(
    world: World, publisher: WeightPublisher, receiver: WeightReceiver
) -> None:
    publisher.publish(Stream.POLICY, weight(0), tensors(0), deadline=in_time())
    assert receiver.await_newer(Stream.POLICY, None, deadline=in_time()) is not None

    def peers() -> bool:
        offer = WeightOffer.model_validate_json(world.call("GET", "/v1/weights/Policy"))
        return len(offer.sources) == 2

    eventually(peers, "the receiver as a source")
    publisher.close()
    session = world.rank(Role.ROLLOUT, 1)
    late = build_receiver(session.context, session)
    assert_is(late.await_newer(Stream.POLICY, None, deadline=in_time()), weight(0), tensors(0))
    late.close()


# --- pulls against sources that fail


class Sources:
    """Chunk servers in processes of their own, over one blob; some are not what they should be."""

    def __init__(self, folder: Path, chunk_bytes: int, num_chunks: int) -> None:
        self.token = "token"
        self.blob = os.urandom(chunk_bytes * num_chunks - 5)
        self._folder = folder
        self._chunk_bytes = chunk_bytes
        self._processes: list[multiprocessing.process.BaseProcess] = []

    def offer(self) -> WeightOffer:
        from rljob_workers.dcs.blob import checksum

        view = memoryview(self.blob)
        starts = range(0, len(view), self._chunk_bytes)
        return WeightOffer(
            stream=Stream.POLICY,
            id=weight(1),
            num_bytes=len(view),
            chunk_bytes=self._chunk_bytes,
            checksums=[checksum(view[start : start + self._chunk_bytes]) for start in starts],
            sources=[],
        )

    def good(self) -> str:
        return self._serve(self.blob)

    def corrupt(self, chunk: int) -> str:
        wrong = bytearray(self.blob)
        wrong[chunk * self._chunk_bytes] ^= 1
        return self._serve(bytes(wrong))

    def dying(self, after_chunks: int) -> str:
        """Dies by SIGKILL once it has sent so much."""
        return self._serve(self.blob, die_at=after_chunks * self._chunk_bytes)

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()

    def _serve(self, content: bytes, die_at: int | None = None) -> str:
        path = self._folder / f"source-{len(self._processes)}"
        path.write_bytes(content)
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("fork").Process(
            target=_serve_file, args=(path, self.token, self._chunk_bytes, die_at, theirs), daemon=True
        )
        process.start()
        self._processes.append(process)
        address: str = ours.recv()
        ours.close()
        theirs.close()
        return address


def _serve_file(path: Path, token: str, chunk_bytes: int, die_at: int | None, tell: object) -> None:
    from rljob_workers.dcs.weights import serving

    if die_at is not None:
        serving._send_range = lambda connection, descriptor, start, end: _send_and_die(
            connection, descriptor, start, die_at
        )
    server = ChunkServer("127.0.0.1", token)
    descriptor = os.open(path, os.O_RDONLY)
    server.serve(ServedWeight(Stream.POLICY, weight(1), descriptor, path.stat().st_size, chunk_bytes))
    tell.send(server.address)  # type: ignore[attr-defined]
    signal.pause()


def _send_and_die(connection: object, descriptor: int, start: int, length: int) -> None:
    connection.sendall(os.pread(descriptor, length, start))  # type: ignore[attr-defined]
    os.kill(os.getpid(), signal.SIGKILL)


PULSE_SECONDS = 10.0
"""More than a source may be silent."""


def terms_of_pulses(token: str, pulses: int) -> PullTerms:
    """Over after so many pulses, a chunk or a round each: no try is cut off because this machine is slow."""
    heard: list[None] = []
    return PullTerms(
        token,
        pulses * PULSE_SECONDS,
        lambda: len(heard) * PULSE_SECONDS,
        sleep=lambda _: None,
        pulse=lambda: heard.append(None),
    )


@pytest.fixture
def sources(tmp_path: Path) -> Iterator[Sources]:
    sources = Sources(tmp_path, 1 << 16, 8)
    yield sources
    sources.stop()


def test_a_source_that_dies_in_the_middle_is_replaced_and_its_chunks_are_kept(sources: Sources, tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    rounds = [[sources.dying(3), sources.good()]]
    assert pull(sources.offer(), path, monotonic_terms("token", 20, lambda: None), rounds)
    assert path.read_bytes() == sources.blob


def test_a_corrupt_chunk_is_refused_and_taken_from_another_source(sources: Sources, tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    rounds = [[sources.corrupt(5), sources.good()]]
    assert pull(sources.offer(), path, monotonic_terms("token", 20, lambda: None), rounds)
    assert path.read_bytes() == sources.blob


def test_only_corrupt_sources_are_an_error_that_says_so(sources: Sources, tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    address = sources.corrupt(5)
    with pytest.raises(CorruptWeights, match=r"5 of 8 chunks came.*chunk 5 does not match its checksum"):
        pull(sources.offer(), path, terms_of_pulses("token", 5 + 3), iter(lambda: [address], None))
    assert list(tmp_path.glob("weights*")) == []


def test_a_wrong_token_is_refused(sources: Sources, tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    address = sources.good()
    with pytest.raises(WeightTimeout, match="wrong token"):
        pull(sources.offer(), path, terms_of_pulses("other", 3), iter(lambda: [address], None))


def test_a_try_that_the_deadline_cuts_short_hides_no_reason(sources: Sources, tmp_path: Path) -> None:
    heard: list[None] = []
    terms = PullTerms(
        "other",
        time.monotonic() + PULSE_SECONDS + 0.3,
        lambda: time.monotonic() + len(heard) * PULSE_SECONDS,
        sleep=lambda _: None,
        pulse=lambda: heard.append(None),
    )
    with socket.create_server(("127.0.0.1", 0)) as silent:
        rounds = [[sources.good()], [f"127.0.0.1:{silent.getsockname()[1]}"]]
        with pytest.raises(WeightTimeout, match=r"failed 1 times, .*wrong token"):
            pull(sources.offer(), tmp_path / "weights.safetensors", terms, rounds)


def test_no_source_at_all_is_an_error_by_name(sources: Sources, tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    with pytest.raises(WeightTimeout, match=r"Policy v1@1: 0 of 8 chunks came .* no source was offered"):
        pull(sources.offer(), path, monotonic_terms("token", 0.2, lambda: None), iter(list, None))


def test_a_receiver_killed_in_the_middle_leaves_nothing_that_looks_whole(sources: Sources, tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    address, offer = sources.good(), sources.offer()
    pid = os.fork()
    if pid == 0:
        chunks = iter(range(4))

        def die_at_the_fourth() -> None:
            if next(chunks) == 3:
                os.kill(os.getpid(), signal.SIGKILL)

        pull(offer, path, monotonic_terms("token", 20, die_at_the_fourth), [[address]])
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert not path.exists()
    assert pull(offer, path, monotonic_terms("token", 20, lambda: None), [[address]])
    assert path.read_bytes() == sources.blob
