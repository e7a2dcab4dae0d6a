import threading
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

import pytest
from synthetic_comparison import compare, run
from synthetic_run import write

from fedstrata.base.errors import InputError, RecordError
from fedstrata.report import build, live
from fedstrata.report.live import LiveServer
from fedstrata.report.reader import read


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Empty, beside a file that nobody may see."""
    (tmp_path / "secret.toml").write_text("secret = 1\n")
    (tmp_path / "watched").mkdir()
    return tmp_path / "watched"


@pytest.fixture
def server(folder: Path) -> Iterator[LiveServer]:
    with LiveServer(folder) as served:
        thread = threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield served
        served.shutdown()
        thread.join()


def ask(server: LiveServer, path: str = "/page", method: str = "GET", **headers: str) -> tuple[HTTPResponse, str]:
    with closing(HTTPConnection("127.0.0.1", server.server_port)) as connection:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer, answer.read().decode()


def test_the_page_of_a_run_is_that_on_disk_and_grows_with_the_records(server: LiveServer, folder: Path) -> None:
    write(folder, count=3, finished=False)
    answer, first = ask(server)
    assert answer.status == 200 and "After 3 of 30 rounds, 20 clients" in first
    head, nothing = ask(server, method="HEAD")
    assert nothing == "" and head.headers["ETag"] == answer.headers["ETag"]
    lines = (folder / "rounds.jsonl").read_text().splitlines(keepends=True)
    (folder / "rounds.jsonl").write_text("".join(lines) + lines[-1].replace('"round": 3', '"round": 4') + '{"rou')
    assert ask(server, method="HEAD")[0].headers["ETag"] != answer.headers["ETag"]
    _, second = ask(server)
    assert "After 4 of 30 rounds" in second and "The last line of rounds.jsonl is cut off" in second
    assert second == build(folder).read_text(encoding="utf-8")


def test_a_page_is_made_once_as_long_as_its_records_stay(
    server: LiveServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []

    def counted(path: Path) -> object:
        made.append(path)
        return read(path)

    monkeypatch.setattr(live, "read", counted)
    write(folder, count=3)
    before = sorted((path, path.stat().st_mtime_ns) for path in folder.rglob("*"))
    assert ask(server)[1] == ask(server)[1]
    ask(server, method="HEAD")
    assert made == [folder]
    assert sorted((path, path.stat().st_mtime_ns) for path in folder.rglob("*")) == before


def test_a_folder_without_records_shows_that_it_waits(server: LiveServer, folder: Path) -> None:
    answer, text = ask(server)
    assert answer.status == 200 and "Nothing is recorded here yet." in text
    (folder / "experiment.toml").write_text("rounds = 3\n")
    assert "Nothing is recorded here yet." in ask(server)[1]
    (folder / "rounds.jsonl").write_text("no\nno\n")
    assert "rounds.jsonl line 1 is not JSON" in ask(server)[1]


def test_the_frame_holds_the_page_and_may_run_one_script(server: LiveServer, folder: Path) -> None:
    answer, text = ask(server, "/")
    assert answer.headers["ETag"] == ask(server, "/", "HEAD")[0].headers["ETag"] == '"frame"'
    assert 'data-page="/page"' in text and "<title>watched" in text and text.count("<script>") == 1
    assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
    assert answer.headers["Server"] == "fedstrata"


def test_a_comparison_shows_its_runs_until_its_page_is_there(server: LiveServer, folder: Path) -> None:
    run(folder / "cfl-0", "cfl", 0)
    (folder / "a <b>").mkdir()
    (folder / "a <b>" / "experiment.toml").touch()
    answer, text = ask(server)
    assert "2 runs so far" in text and '<a href="a%20%3Cb%3E/report.html">a &lt;b&gt;</a>' in text
    assert "cfl on digits" in ask(server, "/cfl-0/report.html")[1]
    run(folder / "cfl-1", "cfl", 1)
    assert ask(server, method="HEAD")[0].headers["ETag"] != answer.headers["ETag"]
    (folder / "comparison.html").write_text("<p>all of it", encoding="utf-8")
    assert ask(server)[1] == "<p>all of it"


def test_the_page_of_a_comparison_is_served_as_it_was_made(tmp_path: Path) -> None:
    made = compare(tmp_path, seeds=(0,))
    text = live.Pages(made.folder).page("/page")
    assert text is not None and text.text == (made.folder / "comparison.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "path",
    [
        "/experiment.toml",
        "/rounds.jsonl",
        "/report.html",
        "/../report.html",
        "/../secret.toml",
        "/..%2Fsecret.toml",
        "/%2e%2e/report.html",
        "/../other/report.html",
        "/%2e%2e%2fother/report.html",
        "/link/report.html",
        "/inside/cfl-0/report.html",
        "/a%00b/report.html",
        f"/{'a' * 300}/report.html",
        "//other/report.html",
    ],
)
def test_nothing_but_the_pages_of_the_folder_can_be_reached(path: str, server: LiveServer, folder: Path) -> None:
    write(folder, count=1)
    run(folder / "inside" / "cfl-0", "cfl", 0, count=1)
    run(folder.parent / "other", "cfl", 0, count=1)
    (folder / "link").symlink_to(folder.parent / "other")
    for method in ("GET", "HEAD"):
        assert ask(server, path, method)[0].status == 404


@pytest.mark.parametrize("name", ["experiment.toml", "comparison.html", "clients"])
def test_a_link_out_of_the_folder_is_not_followed(name: str, server: LiveServer, folder: Path) -> None:
    write(folder, count=1)
    (folder / name).rename(folder / "kept") if (folder / name).exists() else None
    (folder / name).symlink_to(folder.parent / "secret.toml")
    text = ask(server)[1]
    assert f"{name} is a link out of " in text and "secret = 1" not in text


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "[", "192.168.0.2"])
def test_a_name_that_was_made_to_lead_here_is_answered_by_nothing(host: str, server: LiveServer) -> None:
    for method in ("GET", "HEAD"):
        answer, text = ask(server, "/", method, Host=host)
        assert answer.status == 421 and "<script>" not in text


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "localhost:9"])
def test_this_machine_may_be_called_by_any_of_its_names_and_through_a_tunnel(host: str, server: LiveServer) -> None:
    assert ask(server, "/", Host=host)[0].status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_nothing_can_be_changed(method: str, server: LiveServer) -> None:
    assert ask(server, "/page", method)[0].status == 501


def test_only_this_machine_is_listened_to(server: LiveServer) -> None:
    assert server.socket.getsockname() == ("127.0.0.1", server.server_port)
    assert server.url == f"http://127.0.0.1:{server.server_port}/"


def test_what_cannot_be_watched_is_refused(server: LiveServer, tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"expected the folder of a run, found no folder at .*nowhere"):
        LiveServer(tmp_path / "nowhere")
    with pytest.raises(InputError, match=f"--port = {server.server_port}: expected a free port: "):
        LiveServer(tmp_path, server.server_port)


def test_a_browser_that_leaves_is_passed_over_and_a_fault_is_told(
    server: LiveServer, capsys: pytest.CaptureFixture[str]
) -> None:
    for error, told in ((BrokenPipeError(), False), (KeyError("what"), True)):
        try:
            raise error
        except (OSError, KeyError):
            server.handle_error(None, ("127.0.0.1", 1))
        assert ("KeyError: 'what'" in capsys.readouterr().err) is told
