"""Guards: held locks."""

from __future__ import annotations

from _thread import allocate_lock
from typing import TYPE_CHECKING, Any, Optional

from . import _background, _log, _native
from ._errors import Error, ForkedError, LostError
from ._wait import Seconds, block, hub_here, optional_seconds, run, running_loop, seconds, spend, trio_here, wait

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from datetime import datetime
    from types import TracebackType

    from ._values import StopRequest


def check_callback(callback: Callable[[LostError], object]) -> None:
    """Refuses a callback that would not run when it is called."""
    from ._functions import blocking

    blocking("a callback for a loss", callback, "cancel_on_loss")


class Loss:
    """The loss of a lock: an event to check or wait for, and an awaitable.

    >>> import tenure
    >>> locks = tenure.connect("memory:")
    >>> with locks.mutex("nightly") as guard:
    ...     guard.lost.is_set()
    False
    """

    __slots__ = ("_native",)

    def __init__(self, native: _native.Loss) -> None:
        self._native = native

    def is_set(self) -> bool:
        """Whether the lock is lost."""
        return self.reason is not None

    @property
    def reason(self) -> Optional[LostError]:
        """Why the lock is lost; `None` while it is held and after its release."""
        end = self._native.peek()
        return end if isinstance(end, LostError) else None

    def wait(self, timeout: Optional[Seconds] = None) -> bool:
        """Blocks until the lock is lost (`True`) or released (`False`), or until the timeout (`False`)."""
        op = self._native.wait()
        if not block(op, optional_seconds(timeout)):
            return False
        return op.result() is not None

    def __await__(self) -> Generator[Any, None, Optional[LostError]]:
        """Waits until the lock is lost, and returns why, or released, and returns `None`."""
        return wait(self._native.wait()).__await__()

    def __repr__(self) -> str:
        end = self._native.peek()
        state = "not lost" if end is None else "released" if end is False else f"lost: {end}"
        return f"<tenure.Loss {state}>"


