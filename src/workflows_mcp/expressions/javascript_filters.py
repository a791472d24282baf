"""The filters of templates: `{{ path | path_to_key }}`, `{{ files | join(', ') }}`.

Names of filters and nothing more: where none of them stands behind a `|`, it is JavaScript's own.
"""

from __future__ import annotations

from workflows_mcp.expressions.javascript_source import words

FILTERS = words(
    """path_to_key json tojson length count upper lower trim capitalize join split replace default first last
    keys values sort reverse unique sum min max round int float string"""
)

OF_FILTERS = """
  const text = value => value === undefined || value === null ? ''
    : typeof value === 'object' ? JSON.stringify(value) : String(value);
  const list = value => value === undefined || value === null ? []
    : isArray(value) ? value : typeof value === 'object' ? Object.values(value) : [...String(value)];
  const size = value => value === undefined || value === null ? 0
    : typeof value === 'object' && !isArray(value) ? Object.keys(value).length
    : value.length ?? text(value).length;
  const member = (value, key) => key === undefined ? value : value?.[key];
  const compared = (a, b) => a < b ? -1 : a > b ? 1 : 0;
  __filters = {
    path_to_key: value => keyed(text(value)),
    json: (value, indent) => JSON.stringify(value, null, indent),
    tojson: (value, indent) => JSON.stringify(value, null, indent),
    length: size,
    count: size,
    upper: value => text(value).toUpperCase(),
    lower: value => text(value).toLowerCase(),
    trim: value => text(value).trim(),
    capitalize: value => text(value).slice(0, 1).toUpperCase() + text(value).slice(1),
    join: (value, between = ',') => list(value).map(item => text(item)).join(between),
    split: (value, between = ' ') => text(value).split(between),
    replace: (value, from, to) => text(value).replaceAll(from, to),
    default: (value, other = '') => value ?? other,
    first: value => list(value)[0],
    last: value => list(value).at(-1),
    keys: value => Object.keys(value ?? {}),
    values: value => list(value),
    sort: (value, key) => list(value).toSorted((a, b) => compared(member(a, key), member(b, key))),
    reverse: value => typeof value === 'string' ? [...value].reverse().join('') : list(value).toReversed(),
    unique: value => [...new Set(list(value))],
    sum: (value, key) => list(value).reduce((sum, item) => sum + Number(member(item, key)), 0),
    min: value => list(value).reduce((a, b) => b < a ? b : a, list(value)[0]),
    max: value => list(value).reduce((a, b) => b > a ? b : a, list(value)[0]),
    round: (value, digits = 0) => Number(Number(value).toFixed(digits)),
    int: value => Math.trunc(Number(value)),
    float: value => Number(value),
    string: value => text(value),
  };
"""
