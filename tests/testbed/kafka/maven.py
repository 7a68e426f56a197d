"""A Maven repository on the loopback with one small library that needs another: a stand-in for Maven Central."""

from __future__ import annotations

import contextlib
import hashlib
import io
import threading
import zipfile
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

COORDINATES = "example:app:1.0"

POM = """<?xml version="1.0"?>
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>example</groupId><artifactId>{name}</artifactId><version>1.0</version>
  <dependencies>{dependencies}</dependencies>
</project>
"""
NEEDS = """<dependency><groupId>example</groupId><artifactId>library</artifactId><version>1.0</version>
<scope>{scope}</scope></dependency>"""


def a_jar(size: int) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as jar:
        jar.writestr("content", b"x" * size)
    return buffer.getvalue()


class Repository:
    """The files by path, the requests so far, and the paths of answers to break off in the middle."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[str] = []
        self.broken: set[str] = set()
        self.files = {
            "/example/app/1.0/app-1.0.pom": POM.format(name="app", dependencies=NEEDS.format(scope="runtime")).encode(),
            "/example/app/1.0/app-1.0.jar": a_jar(100_000),
            "/example/library/1.0/library-1.0.pom": POM.format(name="library", dependencies="").encode(),
            "/example/library/1.0/library-1.0.jar": a_jar(10_000),
        }
        self.files |= {
            f"{path}.sha1": hashlib.sha1(data).hexdigest().encode()  # noqa: S324 - Maven's choice
            for path, data in self.files.items()
        }


@contextlib.contextmanager
def maven_repository() -> Iterator[Repository]:
    repository = Repository()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            repository.requests.append(self.path)
            data = repository.files.get(self.path)
            if data is None:
                self.send_error(HTTPStatus.NOT_FOUND)
                return
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[: len(data) // 2] if self.path in repository.broken else data)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        repository.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield repository
        finally:
            server.shutdown()
            thread.join()
