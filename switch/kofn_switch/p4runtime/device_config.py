"""p4_device_config: p4c's JSON, plain or in the message p4.tmp.P4DeviceConfig, as BMv2's older clients send it."""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

NAME = "P4DeviceConfig"


def document(device_config: bytes) -> bytes:
    """Return p4c's JSON, also from within a P4DeviceConfig. (JSON itself never parses as a P4DeviceConfig.)"""
    try:
        return bytes(_message().FromString(device_config).device_data) or device_config
    except DecodeError:
        return device_config


def _message() -> Any:
    """Return the message's class with the one field that is read; the message's other two fields are obsolete."""
    file = descriptor_pb2.FileDescriptorProto(name="p4config.proto", package="p4.tmp", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    file.message_type.add(name=NAME).field.add(
        name="device_data", number=3, type=kinds.TYPE_BYTES, label=kinds.LABEL_OPTIONAL
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"p4.tmp.{NAME}"))
