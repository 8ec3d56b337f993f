"""The question which workers are missing in a block that does not close, its answer, and packets that are no answer."""

import pytest

from kofn_common.wire.packet import WORD_BYTES, Kind
from kofn_common.wire.sizes import WEIGHT_UNIT
from kofn_host.errors import ProtocolError
from kofn_host.protocol.block_layout import BlockLayout
from kofn_host.protocol.instructions import Packed, Send
from tests.host.protocol.specification.both import Both as Protocol
from tests.host.protocol.specification.slot_model import SlotModel


def described(protocol: Protocol) -> str:
    """Return the description on which core and specification agree."""
    (found,) = {query.describe(4) for query in (protocol.specification.query, protocol.native.query)}
    return found


@pytest.mark.parametrize("lanes", [0, 1, 3])
def test_slot_query_tells_the_members_of_an_open_block(lanes: int) -> None:
    """It works in any lanes; an answer to another request does not count."""
    layout = BlockLayout(blocks=4, words=8, widest=32)
    protocol = Protocol(job=1, rank=1, layout=layout, slots=8, window=4, rto_s=0.05)
    rules = SlotModel(workers=4, k=4, slots=8)
    protocol.begin(3, 0.0, [2], lanes)
    assert described(protocol) == "the switch was not asked why"
    values = bytes(WORD_BYTES * layout.words_of(2, lanes))
    (request,) = protocol.contribute(2, Packed(values, 3, lanes, WEIGHT_UNIT), now=0.0)
    assert isinstance(request, Send)
    for rank in (1, 3):
        assert rules.handle(request.header._replace(worker=rank), values) == []
    (asked,) = protocol.ask_slot()
    assert (asked.header.kind, described(protocol)) == (Kind.PULL, "no answer for block 2")
    ((_, answer, told),) = rules.handle(asked.header, asked.values)
    assert protocol.packet_in(answer._replace(block=1), told, 0.0) == []
    with pytest.raises(ProtocolError, match="another number of words"):
        protocol.packet_in(answer._replace(words=request.header.words), told, 0.0)
    assert described(protocol) == "no answer for block 2"
    assert protocol.packet_in(answer, told, 0.0) == []
    assert described(protocol) == "in block 2 the switch has workers 0 and 2 missing"
    protocol.jump(4, 0.0, [2], lanes)
    protocol.packet_in(answer, told, 0.0)
    assert described(protocol) == "the switch was not asked why"
