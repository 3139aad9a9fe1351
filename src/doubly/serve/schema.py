"""What JSON may look like: a small part of JSON Schema, by which requests are checked and the API is documented.

Known are: type (one or several), enum, minimum, maximum, minItems, maxItems, items, maxLength, properties, required,
additionalProperties, and $ref to a named schema. Every keyword of ours is checked; none is there for show.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, get_type_hints

from doubly.core.errors import UserError
from doubly.data.columns import shown

Schema = dict[str, Any]
Named = Mapping[str, Schema]
REF = "#/components/schemas/"

_WORDS = {
    "integer": "a whole number", "number": "a number", "string": "a text", "boolean": "true or false",
    "null": "null", "array": "a list", "object": "an object",
}  # fmt: skip


def ref(name: str) -> Schema:
    """A schema by its name."""
    return {"$ref": REF + name}


def array(items: Schema, most: int | None = None, least: int = 0, about: str = "") -> Schema:
    """A list of so many items at most."""
    found: Schema = {"type": "array", "items": items}
    found |= {"maxItems": most} if most is not None else {}
    found |= {"minItems": least} if least else {}
    return found | ({"description": about} if about else {})


def check(schema: Schema, value: Any, named: Named, where: str = "the body") -> None:
    """Refuse a value that is not as the schema says, with one line that names the place."""
    if "$ref" in schema:
        check(named[schema["$ref"].removeprefix(REF)], value, named, where)
        return
    types = schema.get("type", [])
    types = [types] if isinstance(types, str) else types
    if types and not any(_is(kind, value) for kind in types):
        raise UserError(f"{where} must be {' or '.join(_WORDS[kind] for kind in types)}, got {_told(value)}")
    if "enum" in schema and value not in schema["enum"]:
        raise UserError(f"{where} must be one of {shown(list(map(str, schema['enum'])))}; got {_told(value)}")
    if isinstance(value, str) and len(value) > schema.get("maxLength", math.inf):
        raise UserError(f"{where} must have at most {schema['maxLength']} characters, got {len(value)}")
    if isinstance(value, int | float) and not isinstance(value, bool):
        least, most = schema.get("minimum", -math.inf), schema.get("maximum", math.inf)
        if not least <= value <= most:
            raise UserError(f"{where} must be between {least} and {most}, got {_told(value)}")
    if isinstance(value, list):
        _check_list(schema, value, named, where)
    if isinstance(value, dict):
        _check_object(schema, value, named, where)


def _check_list(schema: Schema, value: list[Any], named: Named, where: str) -> None:
    least, most = schema.get("minItems", 0), schema.get("maxItems", math.inf)
    if not least <= len(value) <= most:
        wanted = f"{least}" if least == most else f"between {least} and {most}"
        raise UserError(f"{where} must have {wanted} entries, got {len(value)}")
    for at, item in enumerate(value):
        check(schema.get("items", {}), item, named, f"{where}[{at}]")


def _check_object(schema: Schema, value: dict[str, Any], named: Named, where: str) -> None:
    properties, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    for name in schema.get("required", ()):
        if name not in value:
            raise UserError(f"{where} has no {name!r}: give {shown(list(properties))}")
    for name, inner in value.items():
        if name in properties:
            check(properties[name], inner, named, f"{name} in {where}")
        elif others is False:
            raise UserError(f"{where} has {_told(name)}, which is not known: give {shown(list(properties))}")
        elif isinstance(others, dict):
            check(others, inner, named, f"{_told(name)} in {where}")


def _is(kind: str, value: Any) -> bool:
    if kind == "null":
        return value is None
    if kind == "boolean":
        return isinstance(value, bool)
    if kind in ("integer", "number"):
        whole = isinstance(value, int) and not isinstance(value, bool)
        return whole or (kind == "number" and isinstance(value, float) and math.isfinite(value))
    return isinstance(value, {"string": str, "array": list, "object": dict}[kind])


def _told(value: Any) -> str:
    """A value in a message: one line, and not too long."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 40 else text[:39] + "…"


# Dataclasses as objects: each field is annotated with its schema


def said(schema: Schema, about: str) -> Schema:
    """A schema with a line on what it is for."""
    return schema | {"description": about}


def of(kind: type) -> Schema:
    """The schema of a dataclass whose fields are Annotated[type, schema]; what has no default must be given."""
    hints, properties, required = get_type_hints(kind, include_extras=True), {}, []
    for field in dataclasses.fields(kind):
        (properties[field.name],) = hints[field.name].__metadata__
        if field.default is dataclasses.MISSING:
            required.append(field.name)
        else:
            properties[field.name] = properties[field.name] | {"default": field.default}
    return {
        "type": "object",
        "description": (kind.__doc__ or "").split("\n")[0],
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
