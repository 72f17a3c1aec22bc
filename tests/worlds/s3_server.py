"""A real S3-compatible server for tests: moto's, as a separate process on a loopback port.

`s3_server` (a fixture for the session) starts the server, waits for its first response, and ends it
by its handle. `S3Server.options()` returns the options with which `tidelog.objects.open_store`
reaches it, and `S3Server.environment()` the same options as environment variables, for other
processes.

To test against another server, set TIDELOG_S3_ENDPOINT (and AWS_ACCESS_KEY_ID,
AWS_SECRET_ACCESS_KEY): then moto is not started, and buckets are created on the other server.
"""

import http.client
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.worlds.kafka.broker import free_port

START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 20
REGION = "us-east-1"


class S3Server:
    """A server with S3's protocol: our own process, or an external endpoint."""

    def __init__(self, log_path: Path, endpoint: str | None = None) -> None:
        self._log_path = log_path
        self._is_ours = endpoint is None
        self.endpoint = endpoint or f"http://127.0.0.1:{free_port()}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server and wait for a response; does nothing for an external endpoint."""
        if not self._is_ours:
            return
        host, port = self._address()
        command = [sys.executable, "-m", "moto.server", "-H", host, "-p", str(port)]
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        for _ in range(START_TIMEOUT_S * 10):
            if self._answers():
                return
            if self._process.poll() is not None:
                break
            threading.Event().wait(0.1)
        self.stop()
        raise RuntimeError(f"the S3 server did not start: {self._log_path.read_text()[-2000:]}")

    def _address(self) -> tuple[str, int]:
        parts = urlsplit(self.endpoint)
        return parts.hostname or "127.0.0.1", parts.port or 80

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection(*self._address(), timeout=5)
        try:
            connection.request("GET", "/")
            return connection.getresponse().status < 500
        except OSError:
            return False
        finally:
            connection.close()

    def stop(self) -> None:
        """End the server's process, whose data is lost; does nothing for an external endpoint."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(STOP_TIMEOUT_S)

    def options(self) -> dict[str, str]:
        """Return options for `open_store`."""
        return {
            "endpoint": self.endpoint,
            "region": os.environ.get("AWS_REGION", REGION),
            "access_key_id": os.environ.get("AWS_ACCESS_KEY_ID", "testing"),
            "secret_access_key": os.environ.get("AWS_SECRET_ACCESS_KEY", "testing-secret"),
        }

    def environment(self) -> dict[str, str]:
        """Return the options as environment variables."""
        options = self.options()
        return {
            "AWS_ENDPOINT_URL": options["endpoint"],
            "AWS_REGION": options["region"],
            "AWS_ACCESS_KEY_ID": options["access_key_id"],
            "AWS_SECRET_ACCESS_KEY": options["secret_access_key"],
        }

    def bucket(self) -> str:
        """Create an empty bucket; return the bucket's name."""
        import boto3

        options = self.options()
        name = f"tidelog-{uuid.uuid4().hex[:12]}"
        client = boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name=options["region"],
            aws_access_key_id=options["access_key_id"],
            aws_secret_access_key=options["secret_access_key"],
        )
        client.create_bucket(Bucket=name)
        client.close()
        return name


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A running server for the session; each test creates its own bucket."""
    log_path = tmp_path_factory.mktemp("s3") / "server.log"
    server = S3Server(log_path, os.environ.get("TIDELOG_S3_ENDPOINT"))
    server.start()
    try:
        yield server
    finally:
        server.stop()
