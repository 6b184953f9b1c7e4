"""An engine's silence is what its launcher has waited for, not what passed while the launcher itself was stopped."""

import socket

from rljob_api.machine.attended_time import AttendedClock
from rljob_workers.engines.backend import Ready
from rljob_workers.launcher.engine_health import HealthProbe
from rljob_workers.launcher.launcher import LONGEST_TURN_SECONDS

ANY = Ready("/health", lambda status: status > 0)


def test_a_launcher_that_was_stopped_has_not_waited() -> None:
    now = 0.0
    with socket.create_server(("127.0.0.1", 0)) as engine:
        attended = AttendedClock(LONGEST_TURN_SECONDS, lambda: now)
        probe = HealthProbe(engine.getsockname(), ANY, 1.0, lambda: now, attended)
        probe.reset()
        probe.turn()
        now = 1000.0
        attended.tick()
        probe.turn()
        assert probe.silence_seconds == LONGEST_TURN_SECONDS
        for _ in range(10):
            now += 0.5
            attended.tick()
            probe.turn()
        assert probe.silence_seconds == LONGEST_TURN_SECONDS + 10 * 0.5

        connection, _ = engine.accept()
        with connection:
            assert connection.recv(4096).startswith(b"GET /health")
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while not probe.answered:
            probe.turn()
        assert probe.silence_seconds == 0
        probe.close()


def test_only_the_status_that_the_backend_accepts_is_an_answer() -> None:
    now = 0.0
    with socket.create_server(("127.0.0.1", 0)) as engine:
        ready = Ready("/alive", lambda status: status == 200)
        attended = AttendedClock(LONGEST_TURN_SECONDS, lambda: now)
        probe = HealthProbe(engine.getsockname(), ready, 0.5, lambda: now, attended)
        probe.reset()
        for status, answers in ((b"503 Service Unavailable", False), (b"200 OK", True)):
            probe.turn()
            connection, _ = engine.accept()
            with connection:
                assert connection.recv(4096).startswith(b"GET /alive HTTP/1.1")
                connection.sendall(b"HTTP/1.1 " + status + b"\r\n\r\n")
                while probe.fileno() >= 0:
                    probe.turn()
            assert probe.answered is answers
            now += 0.5
            attended.tick()
        assert probe.silence_seconds == 0
        probe.close()
