"""Bounds for the built-in functions of JavaScript: what is run in a context after its clock is set up.

An engine that is told to stop looks at the clock only between its own steps, and only once in ten thousand of
them. Whatever takes long inside one built-in call (a search for a long text in a long text, a list that says
it has four thousand million items) would not be stopped. So each of those functions looks first at how much
it is about to do, and too much at once is a RangeError. The code of the expression itself looks at the clock
(`javascript_rewriting`); where a built-in function is called for each of many items, that is done here.
"""

from __future__ import annotations

MOST_ITEMS = 2_000_000
"""Of a list that a built-in function goes through."""
MOST_CHARS = 16_777_216
MOST_CHARS_OF_SLOW = 2_097_152
"""For functions that look each character up in a table."""
MOST_COMPARED = 1_000_000_000
"""Characters that a search may have to compare."""
MOST_PATTERN_CHARS = 10_000

CLOCK = """
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
  const watched = call => typeof call === 'function' && !isExtensible(call)
    ? function () { if ((__left -= 4) < 0) tick(); return apply(call, this, arguments); } : call;
"""

_LISTS = f"""
  const AP = Array.prototype;
  const sized = (self, name) => {{
    let size;
    if (isArray(self) || typeof self === 'string') size = self.length;
    else if (typeof self === 'object' && self !== null)
      size = getOwnPropertyDescriptor(self, 'length')?.value;
    if (typeof size !== 'number' || !(size >= 0)) throw new TypeError(name + '() is for lists');
    if (size > {MOST_ITEMS}) tooMany(name + '() on a list of so many items', size, {MOST_ITEMS});
    if ((__left -= size >>> 12) < 0) tick();
    return self;
  }};
  const ofList = {{}};
  for (const name of ['every', 'some', 'forEach', 'map', 'filter', 'find', 'findIndex', 'findLast',
    'findLastIndex', 'flatMap']) {{
    const call = AP[name];
    ofList[name] = {{ [name](each, self) {{
      return call.call(sized(this, name), watched(each), self);
    }} }}[name];
  }}
  for (const name of ['reduce', 'reduceRight']) {{
    const call = AP[name];
    ofList[name] = {{ [name](each, first) {{
      sized(this, name);
      return arguments.length > 1 ? call.call(this, watched(each), first) : call.call(this, watched(each));
    }} }}[name];
  }}
  for (const name of ['fill', 'join', 'toLocaleString', 'shift', 'unshift', 'reverse', 'toReversed', 'slice',
    'splice', 'toSpliced', 'copyWithin', 'with']) {{
    const call = AP[name];
    ofList[name] = {{ [name]() {{ __left--; return apply(call, sized(this, name), arguments); }} }}[name];
  }}
  for (const name of ['includes', 'indexOf', 'lastIndexOf']) {{
    const call = AP[name];
    ofList[name] = {{ [name](sought, from) {{
      sized(this, name);
      if (typeof sought !== 'string' || sought.length < 1000)
        return arguments.length > 1 ? call.call(this, sought, from) : call.call(this, sought);
      const same = [];
      for (let i = 0; i < this.length; i++) {{
        if ((__left -= sought.length >>> 12) < 0) tick();
        same[i] = this[i] === sought;
      }}
      return arguments.length > 1 ? call.call(same, true, from) : call.call(same, true);
    }} }}[name];
  }}
  const simple = list => {{
    for (let i = 0; i < list.length; i++) {{
      const item = list[i], kind = typeof item;
      if (kind !== 'number' && (kind !== 'string' || item.length > 1000)) return false;
    }}
    return true;
  }};
  const byText = (a, b) => {{
    a = String(a); b = String(b);
    if ((__left -= 1 + (Math.min(a.length, b.length) >>> 12)) < 0) tick();
    return a < b ? -1 : a > b ? 1 : 0;
  }};
  for (const name of ['sort', 'toSorted']) {{
    const call = AP[name];
    ofList[name] = {{ [name](compare) {{
      sized(this, name);
      return call.call(this, compare === undefined ? simple(this) ? undefined : byText : watched(compare));
    }} }}[name];
  }}
  const flattened = (made, list, depth) => {{
    sized(list, 'flat');
    for (let i = 0; i < list.length; i++) {{
      if (__left-- < 0) tick();
      const item = list[i];
      if (depth > 0 && isArray(item)) flattened(made, item, depth - 1); else if (i in list) made.push(item);
    }}
    return made;
  }};
  ofList.flat = {{ flat(depth = 1) {{ return flattened([], this, Number(depth) || 0); }} }}.flat;
  const concat = AP.concat;
  ofList.concat = {{ concat(...more) {{
    let size = sized(this, 'concat').length;
    for (const one of more) {{
      if (typeof one !== 'object' || one === null) continue;
      if (Symbol.isConcatSpreadable in one) throw new TypeError('concat() takes lists and other values');
      if (isArray(one)) size += sized(one, 'concat').length;
    }}
    if (size > {MOST_ITEMS}) tooMany('concat() to a list of so many items', size, {MOST_ITEMS});
    return apply(concat, this, more);
  }} }}.concat;
  put(AP, ofList);
  const from = Array.from;
  put(Array, {{ from(given, each, self) {{
    if (typeof given === 'object' && given !== null && !(Symbol.iterator in given))
      sized(given, 'Array.from');
    return each === undefined ? from.call(this, given) : from.call(this, given, watched(each), self);
  }} }});
"""

