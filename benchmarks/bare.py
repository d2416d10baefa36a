"""Applications that answer a vector as the service does, with less and less around it (cached.py).

All run on uvicorn with uvloop and httptools, as the service. The answer comes from a file.

    python -m benchmarks.bare NAME PORT FILE
"""

import sys
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import orjson
import uvicorn
from fastapi import Body, FastAPI, Response
from pydantic import BaseModel

JSON = [(b"content-type", b"application/json")]


def answering(body: bytes) -> Any:
    """Reads a request to its end, and answers bytes that are ready."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        while (await receive()).get("more_body"):
            pass
        headers = [*JSON, (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return app


def encoding(body: bytes) -> Any:
    """Parses the body, finds the text's vector in a dictionary, and writes it as JSON."""
    vectors = [np.array(orjson.loads(body)[0], np.float32)]
    known: dict[str, Any] = {}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        content, more = b"", True
        while more:
            message = await receive()
            content, more = content + message.get("body", b""), message.get("more_body", False)
        found = known.setdefault(orjson.loads(content)["inputs"], vectors)
        answer = orjson.dumps(found, option=orjson.OPT_SERIALIZE_NUMPY)
        headers = [*JSON, (b"content-length", b"%d" % len(answer))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    return app


class Request(BaseModel):
    """The body of `POST /embed`, of which one text is read."""

    inputs: str


def routed(body: bytes) -> Any:
    """The same with FastAPI, as a team would write it first."""
    vectors = [np.array(orjson.loads(body)[0], np.float32)]
    known: dict[str, Any] = {}
    app = FastAPI()

    @app.post("/embed")
    async def embed(request: Annotated[Request, Body()]) -> Response:
        found = known.setdefault(request.inputs, vectors)
        answer = orjson.dumps(found, option=orjson.OPT_SERIALIZE_NUMPY)
        return Response(answer, media_type="application/json")

    return app


APPS = {"answering": answering, "encoding": encoding, "routed": routed}

if __name__ == "__main__":
    uvicorn.run(
        APPS[sys.argv[1]](Path(sys.argv[3]).read_bytes()),
        port=int(sys.argv[2]),
        loop="uvloop",
        http="httptools",
        access_log=False,
        log_level="warning",
    )
