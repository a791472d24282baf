"""The world that every expression finds: JavaScript without a host, without chance and without a clock.

`PRELUDE` is run once in a new context. It takes away what leads outside or makes code from text, puts a fixed
clock, seeded chance and UTC in place, bounds the built-in functions (`javascript_guards`) and freezes
everything, so that no expression can leave anything behind for the next one. Its value is a function that
makes a runner of a compiled expression; the runner takes its values as JSON text and gives its result as JSON
text.

Three variables stand beside the globals, which expressions cannot name: `__left`, how many steps may pass
before the clock is looked at; `__tick`, which looks; and `__filters`.
"""

from __future__ import annotations

from workflows_mcp.expressions.javascript_filters import OF_FILTERS
from workflows_mcp.expressions.javascript_guards import CLOCK, GUARDS

_BEGIN = """
let __left = 0, __tick = null, __filters = null;
(G => { 'use strict';
  const { apply, construct, defineProperty, get, getOwnPropertyDescriptor, getPrototypeOf, isExtensible,
    ownKeys, setPrototypeOf } = Reflect;
  const { entries, hasOwn } = Object, { isArray } = Array, { parse: parseJson, stringify } = JSON;
  const Mirror = Proxy, Pending = Promise, moment = performance.now.bind(performance);
"""

_REMOVED = """
  for (const name of ['eval', 'Function', 'Proxy', 'Promise', 'BigInt', 'WeakRef', 'FinalizationRegistry',
    'ArrayBuffer', 'SharedArrayBuffer', 'DataView', 'Atomics', 'Uint8ClampedArray', 'Int8Array',
    'Uint8Array', 'Int16Array', 'Uint16Array', 'Int32Array', 'Uint32Array', 'BigInt64Array',
    'BigUint64Array', 'Float16Array', 'Float32Array', 'Float64Array', 'DisposableStack',
    'AsyncDisposableStack', 'SuppressedError', 'AggregateError', 'DOMException', 'performance',
    'queueMicrotask', 'escape', 'unescape', 'globalThis'])
    delete G[name];
  delete Array.fromAsync; delete Math.sumPrecise; delete JSON.rawJSON; delete JSON.isRawJSON;
  for (const name of ['chunks', 'windows', 'includes', 'join']) delete Iterator.prototype[name];
  for (const name of ['concat', 'zip', 'zipKeyed']) delete Iterator[name];
  for (const name of ['captureStackTrace', 'stackTraceLimit', 'prepareStackTrace']) delete Error[name];
  const noCode = function () { throw new TypeError('code cannot be made from text'); };
  for (const made of [function () {}, function* () {}, async function () {}, async function* () {}])
    defineProperty(getPrototypeOf(made), 'constructor', { value: noCode });
"""

