"""Cyclic redundancy checks, by tables with a remainder for each byte."""

from dataclasses import dataclass

from kofn_switch.compiler.codegen.layout import literal, mask_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Crc:
    """A check of `width` bits; `reflected`: the least significant bit comes first, in and out."""

    width: int
    polynomial: int
    start: int = 0
    final: int = 0
    reflected: bool = True

    def table(self) -> tuple[int, ...]:
        """Return the remainder of each byte, for `hash_crc_reflected` and `hash_crc_forward`."""
        return tuple(self._reflected(byte) if self.reflected else self._forward(byte) for byte in range(256))

    def _reflected(self, remainder: int) -> int:
        polynomial = int(format(self.polynomial, f"0{self.width}b")[::-1], 2)
        for _ in range(8):
            remainder = remainder >> 1 ^ (polynomial if remainder & 1 else 0)
        return remainder

    def _forward(self, byte: int) -> int:
        remainder = byte << self.width - 8
        for _ in range(8):
            top = remainder >> self.width - 1
            remainder = (remainder << 1 ^ (self.polynomial if top else 0)) & mask_of(self.width)
        return remainder

    def call(self, table: str, data: str, length: str) -> str:
        """Return C that checks `length` bytes at `data`; `table` names the words of `table()`."""
        text = (
            f"hash_crc_{'reflected' if self.reflected else 'forward'}({data}, {length}, {table}, {literal(self.start)}"
        )
        return f"({text}{')' if self.reflected else f', {self.width})'} ^ {literal(self.final)})"


CRCS = {  # by BMv2's names; custom checks have the parameters with which BMv2 starts
    "crc16": Crc(width=16, polynomial=0x8005),
    "crc32": Crc(width=32, polynomial=0x04C11DB7, start=0xFFFFFFFF, final=0xFFFFFFFF),
    "crcCCITT": Crc(width=16, polynomial=0x1021, start=0xFFFF, reflected=False),
    "crc8_custom": Crc(width=8, polynomial=0x07, reflected=False),
    "crc16_custom": Crc(width=16, polynomial=0x8005),
    "crc32_custom": Crc(width=32, polynomial=0x04C11DB7, start=0xFFFFFFFF, final=0xFFFFFFFF),
    "crc64_custom": Crc(width=64, polynomial=0x1B),
}
