// Points on a canvas. They are drawn pixel by pixel, so 100,000 points need no GPU.

const SIDE = 65_535; // largest coordinate of the map
const CELLS = 256; // cells per side of the grid that finds the nearest point
const FARTHEST = 60; // largest zoom, relative to the whole map
const REACH = 12; // CSS pixels from the pointer to a point

export class Plane {
  /** x, y: Coordinates. colours: For each point an index of `palette`, whose entries are [r, g, b]. */
  constructor(canvas, { x, y, colours, palette }) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d", { willReadFrequently: true }); // The canvas stays in main memory.
    this.over = () => {}; // draws over the points
    this.paint(colours, palette);
    this.move(x, y);
    this.reset();
  }

  paint(colours, palette) {
    this.colours = colours;
    this.palette = Uint32Array.from(palette, ([r, g, b]) => (255 << 24) | (b << 16) | (g << 8) | r);
  }

  move(x, y) {
    this.x = x;
    this.y = y;
    this.#index();
    this.draw();
  }

  reset() {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    this.least = (Math.min(width, height) / SIDE) * 0.94;
    this.scale = this.least; // CSS pixels per unit
    this.left = (width - SIDE * this.scale) / 2;
    this.top = (height - SIDE * this.scale) / 2;
    this.draw();
  }

  pan(dx, dy) {
    this.left += dx;
    this.top += dy;
    this.draw();
  }

  /** Zooms around a position in CSS pixels. */
  zoom(factor, cx = this.canvas.clientWidth / 2, cy = this.canvas.clientHeight / 2) {
    const scale = Math.min(this.least * FARTHEST, Math.max(this.least / 2, this.scale * factor));
    this.left = cx - (cx - this.left) * (scale / this.scale);
    this.top = cy - (cy - this.top) * (scale / this.scale);
    this.scale = scale;
    this.draw();
  }

  place(at) {
    return [this.left + this.x[at] * this.scale, this.top + this.y[at] * this.scale];
  }

  /** Draws once in the next frame. */
  draw() {
    this.frame ??= requestAnimationFrame(() => { this.frame = null; this.#render(); });
  }

  #render() {
    const ratio = window.devicePixelRatio || 1;
    const { clientWidth, clientHeight } = this.canvas;
    const width = Math.round(clientWidth * ratio);
    const height = Math.round(clientHeight * ratio);
    if (!width || !height) return;
    if (this.image?.width !== width || this.image?.height !== height) {
      Object.assign(this.canvas, { width, height });
      this.image = this.context.createImageData(width, height);
      this.pixels = new Uint32Array(this.image.data.buffer);
    }
    this.pixels.fill(0);
    this.#points(width, height, ratio);
    this.context.setTransform(1, 0, 0, 1, 0, 0);
    this.context.putImageData(this.image, 0, 0);
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.over(this.context);
  }

  /** Returns the size of a point: two pixels, or more if few points are visible. */
  #points(width, height, ratio) {
    const { x, y, colours, palette, pixels } = this;
    const zoomed = this.scale / this.least;
    const few = Math.sqrt(20_000 / Math.max(1, x.length));
    const size = Math.max(2, Math.min(7, Math.round(2 * ratio * Math.min(few, 3) * zoomed ** 0.3)));
    const [scale, left, top] = [this.scale * ratio, this.left * ratio - size / 2, this.top * ratio - size / 2];
    for (let at = 0; at < x.length; at += 1) {
      const px = (left + x[at] * scale) | 0;
      const py = (top + y[at] * scale) | 0;
      if (px < 0 || py < 0 || px + size > width || py + size > height) continue;
      const colour = palette[colours[at]];
      let row = py * width + px;
      for (let line = 0; line < size; line += 1, row += width) {
        for (let column = 0; column < size; column += 1) pixels[row + column] = colour;
      }
    }
  }

  /** Builds the grid. `this.sorted` contains the points of each cell together. */
  #index() {
    const cellOf = (at) => (this.y[at] >> 8) * CELLS + (this.x[at] >> 8);
    const starts = new Uint32Array(CELLS * CELLS + 1);
    for (let at = 0; at < this.x.length; at += 1) starts[cellOf(at) + 1] += 1;
    for (let cell = 0; cell < CELLS * CELLS; cell += 1) starts[cell + 1] += starts[cell];
    const next = starts.slice();
    this.sorted = new Uint32Array(this.x.length);
    for (let at = 0; at < this.x.length; at += 1) this.sorted[next[cellOf(at)]++] = at;
    this.starts = starts;
  }

  /** Returns the point nearest to a position, or null. */
  near(cx, cy) {
    const [mx, my] = [(cx - this.left) / this.scale, (cy - this.top) / this.scale];
    const reach = REACH / this.scale;
    const cell = (value) => Math.max(0, Math.min(CELLS - 1, value >> 8));
    let best = null;
    let least = reach * reach;
    for (let row = cell(my - reach); row <= cell(my + reach); row += 1) {
      for (let index = this.starts[row * CELLS + cell(mx - reach)]; index < this.starts[row * CELLS + cell(mx + reach) + 1]; index += 1) {
        const at = this.sorted[index];
        const distance = (this.x[at] - mx) ** 2 + (this.y[at] - my) ** 2;
        if (distance < least) [best, least] = [at, distance];
      }
    }
    return best;
  }

  /** Returns the points inside a closed line of positions. */
  inside(line) {
    const corners = line.map(([cx, cy]) => [(cx - this.left) / this.scale, (cy - this.top) / this.scale]);
    return [...this.x.keys()].filter((at) => isInside(this.x[at], this.y[at], corners));
  }
}

/** Returns whether a ray from the point crosses the border an odd number of times. */
function isInside(x, y, corners) {
  let odd = false;
  for (let at = 0, before = corners.length - 1; at < corners.length; before = at, at += 1) {
    const [ax, ay] = corners[at];
    const [bx, by] = corners[before];
    if (ay > y !== by > y && x < ((bx - ax) * (y - ay)) / (by - ay) + ax) odd = !odd;
  }
  return odd;
}