class Guard:
    """A held lock. It is released at the end of its `with` block, by `release`, or when nothing refers to it.

    >>> import tenure
    >>> locks = tenure.connect("memory:")
    >>> with locks.mutex("invoice:42") as guard:
    ...     guard.is_held(), guard.fence > 0
    (True, True)
    """

    __slots__ = ("__weakref__", "_hold", "_lost")

    def __init__(self, hold: _native.Hold) -> None:
        self._hold = hold
        self._lost: Optional[Loss] = None

    @property
    def name(self) -> str:
        """The name of the lock, without the prefix."""
        return self._hold.name

    @property
    def fence(self) -> int:
        """The fencing token: larger than that of every earlier grant of this name. A resource that refuses
        writes with a smaller token than the largest it has seen is safe even from a holder that does not know
        yet that its lock is lost."""
        return self._hold.fence

    @property
    def owner(self) -> str:
        """The owner, as others see it: `user/label@host:pid/id`."""
        return self._hold.owner

    def is_held(self) -> bool:
        """Whether the lock is still held, as far as can be known without a request."""
        return self._hold.remaining() > 0

    def remaining(self) -> float:
        """Seconds until the lock would be lost if no further renewal succeeded."""
        return self._hold.remaining()

    @property
    def lost(self) -> Loss:
        """The loss of this lock."""
        if self._lost is None:
            self._lost = Loss(self._hold.lost())
        return self._lost

    def raise_if_lost(self) -> None:
        """Raises the `LostError` if the lock is lost, for blocking code to call between its steps. Asks nobody: see
        `verify`."""
        if (reason := self.lost.reason) is not None:
            raise reason
        if not self.is_held() and not self._hold.is_released():
            raise LostError(f"lock `{self.name}` is no longer held", self.name)

    def on_lost(self, callback: Callable[[LostError], object]) -> None:
        """Calls `callback` with the reason if the lock is lost: in the running event loop, in a greenlet, or else
        on a thread for callbacks."""
        check_callback(callback)
        name = self.name  # and not the guard, which is released when nothing refers to it

        def done(end: object) -> None:
            if isinstance(end, LostError):
                try:
                    callback(end)
                except Exception:
                    _log.exception("a callback for the loss of %s failed", name)

        _background.Watch(self._hold.lost().wait(), done)

    def cancel_on_loss(self) -> CancelOnLoss:
        """Cancels this task of asyncio or trio in the `with` block if the lock is lost. The block then raises the
        `LostError`.

        >>> import asyncio, tenure
        >>> async def main():
        ...     locks = await tenure.aconnect("memory:")
        ...     async with locks.mutex("import") as guard:
        ...         with guard.cancel_on_loss():
        ...             await asyncio.sleep(0)  # the work
        >>> asyncio.run(main())
        """
        return CancelOnLoss(self._hold.lost())

    def interrupt_on_loss(self) -> InterruptOnLoss:
        """Interrupts the main thread in the `with` block if the lock is lost, also in a blocking call that signals
        end, such as a sleep or a read. The block then raises the `LostError`. Uses the handler of SIGINT.

        >>> import tenure
        >>> with tenure.connect("memory:").mutex("import") as guard, guard.interrupt_on_loss():
        ...     print("the work")
        the work
        """
        return InterruptOnLoss(self._hold.lost())

    def verify(self) -> None:
        """Asks the store whether the lock is still held, for use right before a write that cannot be fenced. Raises
        `LostError` if it is not."""
        run(self._hold.verify())

    async def averify(self) -> None:
        """Like `verify`, in an event loop."""
        await wait(self._hold.verify())

    def renew(self) -> None:
        """Extends the lease to a full ttl from now: of each lock, if there are several. Needed only with
        `renew=False`. After an error other than `LostError`, it can be repeated."""
        run(self._hold.renew())

    async def arenew(self) -> None:
        """Like `renew`, in an event loop."""
        await wait(self._hold.renew())

    def release(self) -> None:
        """Releases the lock. Raises `LostError` if it was no longer held, so that another client may have held
        it meanwhile."""
        spend(self._hold.release)

    async def arelease(self) -> None:
        """Like `release`, in an event loop. If the task is cancelled, the release continues in the background."""
        await wait(self._hold.release())

    def detach(self) -> str:
        """Gives up the guard without releasing the lock, and returns the owner, for `Locks.resume` in another
        process. From here on only the lease ends the hold."""
        owner: str = spend(self._hold.detach)
        return owner

    async def adetach(self) -> str:
        """Like `detach`, in an event loop."""
        owner: str = await wait(self._hold.detach())
        return owner

    def keep_for(self, time: Seconds) -> None:
        """Gives up the guard but keeps the lock taken for this time, so that work is not repeated immediately."""
        spend(self._hold.keep_for, seconds(time))

    async def akeep_for(self, time: Seconds) -> None:
        """Like `keep_for`, in an event loop."""
        await wait(self._hold.keep_for(seconds(time)))

    def _is_over(self, error: Optional[BaseException]) -> bool:
        """Whether there is nothing to release at the end of a block."""
        if self._hold.is_foreign():
            if error is None:
                raise ForkedError("the guard belongs to the parent process: a fork does not share locks", self.name)
            return True
        return self._hold.is_released()

    def _end(self, error: Optional[BaseException]) -> _native.Op:
        return self._hold.release()

    def __enter__(self) -> Guard:
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        if not self._is_over(error):
            try:
                spend(self._end, error)
            except Error as failed:
                self._report(failed, error)

    async def __aenter__(self) -> Guard:
        return self

    async def __aexit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        if not self._is_over(error):
            try:
                await wait(self._end(error))
            except Error as failed:
                self._report(failed, error)

    def _report(self, failed: Error, error: Optional[BaseException]) -> None:
        """Raises a loss, unless the block failed anyway. A release without an answer continues in the background."""
        if error is None and isinstance(failed, LostError):
            raise failed
        _log.debug("the release of %s failed: %s", self.name, failed)

    def __reduce__(self) -> Any:
        raise TypeError("a guard cannot be pickled: detach it, and resume it in the other process")

    def _state(self) -> str:
        if self._hold.is_foreign():
            return "of the parent process"
        if self._hold.is_released():
            return "released"
        remaining = self._hold.remaining()
        return f"held, {remaining:.1f} s left" if remaining > 0 else "lost"

    def __repr__(self) -> str:
        return f"<tenure.{type(self).__name__} {self.name!r} fence={self.fence} {self._state()}>"


