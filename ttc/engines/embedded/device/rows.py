"""The host's records of rows: int32 words, sent to the device for all rows in one pinned transfer.

The host owns the record, the device owns the state (token, position, ended). A record carries a *ticket*; a row whose
ticket differs from the one in its state is new, and takes token and position from the record. So the host may resend
all records at any time, with a page or a limit changed, without knowing how far the device has come.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ttc.engines.embedded.device.shape import PAGE
from ttc.errors import ConfigError

TICKET, TOKEN, POSITION, FIRST, LIMIT, INVERSE, TOP_P, TOP_K, MIN_P, PENALTY, KEY, WANTS, MASK, SLOT, STOPS = (
    *(0, 1, 2, 3, 4, 5, 6, 7, 8, 9),
    *(10, 12, 13, 14, 15),
)
NUM_STOPS = 8
FIELDS = STOPS + NUM_STOPS
"""Words before the row's page numbers. KEY has two words, the low one first."""


@dataclass(frozen=True, slots=True)
class RowStart:
    """A row to decode.

    `token` is the newest one, at the absolute `position`, its keys not yet written; `pages` hold the keys from position
    `first` on. Where `slot` (page * PAGE + offset) is not -1, the keys of `token` alone go there, before `first`: all
    draws of a prompt share the slot of its last token. Tokens are sampled up to the absolute position `limit`, the last
    one that the row may have. `top_k` 0, `top_p` 1 and `min_p` 0 mean off, `temperature` 0 greedy; `key` is the draw's.
    A `masked` row waits for `constrain` before each token. A repetition `penalty` other than 1 applies to the tokens of
    `text`, which are those of the prompt and the draw so far, and to those that the row samples.
    """

    token: int
    position: int
    first: int
    pages: tuple[int, ...]
    limit: int
    key: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    stop_ids: tuple[int, ...] = ()
    wants_logprobs: bool = False
    masked: bool = False
    slot: int = -1
    penalty: float = 1.0
    text: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if len(self.stop_ids) > NUM_STOPS:
            raise ConfigError(f"stop_ids: the device tests at most {NUM_STOPS}, got {len(self.stop_ids)}")
        first = self.first - (self.slot >= 0)
        if not first <= self.position < self.limit:
            raise ConfigError(f"position {self.position} must lie from first {first} to limit {self.limit} - 1")


def write(record: npt.NDArray[np.int32], row: RowStart, ticket: int) -> None:
    """Fill the record (FIELDS + table width words) of a row; the step writes its limit (`device.step`)."""
    words = record.view(np.uint32)
    record[[TICKET, TOKEN, POSITION, FIRST]] = ticket, row.token, row.position, row.first
    inverse = 0.0 if row.temperature == 0 else np.float32(1.0) / np.float32(row.temperature)
    floats = np.array([inverse, row.top_p, row.min_p, row.penalty], np.float32)
    record[[INVERSE, TOP_P, MIN_P, PENALTY]] = floats.view(np.int32)
    record[[TOP_K, WANTS, MASK, SLOT]] = row.top_k, row.wants_logprobs, -1, row.slot
    words[KEY], words[KEY + 1] = row.key & 0xFFFFFFFF, row.key >> 32
    record[STOPS:FIELDS] = -1
    record[STOPS : STOPS + len(row.stop_ids)] = row.stop_ids
    write_pages(record, row.pages)


def write_pages(record: npt.NDArray[np.int32], pages: Sequence[int]) -> None:
    """Put the pages of a row into its record."""
    record[FIELDS : FIELDS + len(pages)] = pages


def presence(row: RowStart, num_words: int) -> npt.NDArray[np.int32]:
    """Bits of the row's text: v % 32 of word v // 32 is set where it contains token v."""
    words, ids = np.zeros(num_words, np.uint32), np.array(row.text, np.int64)
    np.bitwise_or.at(words, ids // 32, np.uint32(1) << (ids % 32).astype(np.uint32))
    return words.view(np.int32)


def room(row: RowStart, num_pages: int) -> int:
    """The absolute position after the last one that fits into the row's pages."""
    return row.first + PAGE * num_pages
