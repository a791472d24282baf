/* Sets up the JavaScript context of expressions: no host, no randomness, no clock.

   It runs once in a new context. It removes everything that leads outside or makes code from text, installs
   a fixed clock, seeded random numbers and UTC, bounds the built-in functions, and freezes everything, so
   that no expression can leave anything behind. Its value is a function that turns a compiled expression
   into a runner, which takes its values as JSON text and returns its result as JSON text.

   Three variables stand beside the globals, and expressions cannot name them: `__left`, the number of steps
   until the clock is checked; `__tick`, which checks it; and `__filters`.

   QuickJS checks the time limit only between its own steps, and only once in ten thousand. A long operation
   inside one built-in call (a search for a long text in a long text, a list with a length of four thousand
   million) would not be stopped. So each of these functions checks the size of its work first; too much is
   a RangeError. Functions that call back for each item also check the clock.

   It is evaluated as one line, so that an error on any other line is in the expression: no comment here may
   end with its line. */
let __left = 0, __tick = null, __filters = null;
(G => { 'use strict';
  const { apply, construct, defineProperty, get, getOwnPropertyDescriptor, getPrototypeOf, isExtensible,
    ownKeys, setPrototypeOf } = Reflect;
  const { entries, hasOwn } = Object, { isArray } = Array, { parse: parseJson, stringify } = JSON;
  const Mirror = Proxy, Pending = Promise, moment = performance.now.bind(performance);

  /* Bounds of the built-in functions: the longest list; the longest text, and the longest one for functions
     that look up each character in a table; the characters that a search may compare; the longest pattern. */
  const MOST_ITEMS = 2_000_000, MOST_CHARS = 16_777_216, MOST_CHARS_OF_SLOW = 2_097_152;
  const MOST_COMPARED = 1_000_000_000, MOST_PATTERN_CHARS = 10_000;

  /* The clock */

  let stopped = false, deadline = Infinity, last = 0;
  const begin = seconds => {
    stopped = false; __left = 0; last = moment(); deadline = last + seconds * 1000;
  };
  const tick = () => {
    const now = moment();
    __left = now - last < 2 ? 16 : 0;
    last = now;
    if (now < deadline) return false;
    stopped = true; __left = 0;
    throw new RangeError('it takes too long');
  };
  __tick = tick;
  const tooMany = (what, count, most) => {
    throw new RangeError(what + ': ' + count + ' is too many, at most ' + most + ' can be worked on at once');
  };
  const put = (owner, functions) => {
    for (const name of ownKeys(functions)) {
      const value = functions[name];
      defineProperty(owner, name, { value, writable: true, configurable: true, enumerable: false });
    }
  };
  const guard = (owner, names, made) => {
    for (const name of names) {
      const { of } = made(owner[name], name);
      defineProperty(of, 'name', { value: name });
      put(owner, { [name]: of });
    }
  };
  const watched = call => typeof call === 'function' && !isExtensible(call)
    ? function () { if ((__left -= 4) < 0) tick(); return apply(call, this, arguments); } : call;

  /* Regular expressions */

  const PlainPattern = RegExp;
  const Pattern = { RegExp: function (pattern, flags) {
    if (typeof pattern === 'string' && pattern.length > MOST_PATTERN_CHARS)
      tooMany('a pattern of so many characters', pattern.length, MOST_PATTERN_CHARS);
    return new.target ? construct(PlainPattern, [pattern, flags], new.target) : PlainPattern(pattern, flags);
  } }.RegExp;
  Pattern.prototype = PlainPattern.prototype;
  put(Pattern, { escape: PlainPattern.escape });
  defineProperty(Pattern, Symbol.species, getOwnPropertyDescriptor(PlainPattern, Symbol.species));
  put(PlainPattern.prototype, { constructor: Pattern });
  delete PlainPattern.prototype.compile;
  put(G, { RegExp: Pattern });

  /* Lists */

  const AP = Array.prototype;
  const sized = (self, name) => {
    let size;
    if (isArray(self) || typeof self === 'string') size = self.length;
    else if (typeof self === 'object' && self !== null)
      size = getOwnPropertyDescriptor(self, 'length')?.value;
    if (typeof size !== 'number' || !(size >= 0)) throw new TypeError(name + '() is for lists');
    if (size > MOST_ITEMS) tooMany(name + '() on a list of so many items', size, MOST_ITEMS);
    if ((__left -= size >>> 12) < 0) tick();
    return self;
  };
  guard(AP, ['every', 'some', 'forEach', 'map', 'filter', 'find', 'findIndex', 'findLast',
    'findLastIndex', 'flatMap'], (call, name) => ({ of(each, self) {
    return call.call(sized(this, name), watched(each), self);
  } }));
  guard(AP, ['reduce', 'reduceRight'], (call, name) => ({ of(each, first) {
    sized(this, name);
    return arguments.length > 1 ? call.call(this, watched(each), first) : call.call(this, watched(each));
  } }));
  guard(AP, ['fill', 'join', 'toLocaleString', 'shift', 'unshift', 'reverse', 'toReversed', 'slice',
    'splice', 'toSpliced', 'copyWithin', 'with'], (call, name) => ({ of() {
    __left--;
    return apply(call, sized(this, name), arguments);
  } }));
  guard(AP, ['includes', 'indexOf', 'lastIndexOf'], (call, name) => ({ of(sought, from) {
    sized(this, name);
    if (typeof sought !== 'string' || sought.length < 1000)
      return arguments.length > 1 ? call.call(this, sought, from) : call.call(this, sought);
    const same = [];
    for (let i = 0; i < this.length; i++) {
      if ((__left -= sought.length >>> 12) < 0) tick();
      same[i] = this[i] === sought;
    }
    return arguments.length > 1 ? call.call(same, true, from) : call.call(same, true);
  } }));
  const simple = list => {
    for (let i = 0; i < list.length; i++) {
      const item = list[i], kind = typeof item;
      if (kind !== 'number' && (kind !== 'string' || item.length > 1000)) return false;
    }
    return true;
  };
  const byText = (a, b) => {
    a = String(a); b = String(b);
    if ((__left -= 1 + (Math.min(a.length, b.length) >>> 12)) < 0) tick();
    return a < b ? -1 : a > b ? 1 : 0;
  };
  guard(AP, ['sort', 'toSorted'], (call, name) => ({ of(compare) {
    sized(this, name);
    return call.call(this, compare === undefined ? simple(this) ? undefined : byText : watched(compare));
  } }));
  const flattened = (made, list, depth) => {
    sized(list, 'flat');
    for (let i = 0; i < list.length; i++) {
      if (__left-- < 0) tick();
      const item = list[i];
      if (depth > 0 && isArray(item)) flattened(made, item, depth - 1); else if (i in list) made.push(item);
    }
    return made;
  };
  put(AP, { flat(depth = 1) { return flattened([], this, Number(depth) || 0); } });
  const concat = AP.concat;
  put(AP, { concat(...more) {
    let size = sized(this, 'concat').length;
    for (const one of more) {
      if (typeof one !== 'object' || one === null) continue;
      if (Symbol.isConcatSpreadable in one) throw new TypeError('concat() takes lists and other values');
      if (isArray(one)) size += sized(one, 'concat').length;
    }
    if (size > MOST_ITEMS) tooMany('concat() to a list of so many items', size, MOST_ITEMS);
    return apply(concat, this, more);
  } });
  const from = Array.from;
  put(Array, { from(given, each, self) {
    if (typeof given === 'object' && given !== null && !(Symbol.iterator in given))
      sized(given, 'Array.from');
    return each === undefined ? from.call(this, given) : from.call(this, given, watched(each), self);
  } });

  /* Iterators, maps and sets */

  const IP = Iterator.prototype, drop = IP.drop;
  put(IP, { drop(count) {
    count = Number(count);
    if (count > MOST_ITEMS) tooMany('drop() of so many items', count, MOST_ITEMS);
    return drop.call(this, count);
  } });
  guard(IP, ['every', 'some', 'forEach', 'map', 'filter', 'find', 'flatMap', 'reduce'],
    call => ({ of(each, ...more) { return call.call(this, watched(each), ...more); } }));
  for (const kind of [Map, Set]) {
    const call = kind.prototype.forEach;
    put(kind.prototype, { forEach(each, self) { return call.call(this, watched(each), self); } });
  }
  const members = Set.prototype.values;
  guard(Set.prototype, ['union', 'intersection', 'difference', 'symmetricDifference', 'isSubsetOf',
    'isSupersetOf', 'isDisjointFrom'], call => ({ of(other) {
    return call.call(this, new Set(members.call(other)));
  } }));
  for (const kind of [Map, Object]) {
    const call = kind.groupBy;
    put(kind, { groupBy(items, each) { return call.call(kind, items, watched(each)); } });
  }
  const bind = Function.prototype.bind;
  put(Function.prototype, { bind() { return Object.freeze(apply(bind, this, arguments)); } });

  /* Texts */

  const SP = String.prototype;
  const textOf = (self, name, most) => {
    if (self === undefined || self === null) throw new TypeError(name + '() is for texts');
    const text = typeof self === 'string' ? self : String(self);
    if (text.length > most) tooMany(name + '() on a text of so many characters', text.length, most);
    if ((__left -= text.length >>> 12) < 0) tick();
    return text;
  };
  const searched = (self, sought, name) => {
    const text = textOf(self, name, MOST_CHARS);
    const work = typeof sought === 'string' ? text.length * sought.length : 0;
    if (work > MOST_COMPARED) tooMany(name + '() with so many comparisons', work, MOST_COMPARED);
    if ((__left -= work / 65536) < 0) tick();
    return text;
  };
  guard(SP, ['includes', 'indexOf', 'lastIndexOf', 'split'], (call, name) => ({ of(sought, more) {
    if (typeof sought === 'string' && sought.length < 30
      && typeof this === 'string' && this.length < 100000) return call.call(this, sought, more);
    sought = sought === undefined || sought instanceof PlainPattern ? sought : String(sought);
    return call.call(searched(this, sought, name), sought, more);
  } }));
  const { replace, replaceAll } = SP, seek = SP.indexOf;
  const expanded = (to, text, from, position) => to.replace(/\$([$&`'])/g, (_, sign) => sign === '$' ? '$'
    : sign === '&' ? from : sign === '`' ? text.slice(0, position) : text.slice(position + from.length));
  put(SP, { replace(from, to) {
    return typeof from === 'string' ? replace.call(searched(this, from, 'replace'), from, to)
      : replace.call(this, from, watched(to));
  } });
  put(SP, { replaceAll(from, to) {
    if (typeof from !== 'string') return replaceAll.call(this, from, watched(to));
    const text = searched(this, from, 'replaceAll');
    if (from === '') return replaceAll.call(textOf(text, 'replaceAll', MOST_CHARS_OF_SLOW), from, to);
    const calls = typeof to === 'function', fixed = calls ? '' : String(to);
    const plain = !calls && seek.call(fixed, '$') < 0;
    let made = '', start = 0;
    for (;;) {
      if (__left-- < 0) tick();
      const position = seek.call(text, from, start);
      if (position < 0) return start === 0 ? text : made + text.slice(start);
      made += text.slice(start, position)
        + (plain ? fixed : calls ? String(to(from, position, text)) : expanded(fixed, text, from, position));
      start = position + from.length;
    }
  } });
  guard(SP, ['toLowerCase', 'toUpperCase', 'toLocaleLowerCase', 'toLocaleUpperCase', 'normalize',
    'localeCompare'], (call, name) => ({ of(other) {
    return call.call(textOf(this, name, MOST_CHARS_OF_SLOW),
      typeof other === 'string' ? textOf(other, name, MOST_CHARS_OF_SLOW) : other);
  } }));
  const raw = String.raw;
  put(String, { raw(strings, ...values) {
    if (!isArray(strings.raw)) throw new TypeError('String.raw() is for template literals');
    return raw({ raw: sized(strings.raw, 'String.raw') }, ...values);
  } });
  guard(G, ['encodeURIComponent', 'encodeURI', 'decodeURIComponent', 'decodeURI', 'btoa', 'atob',
    'parseFloat', 'parseInt'], (call, name) => ({ of(given, other) {
    return call(typeof given === 'string' ? textOf(given, name, MOST_CHARS_OF_SLOW) : given, other);
  } }));

  /* Numbers */

  guard(Math, ['max', 'min', 'hypot'], (call, name) => ({ of(a, b) {
    if (arguments.length < 3) return apply(call, Math, arguments);
    const numbers = [];
    for (let i = 0; i < arguments.length; i++) {
      const given = arguments[i];
      if ((__left -= typeof given === 'string' ? 1 + (given.length >>> 12) : 1) < 0) tick();
      numbers[i] = Number(given);
    }
    return apply(call, Math, numbers);
  } }));

  /* JSON */

  const counted = (_, value) => { if (__left-- < 0) tick(); return value; };
  put(JSON, {
    stringify(value, replacer, space) {
      if (!isArray(replacer))
        return stringify(value, typeof replacer === 'function' ? watched(replacer) : counted, space);
      const kept = new Set(sized(replacer, 'JSON.stringify').map(String));
      return stringify(value, function (key, value) {
        if (__left-- < 0) tick();
        return key === '' || isArray(this) || kept.has(key) ? value : undefined;
      }, space);
    },
    parse(given, reviver) {
      if (typeof given === 'string' && (__left -= given.length >>> 12) < 0) tick();
      return reviver === undefined ? parseJson(given) : parseJson(given, watched(reviver));
    },
  });

  /* What leads outside */

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

  /* Time */

  const D = Date, DP = D.prototype, utc = D.UTC, parsed = D.parse;
  let at = NaN;
  const time = () => {
    if (at !== at)
      throw new Error('the time cannot be read here: a transform returns the same for the same input');
    return at;
  };
  const zoned = /(?:Z|[+-]\d\d:?\d\d|GMT|UTC?|[ECMP][SD]T)\s*$/i;
  const dayOnly = /^\s*[+-]?\d{4,6}(?:-\d\d){0,2}\s*$/, withTime = /^\s*[+-]?\d{4,6}-\d\d-\d\dT/;
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

  /* Random numbers */

  let chance = null;
  const draw = () => {
    if (chance === null)
      throw new Error('there is no randomness here: a transform returns the same for the same input');
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

  /* Values as JSON, and keys in their other spelling */

  const asJson = {
    Set() { return [...this]; },
    Map() { return Object.fromEntries(this); },
    Iterator() { return [...this]; },
    Error() { return { name: this.name, message: this.message }; },
    RegExp() { return String(this); },
  };
  for (const [name, toJSON] of entries(asJson)) put(G[name].prototype, { toJSON });
  put(Pending.prototype, { toJSON() { throw new TypeError('a promise is not a value'); } });
  const keyed = key => key.replace(/[^A-Za-z0-9_]/g, '_');
  const plainKey = /^\w*$/;
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

  /* Filters */

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

  /* Everything is frozen */

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

  /* The runner */

  const described = (error, checks) => {
    if (error === null) return ['memory'];
    if (typeof error !== 'object' || !(error instanceof Error)) {
      return ['thrown', text(error) || String(error), checks];
    }
    const name = String(error.name), message = String(error.message);
    return name === 'InternalError' ? ['memory'] : ['error', name, message, String(error.stack), checks];
  };
  return (compute, check) => (given, now, seed, seconds) => {
    let answer, checks = false, wrong = null;
    begin(seconds);
    try {
      at = now; seeded(seed);
      const data = parseJson(given), values = data[0], unset = data[1], self = data[2];
      for (let i = 0; i < unset.length; i++) values[unset[i]] = undefined;
      if (data[3]) adopted([values, self]);
      const result = apply(compute, self, values);
      if (typeof result === 'function' || typeof result === 'symbol')
        throw new TypeError('the result is a ' + typeof result + ', which is not a value');
      checks = check !== null;
      const valid = check === null || apply(check, self, [...values, result]);
      answer = stringify(result, counted);
      if (!valid) wrong = ['invalid', answer];
    } catch (error) {
      wrong = ['memory'];
      try { wrong = described(error, checks); } catch {}
    }
    if (stopped) wrong = ['stopped'];
    if (wrong !== null) throw stringify(wrong);
    return answer;
  };
})(globalThis)
