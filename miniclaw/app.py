"""`MiniClaw`: wires the parts together, starts and stops them in order."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from miniclaw.agent.core import Core
from miniclaw.agent.providers import LLMProvider, WarmsUp
from miniclaw.agent.reply import AgentReply, reply_of
from miniclaw.agent.select import choose_provider
from miniclaw.agent.turn import TurnRunner
from miniclaw.backends import backend_of
from miniclaw.channel.base import Channel, Delivers
from miniclaw.channel.cli import CLIChannel
from miniclaw.config import Clock, LoadedSettings
from miniclaw.errors import ConfigError, ProtocolError, StorageError
from miniclaw.gateway.access import HostRules
from miniclaw.gateway.command_table import read_command
from miniclaw.gateway.commands import Commands
from miniclaw.gateway.connection import Hub
from miniclaw.gateway.dispatcher import Dispatcher
from miniclaw.gateway.events import EventBus, LiveTurns
from miniclaw.gateway.ingress import Ingress
from miniclaw.gateway.live_replies import LiveReplies
from miniclaw.gateway.protocol import Inbound, MessageType, TextPayload, new_id, now
from miniclaw.gateway.reader import TurnReader
from miniclaw.gateway.router import MessageRouter, pump
from miniclaw.gateway.server import GatewayServer
from miniclaw.identity import is_user_id
from miniclaw.observer import Observer
from miniclaw.rundir import RunDir, RunningGateway, read_or_make_token
from miniclaw.timer_tool import ScheduleTool
from miniclaw.timers import Timers
from miniclaw.wiring import build_core

if TYPE_CHECKING:
    from miniclaw.channel.webchat import WebChatChannel
    from miniclaw.gateway.api import Api
    from miniclaw.gateway.http import HttpServer
    from miniclaw.uploads import Uploads

__all__ = ["MiniClaw"]

logger = logging.getLogger(__name__)

HOUSEKEEPING_SECONDS: Final = 600.0
"""How often expired sessions and old de-duplication keys are cleaned up."""
KEEP_SENT_SECONDS: Final = 7 * 24 * 3600.0
"""How long delivered answers are kept in the outbox."""
LIBRARY: Final = "library"
"""The channel of `ask`; its turns are resumed like those of any other."""


class MiniClaw:
    """A whole gateway in one object: `async with MiniClaw(load_settings()) as claw: …`.

    Args:
        loaded: the settings and the data directory, which this process holds while it runs.
        provider: the model; chosen from the settings when left out.
        gateway: whether the raw WebSocket gateway is opened.
        web: whether web chat, HTTP API and webhooks are opened.
        clock: seconds since the epoch.

    Raises:
        ConfigError: (on entering) the directory is held by another process or a port is taken.
        StorageError: (on entering) the database cannot be opened.
    """

    def __init__(
        self,
        loaded: LoadedSettings,
        *,
        provider: LLMProvider | None = None,
        gateway: bool = True,
        web: bool = True,
        clock: Clock = time.time,
    ) -> None:
        self.settings = loaded.settings
        self._origins = loaded.origins
        self.data_dir = loaded.data_dir
        self.bus = EventBus()
        self.live = LiveTurns(self.bus)
        self.channels: dict[str, Channel] = {}
        self._clock = clock
        self._wants = (gateway, web)
        self._given_provider = provider
        self._rundir = RunDir(self.data_dir, shared=self.settings.redis.url is not None)
        self._backend = backend_of(self.settings, self.data_dir, self.live, clock=clock)
        self._push: dict[str, Delivers] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._started = False
        self.broken = asyncio.Event()
        """Set when a part that must run for ever has ended; the process should be started again."""

    async def __aenter__(self) -> Self:
        self._rundir.acquire()
        try:
            await self._start()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    async def ask(
        self, text: str, *, user_id: str = "owner", session_id: str | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """Say something and get the turn's events as payloads; the last one is its end.

        The message takes the same way as everybody's. Without `session_id` it begins a session; the
        events name it.

        Raises:
            ProtocolError: the message was refused.
        """
        if not is_user_id(user_id):
            raise ConfigError(f"`{user_id}` is no user id.")
        inbound = Inbound(
            msg_id=new_id("msg"),
            msg_type=MessageType.TEXT,
            source=f"{LIBRARY}:{user_id}",
            payload=TextPayload(text=text),
            timestamp=now(),
            channel=LIBRARY,
            sender=user_id,
            user_id=user_id,
            session_id=session_id,
        )
        receipt = await self.router.route(inbound)
        if not receipt.stored:
            raise ProtocolError(receipt.code or "internal", receipt.message)
        # No await since the receipt: the turn cannot have published anything yet.
        with TurnReader(self.bus, receipt.session_id or "", receipt.turn_id or "") as reader:
            async for event in reader.events():
                yield {
                    "name": event.name,
                    "session_id": event.session_id,
                    "turn_id": event.turn_id,
                    "attempt": event.attempt,
                    "seq": event.seq,
                    "data": event.data,
                }

    async def reply(self, text: str, *, user_id: str = "owner", session_id: str | None = None) -> AgentReply:
        """Say something and wait for the whole answer; `ask` gives it as it comes.

        Raises:
            ProtocolError: the message was refused.
            ModelError: the turn failed or was cancelled.
        """
        events = [event async for event in self.ask(text, user_id=user_id, session_id=session_id)]
        return await reply_of(events[-1], self.sessions)

    async def _start(self) -> None:
        settings = self.settings
        configured = settings.gateway.token
        self.token = read_or_make_token(self.data_dir, configured.get_secret_value() if configured else None)
        await self._backend.open()
        self.identities = self._backend.identities
        await self.identities.start(self.token)
        self.provider = self._given_provider or await choose_provider(settings.model, settings.agent)
        core = build_core(
            settings,
            self.data_dir,
            self._backend,
            provider=self.provider,
            live=self.live,
            push=self._push,
            clock=self._clock,
            token=self.token,
        )
        self.sessions, self.turns, self.outbox = core.sessions, core.turns, core.outbox
        self.memory, self.skills, self.registry = core.memory, core.skills, core.registry
        self.desk, self.traces, self.servers = core.desk, core.traces, core.servers
        await self.servers.start()
        self._build_road(core)
        await self._build_channels(core)
        for channel in self.channels.values():
            await channel.start()
        self.replies.start()
        await self.dispatcher.start()
        await self._recover()
        self._backend.start(self.runner, self.dispatcher)
        # No await from here on: who has entered can add tools before a turn of a former process goes on.
        for channel in self.channels.values():
            self._spawn(pump(channel, self.router))
        self._spawn(self._keep_house())
        if isinstance(self.provider, WarmsUp):
            self._spawn(self._warm_up(self.provider))
        self._started = True
        if self.api is not None:
            self.api.is_ready = True
        self._announce()
        logger.info("miniclaw runs on %s with model %s", self.data_dir, self.provider.info.name)

    def _build_road(self, core: Core) -> None:
        """The way of a message: router, ingress, mailbox, runner, dispatcher."""
        self._build_timers()
        self.mailbox = self._backend.mailbox(lambda turn: self.runner.run(turn))
        self.timers.is_busy = self.mailbox.has_turns
        self.commands = Commands(core, self.mailbox, self.timers)
        self.runner = TurnRunner(core, self.commands, pause=self.mailbox.pause)
        self.ingress = Ingress(core.turns, self.mailbox, self.bus)
        self.commands.connect(self.ingress, self.runner)
        self.observer = Observer(self.bus, core.outbox, lambda: self.mailbox.load)
        self.router = MessageRouter(
            read_command, refused=self.observer.refused, is_gone=self.identities.is_gone
        )
        self.router.register(MessageType.TEXT, self.ingress.accept)
        self.router.register(MessageType.COMMAND, self.commands.handle)
        delivery = self.settings.delivery
        self.replies = LiveReplies(
            self.bus, core.turns, core.outbox, self._push, settings=delivery, clock=self._clock
        )
        self.dispatcher = Dispatcher(
            core.outbox, self._push, self.bus, delivery, clock=self._clock, settled=self.replies.settled
        )

    def _build_timers(self) -> None:
        self.timers = Timers(
            self._backend.timers,
            self.identities,
            self._push,
            configured=self.settings.timers,
            users=self.settings.users,
            clock=self._clock,
        )
        self.registry.register(ScheduleTool(self.timers, self.turns))

    async def _build_channels(self, core: Core) -> None:
        gateway, web = self._wants
        settings = self.settings
        hub = Hub(self.bus, self.live, self.turns, soft_limit=settings.gateway.send_buffer_bytes)
        self.terminal = CLIChannel(hub)
        self.channels[self.terminal.name] = self.terminal
        rules = HostRules(settings.web.allowed_hosts, public_url=settings.web.public_url)
        self.gateway: GatewayServer | None = None
        self.web: WebChatChannel | None = None
        self.api: Api | None = None
        self.uploads: Uploads | None = None
        if gateway and settings.gateway.port is not None:
            self.gateway = GatewayServer(
                hub,
                settings.gateway,
                self.identities,
                rules,
                message_bytes=settings.limits.message_bytes,
            )
            self.channels[self.gateway.name] = self.gateway
        if web:  # not where somebody only talks: their answers may belong to a platform
            self.channels[self.timers.name] = self.timers
        else:
            await self.timers.start()
        if web and settings.web.port is not None:
            await self._build_web(core, hub, rules)

    async def _build_web(self, core: Core, hub: Hub, rules: HostRules) -> None:
        """Everything on the HTTP port: page, API, webhooks. aiohttp is imported only for this."""
        from miniclaw.channel.mcp import McpChannel
        from miniclaw.channel.openai_endpoint import OpenAIChannel
        from miniclaw.channel.webchat import WebChatChannel
        from miniclaw.gateway.api import Api
        from miniclaw.gateway.http import HttpServer
        from miniclaw.uploads import Uploads

        settings, size = self.settings, self.settings.limits.message_bytes
        shared = settings.redis.prefix if settings.redis.url is not None else ""
        server = HttpServer(settings.web, self.identities, rules, message_bytes=size, shared=shared)
        self.web = WebChatChannel(
            hub,
            server,
            self.identities,
            self.turns,
            message_bytes=size,
            ping_seconds=settings.gateway.ping_interval,
            may_move="web.port" not in self._origins,
        )
        self.api = Api(
            core, self.commands, self.mailbox, self.dispatcher, self._backend, self.timers, self.observer
        )
        server.add(self.web.routes())
        server.add(self.api.routes())
        self.uploads = Uploads(self._backend.uploads, settings, self.data_dir)
        server.add(self.uploads.routes())
        self._add_platforms(server)
        if "generic" in self._push:
            await self.identities.ensure(settings.channels.generic.user)
        openai = OpenAIChannel(hub, self.sessions, self.commands.cancel, clock=self._clock)
        for channel in (McpChannel(hub, core, server), openai):
            server.add(channel.routes())
            self.channels[channel.name] = channel
        self.channels[self.web.name] = self.web

    def _add_platforms(self, server: HttpServer) -> None:
        from miniclaw.channel.platforms import configured
        from miniclaw.channel.webhook import WebhookChannel
        from miniclaw.gateway.notices import Notices
        from miniclaw.gateway.standings import Standings

        settings = self.settings
        notices = Notices(self.outbox, self._push, self.dispatcher, self.identities, clock=self._clock)
        standings = Standings(self.live, self.turns, self.outbox)
        more: dict[str, Any] = {"clock": self._clock, "notices": notices, "standings": standings}
        for platform in configured(settings.channels, clock=self._clock, held=self.dispatcher.held):
            webhook = WebhookChannel(platform, message_bytes=settings.limits.message_bytes, **more)
            server.add(webhook.routes())
            self.channels[webhook.name] = webhook
            self._push[webhook.name] = platform

    async def _recover(self) -> None:
        """Queue what a former process accepted and did not finish, before anything new comes in."""
        try:
            await self.sessions.remove_left()
        except StorageError as error:
            logger.error("deleting what a former process left is put off: %s", error)
        aliases = [alias for channel in self.channels.values() for alias in channel.aliases]
        for turn in (left := await self.turns.open_turns((*self.channels, *aliases, LIBRARY))):
            self.mailbox.restore(turn)
        if left:
            logger.info("%d turns of a former process go on", len(left))

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(HOUSEKEEPING_SECONDS)
            try:
                await self.turns.forget_old()
                await self.dispatcher.look()
                await self.outbox.forget_sent(before=self._clock() - KEEP_SENT_SECONDS)
                await self.sessions.cleanup_expired(self.mailbox.has_turns)
                await self.sessions.finish_deletes()
                if self.uploads is not None:
                    await self.uploads.forget_unsent()
            except StorageError as error:
                logger.error("cleaning up is put off: %s", error)

    @staticmethod
    async def _warm_up(provider: WarmsUp) -> None:
        try:
            await asyncio.to_thread(provider.warm_up)
        except Exception:  # boundary: what is only made ready ahead is made, or fails, at the first request
            logger.warning("the model's client could not be made ready", exc_info=True)

    def _announce(self) -> None:
        import os

        self._rundir.announce(
            RunningGateway(
                pid=os.getpid(),
                gateway_port=self.gateway.port if self.gateway else None,
                web_port=self.web.port if self.web else None,
                token=self.token,
            )
        )

    async def _stop(self) -> None:
        """Take nothing new → let running turns end → deliver → close connections → close storage."""
        if self._started:
            await self.mailbox.stop(self.settings.limits.drain_seconds)
            await self.runner.close()
            self.bus.publish("system.stopping", None)
            await self.replies.stop()
            await self.dispatcher.stop(1.0)
            await self.traces.close()
            await self.memory.close()
        for channel in self.channels.values():
            await channel.stop()
        await self._backend.quiet()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if hasattr(self, "servers"):
            await self.servers.stop()
        if self._given_provider is None and hasattr(self, "provider"):
            await self.provider.close()
        await self._backend.close()
        self._rundir.release()
        self._started = False

    def _spawn(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.critical("a part of the gateway broke; it must be started again", exc_info=error)
            self.broken.set()
