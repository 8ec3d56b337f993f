"""Malformed JSON is accepted, or refused with ProgramError, and nothing else; some accepted documents are run."""

import contextlib
import json
import random
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

from kofn_switch.compiler.codegen.codegen import generate
from kofn_switch.compiler.reader.reader import read_program
from kofn_switch.engine.engine import Engine
from kofn_switch.errors import ProgramError, SwitchError
from tests.switch.fuzz.mutations import changed_document
from tests.switch.fuzz.programs import Subject

PATIENCE_S = 30
RUN_EVERY = 40
"""One accepted document in this many is run: compiling one takes seconds."""


def run(subjects: Sequence[Subject], *, seconds: float, chance: random.Random) -> None:
    """Change documents of all programs in turn."""
    loaded = [(subject, subject.document()) for subject in subjects]
    end, read, accepted = time.monotonic() + seconds, 0, 0
    while time.monotonic() < end:
        subject, document = chance.choice(loaded)
        text = _changed(document, chance)
        read += 1
        with _named(subject, text):
            if not _accepted(text):
                continue
            accepted += 1
            if accepted % RUN_EVERY == 0:
                _run(text, chance)
    print(f"documents: {read:,} read, {accepted:,} accepted, {accepted // RUN_EVERY} of them run", flush=True)
    assert 0 < accepted < read, "some documents must be accepted, and some refused"


def _changed(document: bytes, chance: random.Random) -> bytes:
    """Change one place of the document, or of its bytes."""
    if chance.random() < 0.9:
        return json.dumps(changed_document(json.loads(document), chance, chance.randint(1, 3))).encode()
    text = bytearray(document)
    text[chance.randrange(len(text))] = chance.randrange(256)
    return bytes(text[: chance.randint(0, len(text))] if chance.random() < 0.5 else text)


def _accepted(text: bytes) -> bool:
    try:
        generate(read_program(text))
    except ProgramError:
        return False
    return True


def _run(text: bytes, chance: random.Random) -> None:
    """Run the document; the native part may refuse it as well, for lack of memory, for example."""
    with contextlib.suppress(SwitchError):
        engine = Engine({})
        engine.load(text)
        for _ in range(100):
            engine.inject(chance.randrange(512), chance.randbytes(chance.choice((0, 14, 64, 300, 9000))))


@contextlib.contextmanager
def _named(subject: Subject, text: bytes) -> Iterator[None]:
    """Save the document on an error, and end a run that takes too long."""

    def too_long(*_: Any) -> None:
        raise TimeoutError(f"not read within {PATIENCE_S} s")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(PATIENCE_S)
    try:
        yield
    except BaseException:
        with tempfile.NamedTemporaryFile(prefix="fuzz-", suffix=".json", delete=False) as kept:
            kept.write(text)
        print(f"documents: made from {subject.name}, kept as {kept.name}", flush=True)
        raise
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
