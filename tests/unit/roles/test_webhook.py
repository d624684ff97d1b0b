"""The webhook hook against a receiver on this machine: what it posts, through what, and when it says no."""

from __future__ import annotations

import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HOOK = Path(__file__).resolve().parents[3] / "roles/node_agent/files/50-webhook"
EVENT = {
    "event": "raised",
    "severity": "critical",
    "id": "time.offset",
    "text": "ALARM: gpu-a1: 60 ms",
    "host": "gpu-a1",
}
SECRET = "/hook/s3cr3t-part"


class Receiver:
    """A web server that keeps what it got and answers as told."""

    def __init__(self) -> None:
        self.got: list[tuple[str, Any]] = []
        self.status, self.answer = 200, b"ok"
        self.headers: dict[str, str] = {}
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.got.append((self.path, json.loads(body)))
                self.send_response(receiver.status)
                for key, value in receiver.headers.items():
                    self.send_header(key, value)
                self.end_headers()
                self.wfile.write(receiver.answer)

            def log_message(self, *_args: Any) -> None: ...

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.server.shutdown()


def post(tmp_path: Path, event: Any = EVENT, **config: Any) -> subprocess.CompletedProcess[str]:
    """Run the hook with this configuration in the place of /etc/steadyrack/webhook.json."""
    settings = tmp_path / "webhook.json"
    settings.write_text(json.dumps(config))
    hook = tmp_path / "50-webhook"
    hook.write_text(
        HOOK.read_text().replace("/etc/steadyrack/webhook.json", str(settings)).replace("T_S = 10", "T_S = 1")
    )
    done = subprocess.run(
        [sys.executable, "-I", str(hook)],
        input=json.dumps(event),
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert "s3cr3t" not in done.stdout + done.stderr
    return done


def test_the_event_is_posted_as_it_is(tmp_path: Path, receiver: Receiver) -> None:
    assert post(tmp_path, url=receiver.url + SECRET).returncode == 0
    assert receiver.got == [(SECRET, EVENT)]


@pytest.mark.parametrize(
    ("body", "sent"),
    [
        ({"text": "{text}"}, {"text": EVENT["text"]}),
        (
            {"msgtype": "text", "text": {"content": "rack: {text}"}},
            {"msgtype": "text", "text": {"content": f"rack: {EVENT['text']}"}},
        ),
        ({"n": 1, "list": ["{text}"], "all": "{event}"}, {"n": 1, "list": [EVENT["text"]], "all": EVENT}),
    ],
)
def test_receivers_with_a_form_of_their_own_get_it(tmp_path: Path, receiver: Receiver, body: Any, sent: Any) -> None:
    assert post(tmp_path, url=receiver.url, body=body).returncode == 0
    assert receiver.got[0][1] == sent


def test_a_node_goes_through_its_relays_proxy(tmp_path: Path, receiver: Receiver) -> None:
    assert post(tmp_path, url="http://hooks.invalid" + SECRET, proxy=receiver.url).returncode == 0
    assert receiver.got[0][0] == "http://hooks.invalid" + SECRET


@pytest.mark.parametrize(
    ("status", "answer", "said"),
    [
        (404, b"", "HTTP status 404"),
        (500, b"", "HTTP status 500"),
        (302, b"", "HTTP status 302"),
        (200, b'{"errcode": 310000, "errmsg": "keywords not in content"}', "refused: errcode 310000"),
        (200, b'{"code": 19001}', "refused: code 19001"),
    ],
)
def test_what_was_not_taken_is_a_failure(
    tmp_path: Path, receiver: Receiver, status: int, answer: bytes, said: str
) -> None:
    receiver.status, receiver.answer = status, answer
    receiver.headers = {"Location": receiver.url + "/elsewhere"} if status == 302 else {}
    done = post(tmp_path, url=receiver.url + SECRET)
    assert (done.returncode, done.stderr.strip()) == (1, said)
    assert len(receiver.got) == 1


@pytest.mark.parametrize("answer", [b'{"errcode": 0, "errmsg": "ok"}', b'{"ok": true}', b"[]", b"\xff", b""])
def test_other_answers_are_taken_for_yes(tmp_path: Path, receiver: Receiver, answer: bytes) -> None:
    receiver.answer = answer
    assert post(tmp_path, url=receiver.url).returncode == 0


@pytest.mark.parametrize(
    "url",
    ["ftp://example" + SECRET, "file://" + SECRET, "http://127.0.0.1:1" + SECRET, "http://127.0.0.1:99/ x" + SECRET],
)
def test_a_url_that_leads_nowhere_is_a_failure_that_does_not_tell_it(tmp_path: Path, url: str) -> None:
    assert post(tmp_path, url=url).returncode == 1


def test_a_receiver_whose_certificate_nobody_vouches_for_is_refused(tmp_path: Path) -> None:
    import ssl

    server = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=127.0.0.1"]
    subprocess.run([*words, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.handle_request, daemon=True).start()
    done = post(tmp_path, url=f"https://127.0.0.1:{server.server_port}{SECRET}")
    assert done.returncode == 1
    assert "CERTIFICATE_VERIFY_FAILED" in done.stderr


def test_warnings_can_be_left_out_and_the_end_of_an_alarm_is_still_told(tmp_path: Path, receiver: Receiver) -> None:
    def told(**event: Any) -> int:
        before = len(receiver.got)
        assert post(tmp_path, {**EVENT, **event}, url=receiver.url, severity="critical").returncode == 0
        return len(receiver.got) - before

    assert told(severity="warning") == 0
    assert told(severity="critical") == 1
    assert told(severity="info", event="cleared", was="critical") == 1
    assert told(severity="info", event="cleared", was="warning") == 0
    assert told(severity="warning", event="lowered", was="critical") == 1


def test_a_configuration_or_an_event_of_garbage_is_a_failure(tmp_path: Path) -> None:
    assert post(tmp_path).returncode == 1
    assert post(tmp_path, ["no", "event"], url="http://127.0.0.1:1").returncode == 1
