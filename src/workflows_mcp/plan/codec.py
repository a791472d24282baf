"""Encodes plans and bundles, and computes the content hash that a store uses as their key.

The encoding keeps the order of keys, because a workflow can show it (an object in a template), and it is the
same in every process. The path of a file is not part of its meaning, so `file` is not part of the key.
"""

from __future__ import annotations

import hashlib

import msgspec

from workflows_mcp.plan.model import Bundle, Plan

_encode = msgspec.msgpack.Encoder().encode
_plan_decoder = msgspec.msgpack.Decoder(Plan)
_bundle_decoder = msgspec.msgpack.Decoder(Bundle)
_KEY_BYTES = 12


def encode_plan(plan: Plan) -> bytes:
    return _encode(plan)


def decode_plan(data: bytes) -> Plan:
    return _plan_decoder.decode(data)


def encode_bundle(bundle: Bundle) -> bytes:
    return _encode(bundle)


def decode_bundle(data: bytes) -> Bundle:
    return _bundle_decoder.decode(data)


def plan_key(plan: Plan) -> str:
    """The hash of the content of `plan`: 24 hexadecimal digits, independent of the file's path."""
    return _key(_encode(msgspec.structs.replace(plan, file="")))


def bundle_key(bundle: Bundle) -> str:
    """The hash of a plan, the plans that it can call, and all their sources.

    The sources count because a run shows its errors in the text that it was started from.
    """
    plans = [(name, plan_key(plan), plan.file) for name, plan in sorted(bundle.plans.items())]
    return _key(_encode([bundle.main, plans, sorted(bundle.sources.items())]))


def _key(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=_KEY_BYTES).hexdigest()
