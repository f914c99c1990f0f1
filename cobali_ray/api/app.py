"""The HTTP app: routes, frame, error shapes."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from fastapi import FastAPI, Response
from fastapi import Request as HttpRequest
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Match

from cobali_ray import __version__
from cobali_ray.api.anthropic.routes import Messages
from cobali_ray.api.batches.asking import Asker
from cobali_ray.api.batches.background import Background
from cobali_ray.api.batches.files import FileRoutes
from cobali_ray.api.batches.messages import MessageBatchRoutes
from cobali_ray.api.batches.routes import BatchRoutes
from cobali_ray.api.batches.runner import BatchRunner
from cobali_ray.api.call.intake import Intake
from cobali_ray.api.call.judges import Judges
from cobali_ray.api.door.clock import ApiClock, SystemClock
from cobali_ray.api.door.context import context_of
from cobali_ray.api.door.frame import METHODS, Frame, Lock, fault_response, is_open
from cobali_ray.api.door.keeping import Keeping
from cobali_ray.api.door.keyring import Keyring
from cobali_ray.api.door.origins import Origins
from cobali_ray.api.door.quota import RATE_HEADERS
from cobali_ray.api.engines.fleet import Fleet
from cobali_ray.api.engines.viewers import Viewers
from cobali_ray.api.llama_server.routes import LlamaServer
from cobali_ray.api.ollama.routes import Ollama
from cobali_ray.api.reply.streams import STREAM_HEADER, StreamRecordings
from cobali_ray.api.responses.conversations import ConversationRoutes
from cobali_ray.api.responses.routes import Responses
from cobali_ray.api.routes.cache import Cache
from cobali_ray.api.routes.chats import KeptChats
from cobali_ray.api.routes.debug import Debug
from cobali_ray.api.routes.downloads import Downloads
from cobali_ray.api.routes.embeddings import Embeddings
from cobali_ray.api.routes.facts import Facts
from cobali_ray.api.routes.generation import Generation
from cobali_ray.api.routes.openapi import describe
from cobali_ray.api.routes.page import Page
from cobali_ray.api.routes.requests import Requests
from cobali_ray.errors import CobaliError, UnknownPathError, WrongMethodError
from cobali_ray.settings import ApiSettings
from cobali_ray.store.database import Store
from cobali_ray.store.lines import CHATS, COMPLETIONS, EMBEDDINGS, MESSAGES, RESPONSES

if TYPE_CHECKING:  # OpenTelemetry, for those who want spans
    from cobali_ray.telemetry.tracing import Tracing


def build_api(
    fleet: Fleet,
    settings: ApiSettings,
    *,
    clock: ApiClock | None = None,
    tracer: Tracing | None = None,
    judges: Judges | None = None,
    listens: str | None = None,
    echo_request_id: bool = True,
    store: Store | None = None,
) -> FastAPI:
    """Build the OpenAI-compatible ASGI app over a fleet; `judges` may be shared by several apps.

    With a `store` there are files, batches and responses that are kept; those that wait are computed once
    `app.state.batches` is started.

    `listens` is where clients reach the server, if a front end takes their connections. Answers have
    x-request-id unless whatever serves the app adds it already.
    """
    clock = clock or SystemClock()
    app = FastAPI(
        title="cobali_ray", version=__version__, redirect_slashes=False, docs_url=None, redoc_url=None
    )
    intake = Intake(settings, judges or Judges())
    keeping = Keeping(store, settings, clock)
    app.state.streams = StreamRecordings(clock, keeping)
    generation = Generation(fleet, settings, clock, intake, app.state.streams)
    app.router.routes += generation.routes()
    embeddings = Embeddings(fleet, settings, clock, intake)
    app.router.routes += embeddings.routes()
    app.router.routes += LlamaServer(fleet, settings, generation, embeddings).routes()

    def wake() -> None:
        if app.state.batches is not None:
            app.state.batches.wake()

    responses = Responses(generation, settings, keeping, clock, wake)
    app.router.routes += responses.routes()
    app.router.routes += ConversationRoutes(keeping, settings, intake).routes()
    app.router.routes += KeptChats(keeping, intake).routes()
    messages = Messages(generation, settings)
    app.router.routes += messages.routes()
    app.router.routes += Ollama(fleet, settings, generation, embeddings, intake).routes()
    app.router.routes += Facts(fleet, settings, intake, store).routes()
    app.router.routes += Downloads(settings, intake).routes()
    app.state.viewers = {name: Viewers(engine, clock) for name, engine in fleet.engines.items()}
    app.router.routes += Debug(fleet, app.state.viewers).routes()
    app.router.routes += Requests(fleet).routes()
    app.router.routes += Cache(fleet, intake).routes()
    app.router.routes += Page().routes()
    keyring = Keyring(settings.api_keys, settings.api_keys_file, clock, n_ingress=settings.n_ingress)
    handlers = {
        CHATS: generation.chat,
        COMPLETIONS: generation.complete,
        EMBEDDINGS: embeddings.embed,
        RESPONSES: responses.answer_line,
        MESSAGES: messages.messages,
    }
    app.state.batches = None
    if store is not None:
        asker = Asker(handlers, clock)
        background = Background(store, asker, responses, clock, keyring)
        app.state.batches = BatchRunner(store, fleet, asker, clock, keyring, background)
    app.router.routes += FileRoutes(keeping, settings).routes()
    app.router.routes += BatchRoutes(keeping, intake, wake).routes()
    app.router.routes += MessageBatchRoutes(keeping, settings, intake, wake).routes()
    app.add_exception_handler(CobaliError, _on_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    # From the inside out: a browser's preflight has no key, and a page that may send requests may read why
    # its key is refused.
    app.add_middleware(Lock, keyring=keyring, clock=clock, behind_front=listens is not None)
    app.add_middleware(
        CORSMiddleware,
        allow_origin_regex=".*",  # Frame refuses the others
        allow_methods=("GET", "HEAD", "POST", "DELETE"),
        allow_headers=("*",),
        allow_private_network=True,
        expose_headers=(
            "request-id",
            "retry-after",
            "x-cobali-ignored-fields",
            "x-cobali-mended-fields",
            "x-request-id",
            STREAM_HEADER.decode(),
            *RATE_HEADERS,
        ),
    )
    app.add_middleware(
        Frame,
        origins=Origins(settings.allowed_origins),
        listens=listens,
        echo_id=echo_request_id,
        clock=clock,
        count=fleet.count,
        tracer=tracer,
    )
    describe(app, keyed=keyring.locked, is_open=is_open)
    return app


async def _on_error(http: HttpRequest, error: Exception) -> Response:
    return fault_response(context_of(http).blame(error))


async def _on_http_error(http: HttpRequest, error: Exception) -> Response:
    # The router's own: unknown paths and methods.
    context, path = context_of(http), http.url.path[:128]
    if getattr(error, "status_code", None) != HTTPStatus.METHOD_NOT_ALLOWED:
        return fault_response(context.blame(UnknownPathError(http.method, path)))
    response = fault_response(context.blame(WrongMethodError(http.method, path)))
    response.headers["allow"] = _allowed(http)  # the router would name the methods of one route
    return response


def _allowed(http: HttpRequest) -> str:
    """Return the methods of all routes of a path."""
    routes = http.app.router.routes
    scopes = ((method, {**http.scope, "method": method}) for method in sorted(METHODS))
    allowed = (method for method, scope in scopes if any(r.matches(scope)[0] is Match.FULL for r in routes))
    return ", ".join(allowed)