_ITERATED = f"""
  const IP = Iterator.prototype, drop = IP.drop;
  put(IP, {{ drop(count) {{
    count = Number(count);
    if (count > {MOST_ITEMS}) tooMany('drop() of so many items', count, {MOST_ITEMS});
    return drop.call(this, count);
  }} }});
  for (const name of ['every', 'some', 'forEach', 'map', 'filter', 'find', 'flatMap', 'reduce']) {{
    const call = IP[name];
    put(IP, {{ [name]: {{ [name](each, ...more) {{
      return call.call(this, watched(each), ...more);
    }} }}[name] }});
  }}
  for (const kind of [Map, Set]) {{
    const call = kind.prototype.forEach;
    put(kind.prototype, {{ forEach(each, self) {{ return call.call(this, watched(each), self); }} }});
  }}
  const members = Set.prototype.values;
  for (const name of ['union', 'intersection', 'difference', 'symmetricDifference', 'isSubsetOf',
    'isSupersetOf', 'isDisjointFrom']) {{
    const call = Set.prototype[name];
    put(Set.prototype, {{ [name]: {{ [name](other) {{
      return call.call(this, new Set(members.call(other)));
    }} }}[name] }});
  }}
  for (const kind of [Map, Object]) {{
    const call = kind.groupBy;
    put(kind, {{ groupBy(items, each) {{ return call.call(kind, items, watched(each)); }} }});
  }}
  const bind = Function.prototype.bind;
  put(Function.prototype, {{ bind() {{ return Object.freeze(apply(bind, this, arguments)); }} }});
"""

