// QR codes (ISO/IEC 18004) of bytes, at error correction level L, versions 1 to 20 (858 bytes).
// A screen does not get scratched, so the lowest level is enough, and its modules are the largest.

const CHECK_BYTES = [7, 10, 15, 20, 26, 18, 20, 24, 30, 18, 20, 24, 26, 30, 22, 24, 28, 30, 28, 28];
const BLOCKS = [1, 1, 1, 1, 1, 2, 2, 2, 2, 4, 4, 4, 4, 4, 6, 6, 6, 6, 7, 8];
const LEVEL_L = 1;

// The mask that inverts every second module. Readers accept any of the eight masks.
const MASK = 0;

// Rows of booleans, true for dark, without the quiet zone; null if the text is too long.
export function qrMatrix(text) {
  const data = new TextEncoder().encode(text);
  const version = versionFor(data.length);
  if (version === null) return null;
  return draw(withCheckBytes(dataWords(data, version), version), version);
}

function rawBits(version) {
  let found = (16 * version + 128) * version + 64;
  if (version >= 2) {
    const align = Math.floor(version / 7) + 2;
    found -= (25 * align - 10) * align - 55;
    if (version >= 7) found -= 36;
  }
  return found;
}

function dataBytes(version) {
  return Math.floor(rawBits(version) / 8) - CHECK_BYTES[version - 1] * BLOCKS[version - 1];
}

function versionFor(length) {
  for (let version = 1; version <= BLOCKS.length; version++) {
    const header = 4 + (version < 10 ? 8 : 16);
    if (header + 8 * length <= 8 * dataBytes(version)) return version;
  }
  return null;
}

function dataWords(data, version) {
  const bits = [];
  const put = (value, length) => {
    for (let at = length - 1; at >= 0; at--) bits.push((value >> at) & 1);
  };
  put(4, 4);
  put(data.length, version < 10 ? 8 : 16);
  for (const each of data) put(each, 8);
  const room = 8 * dataBytes(version);
  put(0, Math.min(4, room - bits.length));
  put(0, (8 - (bits.length % 8)) % 8);
  for (let pad = 0xec; bits.length < room; pad ^= 0xec ^ 0x11) put(pad, 8);
  return Array.from({ length: bits.length / 8 }, (_, at) => bits.slice(8 * at, 8 * at + 8).reduce((sum, bit) => 2 * sum + bit, 0));
}

// Multiplication in GF(2^8) modulo x^8 + x^4 + x^3 + x^2 + 1.
function times(one, other) {
  let product = 0;
  for (let at = 7; at >= 0; at--) {
    product = (product << 1) ^ ((product >> 7) * 0x11d);
    product ^= ((other >> at) & 1) * one;
  }
  return product;
}

function divisor(degree) {
  const found = new Array(degree).fill(0);
  found[degree - 1] = 1;
  let root = 1;
  for (let turn = 0; turn < degree; turn++) {
    for (let at = 0; at < degree; at++) found[at] = times(found[at], root) ^ (found[at + 1] || 0);
    root = times(root, 2);
  }
  return found;
}

function remainder(data, by) {
  const found = new Array(by.length).fill(0);
  for (const each of data) {
    const factor = each ^ found.shift();
    found.push(0);
    by.forEach((value, at) => (found[at] ^= times(value, factor)));
  }
  return found;
}

// Split into blocks, add each block's check bytes, and interleave.
function withCheckBytes(words, version) {
  const [count, checks] = [BLOCKS[version - 1], CHECK_BYTES[version - 1]];
  const all = Math.floor(rawBits(version) / 8);
  const shortBlocks = count - (all % count);
  const shortLength = Math.floor(all / count) - checks;
  const by = divisor(checks);
  const blocks = [];
  let start = 0;
  for (let number = 0; number < count; number++) {
    const length = shortLength + (number < shortBlocks ? 0 : 1);
    const data = words.slice(start, start + length);
    blocks.push({ data, check: remainder(data, by) });
    start += length;
  }
  const found = [];
  for (let at = 0; at <= shortLength; at++) for (const each of blocks) if (at < each.data.length) found.push(each.data[at]);
  for (let at = 0; at < checks; at++) for (const each of blocks) found.push(each.check[at]);
  return found;
}

