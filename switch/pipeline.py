"""A program as a controller pushed it: the configuration message, its lookups, and what can be written and read."""

import json

from finsy.proto import p4r

from switch.digests import Digests
from switch.engine import Engine
from switch.p4info import P4Info
from switch.p4runtime_entities import Entities
from switch.refusal import choices, invalid

Response = p4r.GetForwardingPipelineConfigRequest


class Pipeline:
    """Everything of the P4Runtime server that lives as long as one program."""

    def __init__(self, engine: Engine, config: p4r.ForwardingPipelineConfig) -> None:
        """Raises Refused when the p4info cannot be used.  Nothing is loaded by this."""
        self.config = config
        self.p4info = P4Info(config.p4info)
        self.digests = Digests(self.p4info)
        self.entities = Entities(engine, self.p4info, self.digests)

    def answer(self, response_type: int) -> p4r.ForwardingPipelineConfig:
        """The parts of the configuration that a GetForwardingPipelineConfig asks for."""
        answer = p4r.ForwardingPipelineConfig()
        if self.config.HasField("cookie"):
            answer.cookie.CopyFrom(self.config.cookie)
        if response_type in (Response.ALL, Response.P4INFO_AND_COOKIE):
            answer.p4info.CopyFrom(self.config.p4info)
        if response_type in (Response.ALL, Response.DEVICE_CONFIG_AND_COOKIE):
            answer.p4_device_config = self.config.p4_device_config
        return answer

    def same_program(self, config: p4r.ForwardingPipelineConfig) -> bool:
        """Whether `config` differs in nothing but the cookie."""
        return bool(self.config.p4_device_config == config.p4_device_config and self.config.p4info == config.p4info)

    def check_fits_program(self) -> None:
        """Raise Refused when the p4info belongs to another program than the device config."""
        try:
            document = json.loads(self.config.p4_device_config)
            tables = {table["name"] for pipeline in document["pipelines"] for table in pipeline["tables"]}
        except (ValueError, KeyError, TypeError) as error:
            raise invalid(f"p4_device_config is not the JSON that p4c --target bmv2 writes: {error!r}") from error
        for table in self.p4info.tables:
            if table.name not in tables:
                raise invalid(f"the p4info has table {table.name}, which the program has not; it has {choices(tables)}")
