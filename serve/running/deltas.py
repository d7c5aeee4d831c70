"""From token ids to text as they arrive: thought and answer separate, each character once, nothing taken back later.

Whoever streams must not show what thinking control may still drop (tokens past a cap, a suppressed end), what a stop
string will cut, or half a character. Each is held back by a rule of its own, so that a token is shown as soon as it is
certain, and the parts add up to the whole text. Linear: every token is decoded twice, in a window of a few.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from ttc.core import Capabilities, Prompt, TextMarker
from ttc.session.thinking import Thinking

Decode = Callable[[Sequence[int]], str]
Write = Callable[[str], None]


class Markers:
    """Walks over generated ids and says of each whether it is thought; whole markers are skipped."""

    def __init__(self, starts_inside: bool, capabilities: Capabilities, control: Thinking | None = None) -> None:
        """Under `control`, thought past its cap, and an end that it may suppress, are not certain when sampled.

        `num_marks` counts the markers that were passed.
        """
        self.inside, self.num_thinking, self.num_marks = starts_inside, 0, 0
        self._max = None if control is None else control.max_tokens
        self._extends = control is not None and control.extends
        self._open, self._close = capabilities.think_open, capabilities.think_close
        self._texts = capabilities.think_texts
        self._eos = frozenset(capabilities.eos_ids)
        self._taken = 0
        self._waiting: list[int] = []

    def settle(self, ids: Sequence[int]) -> Iterator[tuple[int, int, bool]]:
        """Take the ids that are certain so far, from the first on; yields (position, id, inside) of new ones."""
        self._waiting = list(ids[self._taken :])
        yield from self._walk(certain=True)

    def add(self, ids: Sequence[int]) -> Iterator[tuple[int, int, bool]]:
        """Take sampled ids; yields those that are sure to stay."""
        self._waiting += ids
        yield from self._walk(certain=False)

    def _walk(self, *, certain: bool) -> Iterator[tuple[int, int, bool]]:
        while self._waiting:
            if not certain and self._waiting[0] in self._eos:
                return
            marker_len, may_be = self._marker()
            if marker_len:
                if self._extends and self.inside and not certain:
                    return
                self._skip(marker_len)
                self.inside, self.num_marks = not self.inside, self.num_marks + 1
                continue
            token = self._waiting[0]
            capped = self.inside and self._max is not None and self.num_thinking >= self._max
            if may_be or (capped and not certain):
                return
            self.num_thinking += self.inside
            self._skip(1)
            yield self._taken - 1, token, self.inside

    def _marker(self) -> tuple[int, bool]:
        """How many of the waiting ids are the next marker (0: they do not begin with it), and whether they may be."""
        if self.inside and self._waiting[0] in self._eos:  # the turn ends, as before a tool's result
            return 1, False
        if self._texts is not None:
            return _spelled(self._texts[self.inside], self._waiting)
        marker = self._close if self.inside else self._open
        head = tuple(self._waiting[: len(marker)])
        return (len(marker), False) if marker and head == marker else (0, bool(marker) and marker[: len(head)] == head)

    def _skip(self, count: int) -> None:
        del self._waiting[:count]
        self._taken += count


def _spelled(marker: TextMarker, ids: Sequence[int]) -> tuple[int, bool]:
    """How many of `ids` spell a marker from the first on, and whether they may once more of them are there."""
    span = marker.find(ids)
    if span is not None:
        return (span[1], False) if span[0] == 0 else (0, False)
    size, later = (max(overlap(marker.decode(part), mark) for mark in marker.texts) for part in (ids, ids[1:]))
    return 0, bool(size) and later < size


class _Text:
    """Ids to text, piece by piece: an incomplete character waits for its other bytes."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._before = self._read = 0
        self._known = ""
        """The text of the ids between the two."""

    def add(self, token: int) -> str:
        self._ids.append(token)
        text = self._decode(self._ids[self._before :])
        size = len(self._known)
        if len(text) <= size or text.endswith("\ufffd"):
            return ""
        self._before, self._read = self._read, len(self._ids)
        self._known = self._decode(self._ids[self._before : self._read])
        return text[size:]


@dataclass(slots=True)
class _Part:
    """What was sent of one of the two texts."""

    write: Write
    pieces: list[str] = field(default_factory=list)


