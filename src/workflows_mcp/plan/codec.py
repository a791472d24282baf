"""Plans and bundles in their written form, and the content hash by which a store knows them.

The encoding keeps the order of keys, because a workflow can show it (an object in a template); it is the
same in every process. Where a file lies is not part of what it means: `file` does not enter the key.
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
    """The hash of what `plan` means: 24 hexadecimal digits, the same wherever the file lies."""
    return _key(_encode(msgspec.structs.replace(plan, file="")))


def bundle_key(bundle: Bundle) -> str:
    """The hash of a plan together with all that it can call, and with the sources of all of them: a run
    shows its errors in the text that it was started from."""
    plans = [(name, plan_key(plan), plan.file) for name, plan in sorted(bundle.plans.items())]
    return _key(_encode([bundle.main, plans, sorted(bundle.sources.items())]))


def _key(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=_KEY_BYTES).hexdigest()
