"""Files from outside: received within bounds, looked at by a process of its own, kept in folders with
random names."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
from collections.abc import AsyncIterator, Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect, Request

from meta500.errors import UserError
from meta500.metrics.run import explained
from meta500.web.inspectors import Inspectors
from meta500.web.limits import GIBI, MEBI, Limits
from meta500.web.refusals import Refusal
from meta500.web.setups import NAME, label
from meta500.web.storage import UPLOAD, Storage, new_upload, now, stem, write_json

# Seconds within which the next part of a body must come.
_PATIENCE = 30.0
# Bytes of memory that reading one byte of a file may take.
_EXPANSION = 5
FACTS = "upload.json"
_FORM, _RAW = "multipart/form-data", ("application/octet-stream", "application/x-onnx", "")


class Uploads:
    """Uploaded files in one runs folder.

    Args:
        storage: the folder.
        limits: how large, and how many.
        inspectors: who looks at them.
        needed: whether a run needs the file of an identifier.
    """

    def __init__(
        self, storage: Storage, limits: Limits, inspectors: Inspectors, needed: Callable[[str], bool]
    ) -> None:
        self.storage, self.limits, self.inspectors, self.needed = storage, limits, inspectors, needed
        self._receiving = 0

    def name(self, upload: str) -> str:
        """What the file was called.

        Raises:
            Refusal: there is no such file.
        """
        try:
            self.storage.uploaded(upload)
            facts = json.loads((self.storage.upload(upload) / FACTS).read_bytes())
            found = facts["name"]
            if facts["trainable"] is not True:
                raise Refusal(
                    HTTPStatus.UNPROCESSABLE_ENTITY, f"{found}: cannot be trained: {facts['problem']}"
                )
        except Refusal:
            raise
        except (OSError, ValueError, KeyError, TypeError, UserError):
            raise Refusal(
                HTTPStatus.UNPROCESSABLE_ENTITY, f"there is no uploaded file '{upload[:80]}'; upload it again"
            ) from None
        return str(found)

    async def receive(self, request: Request) -> dict[str, Any]:
        """Take the file of a request and say what it is.

        Raises:
            Refusal: too large (413), another kind of body (415), a full disk (507), too many at a time (429).
            UserError: no ONNX model.
        """
        if self._receiving >= 4:
            raise Refusal(HTTPStatus.TOO_MANY_REQUESTS, "four uploads are under way; try again in a moment")
        self.storage.check_free()
        upload = new_upload()
        folder = self.storage.upload(upload)
        partial = folder.with_suffix(".part")
        self._receiving += 1
        try:
            name = await self._written(request, partial)
            size = partial.stat().st_size
            if not size:
                raise UserError(f"{name}: is empty")
            facts = await self.inspectors.ask(
                *("upload", f"{name}:"),
                memory=GIBI + _EXPANSION * self.limits.upload,
                path=str(partial),
                shown=name,
            )
            facts = {"id": upload, "name": name, "bytes": size, "received": now(), **facts}
            self._make_room()
            try:
                folder.mkdir()
                write_json(folder / FACTS, facts)
                os.replace(partial, folder / f"{stem(name)}.onnx")
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
        except OSError as error:
            raise Refusal(HTTPStatus.INSUFFICIENT_STORAGE, str(explained(folder, error))) from None
        finally:
            self._receiving -= 1
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
        return facts

    async def _written(self, request: Request, path: Path) -> str:
        """Write the file of the body, and give its name for people."""
        kind, options = parse_options_header(request.headers.get("content-type", ""))
        kind_text = kind.decode("latin-1").lower()
        declared = request.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > self.limits.upload + MEBI:
            raise self._too_large()
        with open(path, "xb") as file:
            if kind_text == _FORM:
                form = _Form(options.get(b"boundary", b""), file.write, self.limits.upload)
                async for part in parts(request):
                    await asyncio.to_thread(form.feed, part, self._too_large)
                return form.finish()
            if kind_text not in _RAW:
                raise Refusal(
                    HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
                    f"'{kind_text[:80]}' is no kind of body for a file: use {_FORM} with a field 'file', "
                    "or application/octet-stream",
                )
            size = 0
            async for part in parts(request):
                size += len(part)
                if size > self.limits.upload:
                    raise self._too_large()
                await asyncio.to_thread(file.write, part)
        return cleaned(request.query_params.get("name", ""))

    def _too_large(self) -> Refusal:
        most = self.limits.upload / MEBI
        return Refusal(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the file is larger than {most:g} MiB, the limit here"
        )

    def _make_room(self) -> None:
        """Remove the oldest files beyond the limit that no run needs."""
        folders = [path for path in self.storage.uploads.iterdir() if UPLOAD.fullmatch(path.name)]
        there = sorted(folders, key=lambda path: path.stat().st_mtime)
        surplus = len(there) + 1 - self.limits.uploads
        for path in [path for path in there if not self.needed(path.name)][: max(0, surplus)]:
            shutil.rmtree(path, ignore_errors=True)


class _Form:
    """A form that comes in parts; the field "file" is written away, others are ignored within bounds."""

    def __init__(self, boundary: bytes, write: Callable[[bytes], Any], most: int) -> None:
        if not boundary or len(boundary) > 200:
            raise UserError("the form has no boundary of at most 200 characters")
        self.write, self.most, self.size = write, most, 0
        self.name: str | None = None
        self._headers: dict[bytes, bytes] = {}
        self._field, self._value = b"", b""
        self._wanted = self._done = False
        callbacks: Any = {
            "on_part_begin": self._headers.clear,
            "on_header_field": self._on_field,
            "on_header_value": self._on_value,
            "on_header_end": self._on_header_end,
            "on_headers_finished": self._on_headers,
            "on_part_data": self._on_data,
            "on_end": self._on_end,
        }
        self._parser = MultipartParser(boundary, callbacks)

    def feed(self, data: bytes, too_large: Callable[[], Exception]) -> None:
        """The next part of the body."""
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise UserError(f"the form is malformed: {error}"[:200]) from None
        if self.size > self.most:
            raise too_large()

    def finish(self) -> str:
        """The name of the file, at the end of the body."""
        if self.name is None:
            raise UserError("the form has no field 'file'")
        if not self._done:
            raise UserError("the form ends in the middle")
        return self.name

    def _on_field(self, data: bytes, start: int, end: int) -> None:
        self._field += data[start:end]

    def _on_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _on_header_end(self) -> None:
        self._headers[self._field.lower()] = self._value
        self._field = self._value = b""

    def _on_headers(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        self._wanted = options.get(b"name") == b"file"
        if self._wanted:
            if self.name is not None:
                raise UserError("the form has more than one field 'file'")
            self.name = cleaned(options.get(b"filename", b"").decode("utf-8", "replace"))

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        self.size += end - start
        if self._wanted and self.size <= self.most:
            self.write(data[start:end])

    def _on_end(self) -> None:
        self._done = True


async def parts(request: Request) -> AsyncIterator[bytes]:
    """The body as it comes.

    Raises:
        Refusal: the client is silent for too long.
    """
    stream = request.stream()
    while True:
        try:
            async with asyncio.timeout(_PATIENCE):
                part = await anext(stream)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise Refusal(
                HTTPStatus.REQUEST_TIMEOUT, f"nothing came for {_PATIENCE:g} s; send it again"
            ) from None
        except ClientDisconnect:
            raise Refusal(HTTPStatus.BAD_REQUEST, "the connection was closed") from None
        yield part


def cleaned(name: str) -> str:
    """The last part of a file's name as one line of text; only its `stem` gets into a path."""
    return label(name.replace("\\", "/").rpartition("/")[2], NAME) or "model.onnx"
