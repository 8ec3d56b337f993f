"""Byte strings that the specification accepts and returns."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kofn_switch.p4runtime.bytestring import decode, decode_signed, encode, encode_signed
from kofn_switch.p4runtime.refusal import Refused

WIDTHS = st.integers(1, 2048)


@given(width=WIDTHS, data=st.data(), zeros=st.integers(0, 40))
def test_every_value_that_fits_comes_back(width: int, data: st.DataObject, zeros: int) -> None:
    value = data.draw(st.integers(0, (1 << width) - 1))
    assert decode(bytes(zeros) + encode(value), width, "field") == value


@given(width=WIDTHS, data=st.data(), ones=st.integers(0, 40))
def test_every_signed_value_that_fits_comes_back(width: int, data: st.DataObject, ones: int) -> None:
    value = data.draw(st.integers(-(1 << (width - 1)), (1 << (width - 1)) - 1))
    extension = (b"\xff" if value < 0 else b"\0") * ones
    assert decode_signed(extension + encode_signed(value), width, "field") == value


@given(width=WIDTHS, excess=st.integers(0, 1 << 64))
def test_value_that_does_not_fit_is_refused(width: int, excess: int) -> None:
    with pytest.raises(Refused, match=rf"^the port is .* does not fit bit<{width}>$"):
        decode(encode((1 << width) + excess), width, "the port")


@pytest.mark.parametrize("first", ["7f", "80"])
def test_a_signed_value_of_thousands_of_digits_is_refused(first: str) -> None:
    with pytest.raises(Refused, match=r"^the cell is -?0x.* \((23999|24000) bits\), which does not fit int<32>$"):
        decode_signed(bytes.fromhex(first) + bytes(2999), 32, "the cell")


@given(st.integers(0, 1 << 2048))
def test_shortest_string_is_returned(value: int) -> None:
    data = encode(value)
    assert len(data) == 1 or data[0] != 0


@pytest.mark.parametrize(
    ("width", "value", "data"),
    [(8, 99, "63"), (16, 99, "0063"), (16, 12388, "3064"), (16, 12388, "003064"), (12, 99, "000063")],
)
def test_valid_examples_of_the_specification(width: int, value: int, data: str) -> None:
    assert decode(bytes.fromhex(data), width, "field") == value


@pytest.mark.parametrize(
    ("width", "value", "data"),
    [(8, 99, "63"), (8, -99, "9d"), (8, -99, "ff9d"), (12, -739, "fd1d"), (16, 0, "0000"), (16, 0, "00")],
)
def test_valid_signed_examples_of_the_specification(width: int, value: int, data: str) -> None:
    assert decode_signed(bytes.fromhex(data), width, "field") == value


@pytest.mark.parametrize(
    ("width", "data"), [(8, "0163"), (8, ""), (16, "010063"), (12, "1063"), (12, "010063"), (12, "004063")]
)
def test_invalid_examples_of_the_specification(width: int, data: str) -> None:
    with pytest.raises(Refused):
        decode(bytes.fromhex(data), width, "field")


@pytest.mark.parametrize(("width", "data"), [(8, "009d"), (12, "8d1d"), (16, "")])
def test_invalid_signed_examples_of_the_specification(width: int, data: str) -> None:
    with pytest.raises(Refused):
        decode_signed(bytes.fromhex(data), width, "field")
