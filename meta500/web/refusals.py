"""Requests that are refused: a status of HTTP and one sentence."""

from __future__ import annotations

from http import HTTPStatus

from starlette.responses import JSONResponse

from meta500.errors import UserError


class Refusal(UserError):
    """A request that cannot be done; ``status`` is the one of HTTP."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


def answer(error: UserError) -> JSONResponse:
    """The error as JSON; what is no `Refusal` is input that does not fit (422)."""
    status = error.status if isinstance(error, Refusal) else HTTPStatus.UNPROCESSABLE_ENTITY
    # What came from outside may hold half of a character.
    text = str(error).encode("utf-8", "backslashreplace").decode()
    return JSONResponse({"error": text}, status)