_TIME = """
  const D = Date, DP = D.prototype, utc = D.UTC, parsed = D.parse;
  let at = NaN;
  const time = () => {
    if (at !== at) throw new Error('there is no time here: a transform gives the same for the same input');
    return at;
  };
  const zoned = /(?:Z|[+-]\\d\\d:?\\d\\d|GMT|UTC?|[ECMP][SD]T)\\s*$/i;
  const dayOnly = /^\\s*[+-]?\\d{4,6}(?:-\\d\\d){0,2}\\s*$/, withTime = /^\\s*[+-]?\\d{4,6}-\\d\\d-\\d\\dT/;
  const parse = text => {
    text = String(text);
    if (text.length > 100) return NaN;
    if (dayOnly.test(text) || zoned.test(text)) return parsed(text);
    return parsed(text.trim() + (withTime.test(text) ? 'Z' : ' UTC'));
  };
  const FixedDate = { Date: function (...given) {
    if (!new.target) return new FixedDate().toString();
    const value = given.length === 0 ? time()
      : given.length > 1 ? utc(...given)
      : typeof given[0] === 'string' ? parse(given[0]) : given[0];
    return construct(D, [value], new.target);
  } }.Date;
  FixedDate.prototype = DP;
  defineProperty(FixedDate, 'length', { value: 7 });
  put(FixedDate, { now: time, UTC: utc, parse });
  for (const part of ['FullYear', 'Month', 'Date', 'Day', 'Hours', 'Minutes', 'Seconds', 'Milliseconds']) {
    DP['get' + part] = DP['getUTC' + part];
    if (DP['setUTC' + part]) DP['set' + part] = DP['setUTC' + part];
  }
  delete DP.getYear; delete DP.setYear;
  const two = number => String(number).padStart(2, '0');
  const valid = (date, text) => {
    const time = date.getTime();
    return time === time ? text(date, date.toUTCString()) : 'Invalid Date';
  };
  const day = (_, utc) =>
    utc.slice(0, 3) + ' ' + utc.slice(8, 11) + ' ' + utc.slice(5, 7) + utc.slice(11, -13);
  const clock = (_, utc) => utc.slice(-12) + '+0000 (Coordinated Universal Time)';
  const localDay = date => (date.getMonth() + 1) + '/' + date.getDate() + '/' + date.getFullYear();
  const localClock = date => (date.getHours() % 12 || 12) + ':' + two(date.getMinutes()) + ':'
    + two(date.getSeconds()) + (date.getHours() < 12 ? ' AM' : ' PM');
  put(DP, {
    getTimezoneOffset() { return this.getTime() * 0; },
    toString() { return valid(this, (date, utc) => day(date, utc) + ' ' + clock(date, utc)); },
    toDateString() { return valid(this, day); },
    toTimeString() { return valid(this, clock); },
    toLocaleString() { return valid(this, date => localDay(date) + ', ' + localClock(date)); },
    toLocaleDateString() { return valid(this, localDay); },
    toLocaleTimeString() { return valid(this, localClock); },
    constructor: FixedDate,
  });
  const ofTime = { now() { return new FixedDate(time()).toISOString().replace('.000Z', 'Z'); } };
  put(G, { Date: FixedDate, now: ofTime.now });
"""

_CHANCE = """
  let chance = null;
  const draw = () => {
    if (chance === null)
      throw new Error('there is no chance here: a transform gives the same for the same input');
    const [a, b, c, d] = chance, drawn = (a + b + d) | 0;
    chance = [b ^ (b >>> 9), (c + (c << 3)) | 0, (((c << 21) | (c >>> 11)) + drawn) | 0, (d + 1) | 0];
    return drawn >>> 0;
  };
  const seeded = seed => {
    chance = null;
    if (seed === '') return;
    chance = [0, 8, 16, 24].map(start => Number('0x' + seed.slice(start, start + 8)) | 0);
    for (let i = 0; i < 12; i++) draw();
  };
  put(Math, { random() { return (draw() * 2097152 + (draw() >>> 11)) / 9007199254740992; } });
  put(G, { uuid: { uuid() {
    const hex = [0, 1, 2, 3].map(() => draw().toString(16).padStart(8, '0')).join('');
    const variant = '89ab'[Number('0x' + hex[16]) & 3];
    return hex.slice(0, 8) + '-' + hex.slice(8, 12) + '-4' + hex.slice(13, 16) + '-' + variant
      + hex.slice(17, 20) + '-' + hex.slice(20);
  } }.uuid });
"""