class Deltas:
    """Sends the thought and the answer of one draw while it is sampled."""

    def __init__(
        self,
        decode: Decode,
        capabilities: Capabilities,
        thinking: Write,
        answer: Write,
        *,
        control: Thinking,
        stop: Sequence[str],
        strip: bool,
        waits: Callable[[str], bool] | None = None,
    ) -> None:
        """`strip` leaves out white space before the first word of each text; `stop` strings end the answer.

        An answer for whose beginning `waits` says so is held back until it is whole.
        """
        self._decode, self._capabilities, self._control = decode, capabilities, control
        self._thinking, self._answer = _Part(thinking), _Part(answer)
        self._texts = {True: _Text(decode), False: _Text(decode)}
        self._stop, self._strip, self._waits = tuple(stop), strip, waits
        self._held, self._stopped, self._lead, self._has_words = "", False, strip, False
        self._markers: Markers | None = None
        self._num_marks = 0

    def sync(self, prompt: Prompt) -> None:
        """Take over what `prompt` holds after its rendered part: it is certain, injected text included."""
        if self._markers is None:
            self._markers = Markers(prompt.think_state == "open", self._capabilities, self._control)
        for _, token, inside in self._markers.settle(prompt.generated_ids):
            self._take(token, inside, self._markers.num_marks)

    def add(self, ids: tuple[int, ...]) -> None:
        """Take sampled ids."""
        if self._markers is not None:
            for _, token, inside in self._markers.add(ids):
                self._take(token, inside, self._markers.num_marks)

    def finish(self, thinking: str, answer: str) -> bool:
        """Send the rest of the two final texts; False if they contradict what was sent."""
        return _rest(self._thinking, thinking) and _rest(self._answer, answer)

    def _take(self, token: int, inside: bool, num_marks: int) -> None:
        text = self._texts[inside].add(token)
        if inside or num_marks > self._num_marks:  # an empty block has no token of its own
            self._begin_lead()
        self._num_marks = num_marks
        if inside:
            self._show(self._thinking, text)
        elif not self._stopped:
            self._has_words = self._has_words or bool(text.strip())
            self._until_stop(self._behind_lead(text) if self._lead else text)

    def _begin_lead(self) -> None:
        """No stop is in the white space between a thought and the first word of the answer."""
        if not self._has_words:
            self._lead = True
            self._show(self._answer, self._held)
            self._held = ""

    def _behind_lead(self, text: str) -> str:
        """`text` from its first word on; the white space before it is shown."""
        word = text.lstrip()
        self._show(self._answer, text[: len(text) - len(word)])
        self._lead = not word
        return word

    def _until_stop(self, text: str) -> None:
        """Send text up to a stop string; hold back what may become one."""
        if self._waits is not None:
            text, self._held = self._held + text, ""
            if self._waits(text):
                self._held = text
                return
            self._waits = None
        if not self._stop:
            self._show(self._answer, text)
            return
        whole = self._held + text
        ends = [whole.find(stop) for stop in self._stop if stop in whole]
        if ends:
            self._stopped, self._held = True, ""
            self._show(self._answer, whole[: min(ends)])
            return
        keep = max((overlap(whole, stop) for stop in self._stop), default=0)
        self._held = whole[len(whole) - keep :]
        self._show(self._answer, whole[: len(whole) - keep])

    def _show(self, part: _Part, text: str) -> None:
        if self._strip and not part.pieces:
            text = text.lstrip()
        if text:
            part.pieces.append(text)
            part.write(text)


def _rest(part: _Part, final: str) -> bool:
    prefix = "".join(part.pieces)
    if not final.startswith(prefix):
        return False
    if len(final) > len(prefix):
        part.write(final[len(prefix) :])
    return True


def overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that `stop` begins with."""
    most = min(len(text), len(stop) - 1)
    return next((size for size in range(most, 0, -1) if stop.startswith(text[len(text) - size :])), 0)


def cut_at_stop(text: str, stops: Sequence[str], *, lead: bool) -> tuple[str, str | None]:
    """`text` up to the first of `stops`, and which it was; toolkit completions keep it, OpenAI's replies do not.

    With `lead`, white space before the first word holds no stop.
    """
    begin = len(text) - len(text.lstrip()) if lead else 0
    first = min(((text.find(stop, begin), stop) for stop in stops if text.find(stop, begin) >= 0), default=None)
    return (text, None) if first is None else (text[: first[0]], first[1])


def pieces_of(decode: Decode, ids: Sequence[int]) -> list[str]:
    """The text that each id adds; that of a character in several ids stands at its last."""
    text = _Text(decode)
    return [text.add(token) for token in ids]