function draw(words, version) {
  const size = 17 + 4 * version;
  const matrix = Array.from({ length: size }, () => new Array(size).fill(false));
  const fixed = Array.from({ length: size }, () => new Array(size).fill(false));
  const set = (x, y, dark) => {
    matrix[y][x] = dark;
    fixed[y][x] = true;
  };
  drawFunctionPatterns(set, size, version);
  drawWords(words, matrix, fixed, size);
  return matrix;
}

function drawFunctionPatterns(set, size, version) {
  for (let at = 0; at < size; at++) {
    set(6, at, at % 2 === 0);
    set(at, 6, at % 2 === 0);
  }
  for (const [left, top] of [[3, 3], [size - 4, 3], [3, size - 4]]) {
    for (let dy = -4; dy <= 4; dy++) {
      for (let dx = -4; dx <= 4; dx++) {
        const [x, y, far] = [left + dx, top + dy, Math.max(Math.abs(dx), Math.abs(dy))];
        if (x >= 0 && x < size && y >= 0 && y < size) set(x, y, far !== 2 && far !== 4);
      }
    }
  }
  const places = alignment(version, size);
  const end = places.length - 1;
  places.forEach((x, column) => places.forEach((y, row) => {
    if ((column === 0 && row === 0) || (column === 0 && row === end) || (column === end && row === 0)) return;
    for (let dy = -2; dy <= 2; dy++) for (let dx = -2; dx <= 2; dx++) set(x + dx, y + dy, Math.max(Math.abs(dx), Math.abs(dy)) !== 1);
  }));
  drawFormat(set, size);
  if (version >= 7) drawVersion(set, size, version);
}

function alignment(version, size) {
  if (version === 1) return [];
  const count = Math.floor(version / 7) + 2;
  const step = Math.floor((version * 8 + count * 3 + 5) / (count * 4 - 4)) * 2;
  const found = [6];
  for (let at = size - 7; found.length < count; at -= step) found.splice(1, 0, at);
  return found;
}

function drawFormat(set, size) {
  const data = (LEVEL_L << 3) | MASK;
  let rest = data;
  for (let turn = 0; turn < 10; turn++) rest = (rest << 1) ^ ((rest >> 9) * 0x537);
  const bits = ((data << 10) | rest) ^ 0x5412;
  const bit = (at) => ((bits >> at) & 1) === 1;
  for (let at = 0; at <= 5; at++) set(8, at, bit(at));
  set(8, 7, bit(6));
  set(8, 8, bit(7));
  set(7, 8, bit(8));
  for (let at = 9; at < 15; at++) set(14 - at, 8, bit(at));
  for (let at = 0; at < 8; at++) set(size - 1 - at, 8, bit(at));
  for (let at = 8; at < 15; at++) set(8, size - 15 + at, bit(at));
  set(8, size - 8, true);
}

function drawVersion(set, size, version) {
  let rest = version;
  for (let turn = 0; turn < 12; turn++) rest = (rest << 1) ^ ((rest >> 11) * 0x1f25);
  const bits = (version << 12) | rest;
  for (let at = 0; at < 18; at++) {
    const dark = ((bits >> at) & 1) === 1;
    const [far, near] = [size - 11 + (at % 3), Math.floor(at / 3)];
    set(far, near, dark);
    set(near, far, dark);
  }
}

function drawWords(words, matrix, fixed, size) {
  let at = 0;
  for (let right = size - 1; right >= 1; right -= 2) {
    if (right === 6) right = 5;
    for (let step = 0; step < size; step++) {
      const y = ((right + 1) & 2) === 0 ? size - 1 - step : step;
      for (const x of [right, right - 1]) {
        if (fixed[y][x]) continue;
        const dark = at < 8 * words.length && ((words[at >> 3] >> (7 - (at & 7))) & 1) === 1;
        at += 1;
        matrix[y][x] = dark !== ((x + y) % 2 === 0);
      }
    }
  }
}