class RwGuard(Guard):
    """A held side of a read-write lock."""

    __slots__ = ()

    def downgrade(self) -> None:
        """Makes a writer or an upgradeable reader a reader. No other writer can hold in between. After an error other
        than `LostError`, the store may have granted readers: call it again, or release."""
        run(self._hold.downgrade())

    async def adowngrade(self) -> None:
        """Like `downgrade`, in an event loop. After a cancellation, too, the store may have granted readers."""
        await wait(self._hold.downgrade())

    def upgrade(self, timeout: Optional[Seconds] = None) -> bool:
        """Makes an upgradeable reader the writer once the other readers have left; `False` at the timeout. After an
        error it is still a reader unless it is lost, but the store may keep other readers out until it is upgraded,
        downgraded or released."""
        upgraded: bool = run(self._hold.upgrade(optional_seconds(timeout)))
        return upgraded

    async def aupgrade(self, timeout: Optional[Seconds] = None) -> bool:
        """Like `upgrade`, in an event loop. A cancellation leaves the guard as an error does; `timeout` also lets
        other readers in again."""
        upgraded: bool = await wait(self._hold.upgrade(optional_seconds(timeout)))
        return upgraded

    def __enter__(self) -> RwGuard:
        return self

    async def __aenter__(self) -> RwGuard:
        return self


class MultiGuard(Guard):
    """Several held locks. The loss of one is the loss of all."""

    __slots__ = ()

    @property
    def fence(self) -> int:
        """Not available: each lock has its own token, see `fences`."""
        raise Error("a multi-lock has a token for each lock: use `fences`")

    @property
    def fences(self) -> list[int]:
        """The fencing token of each lock, in the order in which the locks were given."""
        return self._hold.fences

    def __enter__(self) -> MultiGuard:
        return self

    async def __aenter__(self) -> MultiGuard:
        return self

    def __repr__(self) -> str:
        return f"<tenure.MultiGuard {self.name!r} {self._state()}>"


class Term(Guard):
    """A leader's term. The leader resigns at the end of its `with` block."""

    __slots__ = ()

    def update(self, payload: str) -> None:
        """Changes the leader's payload, of at most 4 KiB."""
        run(self._hold.update(payload))

    async def aupdate(self, payload: str) -> None:
        """Like `update`, in an event loop. If the task is cancelled, the change may still be made; the term goes on."""
        await wait(self._hold.update(payload))

    def stop_requested(self, timeout: Optional[Seconds] = None) -> Optional[StopRequest]:
        """Waits until the leader is asked to stop by `Election.request_stop`; `None` once the term is over, or at the
        timeout."""
        return _stop_request(self._hold.stop_requested(), timeout)

    async def astop_requested(self) -> Optional[StopRequest]:
        """Like `stop_requested`, in an event loop."""
        from ._values import StopRequest

        return StopRequest.of(await wait(self._hold.stop_requested()))

    def __enter__(self) -> Term:
        return self

    async def __aenter__(self) -> Term:
        return self


class Turn(Guard):
    """A run of a job. It succeeds at the end of its `with` block, and fails with an exception."""

    __slots__ = ()

    @property
    def window(self) -> tuple[datetime, datetime]:
        """The window, by the clock of the store."""
        from datetime import datetime, timezone

        start, end, _ = self._hold.window or (0.0, 0.0, 0.0)
        return datetime.fromtimestamp(start, timezone.utc), datetime.fromtimestamp(end, timezone.utc)

    def late_by(self) -> float:
        """How many seconds after the start of its window the run began, by the clock of the store."""
        return 0.0 if self._hold.window is None else self._hold.window[2]

    def fail(self, why: object) -> None:
        """Ends the run as failed."""
        spend(self._hold.fail, _text(why))

    async def afail(self, why: object) -> None:
        """Like `fail`, in an event loop."""
        await wait(self._hold.fail(_text(why)))

    def stop_requested(self, timeout: Optional[Seconds] = None) -> Optional[StopRequest]:
        """Waits until the runner is asked to stop by `OncePer.request_stop`; `None` once the run is over, or at the
        timeout."""
        return _stop_request(self._hold.stop_requested(), timeout)

    async def astop_requested(self) -> Optional[StopRequest]:
        """Like `stop_requested`, in an event loop."""
        from ._values import StopRequest

        return StopRequest.of(await wait(self._hold.stop_requested()))

    def _end(self, error: Optional[BaseException]) -> _native.Op:
        if error is None:
            return self._hold.release()
        return self._hold.fail(_text(error))

    def __enter__(self) -> Turn:
        return self

    async def __aenter__(self) -> Turn:
        return self


