"""HTTP routes of a fake engine: the OpenAI API, health, metrics, and the admin endpoints of the tests."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from json import JSONDecodeError
from uuid import uuid4

from aiohttp import web

from headrace.demo.fake_engine.answer import Answer, model_list
from headrace.demo.fake_engine.call import Call, parse
from headrace.demo.fake_engine.config import EngineConfig
from headrace.demo.fake_engine.engine import Engine, Generation
from headrace.demo.fake_engine.faults import FaultError, Faults
from headrace.demo.fake_engine.refusal import CORE_DEAD, Refusal
from headrace.demo.fake_engine.request_log import RequestLog

FRONTEND_HEADER = "x-headrace-frontend"
"""Names the front-end whose Envoy sent the request."""
SESSION_HEADER = "x-session-id"
_MAX_BODY_BYTES = 64 << 20


class EngineApp:
    """Handlers of one replica. Owns the log of requests; the model belongs to `engine`."""

    def __init__(
        self,
        config: EngineConfig,
        engine: Engine,
        apply_faults: Callable[[Faults], Awaitable[None]],
        *,
        wall_clock: Callable[[], float],
        rng: random.Random,
    ) -> None:
        """`apply_faults` puts a changed set of faults into force; `wall_clock` gives Unix seconds."""
        self._config = config
        self._engine = engine
        self._apply_faults = apply_faults
        self._wall_clock = wall_clock
        self._started_at_s = wall_clock()
        self._rng = rng
        self._log = RequestLog()
        self._busy: set[web.RequestHandler] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self.faults = Faults(early_headers=config.early_headers)
        self.accepting = True
        """False once a drain is under way: what comes now gets 500, as from vLLM."""
        self.draining = False

    def application(self) -> web.Application:
        """Return the whole engine: API and admin endpoints."""
        app = web.Application(client_max_size=_MAX_BODY_BYTES)
        app.on_response_prepare.append(self._name_replica)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/completions", self._completion)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        self._add_admin(app)
        app.router.add_route("*", "/{path:.*}", self._not_found)
        return app

    def admin_application(self) -> web.Application:
        """Return the admin endpoints alone, for a port that stays up while the other refuses."""
        app = web.Application()
        self._add_admin(app)
        return app

    async def idle(self) -> None:
        """Wait until no completion is being answered."""
        await self._idle.wait()

    def close_connections(self, server: web.Server) -> None:
        """Close `server`'s connections: idle ones now, the others when their answer is out."""
        for connection in server.connections:
            if connection in self._busy:
                connection.close()
            else:
                connection.force_close()

    def _add_admin(self, app: web.Application) -> None:
        app.router.add_get("/stats", self._stats)
        app.router.add_get("/admin/faults", self._get_faults)
        app.router.add_post("/admin/faults", self._post_faults)
        app.router.add_get("/admin/requests", self._get_requests)

    async def _name_replica(self, request: web.Request, response: web.StreamResponse) -> None:
        response.headers["server"] = "uvicorn"
        response.headers["x-engine"] = self._config.engine
        response.headers["x-engine-replica"] = self._config.replica

    # --- the OpenAI API -------------------------------------------------------------------------------

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._complete(request, chat=True)

    async def _completion(self, request: web.Request) -> web.StreamResponse:
        return await self._complete(request, chat=False)

    async def _complete(self, request: web.Request, *, chat: bool) -> web.StreamResponse:
        self._busy.add(request.protocol)
        self._idle.clear()
        outcome = "aborted"
        try:
            response, outcome = await self._answer(request, chat=chat)
            return response
        finally:
            self._log.outcomes[outcome] += 1
            self._busy.discard(request.protocol)
            if not self._busy:
                self._idle.set()

    async def _answer(self, request: web.Request, *, chat: bool) -> tuple[web.StreamResponse, str]:
        body = await request.read()
        self._log.keep(request, body)
        frontend = request.headers.get(FRONTEND_HEADER, "")
        self._log.frontends[frontend] += 1
        half_way_s = (self._config.rtt_ms.get(frontend, 0.0) + self.faults.extra_delay_ms) / 2000
        if half_way_s:
            await asyncio.sleep(half_way_s)
        try:
            call = self._admit(body, chat=chat)
            session = request.headers.get(SESSION_HEADER) or call.session
            generation = self._engine.submit(call, session, half_way_s)
        except Refusal as refusal:
            return await self._refused(refusal, half_way_s)
        request_id = request.headers.get("x-request-id") or uuid4().hex
        created = int(self._wall_clock())
        natural = self._engine.profile.output_tokens
        model = call.model or self._config.models[0]
        answer = Answer(call, model, request_id, created, natural, generation.cached_tokens)
        try:
            if call.stream:
                return await self._stream(request, answer, generation)
            await generation.beyond(generation.output_tokens - 1)
            return web.Response(body=answer.whole(), content_type="application/json"), "ok"
        except Refusal as refusal:
            return await self._refused(refusal, half_way_s)
        finally:
            self._engine.abort(generation)

    def _admit(self, body: bytes, *, chat: bool) -> Call:
        """Read a request and decide whether it runs; raises Refusal."""
        if not self.accepting or self._engine.dead:
            raise Refusal(500, CORE_DEAD)
        if self._rng.random() < self.faults.error_rate:
            raise Refusal(self.faults.error_status, "Injected error.")
        call = parse(body, chat=chat)
        if call.model is not None and call.model not in self._config.models:
            raise Refusal(404, f"The model `{call.model}` does not exist.", "model")
        if call.max_tokens is not None and call.max_tokens > self._config.max_model_len:
            raise Refusal(
                400,
                f"max_tokens={call.max_tokens} cannot be greater than "
                f"max_model_len={self._config.max_model_len}. Please request fewer output tokens.",
                "max_tokens",
            )
        output_tokens = call.output_tokens(self._engine.profile.output_tokens)
        if call.prompt_tokens + output_tokens > self._config.max_model_len:
            raise Refusal(
                400,
                f"This model's maximum context length is {self._config.max_model_len} tokens. However, you "
                f"requested {output_tokens} output tokens and your prompt contains {call.prompt_tokens}.",
                "input_tokens",
            )
        return call

    async def _stream(
        self, request: web.Request, answer: Answer, generation: Generation
    ) -> tuple[web.StreamResponse, str]:
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        total, sent = generation.output_tokens, 0
        fail_at = self._rng.randint(1, total) if self._rng.random() < self.faults.inband_error_rate else None
        if self.faults.early_headers:
            if generation.delay_s:
                await asyncio.sleep(generation.delay_s)
            await response.prepare(request)
        try:
            while sent < total:
                ready = await generation.beyond(sent)
                if not response.prepared:
                    await response.prepare(request)
                events = answer.events(sent, ready)
                sent = ready
                if fail_at is not None and sent >= fail_at:
                    raise Refusal(500, CORE_DEAD)
                await response.write(events + answer.end() if sent == total else events)
        except Refusal as refusal:
            if not response.prepared:
                raise Refusal(503, refusal.message) from None
            self._count_error(refusal)
            await response.write(refusal.events())
            await response.write_eof()
            return response, "inband_error"
        await response.write_eof()
        return response, "ok"

    async def _refused(self, refusal: Refusal, half_way_s: float) -> tuple[web.Response, str]:
        self._count_error(refusal)
        if half_way_s:
            await asyncio.sleep(half_way_s)
        response = web.Response(status=refusal.status, body=refusal.body(), content_type="application/json")
        return response, f"http_{refusal.status}"

    def _count_error(self, refusal: Refusal) -> None:
        kind = "internal" if refusal.status >= 500 else "overload" if refusal.status == 429 else "client"
        self._engine.window.error(asyncio.get_running_loop().time(), kind)

    async def _models(self, request: web.Request) -> web.Response:
        self._log.count(request)
        body = model_list(self._config.models, int(self._started_at_s), self._config.max_model_len)
        return web.Response(body=body, content_type="application/json")

    async def _health(self, request: web.Request) -> web.Response:
        self._log.count(request)
        return web.Response(status=503 if self._engine.dead else 200)

    async def _metrics(self, request: web.Request) -> web.Response:
        self._log.count(request)
        content_type = "text/plain; version=0.0.4; charset=utf-8"
        return web.Response(body=self._engine.metrics.text(), headers={"content-type": content_type})

    async def _not_found(self, request: web.Request) -> web.Response:
        self._log.count(request)
        return web.json_response({"detail": "Not Found"}, status=404)

    # --- what tests ask -------------------------------------------------------------------------------

    async def _stats(self, request: web.Request) -> web.Response:
        return web.json_response(
            {
                "engine": self._config.engine,
                "replica": self._config.replica,
                "models": list(self._config.models),
                "started_at_ms": int(self._started_at_s * 1000),
                "state": "draining" if self.draining else "ready",
                "accepting": self.accepting,
                "running": self._engine.running,
                "waiting": self._engine.waiting,
                "in_flight": len(self._busy),
                "max_num_seqs": self._engine.max_num_seqs,
                "paths": self._log.paths,
                "frontends": self._log.frontends,
                "outcomes": self._log.outcomes,
            }
        )

    async def _get_faults(self, request: web.Request) -> web.Response:
        return web.json_response(asdict(self.faults))

    async def _post_faults(self, request: web.Request) -> web.Response:
        try:
            document = await request.json()
            if not isinstance(document, dict):
                raise FaultError(f"expected a JSON object of faults, got {type(document).__name__}")
            faults = self.faults.changed(document)
        except (JSONDecodeError, FaultError) as error:
            return web.json_response({"error": str(error)}, status=400)
        self.faults = faults
        await self._apply_faults(faults)
        return web.json_response(asdict(faults))

    async def _get_requests(self, request: web.Request) -> web.Response:
        return web.json_response([received.document() for received in self._log.last])
