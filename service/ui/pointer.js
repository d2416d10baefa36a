// Input on the map: drag, wheel, keys, and the lasso.

const STEP = 60; // CSS pixels per arrow key
const STILL = 4; // largest movement of a click in pixels

/** Handles the input of `plane` until `signal` is aborted. Returns a function that draws the lasso. */
export function handle(plane, { signal, lasso, onhover, onpick, onlasso }) {
  const { canvas } = plane;
  let drag = null; // { x, y, moved } at the last event
  let line = null;

  const place = ({ offsetX, offsetY }) => [offsetX, offsetY];
  const on = (name, listener, options = {}) => canvas.addEventListener(name, listener, { ...options, signal });

  on("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    if (lasso.ariaPressed === "true" || event.shiftKey) line = [place(event)];
    else drag = { x: event.offsetX, y: event.offsetY, moved: 0 };
  });
  on("pointermove", (event) => {
    const [x, y] = place(event);
    if (line) {
      line.push([x, y]);
      plane.draw();
    } else if (drag) {
      plane.pan(x - drag.x, y - drag.y);
      drag = { x, y, moved: drag.moved + Math.abs(x - drag.x) + Math.abs(y - drag.y) };
    } else onhover(plane.near(x, y), x, y);
  });
  on("pointerup", (event) => {
    if (line) {
      const drawn = line;
      line = null;
      lasso.setAttribute("aria-pressed", "false");
      plane.draw();
      if (drawn.length > 2) onlasso(drawn);
    } else if (drag && drag.moved < STILL) {
      const index = plane.near(...place(event));
      if (index !== null) onpick(index);
    }
    drag = null;
  });
  on("pointerleave", () => onhover(null));
  on("wheel", (event) => {
    event.preventDefault();
    plane.zoom(Math.exp(-event.deltaY / 400), event.offsetX, event.offsetY);
  }, { passive: false });
  on("keydown", (event) => {
    const moves = { ArrowLeft: [STEP, 0], ArrowRight: [-STEP, 0], ArrowUp: [0, STEP], ArrowDown: [0, -STEP] };
    if (moves[event.key]) plane.pan(...moves[event.key]);
    else if (event.key === "+") plane.zoom(1.4);
    else if (event.key === "-") plane.zoom(1 / 1.4);
    else return;
    event.preventDefault();
  });

  return {
    drawLine(context) {
      if (!line) return;
      context.beginPath();
      line.forEach(([x, y]) => context.lineTo(x, y));
      Object.assign(context, { strokeStyle: getComputedStyle(canvas).color, lineWidth: 2 });
      context.setLineDash([6, 4]);
      context.stroke();
      context.setLineDash([]);
    },
  };
}