def _stop_request(op: _native.Op, timeout: Optional[Seconds]) -> Optional[StopRequest]:
    from ._values import StopRequest

    return StopRequest.of(op.result()) if block(op, optional_seconds(timeout)) else None


def _text(why: object) -> str:
    from ._functions import text_of, valid

    return text_of(why) if isinstance(why, BaseException) else valid(str(why))


class CancelOnLoss:
    """See `Guard.cancel_on_loss`."""

    def __init__(self, loss: _native.Loss) -> None:
        self._loss = loss
        self._reason: Optional[LostError] = None
        self._watch: Optional[_background.Watch] = None
        self._task: Any = None
        self._cancels = 0
        self._scope: Any = None

    def __enter__(self) -> None:
        loop, trio = running_loop(), None
        task: Any = None
        if loop is None:
            trio = trio_here()
        else:
            import asyncio

            task = asyncio.current_task(loop)
        if trio is None and task is None:
            raise Error("cancel_on_loss needs a task of asyncio or trio")
        self._watch = _background.Watch(self._loss.wait(), self._lost)
        if self._reason is not None:
            raise self._reason
        if trio is not None:
            self._scope = trio.CancelScope()
            self._scope.__enter__()
        elif hasattr(task, "cancelling"):
            self._cancels = task.cancelling()
        self._task = task

    def _lost(self, end: object) -> None:
        if isinstance(end, LostError):
            self._reason = end
            if self._scope is not None:
                self._scope.cancel()
            elif self._task is not None:
                self._task.cancel(str(end))

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        task, self._task = self._task, None
        if self._watch is not None:
            self._watch.cancel()
        is_cancelled = kind is None
        if self._scope is not None:
            is_cancelled |= bool(self._scope.__exit__(kind, error, trace))
        elif self._reason is not None and task is not None:
            import asyncio

            if hasattr(task, "uncancel") and task.uncancel() > self._cancels:
                return  # the task was also cancelled by other code
            is_cancelled |= kind is not None and issubclass(kind, asyncio.CancelledError)
        if self._reason is not None and is_cancelled:
            raise self._reason from error


class InterruptOnLoss:
    """See `Guard.interrupt_on_loss`."""

    def __init__(self, loss: _native.Loss) -> None:
        self._loss = loss
        self._reason: Optional[LostError] = None
        self._watch: Optional[_background.Watch] = None
        self._before: Any = None
        self._is_over = self._is_raised = False
        self._changing = allocate_lock()

    def __enter__(self) -> None:
        import signal
        import threading

        is_main = threading.current_thread() is threading.main_thread()
        if not is_main or running_loop() is not None or trio_here() is not None or hub_here() is not None:
            raise Error("interrupt_on_loss needs the main thread, without an event loop")
        self._before = signal.signal(signal.SIGINT, self._interrupt)
        self._watch = _background.Watch(self._loss.wait(), self._lost)

    def _lost(self, end: object) -> None:
        """On the thread for callbacks."""
        import signal
        import threading

        with self._changing:
            if isinstance(end, LostError) and not self._is_over:
                self._reason = end
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def _interrupt(self, number: int, frame: Any) -> None:
        import signal

        if self._reason is None or self._is_raised:
            # Ctrl-C
            if callable(self._before):
                self._before(number, frame)
            elif self._before == signal.SIG_DFL:
                raise KeyboardInterrupt
            return
        self._is_raised = True
        if not self._is_over:
            self._restore()
            raise self._reason

    def _restore(self) -> None:
        import signal

        self._is_over = True
        signal.signal(signal.SIGINT, signal.SIG_DFL if self._before is None else self._before)

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        import time

        with self._changing:
            if self._is_over:
                return
            self._is_over = True
        if self._watch is not None:
            self._watch.cancel()
        while self._reason is not None and not self._is_raised:
            time.sleep(0.001)  # the signal is on its way
        self._restore()
        if self._reason is not None and kind is None:
            raise self._reason