_TEXTS = f"""
  const SP = String.prototype;
  const textOf = (self, name, most) => {{
    if (self === undefined || self === null) throw new TypeError(name + '() is for texts');
    const text = typeof self === 'string' ? self : String(self);
    if (text.length > most) tooMany(name + '() on a text of so many characters', text.length, most);
    if ((__left -= text.length >>> 12) < 0) tick();
    return text;
  }};
  const searched = (self, sought, name) => {{
    const text = textOf(self, name, {MOST_CHARS});
    const work = typeof sought === 'string' ? text.length * sought.length : 0;
    if (work > {MOST_COMPARED}) tooMany(name + '() with so many comparisons', work, {MOST_COMPARED});
    if ((__left -= work / 65536) < 0) tick();
    return text;
  }};
  const ofText = {{}};
  for (const name of ['includes', 'indexOf', 'lastIndexOf', 'split']) {{
    const call = SP[name];
    ofText[name] = {{ [name](sought, more) {{
      if (typeof sought === 'string' && sought.length < 30
        && typeof this === 'string' && this.length < 100000) return call.call(this, sought, more);
      sought = sought === undefined || sought instanceof PlainPattern ? sought : String(sought);
      return call.call(searched(this, sought, name), sought, more);
    }} }}[name];
  }}
  const {{ replace, replaceAll }} = SP, seek = SP.indexOf;
  const expanded = (to, text, from, position) => to.replace(/\\$([$&`'])/g, (_, sign) => sign === '$' ? '$'
    : sign === '&' ? from : sign === '`' ? text.slice(0, position) : text.slice(position + from.length));
  ofText.replace = {{ replace(from, to) {{
    return typeof from === 'string' ? replace.call(searched(this, from, 'replace'), from, to)
      : replace.call(this, from, watched(to));
  }} }}.replace;
  ofText.replaceAll = {{ replaceAll(from, to) {{
    if (typeof from !== 'string') return replaceAll.call(this, from, watched(to));
    const text = searched(this, from, 'replaceAll');
    if (from === '') return replaceAll.call(textOf(text, 'replaceAll', {MOST_CHARS_OF_SLOW}), from, to);
    const calls = typeof to === 'function', fixed = calls ? '' : String(to);
    const plain = !calls && seek.call(fixed, '$') < 0;
    let made = '', start = 0;
    for (;;) {{
      if (__left-- < 0) tick();
      const position = seek.call(text, from, start);
      if (position < 0) return start === 0 ? text : made + text.slice(start);
      made += text.slice(start, position)
        + (plain ? fixed : calls ? String(to(from, position, text)) : expanded(fixed, text, from, position));
      start = position + from.length;
    }}
  }} }}.replaceAll;
  for (const name of ['toLowerCase', 'toUpperCase', 'toLocaleLowerCase', 'toLocaleUpperCase', 'normalize',
    'localeCompare']) {{
    const call = SP[name];
    ofText[name] = {{ [name](other) {{
      return call.call(textOf(this, name, {MOST_CHARS_OF_SLOW}),
        typeof other === 'string' ? textOf(other, name, {MOST_CHARS_OF_SLOW}) : other);
    }} }}[name];
  }}
  put(SP, ofText);
  const raw = String.raw;
  put(String, {{ raw(strings, ...values) {{
    if (!isArray(strings.raw)) throw new TypeError('String.raw() is for template literals');
    return raw({{ raw: sized(strings.raw, 'String.raw') }}, ...values);
  }} }});
  for (const name of ['encodeURIComponent', 'encodeURI', 'decodeURIComponent', 'decodeURI', 'btoa', 'atob',
    'parseFloat', 'parseInt']) {{
    const call = G[name];
    put(G, {{ [name]: {{ [name](given, other) {{
      return call(typeof given === 'string' ? textOf(given, name, {MOST_CHARS_OF_SLOW}) : given, other);
    }} }}[name] }});
  }}
"""

_NUMBERS = """
  for (const name of ['max', 'min', 'hypot']) {
    const call = Math[name];
    put(Math, { [name]: { [name](a, b) {
      if (arguments.length < 3) return apply(call, Math, arguments);
      const numbers = [];
      for (let i = 0; i < arguments.length; i++) {
        const given = arguments[i];
        if ((__left -= typeof given === 'string' ? 1 + (given.length >>> 12) : 1) < 0) tick();
        numbers[i] = Number(given);
      }
      return apply(call, Math, numbers);
    } }[name] });
  }
"""

_PATTERNS = f"""
  const PlainPattern = RegExp;
  const Pattern = {{ RegExp: function (pattern, flags) {{
    if (typeof pattern === 'string' && pattern.length > {MOST_PATTERN_CHARS})
      tooMany('a pattern of so many characters', pattern.length, {MOST_PATTERN_CHARS});
    return new.target ? construct(PlainPattern, [pattern, flags], new.target) : PlainPattern(pattern, flags);
  }} }}.RegExp;
  Pattern.prototype = PlainPattern.prototype;
  put(Pattern, {{ escape: PlainPattern.escape }});
  defineProperty(Pattern, Symbol.species, getOwnPropertyDescriptor(PlainPattern, Symbol.species));
  put(PlainPattern.prototype, {{ constructor: Pattern }});
  delete PlainPattern.prototype.compile;
  put(G, {{ RegExp: Pattern }});
"""

_JSON = """
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
"""

GUARDS = _PATTERNS + _LISTS + _ITERATED + _TEXTS + _NUMBERS + _JSON
