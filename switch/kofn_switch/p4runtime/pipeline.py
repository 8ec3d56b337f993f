"""A program that a controller pushed: the configuration message, its lookups, its readable and writable entities."""

from collections.abc import Iterable, Sequence

from finsy.proto import p4r

from kofn_switch.compiler.codegen.codegen import generate
from kofn_switch.compiler.reader.reader import read_program
from kofn_switch.engine.engine import Engine
from kofn_switch.p4runtime.device_config import document
from kofn_switch.p4runtime.digests import Digests
from kofn_switch.p4runtime.entities import Entities
from kofn_switch.p4runtime.index import Named
from kofn_switch.p4runtime.p4info import P4Info
from kofn_switch.p4runtime.refusal import choices, invalid

Get = p4r.GetForwardingPipelineConfigRequest


class Pipeline:
    """Everything of the P4Runtime server that lives as long as one program."""

    def __init__(self, engine: Engine, config: p4r.ForwardingPipelineConfig) -> None:
        """Read the configuration without loading it. Raise Refused when the p4info cannot be used."""
        self.config = config
        self.document = document(config.p4_device_config)  # p4c's JSON
        self._engine = engine
        self.p4info = P4Info(config.p4info)
        self.digests = Digests(self.p4info)
        self.entities = Entities(engine, self.p4info, self.digests)

    def answer(self, response_type: int) -> p4r.ForwardingPipelineConfig:
        """Return the parts of the configuration that a GetForwardingPipelineConfig asks for."""
        answer = p4r.ForwardingPipelineConfig()
        if self.config.HasField("cookie"):
            answer.cookie.CopyFrom(self.config.cookie)
        if response_type in (Get.ALL, Get.P4INFO_AND_COOKIE):
            answer.p4info.CopyFrom(self.config.p4info)
        if response_type in (Get.ALL, Get.DEVICE_CONFIG_AND_COOKIE):
            answer.p4_device_config = self.config.p4_device_config
        return answer

    def same_program(self, config: p4r.ForwardingPipelineConfig) -> bool:
        """Return whether `config` differs in nothing but the cookie."""
        return bool(self.config.p4_device_config == config.p4_device_config and self.config.p4info == config.p4info)

    def check(self, *, generated: bool) -> None:
        """Raise SwitchError when the program cannot be read, or when it lacks an object that the p4info names.

        With `generated`, also generate code, so that errors show before the program is loaded.
        """
        program = read_program(self.document)
        _check_names("table", self.p4info.tables, [table.name for table in program.tables])
        _check_names("counter", self.p4info.counters, [counter.name for counter in program.counters])
        _check_names("register", self.p4info.registers, [register.name for register in program.registers])
        _check_names("meter", self.p4info.meters, [meter.name for meter in program.meters])
        _check_names("value set", self.p4info.value_sets, list(program.value_sets))
        _check_names("action profile", self.p4info.profiles, list(program.profiles))
        _check_names("digest", self.p4info.digests, [digest.name for digest in program.digests])
        if generated:
            generate(program, self._engine.target)


def _check_names(kind: str, described: Iterable[Named], existing: Sequence[str]) -> None:
    for item in described:
        if item.name not in existing:
            raise invalid(f"the p4info has {kind} {item.name}, which the program lacks: {choices(existing)}")