_VALUES = """
  const asJson = {
    Set() { return [...this]; },
    Map() { return Object.fromEntries(this); },
    Iterator() { return [...this]; },
    Error() { return { name: this.name, message: this.message }; },
    RegExp() { return String(this); },
  };
  for (const [name, toJSON] of entries(asJson)) put(G[name].prototype, { toJSON });
  put(Pending.prototype, { toJSON() { throw new TypeError('a promise is no value'); } });
  const keyed = key => key.replace(/[^A-Za-z0-9_]/g, '_');
  const plainKey = /^\\w*$/;
  const spelled = new Mirror(Object.prototype, { get(target, key, receiver) {
    if (typeof key === 'string' && !plainKey.test(key)) {
      const other = keyed(key);
      if (hasOwn(receiver, other)) return receiver[other];
    }
    return get(target, key, receiver);
  } });
  const adopted = value => {
    const keys = isArray(value) ? value.keys() : Object.keys(value);
    let found = false;
    for (const key of keys) {
      if (__left-- < 0) tick();
      const item = value[key];
      if (typeof item === 'object' && item !== null) adopted(item);
      if (!found) found = typeof key === 'string' && key.includes('_');
    }
    if (found) setPrototypeOf(value, spelled);
  };
"""

_FREEZE = """
  const kinds = [Object, Error, TypeError, RangeError, SyntaxError, ReferenceError, EvalError, URIError];
  for (const { prototype: owner } of kinds) {
    for (const name of Object.getOwnPropertyNames(owner)) {
      const found = getOwnPropertyDescriptor(owner, name);
      if (!('value' in found)) continue;
      defineProperty(owner, name, {
        get: { [name]() { return found.value; } }[name],
        set: { [name](value) {
          if (this === owner) throw new TypeError(name + ' cannot be changed');
          defineProperty(this, name, { value, writable: true, enumerable: true, configurable: true });
        } }[name],
      });
    }
  }
  const made = [[].values(), ''.matchAll(/a/g), ''[Symbol.iterator](), new Map().values(), new Set().values(),
    Iterator.from({ next() {} }), [].values().map(item => item), function () {}, function* () {},
    async function () {}, async function* () {}, (function* () {})(), (async function* () {})(), Pending,
    Mirror, D, noCode];
  const left = [G, __filters, __tick, ...made, ...made.map(one => getPrototypeOf(one))], frozen = new Set();
  while (left.length > 0) {
    const next = left.pop();
    if (next === null || !['object', 'function'].includes(typeof next) || frozen.has(next)) continue;
    frozen.add(next);
    Object.freeze(next);
    left.push(getPrototypeOf(next));
    for (const key of ownKeys(next)) {
      const { value, get, set } = getOwnPropertyDescriptor(next, key);
      left.push(value ?? null, get ?? null, set ?? null);
    }
  }
"""

_RUN = """
  const told = (error, checks) => {
    if (error === null) return ['memory'];
    if (typeof error !== 'object' || !(error instanceof Error)) {
      return ['thrown', text(error) || String(error), checks];
    }
    const name = String(error.name), message = String(error.message);
    return name === 'InternalError' ? ['memory'] : ['error', name, message, String(error.stack), checks];
  };
  return (compute, check, finds) => (given, now, seed, seconds) => {
    let answer, checks = false, wrong = null;
    begin(seconds);
    try {
      at = now; seeded(seed);
      const data = parseJson(given), values = data[0], unset = data[1], self = data[2];
      for (let i = 0; i < unset.length; i++) values[unset[i]] = undefined;
      if (finds) adopted([values, self]);
      const result = apply(compute, self, values);
      if (typeof result === 'function' || typeof result === 'symbol')
        throw new TypeError('the result is a ' + typeof result + ', which is no value');
      checks = check !== null;
      const valid = check === null || apply(check, self, [...values, result]);
      answer = stringify(result, counted);
      if (!valid) wrong = ['invalid', answer];
    } catch (error) {
      wrong = ['memory'];
      try { wrong = told(error, checks); } catch {}
    }
    if (stopped) wrong = ['stopped'];
    if (wrong !== null) throw stringify(wrong);
    return answer;
  };
})(globalThis)
"""

PRELUDE = " ".join(
    "".join([_BEGIN, CLOCK, GUARDS, _REMOVED, _TIME, _CHANCE, _VALUES, OF_FILTERS, _FREEZE, _RUN]).split("\n")
)
"""All on one line: what a report of an error finds on another line is the expression's."""
